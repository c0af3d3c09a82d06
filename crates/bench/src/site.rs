//! Cold start of a site: many plain clients fetch the same objects at the same time through an empty cache.
//!
//! A plain client fetches all objects in one order over a few connections, each request after the answer to the one before.
//! Each run starts a proxy with an empty cache in front of `esker serve`: `esker proxy`, and squid, in turns.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use esker_testkit::web::Web;
use serde_json::Value;
use tempfile::TempDir;

use crate::child::Ending;
use crate::clients::{Object, choose, plain, raise_descriptor_limit};
use crate::conditions::Conditions;
use crate::proxied::{self, Plan, Report, Turns};
use crate::serve::{self, Served};

/// A running proxy with an empty cache.
enum Running {
    Squid(Web, SocketAddr),
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
            let (squid, address) = proxied::squid(server, 2 * bytes + (64 << 20));
            return Ok(Self::Squid(squid, address));
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
            Self::Squid(_, address) | Self::Esker { address, .. } => *address,
        }
    }

    fn pid(&self) -> u32 {
        match self {
            Self::Squid(squid, _) => squid.pid(),
            Self::Esker { child, .. } => child.pid(),
        }
    }
}

/// Measures both proxies in turns.
pub fn run(plan: &Plan, mut say: impl FnMut(&str)) -> Result<Report> {
    raise_descriptor_limit()?;
    let conditions = Conditions::now(&[&plan.esker, "squid"]);
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
