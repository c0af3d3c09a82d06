//! Measures the cost of an operation under contention, with a growing number of threads.
//!
//! On a machine with few cores more threads can't be faster. But it shows whether an operation costs more processor
//! time, or makes threads sleep: a contended lock does one or the other. `docs/benchmarks.md` says what only a larger
//! machine can show.

mod null;
pub mod processes;
pub mod site_model;
mod stored;

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::conditions::Conditions;
use crate::statistics::{Estimate, median_of, ratio_of};
use crate::sys::Used;
use crate::table;

/// Kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Work {
    /// Lookups of names in a view whose catalogs are attached.
    Lookup,
    /// Reads of files in a view whose objects are in the cache.
    Read,
    /// Fetches of objects that are not cached and whose source is in memory.
    Miss,
    /// Lookups in a mounted tree that replies at once: the kernel's and the FUSE layer's cost.
    Null,
}

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Kinds of operation to measure.
    pub work: Vec<Work>,
    /// Threads of each round; growth is relative to the first.
    pub threads: Vec<usize>,
    /// Operations of a round, of all threads together; otherwise as many as take long enough.
    pub operations: Option<usize>,
    /// Number of rounds.
    pub repetitions: usize,
}

/// Results for one operation and number of threads.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// Kind of operation.
    pub work: Work,
    /// Operations of a round.
    pub operations: usize,
    /// Number of threads that run at the same time.
    pub threads: usize,
    /// Processor time of an operation in nanoseconds, of the whole process.
    pub nanoseconds: Estimate,
    /// Number of times that an operation put a thread to sleep.
    pub sleeps: Estimate,
    /// Processor time against the first number of threads.
    pub growth: Estimate,
    /// Number of operations of all threads in a second.
    pub rate: Estimate,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Machine and programs of the measurement.
    pub conditions: Conditions,
    /// Results, one row for each operation and number of threads.
    pub rows: Vec<Measured>,
}

/// An operation that many threads can perform at the same time.
trait Subject: Sync {
    /// Prepares a round that performs the operation once for each number below `operations`.
    fn prepare(&mut self, operations: usize) -> Result<()>;
    /// Performs one operation.
    fn operate(&self, number: usize) -> Result<()>;
}

/// Rounds of one operation by one number of threads.
#[derive(Clone, Default)]
struct Rounds {
    nanoseconds: Vec<f64>,
    sleeps: Vec<f64>,
    rates: Vec<f64>,
}

/// Runs the measurement, with the rounds of all thread counts interleaved.
pub fn run(plan: &Plan, mut progress: impl FnMut(&str)) -> Result<Report> {
    let conditions = Conditions::now(&[]);
    let mut rows = Vec::new();
    for &work in &plan.work {
        let mut subject = work.subject()?;
        let mut rounds = vec![Rounds::default(); plan.threads.len()];
        let operations = plan.operations.unwrap_or(work.operations());
        for repetition in 0..plan.repetitions {
            progress(&format!("{work:?}, round {} of {}", repetition + 1, plan.repetitions));
            for (&threads, rounds) in plan.threads.iter().zip(&mut rounds) {
                subject.prepare(operations)?;
                rounds.add(&*subject, threads, operations)?;
            }
        }
        for (&threads, measured) in plan.threads.iter().zip(&rounds) {
            rows.push(Measured {
                work,
                operations,
                threads,
                nanoseconds: median_of(&measured.nanoseconds),
                sleeps: median_of(&measured.sleeps),
                growth: ratio_of(&measured.nanoseconds, &rounds[0].nanoseconds),
                rate: median_of(&measured.rates),
            });
        }
    }
    Ok(Report { conditions, rows })
}

impl Work {
    /// Returns the number of operations of a round: some tenths of a second, much longer than a time slice of the
    /// scheduler.
    fn operations(self) -> usize {
        match self {
            Self::Lookup => 200_000,
            Self::Read => 400_000,
            Self::Miss => 5000,
            Self::Null => 10_000,
        }
    }

    fn subject(self) -> Result<Box<dyn Subject>> {
        Ok(match self {
            Self::Lookup => Box::new(stored::Lookups::new()?),
            Self::Read => Box::new(stored::Reads::new()?),
            Self::Miss => Box::new(stored::Misses::new()?),
            Self::Null => Box::new(null::Mounted::new()?),
        })
    }
}

impl Rounds {
    fn add(&mut self, subject: &dyn Subject, threads: usize, operations: usize) -> Result<()> {
        // The time to start threads is excluded.
        let (ready, go) = (Barrier::new(threads + 1), Barrier::new(threads + 1));
        let share = |thread: usize| thread * operations / threads..(thread + 1) * operations / threads;
        let work = |thread| {
            ready.wait();
            go.wait();
            share(thread).try_for_each(|number| subject.operate(number))
        };
        let (start, before) = std::thread::scope(|scope| {
            let work = &work;
            let workers: Vec<_> = (0..threads).map(|thread| scope.spawn(move || work(thread))).collect();
            ready.wait();
            let (start, before) = (Instant::now(), Used::now());
            go.wait();
            workers
                .into_iter()
                .try_for_each(|worker| worker.join().expect("a worker panics only if we do"))?;
            anyhow::Ok((start, before.context("getrusage")?))
        })?;
        let seconds = start.elapsed().as_secs_f64();
        let used = Used::now().context("getrusage")?;
        let count = operations as f64;
        self.nanoseconds.push((used.processor - before.processor).as_nanos() as f64 / count);
        self.sleeps.push((used.sleeps - before.sleeps) as f64 / count);
        self.rates.push(count / seconds);
        Ok(())
    }
}

impl Report {
    /// Returns the results as a table for terminals.
    pub fn table(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| {
                vec![
                    format!("{:?}", row.work).to_lowercase(),
                    row.threads.to_string(),
                    format!("{:.0}", row.nanoseconds.point),
                    format!("{:.2}", row.growth.point),
                    format!("{:.2}–{:.2}", row.growth.low, row.growth.high),
                    format!("{:.3}", row.sleeps.point),
                    format!("{:.0}", row.rate.point),
                ]
            })
            .collect();
        let header = ["work", "threads", "CPU ns", "growth", "95 %", "sleeps", "1/s"];
        format!("{}\n\n{}", self.conditions.line(), table::layout(&header, &rows))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(work: &[Work]) -> Vec<Measured> {
        let plan = Plan { work: work.to_vec(), threads: vec![1, 3], operations: Some(100), repetitions: 2 };
        run(&plan, |_| {}).expect("a measurement").rows
    }

    #[test]
    fn every_operation_succeeds_and_costs_something() {
        let rows = rows(&[Work::Lookup, Work::Read, Work::Miss]);
        assert_eq!(rows.len(), 6);
        assert!(rows.iter().all(|row| row.rate.point > 0.0));
        let misses = rows.iter().filter(|row| row.work == Work::Miss);
        assert!(misses.into_iter().all(|row| row.nanoseconds.point > 0.0));
    }

    #[test]
    fn every_name_is_looked_up_in_the_mounted_tree() {
        if let Err(error) = std::fs::File::options().read(true).write(true).open("/dev/fuse") {
            assert!(std::env::var_os("CI").is_none(), "/dev/fuse can't be opened: {error}");
            eprintln!("NOT TESTED: /dev/fuse can't be opened ({error})");
            return;
        }
        assert_eq!(rows(&[Work::Null]).len(), 2);
    }
}
