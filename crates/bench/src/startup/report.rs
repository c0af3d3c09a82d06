//! What was measured, as a table, JSON and a plot.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Run, Series, State};
use crate::conditions::Conditions;
use crate::plot::{self, Bar};
use crate::statistics::{Estimate, median, median_of, ratio_of};
use crate::table;

/// A whole comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Where and with what.
    pub conditions: Conditions,
    /// The command, with `{root}` for the root.
    pub command: Vec<String>,
    /// One row a root and state.
    pub rows: Vec<Row>,
    /// Every single run.
    pub series: Vec<Series>,
}

/// Medians over the runs of one root in one state.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// How near things were.
    pub state: State,
    /// The root's name.
    pub root: String,
    /// How many runs.
    pub runs: usize,
    /// Seconds on the clock.
    pub real: Estimate,
    /// To the first root in the same state.
    pub ratio: Option<Estimate>,
    /// Processor seconds in user mode.
    pub user: f64,
    /// Processor seconds in the kernel.
    pub sys: f64,
    /// Processor time per time on the clock.
    pub cpu_percent: f64,
    /// Time in which no processor worked for the command, at least.
    pub blocked_percent: f64,
    /// Seconds that mounting took before a run.
    pub mount: Option<f64>,
    /// Milliseconds that the client's threads spent on requests of each kind, and how many there were.
    pub callbacks: BTreeMap<String, (f64, f64)>,
}

impl Report {
    /// Sums up.
    pub fn new(conditions: Conditions, command: Vec<String>, series: Vec<Series>) -> Self {
        let rows = series.iter().map(|one| row(one, baseline(&series, one))).collect();
        Self { conditions, command, rows, series }
    }

    /// For terminals.
    pub fn table(&self) -> String {
        let header = [
            "state",
            "root",
            "real s",
            "95 %",
            "ratio",
            "95 %",
            "user",
            "sys",
            "CPU %",
            "blocked %",
            "mount s",
            "callbacks ms",
        ];
        let rows: Vec<Vec<String>> = self.rows.iter().map(Row::cells).collect();
        let mut text = format!(
            "{}\n{}\n\n{}",
            self.command.join(" "),
            self.conditions.line(),
            table::layout(&header, &rows)
        );
        for row in self.rows.iter().filter(|row| !row.callbacks.is_empty()) {
            let mut causes: Vec<_> = row.callbacks.iter().collect();
            causes.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
            let causes: Vec<String> = causes
                .iter()
                .map(|(name, (count, busy))| format!("{name} {busy:.2} ms in {count:.0}"))
                .collect();
            text += &format!("\n{:?}, {}: {}", row.state, row.root, causes.join(", "));
        }
        text + "\n"
    }

    /// For documents.
    pub fn svg(&self) -> String {
        let bars: Vec<Bar> = self
            .rows
            .iter()
            .map(|row| Bar {
                label: row.root.clone(),
                group: format!("{:?}", row.state),
                value: row.real,
                note: match &row.ratio {
                    Some(ratio) => format!("{:.3} s, {:.3} × native", row.real.point, ratio.point),
                    None => format!("{:.3} s", row.real.point),
                },
            })
            .collect();
        plot::bars(&self.command.join(" "), &bars)
    }
}

/// What a series is compared with: the first root in the same state, unless it is that itself.
fn baseline<'a>(all: &'a [Series], one: &Series) -> Option<&'a Series> {
    all.iter().find(|other| other.state == one.state).filter(|other| other.root != one.root)
}

fn row(series: &Series, baseline: Option<&Series>) -> Row {
    let of = |value: &dyn Fn(&Run) -> f64| median(&series.runs.iter().map(value).collect::<Vec<_>>());
    let real = |series: &Series| series.runs.iter().map(|run| run.cost.real).collect::<Vec<_>>();
    let mounts: Vec<f64> = series.runs.iter().filter_map(|run| run.mount).collect();
    let names = series.runs.iter().flat_map(|run| run.callbacks.0.keys());
    let callbacks = names
        .map(|name| {
            let callback = |run: &Run| run.callbacks.0.get(name).copied().unwrap_or_default();
            let count = of(&|run| callback(run).requests as f64);
            (name.clone(), (count, of(&|run| callback(run).busy_us as f64 / 1000.0)))
        })
        .collect();
    Row {
        state: series.state,
        root: series.root.clone(),
        runs: series.runs.len(),
        real: median_of(&real(series)),
        ratio: baseline.map(|baseline| ratio_of(&real(series), &real(baseline))),
        user: of(&|run| run.cost.user),
        sys: of(&|run| run.cost.sys),
        cpu_percent: of(&|run| run.cost.cpu_percent()),
        blocked_percent: of(&|run| run.cost.blocked_percent()),
        mount: (!mounts.is_empty()).then(|| median(&mounts)),
        callbacks,
    }
}

impl Row {
    fn cells(&self) -> Vec<String> {
        let range = |estimate: &Estimate| format!("{:.3}–{:.3}", estimate.low, estimate.high);
        let busy: f64 = self.callbacks.values().map(|(_, busy)| busy).sum();
        vec![
            format!("{:?}", self.state).to_lowercase(),
            self.root.clone(),
            format!("{:.3}", self.real.point),
            range(&self.real),
            self.ratio.map_or_else(|| "1".into(), |ratio| format!("{:.3}", ratio.point)),
            self.ratio.map_or_else(String::new, |ratio| range(&ratio)),
            format!("{:.3}", self.user),
            format!("{:.3}", self.sys),
            format!("{:.0}", self.cpu_percent),
            format!("{:.0}", self.blocked_percent),
            self.mount.map_or_else(String::new, |mount| format!("{mount:.3}")),
            if self.callbacks.is_empty() { String::new() } else { format!("{busy:.1}") },
        ]
    }
}
