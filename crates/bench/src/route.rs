//! Cost of route selection per request: the same small object fetched through it and straight from its server,
//! alternately, over kept connections.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use esker_store::{
    Callback, Engine, EngineOptions, Fetch, Proxies, Servers, Source, StoreError, Stored, connect,
    connect_straight,
};
use esker_testkit::mirror::Mirror;
use serde::Serialize;

use crate::conditions::Conditions;
use crate::statistics::{Estimate, median_of, ratio_of};
use crate::table;

/// Results of the measurement.
#[derive(Debug, Serialize)]
pub struct Report {
    conditions: Conditions,
    /// Results: sequential requests, then concurrent ones.
    rows: Vec<Row>,
}

/// Results for one number of concurrent requests.
#[derive(Debug, Serialize)]
struct Row {
    /// Routes to choose from.
    ways: String,
    /// Number of concurrent requests.
    at_once: usize,
    /// Microseconds of a request directly to the server.
    straight_us: Estimate,
    /// Time with route selection relative to that without.
    ratio: Estimate,
}

/// Size of the measurement.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// Number of pairs of turns.
    pub turns: usize,
    /// Number of requests in a turn.
    pub requests: usize,
}

/// Size of the measured object in bytes, as small as many are.
const OBJECT: usize = 2000;
/// Number of concurrent requests in the second half.
const AT_ONCE: usize = 16;

/// Runs the measurement.
pub fn run(size: Size) -> Result<Report> {
    let mirror = Mirror::serve(std::env::temp_dir());
    mirror.make(|_| Some(vec![7; OBJECT]));
    let engine = Engine::start(EngineOptions::default())?;
    let url = mirror.url("repo");
    let straight = connect_straight(&engine, &url)?;
    let mut rows = Vec::new();
    for (ways, servers) in [("one server", Servers::direct(&url)), ("four servers, five exits", many(&url)?)]
    {
        let routed = connect(&engine, servers)?;
        for at_once in [1, AT_ONCE] {
            let (mut through, mut plain) = (Vec::new(), Vec::new());
            // Connections, and whatever else is made once.
            turn(&straight, size.requests, at_once)?;
            turn(&routed, size.requests, at_once)?;
            for _ in 0..size.turns {
                plain.push(turn(&straight, size.requests, at_once)?);
                through.push(turn(&routed, size.requests, at_once)?);
            }
            rows.push(Row {
                ways: ways.to_owned(),
                at_once,
                straight_us: median_of(&plain),
                ratio: ratio_of(&through, &plain),
            });
        }
    }
    Ok(Report { conditions: Conditions::now(&[]), rows })
}

/// Returns settings with many routes: one server that replies among others, behind groups of proxies that don't work.
fn many(url: &str) -> Result<Servers> {
    let mut servers = Servers::direct(url);
    servers.urls.extend((1..4).map(|number| format!("http://127.0.0.1:{number}/repo")));
    servers.proxies = Proxies::parse("DIRECT;127.0.0.1:5|127.0.0.1:6;127.0.0.1:7|127.0.0.1:8", None)?;
    Ok(servers)
}

/// Returns the microseconds of a request.
fn turn(source: &Arc<dyn Source>, requests: usize, at_once: usize) -> Result<f64> {
    let began = Instant::now();
    let (sender, receiver) = std::sync::mpsc::channel();
    let ask = |number: usize| {
        let sender = sender.clone();
        let done = Callback::new(move |outcome: Result<Stored, StoreError>| {
            // After a failure the receiver is gone.
            let _ = sender.send(outcome.map(|stored| stored.len()));
        });
        source.fetch(Fetch::new(format!("data/{number}"), "an object", OBJECT as u64), done);
    };
    (0..at_once.min(requests)).for_each(&ask);
    for number in at_once..requests + at_once {
        let len = receiver.recv_timeout(Duration::from_secs(60)).context("no answer came")??;
        ensure!(len == OBJECT as u64, "another object came");
        if number < requests {
            ask(number);
        }
        if number + 1 == requests + at_once.min(requests) {
            break;
        }
    }
    Ok(began.elapsed().as_secs_f64() * 1e6 / requests as f64)
}

impl Report {
    /// Returns the results as a table for terminals.
    pub fn table(&self) -> String {
        let header = ["Way chosen from", "At once", "Straight", "Through the choice"];
        let row = |row: &Row| {
            let Estimate { point, low, high } = row.ratio;
            let straight = format!("{:.1} us", row.straight_us.point);
            vec![
                row.ways.clone(),
                row.at_once.to_string(),
                straight,
                format!("{point:.3} ({low:.3}–{high:.3})"),
            ]
        };
        let rows: Vec<Vec<String>> = self.rows.iter().map(row).collect();
        format!("{}\n\n{}", self.conditions.line(), table::layout(&header, &rows))
    }
}
