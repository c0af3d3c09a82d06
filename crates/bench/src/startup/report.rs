//! Results as a table and JSON.

use std::collections::BTreeMap;

use serde::Serialize;

use super::disk::DiskReads;
use super::{Run, Series, Setting, State};
use crate::conditions::Conditions;
use crate::link::Counts;
use crate::statistics::{Estimate, median, median_of, ratio_of};
use crate::table;

/// A whole comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The results.
    #[serde(flatten)]
    pub results: Results,
    /// Results, one row for each root and setting.
    pub rows: Vec<Row>,
}

/// Content of a result file: all that can't be computed again.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    /// Machine and programs of the measurement.
    pub conditions: Conditions,
    /// The command, with `{root}` for the root.
    pub command: Vec<String>,
    /// Traffic of a client that fetches nothing ahead, if that was measured.
    pub needed: Option<Counts>,
    /// All single runs.
    pub series: Vec<Series>,
}

impl From<Results> for Report {
    fn from(results: Results) -> Self {
        let Results { needed, series, .. } = &results;
        let rows = series.iter().map(|one| row(one, series, needed.as_ref())).collect();
        Self { results, rows }
    }
}

/// Medians over the runs of one root in one setting.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Setting of the runs.
    #[serde(flatten)]
    pub setting: Setting,
    /// Name of the root.
    pub root: String,
    /// Number of runs.
    pub runs: usize,
    /// Seconds on the clock.
    pub real: Estimate,
    /// Time relative to the first root in the same setting.
    pub ratio: Option<Estimate>,
    /// Time relative to the first root's hot median, if that was measured.
    pub to_hot: Option<f64>,
    /// Processor seconds in user mode.
    pub user: f64,
    /// Processor seconds in the kernel.
    pub sys: f64,
    /// Processor time per time on the clock.
    pub cpu_percent: f64,
    /// Minimum percentage of the time in which no processor worked for the command.
    pub blocked_percent: f64,
    /// Seconds for mounting before a run.
    pub mount: Option<f64>,
    /// Processor seconds of the client's process.
    pub daemon: Option<f64>,
    /// Processor seconds of the whole machine during the run.
    pub machine: Option<f64>,
    /// Processor seconds of command and client together.
    pub cpu: Estimate,
    /// Processor time relative to a single process of the command in the same state.
    pub cpu_to_one: Option<f64>,
    /// Traffic over the link.
    pub traffic: Option<Traffic>,
    /// Disk reads of cold and warm runs.
    pub disk: Option<FromDisk>,
    /// Number of discarded warm runs, because part of their working set was in memory before.
    pub void: usize,
    /// Milliseconds that the client's threads spent on requests of each kind, and the number of requests.
    pub callbacks: BTreeMap<String, (f64, f64)>,
}

/// Medians of disk reads.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct FromDisk {
    /// Number of requests.
    pub requests: f64,
    /// Bytes read from the device.
    pub bytes: f64,
    /// Bytes that were in memory after a warm run, in known files.
    pub in_memory: Option<f64>,
}

/// Medians of the traffic over a link, in bytes unless stated otherwise.
#[derive(Clone, Debug, Serialize)]
pub struct Traffic {
    /// Number of connections.
    pub connections: f64,
    /// Number of requests.
    pub requests: f64,
    /// Bytes received, including heads of replies.
    pub fetched: f64,
    /// Bytes of objects that were used, if the client reports them.
    pub used: Option<f64>,
    /// Bytes of objects that were not used: as the client reports, or beyond what is needed.
    pub wasted: Option<f64>,
}

