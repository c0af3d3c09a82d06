//! Two methods of fetching through a proxy, measured in turns.

use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::startup::status::cpu_of;
use crate::statistics::{Estimate, median, median_of, ratio_of};
use crate::sys::Used;

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
    /// Header of [`Self::cells`], but for the processor time of the clients.
    pub(crate) const HEADER: [&str; 6] = ["real s", "95 %", "ratio", "95 %", "MB/s", "proxy CPU s"];

    /// Returns the cells of a table behind the name; `total` is the number of bytes that all clients fetched.
    pub(crate) fn cells(&self, total: f64) -> [String; 7] {
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
