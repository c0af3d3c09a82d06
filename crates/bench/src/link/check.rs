//! Compares an emulated link with its model, as a client on loopback sees it.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use super::{Counts, Link, Profile, model};
use crate::conditions::Conditions;
use crate::statistics::{Estimate, median_of};
use crate::table;

/// Number of connections that together fill the link.
const CONNECTIONS: u64 = 8;

/// Longest transfer for measuring a rate: this many seconds at the promised rate.
const FILLING: f64 = 1.5;
const FILLING_MAX: u64 = 512 << 20;

/// Size of a response that needs a few round trips of slow start, in bytes.
const ANSWER: u64 = 256 << 10;

/// Comparison of promise and measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Machine and programs of the measurement.
    pub conditions: Conditions,
    /// Name of the link's profile.
    pub profile: String,
    /// Results, one row for each promise.
    pub rows: Vec<Promise>,
    /// Traffic over the link during the check.
    pub counts: Counts,
    /// Processor seconds of the relay.
    pub cpu: f64,
}

/// A promised time and the measured one, in seconds.
#[derive(Clone, Debug, Serialize)]
pub struct Promise {
    /// Name of the timed operation.
    pub what: String,
    /// Time by the model.
    pub promised: f64,
    /// Time without the link.
    pub direct: Estimate,
    /// Time through the link.
    pub measured: Estimate,
}

/// Measures each promise `repetitions` times, in turns with and without the link.
pub fn check(profile: Profile, repetitions: usize) -> Result<Check> {
    let conditions = Conditions::now(&[]);
    let server = serve().context("can't serve on loopback")?;
    let link = Link::start(profile, server, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .context("can't start the link")?;
    let filling = ((FILLING * profile.rate as f64 / 8.0) as u64).min(FILLING_MAX);
    let answer = model::forecast(&profile, 1, ANSWER).as_secs_f64();
    let cases: [(String, f64, Case); 4] = [
        ("a byte on a fresh connection".into(), 2.0 * profile.round_trip.as_secs_f64(), &fresh),
        ("a byte on an open one".into(), profile.round_trip.as_secs_f64(), &open),
        (format!("{} KiB on a fresh one", ANSWER >> 10), answer, &|to| timed(|| ask(&mut dial(to)?, ANSWER))),
        (
            format!("{} MB over {CONNECTIONS} at once", filling / 1_000_000),
            model::forecast(&profile, CONNECTIONS, filling / CONNECTIONS).as_secs_f64(),
            &move |to| fill(to, filling),
        ),
    ];
    let mut rows = Vec::new();
    for (what, promised, case) in cases {
        let mut times = [Vec::new(), Vec::new()];
        for _ in 0..repetitions {
            for (times, to) in times.iter_mut().zip([server, link.address()]) {
                times.push(case(to).with_context(|| format!("{what} failed"))?.as_secs_f64());
            }
        }
        let [direct, measured] = times.map(|times| median_of(&times));
        rows.push(Promise { what, promised, direct, measured });
    }
    let counts = link.counts();
    let cpu = link.stop().context("the link failed")?.as_secs_f64();
    Ok(Check { conditions, profile: profile.to_string(), rows, counts, cpu })
}

type Case<'a> = &'a dyn Fn(SocketAddr) -> io::Result<Duration>;

fn timed(act: impl FnOnce() -> io::Result<()>) -> io::Result<Duration> {
    let start = Instant::now();
    act().map(|()| start.elapsed())
}

fn dial(to: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect(to)?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

fn fresh(to: SocketAddr) -> io::Result<Duration> {
    timed(|| ask(&mut dial(to)?, 1))
}

fn open(to: SocketAddr) -> io::Result<Duration> {
    let mut stream = dial(to)?;
    ask(&mut stream, 1)?;
    timed(|| ask(&mut stream, 1))
}

fn fill(to: SocketAddr, bytes: u64) -> io::Result<Duration> {
    timed(|| {
        std::thread::scope(|scope| {
            let each = bytes / CONNECTIONS;
            let asking: Vec<_> =
                (0..CONNECTIONS).map(|_| scope.spawn(move || ask(&mut dial(to)?, each))).collect();
            let answers =
                asking.into_iter().map(|one| one.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
            answers.collect()
        })
    })
}

/// Requests this many bytes and reads them.
fn ask(stream: &mut TcpStream, bytes: u64) -> io::Result<()> {
    stream.write_all(&bytes.to_le_bytes())?;
    let mut buffer = vec![0; 256 << 10];
    let mut left = bytes;
    while left > 0 {
        let most = usize::try_from(left).unwrap_or(usize::MAX).min(buffer.len());
        match stream.read(&mut buffer[..most])? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => left -= read as u64,
        }
    }
    Ok(())
}

/// Serves the requested number of bytes for each request, until the process ends.
fn serve() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    std::thread::Builder::new().name("check".into()).spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that leaves ends its thread.
            std::thread::spawn(move || answer(stream));
        }
    })?;
    Ok(address)
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let bytes = vec![7; 256 << 10];
    loop {
        let mut request = [0; 8];
        stream.read_exact(&mut request)?;
        let mut left = u64::from_le_bytes(request);
        while left > 0 {
            let some = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
            stream.write_all(&bytes[..some])?;
            left -= some as u64;
        }
    }
}

impl Check {
    /// Returns the results as a table for terminals.
    pub fn table(&self) -> String {
        let milliseconds = |seconds: f64| format!("{:.3}", seconds * 1e3);
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| {
                vec![
                    row.what.clone(),
                    String::new(),
                    milliseconds(row.promised),
                    milliseconds(row.measured.point),
                    format!("{}–{}", milliseconds(row.measured.low), milliseconds(row.measured.high)),
                    format!("{:.3}", row.measured.point / row.promised),
                    milliseconds(row.direct.point),
                ]
            })
            .collect();
        let header = ["", "", "promised ms", "measured ms", "95 %", "ratio", "no link ms"];
        format!(
            "{}\n{}\n\n{}\n{:.2} processor seconds of the relay for {} MB, {} stalls\n",
            self.profile,
            self.conditions.line(),
            table::layout(&header, &rows),
            self.cpu,
            (self.counts.up + self.counts.down) / 1_000_000,
            self.counts.losses
        )
    }
}