impl Report {
    /// Returns the results as a table for terminals.
    pub fn table(&self) -> String {
        let header = [
            "setting",
            "root",
            "real s",
            "95 %",
            "ratio",
            "95 %",
            "to hot",
            "user",
            "sys",
            "CPU %",
            "blocked %",
            "mount s",
            "daemon",
            "machine",
            "CPU s",
            "to one",
            "callbacks ms",
        ];
        let rows: Vec<Vec<String>> = self.rows.iter().map(Row::cells).collect();
        let mut text = format!(
            "{}\n{}\n\n{}",
            self.results.command.join(" "),
            self.results.conditions.line(),
            table::layout(&header, &rows)
        );
        text += &self.traffic_table();
        text += &self.disk_table();
        for row in self.rows.iter().filter(|row| !row.callbacks.is_empty()) {
            let mut causes: Vec<_> = row.callbacks.iter().collect();
            causes.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
            let causes: Vec<String> = causes
                .iter()
                .map(|(name, (count, busy))| format!("{name} {busy:.2} ms in {count:.0}"))
                .collect();
            text += &format!("\n{}, {}: {}", row.setting, row.root, causes.join(", "));
        }
        text + "\n"
    }

    /// Returns the table of traffic; empty if there were no links.
    fn traffic_table(&self) -> String {
        let megabytes = |bytes: f64| format!("{:.1}", bytes / 1e6);
        let needed = self.results.needed.map(|counts| counts.down as f64);
        let cells = |row: &Row| {
            let traffic = row.traffic.as_ref()?;
            Some(vec![
                row.setting.to_string(),
                row.root.clone(),
                format!("{:.0}", traffic.connections),
                format!("{:.0}", traffic.requests),
                needed.map(megabytes).unwrap_or_default(),
                megabytes(traffic.fetched),
                traffic.used.map(megabytes).unwrap_or_default(),
                traffic.wasted.map(megabytes).unwrap_or_default(),
                needed.map(|needed| format!("{:.3}", traffic.fetched / needed)).unwrap_or_default(),
            ])
        };
        let rows: Vec<_> = self.rows.iter().filter_map(cells).collect();
        if rows.is_empty() {
            return String::new();
        }
        let header =
            ["over the link", "", "conns", "requests", "needed MB", "fetched", "used", "wasted", "ratio"];
        format!("\n{}", table::layout(&header, &rows))
    }

    /// Returns the table of disk reads of cold and warm runs; empty if there were none.
    fn disk_table(&self) -> String {
        let megabytes = |bytes: f64| format!("{:.1}", bytes / 1e6);
        let cells = |row: &Row| {
            let disk = row.disk?;
            let cells = [
                row.setting.to_string(),
                row.root.clone(),
                format!("{:.0}", disk.requests),
                megabytes(disk.bytes),
                disk.in_memory.map(megabytes).unwrap_or_default(),
                row.void.to_string(),
            ];
            Some(cells.to_vec())
        };
        let rows: Vec<_> = self.rows.iter().filter_map(cells).collect();
        if rows.is_empty() {
            return String::new();
        }
        let header = ["from the disk", "", "requests", "MB", "in memory", "void runs"];
        format!("\n{}", table::layout(&header, &rows))
    }
}

/// Returns the series to compare with: the first root in the same setting, unless `one` is that itself.
fn baseline<'a>(all: &'a [Series], one: &Series) -> Option<&'a Series> {
    all.iter().find(|other| other.setting == one.setting).filter(|other| other.root != one.root)
}

fn traffic(series: &Series, needed: Option<&Counts>) -> Option<Traffic> {
    let counts: Vec<Counts> = series.runs.iter().filter_map(|run| run.traffic).collect();
    if counts.is_empty() {
        return None;
    }
    let of = |value: &dyn Fn(&Counts) -> u64| {
        median(&counts.iter().map(|counts| value(counts) as f64).collect::<Vec<_>>())
    };
    let fetched = of(&|counts| counts.down);
    let told: Vec<_> = series.runs.iter().filter_map(|run| run.fetched).collect();
    let told = |value: &dyn Fn(&super::status::Fetched) -> u64| {
        let values: Vec<f64> = told.iter().map(|fetched| value(fetched) as f64).collect();
        (!values.is_empty()).then(|| median(&values))
    };
    Some(Traffic {
        connections: of(&|counts| counts.connections),
        requests: of(&|counts| counts.requests),
        fetched,
        used: told(&|fetched| fetched.used()),
        wasted: told(&|fetched| fetched.wasted())
            .or_else(|| needed.map(|needed| (fetched - needed.down as f64).max(0.0))),
    })
}

