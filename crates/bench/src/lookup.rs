//! Measures lookups in a large catalog by several threads: the cost of metadata without kernel and network.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use esker_format::catalog::{Catalog, PathKey};
use esker_testkit::catalog::{Draft, Row};
use serde::Serialize;

use crate::conditions::Conditions;
use crate::statistics::{Estimate, median_of};
use crate::table;
use esker_testkit::soak::Random;

/// Number of files in a directory of the synthetic tree.
const FILES: usize = 1000;

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Entries of each catalog.
    pub entries: Vec<usize>,
    /// Threads of each round.
    pub threads: Vec<usize>,
    /// Number of lookups of a thread in a round.
    pub lookups: usize,
    /// Number of rounds.
    pub repetitions: usize,
}

/// Results for one catalog and number of threads.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Entries of the catalog.
    pub entries: usize,
    /// Bytes of the catalog.
    pub catalog_bytes: usize,
    /// Number of threads that run at the same time.
    pub threads: usize,
    /// True if the paths exist.
    pub exist: bool,
    /// Number of lookups of all threads in a second.
    pub rate: Estimate,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Machine and programs of the measurement.
    pub conditions: Conditions,
    /// Results, one row for each catalog and number of threads.
    pub rows: Vec<Measured>,
}

/// Measures lookups of random paths, with the rounds of all thread counts interleaved. Random paths, so that no
/// page of the catalog is nearer than another; rounds of all thread counts are interleaved.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str)) -> Result<Report> {
    let conditions = Conditions::now(&[]);
    let mut rows = Vec::new();
    for &entries in &plan.entries {
        progress(&format!("making a catalog of {entries} entries"));
        let bytes = catalog(entries);
        let catalog = Catalog::open(bytes).context("the synthetic catalog can't be read")?;
        let mut rates = vec![Vec::new(); plan.threads.len() * 2];
        for repetition in 0..plan.repetitions {
            progress(&format!("{entries} entries, round {} of {}", repetition + 1, plan.repetitions));
            for (at, &threads) in plan.threads.iter().enumerate() {
                for exist in [true, false] {
                    let rate = round(&catalog, entries, threads, plan.lookups, exist)?;
                    rates[at * 2 + usize::from(exist)].push(rate);
                }
            }
        }
        for (at, &threads) in plan.threads.iter().enumerate() {
            for exist in [true, false] {
                let rate = median_of(&rates[at * 2 + usize::from(exist)]);
                let catalog_bytes = usize::try_from(catalog.size())?;
                rows.push(Measured { entries, catalog_bytes, threads, exist, rate });
            }
        }
    }
    Ok(Report { conditions, rows })
}

impl Report {
    /// Returns the results as a table for terminals.
    pub fn table(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| {
                let million = |rate: f64| format!("{:.3}", rate / 1e6);
                vec![
                    row.entries.to_string(),
                    if row.exist { "existing" } else { "absent" }.to_owned(),
                    row.threads.to_string(),
                    million(row.rate.point),
                    format!("{}–{}", million(row.rate.low), million(row.rate.high)),
                    format!("{:.0}", 1e9 * row.threads as f64 / row.rate.point),
                ]
            })
            .collect();
        let header = ["entries", "paths", "threads", "million/s", "95 %", "ns each"];
        format!("{}\n\n{}", self.conditions.line(), table::layout(&header, &rows))
    }
}

fn path(number: usize) -> String {
    format!("/software/release-{:05}/lib/module_{:03}.py", number / FILES, number % FILES)
}

/// Creates a catalog whose rows are in the order of their keys, as in a fresh one.
fn catalog(entries: usize) -> Vec<u8> {
    let mut keys: Vec<([i64; 2], usize)> =
        (0..entries).map(|number| (order(&path(number)), number)).collect();
    keys.sort_unstable();
    let draft = Draft::new("");
    draft.add(&Row::directory(""));
    for (_, number) in keys {
        draft.add(&Row::file(&path(number), 4096, Some([7; 20])));
    }
    draft.finish()
}

fn order(path: &str) -> [i64; 2] {
    let digest = u128::from_le_bytes(PathKey::of(path.as_bytes()).digest());
    // The two halves are signed numbers of eight bytes each.
    [(digest as u64).cast_signed(), ((digest >> 64) as u64).cast_signed()]
}

/// Measures lookups of all threads in a second, including the hashing of paths.
fn round<B: AsRef<[u8]> + Send + Sync>(
    catalog: &Catalog<B>,
    entries: usize,
    threads: usize,
    lookups: usize,
    exist: bool,
) -> Result<f64> {
    let start = Instant::now();
    let found: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|thread| {
                scope.spawn(move || -> Result<usize> {
                    let mut random = Random(thread as u64);
                    let mut found = 0;
                    for _ in 0..lookups {
                        let number = random.below(entries) + if exist { 0 } else { entries };
                        found += usize::from(catalog.find(PathKey::of(path(number).as_bytes()))?.is_some());
                    }
                    Ok(found)
                })
            })
            .collect();
        let joined = workers.into_iter().map(|worker| worker.join().expect("a worker panics only if we do"));
        joined.sum::<Result<usize>>()
    })?;
    let seconds = start.elapsed().as_secs_f64();
    let expected = if exist { threads * lookups } else { 0 };
    ensure!(found == expected, "{found} paths were found where {expected} exist");
    Ok((threads * lookups) as f64 / seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn existing_modules_are_found_and_nothing_else() {
        let plan = Plan { entries: vec![2500], threads: vec![1, 2], lookups: 500, repetitions: 2 };
        let report = run(&plan, |_| {}).expect("a measurement");
        assert_eq!(report.rows.len(), 4);
        assert!(report.rows.iter().all(|row| row.rate.point > 0.0));
    }
}
