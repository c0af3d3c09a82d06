//! Two methods of fetching through a proxy, measured in turns.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use esker_testkit::web::Web;
use serde::Serialize;

use crate::conditions::Conditions;
use crate::startup::status::cpu_of;
use crate::statistics::{Estimate, median, median_of, ratio_of};
use crate::sys::Used;
use crate::table;

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The repository's folder.
    pub repository: PathBuf,
    /// Number of clients.
    pub clients: usize,
    /// Approximate number of stored bytes that each client fetches.
    pub bytes: u64,
    /// Connections of a plain client, or of the plain fetcher.
    pub connections: usize,
    /// Number of repetitions.
    pub repetitions: usize,
    /// The binary of server and proxy.
    pub esker: String,
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
    /// Both methods.
    pub ways: Vec<Way>,
}

impl Report {
    /// Returns the results as a table for terminals.
    pub fn table(&self) -> String {
        let total = (self.bytes * self.clients as u64) as f64;
        let row = |way: &Way| [vec![way.name.clone(), String::new()], way.cells(total).to_vec()].concat();
        let rows: Vec<_> = self.ways.iter().map(row).collect();
        let header = ["", "", "real s", "95 %", "ratio", "95 %", "MB/s", "proxy CPU s", "own CPU s"];
        format!(
            "{} clients, each {} objects, {} MB\n{}\n\n{}",
            self.clients,
            self.objects,
            self.bytes / 1_000_000,
            self.conditions.line(),
            table::layout(&header, &rows)
        )
    }
}

/// Starts a squid in front of `server` with `cache` bytes of memory; returns its address.
pub(crate) fn squid(server: SocketAddr, cache: u64) -> (Web, SocketAddr) {
    let (host, port) = (server.ip(), server.port());
    let megabytes = cache.div_ceil(1 << 20);
    let squid = Web::squid_with(|folder, ports| {
        format!(
            "access_log none\n\
             http_port 127.0.0.1:{} accel no-vhost defaultsite={host}\n\
             cache_peer {host} parent {port} 0 no-query originserver\n\
             http_access allow all\n\
             cache_mem {megabytes} MB\n\
             maximum_object_size_in_memory 64 MB\n\
             maximum_object_size 64 MB\n\
             memory_replacement_policy heap GDSF\n\
             collapsed_forwarding on\n\
             max_filedescriptors 16384\n\
             coredump_dir {}\n\
             shutdown_lifetime 0 seconds",
            ports[0],
            folder.display()
        )
    });
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, squid.ports()[0]));
    (squid, address)
}

/// Results of one method.
#[derive(Clone, Debug, Serialize)]
pub struct Way {
    /// Name of the method.
    pub name: String,
    /// Seconds until all clients had all objects.
    pub real: Estimate,
    /// Time of the first method relative to the second.
    pub ratio: Option<Estimate>,
    /// Processor seconds of the proxy.
    pub proxy_cpu: f64,
    /// Processor seconds of the clients.
    pub own_cpu: f64,
    /// Seconds of each run.
    pub runs: Vec<f64>,
}

impl Way {
    /// Returns the cells of a table behind the name; `total` is the number of bytes that all clients fetched.
    fn cells(&self, total: f64) -> [String; 7] {
        let range = |estimate: &Estimate| format!("{:.3}–{:.3}", estimate.low, estimate.high);
        [
            format!("{:.3}", self.real.point),
            range(&self.real),
            self.ratio.map_or_else(|| "1".into(), |ratio| format!("{:.3}", ratio.point)),
            self.ratio.map_or_else(String::new, |ratio| range(&ratio)),
            format!("{:.0}", total / 1e6 / self.real.point),
            format!("{:.2}", self.proxy_cpu),
            format!("{:.2}", self.own_cpu),
        ]
    }
}

/// Runs of both methods.
#[derive(Default)]
pub(crate) struct Turns {
    reals: [Vec<f64>; 2],
    proxy_cpus: [Vec<f64>; 2],
    own_cpus: [Vec<f64>; 2],
}

impl Turns {
    /// Returns both methods in the order of a repetition: each comes first in every other one.
    pub(crate) fn order(repetition: usize) -> [usize; 2] {
        [repetition % 2, (repetition + 1) % 2]
    }

    /// Measures a run of a method through a proxy with this process id.
    pub(crate) fn run(&mut self, way: usize, proxy: u32, fetch: impl FnOnce() -> Result<()>) -> Result<()> {
        let before = cpu_of(proxy).context("the proxy is gone")?;
        let own_before = Used::now()?.processor;
        let start = Instant::now();
        fetch()?;
        self.reals[way].push(start.elapsed().as_secs_f64());
        self.own_cpus[way].push((Used::now()?.processor - own_before).as_secs_f64());
        self.proxy_cpus[way].push(cpu_of(proxy).context("the proxy is gone")? - before);
        Ok(())
    }

    /// Returns the results of both methods.
    pub(crate) fn ways(&self, names: [String; 2]) -> Vec<Way> {
        let ways = names.into_iter().enumerate().map(|(way, name)| Way {
            name,
            real: median_of(&self.reals[way]),
            ratio: (way == 0).then(|| ratio_of(&self.reals[0], &self.reals[1])),
            proxy_cpu: median(&self.proxy_cpus[way]),
            own_cpu: median(&self.own_cpus[way]),
            runs: self.reals[way].clone(),
        });
        ways.collect()
    }
}