fn from_disk(series: &Series) -> Option<FromDisk> {
    let of = |value: &dyn Fn(DiskReads) -> Option<u64>| {
        let runs = series.runs.iter().filter_map(|run| run.disk);
        let values: Vec<f64> = runs.filter_map(value).map(|value| value as f64).collect();
        (!values.is_empty()).then(|| median(&values))
    };
    Some(FromDisk {
        requests: of(&|reads| Some(reads.requests))?,
        bytes: of(&|reads| Some(reads.device))?,
        in_memory: of(&|reads| reads.working_set),
    })
}

fn row(series: &Series, all: &[Series], needed: Option<&Counts>) -> Row {
    let baseline = baseline(all, series);
    let hot = all.iter().find(|other| {
        other.setting.state == State::Hot && other.setting.processes == series.setting.processes
    });
    let of = |value: &dyn Fn(&Run) -> f64| median(&series.runs.iter().map(value).collect::<Vec<_>>());
    let mounts: Vec<f64> = series.runs.iter().filter_map(|run| run.mount).collect();
    let names = series.runs.iter().flat_map(|run| run.callbacks.0.keys());
    let callbacks = names
        .map(|name| {
            let callback = |run: &Run| run.callbacks.0.get(name).copied().unwrap_or_default();
            let count = of(&|run| callback(run).requests as f64);
            (name.clone(), (count, of(&|run| callback(run).busy_us as f64 / 1000.0)))
        })
        .collect();
    let cpu = median_of(&series.cpus());
    let one = all.iter().filter(|_| series.setting.processes > 1).find(|other| {
        let setting = Setting { processes: 1, ..series.setting.clone() };
        other.root == series.root && other.setting == setting
    });
    let daemons: Vec<f64> = series.runs.iter().filter_map(|run| run.daemon).collect();
    let machines: Vec<f64> = series.runs.iter().filter_map(|run| run.machine).collect();
    let real = median_of(&series.reals());
    Row {
        setting: series.setting.clone(),
        root: series.root.clone(),
        runs: series.runs.len(),
        real,
        ratio: baseline.map(|baseline| ratio_of(&series.reals(), &baseline.reals())),
        to_hot: hot.map(|hot| real.point / median(&hot.reals())),
        user: of(&|run| run.cost.user),
        sys: of(&|run| run.cost.sys),
        cpu_percent: of(&|run| run.cost.cpu_percent()),
        blocked_percent: of(&|run| run.cost.blocked_percent()),
        mount: (!mounts.is_empty()).then(|| median(&mounts)),
        daemon: (!daemons.is_empty()).then(|| median(&daemons)),
        machine: (!machines.is_empty()).then(|| median(&machines)),
        cpu,
        cpu_to_one: one.map(|one| cpu.point / median(&one.cpus())),
        traffic: traffic(series, needed),
        disk: from_disk(series),
        void: series.void,
        callbacks,
    }
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let range = |estimate: &Estimate| format!("{:.3}–{:.3}", estimate.low, estimate.high);
        let busy: f64 = self.callbacks.values().map(|(_, busy)| busy).sum();
        vec![
            self.setting.to_string(),
            self.root.clone(),
            format!("{:.3}", self.real.point),
            range(&self.real),
            self.ratio.map_or_else(|| "1".into(), |ratio| format!("{:.3}", ratio.point)),
            self.ratio.map_or_else(String::new, |ratio| range(&ratio)),
            self.to_hot.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            format!("{:.3}", self.user),
            format!("{:.3}", self.sys),
            format!("{:.0}", self.cpu_percent),
            format!("{:.0}", self.blocked_percent),
            self.mount.map_or_else(String::new, |mount| format!("{mount:.3}")),
            self.daemon.map_or_else(String::new, |daemon| format!("{daemon:.2}")),
            self.machine.map_or_else(String::new, |machine| format!("{machine:.2}")),
            format!("{:.2}", self.cpu.point),
            self.cpu_to_one.map_or_else(String::new, |ratio| format!("{ratio:.2}")),
            if self.callbacks.is_empty() { String::new() } else { format!("{busy:.1}") },
        ]
    }
}
