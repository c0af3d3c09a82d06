//! Rows of the result.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Scenario;
use crate::measure::Cost;
use crate::statistics::{Estimate, median, median_of, ratio_of};
use crate::table;

/// Name of the fact with the number of revisions in an hour.
pub(super) const REVISIONS_AN_HOUR: &str = "revisions an hour";
/// Name of the fact with the bytes of stored objects.
pub(super) const STORED: &str = "bytes stored";
/// Name of the fact with the number of deleted objects.
pub(super) const DELETED: &str = "objects deleted";

/// Results of one way to do something.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Part of the measurement.
    pub scenario: Scenario,
    /// Name of the way.
    pub name: String,
    /// Seconds on the clock.
    pub real: Estimate,
    /// The reference's time divided by this one.
    pub speed: Option<Estimate>,
    /// Processor time in seconds.
    pub cpu: f64,
    /// Largest resident size of one process, in bytes.
    pub peak: u64,
    /// Further figures by name.
    pub facts: BTreeMap<&'static str, f64>,
    /// Cost of each run.
    pub runs: Vec<Cost>,
}

/// Runs of one way to do something.
#[derive(Debug)]
pub(super) struct Way {
    name: String,
    is_base: bool,
    pub(super) runs: Vec<Cost>,
    pub(super) facts: BTreeMap<&'static str, f64>,
}

impl Way {
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), is_base: false, runs: Vec::new(), facts: BTreeMap::new() }
    }

    /// Returns the way with which the others of its group are compared.
    pub(super) fn base(name: impl Into<String>) -> Self {
        Self { is_base: true, ..Self::new(name) }
    }

    fn reals(&self) -> Vec<f64> {
        self.runs.iter().map(|cost| cost.real).collect()
    }
}

/// Returns the rows of ways that do the same. Those without a run are left out.
pub(super) fn of(scenario: Scenario, ways: Vec<Way>) -> Vec<Row> {
    let base = ways.iter().find(|way| way.is_base && !way.runs.is_empty()).map(Way::reals);
    let measured = ways.into_iter().filter(|way| !way.runs.is_empty());
    let row = |way: Way| {
        let reals = way.reals();
        Row {
            scenario,
            real: median_of(&reals),
            speed: base.as_ref().filter(|_| !way.is_base).map(|base| ratio_of(base, &reals)),
            cpu: median(&way.runs.iter().map(|cost| cost.user + cost.sys).collect::<Vec<_>>()),
            peak: way.runs.iter().map(|cost| cost.peak).max().unwrap_or(0),
            name: way.name,
            facts: way.facts,
            runs: way.runs,
        }
    };
    measured.map(row).collect()
}

/// Lays rows out as a table for terminals.
pub(super) fn table(rows: &[Row]) -> String {
    let range = |estimate: &Estimate| format!("{:.3}–{:.3}", estimate.low, estimate.high);
    let fact = |(name, value): (&&'static str, &f64)| match *name {
        STORED => format!("{:.0} MiB stored", value / f64::from(1 << 20)),
        name => format!("{value:.0} {name}"),
    };
    let cells = |row: &Row| {
        vec![
            format!("{:?}", row.scenario).to_lowercase(),
            row.name.clone(),
            format!("{:.3}", row.real.point),
            range(&row.real),
            row.speed.map_or_else(String::new, |speed| format!("{:.2}", speed.point)),
            row.speed.as_ref().map_or_else(String::new, range),
            format!("{:.2}", row.cpu),
            format!("{}", row.peak >> 20),
            row.facts.iter().map(fact).collect::<Vec<_>>().join(", "),
        ]
    };
    let header = ["", "", "real s", "95 %", "times as fast", "95 %", "CPU s", "peak MiB", ""];
    table::layout(&header, &rows.iter().map(cells).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(mut way: Way, reals: &[f64]) -> Way {
        way.runs =
            reals.iter().map(|real| Cost { real: *real, user: 1.0, sys: 0.5, peak: 3 << 20 }).collect();
        way
    }

    #[test]
    fn ways_are_compared_with_the_base() {
        let ways = vec![
            way(Way::new("ours"), &[1.0, 2.0, 3.0]),
            way(Way::base("reference"), &[8.0, 8.0, 8.0]),
            Way::new("none"),
        ];
        let rows = of(Scenario::Change, ways);
        assert_eq!(rows.len(), 2, "the way without a run is left out");
        assert_eq!(rows[0].speed.map(|speed| speed.point), Some(4.0));
        assert_eq!((rows[1].speed, rows[1].cpu, rows[1].peak), (None, 1.5, 3 << 20));
        assert!(table(&rows).contains("change  ours"), "{}", table(&rows));
    }

    #[test]
    fn a_measurement_without_the_reference_has_no_comparison() {
        let rows = of(Scenario::First, vec![way(Way::new("ours"), &[1.0]), Way::base("reference")]);
        assert_eq!((rows.len(), rows[0].speed), (1, None));
    }
}
