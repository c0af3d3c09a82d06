//! Cold start of a site: many plain clients fetch the same objects at the same time through an empty cache.
//!
//! A plain client fetches all objects in one order over a few connections, each request after the answer to the one before.
//! Each run starts a proxy with an empty cache in front of `esker serve`: `esker proxy`, and squid, in turns.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::Value;
use tempfile::TempDir;

use crate::child::Ending;
use crate::clients::{Object, choose, plain, raise_descriptor_limit};
use crate::conditions::Conditions;
use crate::proxied::{Turns, Way};
use crate::serve::{self, Served};
use crate::squid::Squid;
use crate::table;

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The repository's folder.
    pub repository: PathBuf,
    /// Number of clients.
    pub clients: usize,
    /// Number of connections of each client.
    pub connections: usize,
    /// Approximate number of stored bytes that each client fetches.
    pub bytes: u64,
    /// Number of repetitions.
    pub repetitions: usize,
    /// The binary of server and proxy.
    pub esker: String,
    /// Path of the squid binary.
    pub squid: PathBuf,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Machine and programs.
    pub conditions: Conditions,
    /// Number of clients.
    pub clients: usize,
    /// Number of objects that each client fetched.
    pub objects: usize,
    /// Stored bytes that each client fetched.
    pub bytes: u64,
    /// The two proxies.
    pub ways: Vec<Way>,
}

/// A running proxy with an empty cache.
enum Running {
    Squid(Squid),
    Esker {
        child: Ending,
        address: SocketAddr,
        /// The folder of the cache, removed when dropped.
        #[expect(dead_code, reason = "it is held, not read")]
        folder: TempDir,
    },
}

impl Running {
    fn start(way: usize, plan: &Plan, server: &Served, bytes: u64) -> Result<Self> {
        let server = serve::address(&server.url)?;
        if way == 1 {
            return Ok(Self::Squid(Squid::start(&plan.squid, server, 2 * bytes + (64 << 20))?));
        }
        let folder = tempfile::Builder::new().prefix("esker-bench-").tempdir()?;
        let mut command = Command::new(&plan.esker);
        command.args(["proxy", "--listen", "127.0.0.1:0", "--json", "--upstream"]);
        command.arg(format!("http://{server}")).arg("--cache").arg(folder.path().join("cache"));
        serve::as_this_user(&mut command);
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn();
        let mut child = Ending(child.with_context(|| format!("can't start {}", plan.esker))?);
        let mut line = String::new();
        BufReader::new(child.0.stdout.take().context("no pipe")?).read_line(&mut line)?;
        let ready: Value = serde_json::from_str(&line).context("`esker proxy` didn't become ready")?;
        let address = serve::address(ready["url"].as_str().context("no address")?)?;
        Ok(Self::Esker { child, address, folder })
    }

    fn address(&self) -> SocketAddr {
        match self {
            Self::Squid(squid) => squid.address,
            Self::Esker { address, .. } => *address,
        }
    }

    fn pid(&self) -> u32 {
        match self {
            Self::Squid(squid) => squid.pid(),
            Self::Esker { child, .. } => child.pid(),
        }
    }
}

/// Measures both proxies in turns.
pub fn run(plan: &Plan, mut say: impl FnMut(&str)) -> Result<Report> {
    raise_descriptor_limit()?;
    let squid_program = plan.squid.to_string_lossy().into_owned();
    let conditions = Conditions::now(&[&plan.esker, &squid_program]);
    let objects = choose(&plan.repository, plan.bytes)?;
    let bytes: u64 = objects.iter().map(|object| object.bytes).sum();
    let served = Served::start(&plan.esker, &plan.repository)?;
    let mut turns = Turns::default();
    for repetition in 0..plan.repetitions {
        say(&format!("{} of {}", repetition + 1, plan.repetitions));
        for way in Turns::order(repetition) {
            let proxy = Running::start(way, plan, &served, bytes)?;
            let url = serve::at(&served.url, proxy.address())?;
            turns.run(way, proxy.pid(), || clients(proxy.address(), &url, &objects, plan))?;
        }
    }
    let ways = turns.ways(["esker proxy", "squid"].map(str::to_owned));
    Ok(Report { conditions, clients: plan.clients, objects: objects.len(), bytes, ways })
}

/// Runs all clients at once until each has all objects.
fn clients(proxy: SocketAddr, url: &str, objects: &[Object], plan: &Plan) -> Result<()> {
    std::thread::scope(|scope| {
        let client = || plain::fetch(proxy, url, objects, 1, plan.connections);
        let clients: Vec<_> = (0..plan.clients).map(|_| scope.spawn(client)).collect();
        let ended =
            clients.into_iter().map(|one| one.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        ended.collect()
    })
}

impl Report {
    /// Returns the results as a table for terminals.
    pub fn table(&self) -> String {
        let total = (self.bytes * self.clients as u64) as f64;
        let row = |way: &Way| [vec![way.name.clone()], way.cells(total).to_vec()].concat();
        let rows: Vec<_> = self.ways.iter().map(row).collect();
        let header = [&[""], &Way::HEADER[..], &["client CPU s"]].concat();
        format!(
            "{} clients, each {} objects, {} MB, through an empty cache\n{}\n\n{}",
            self.clients,
            self.objects,
            self.bytes / 1_000_000,
            self.conditions.line(),
            table::layout(&header, &rows)
        )
    }
}
