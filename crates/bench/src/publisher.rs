//! Measures the publisher's side: a first publish, one change, check and collect, a series of revisions.
//!
//! The reference implementation does the same with the same trees and storage if a build of it is named.

mod aged;
mod change;
mod first;
mod packages;
mod place;
mod reference;
mod rows;
mod series;
mod session;

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::conditions::Conditions;
use place::Place;
use reference::Reference;
pub use rows::Row;

/// A part of the measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Scenario {
    /// First publish of a tree, with each encoder
    First,
    /// Change of one file in a large repository, by transaction
    Change,
    /// Check and collect of a repository with many revisions
    Collect,
    /// Revisions of a few files each, one after the other
    Series,
}

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Path of the `esker` binary.
    pub esker: PathBuf,
    /// Folder in which CernVM-FS was compiled.
    pub reference: Option<PathBuf>,
    /// Folder for temporary repositories.
    pub scratch: PathBuf,
    /// Parts to measure.
    pub scenarios: Vec<Scenario>,
    /// Tree for the first publish.
    pub tree: Option<PathBuf>,
    /// Entries of the repository in which one file changes.
    pub entries: usize,
    /// Entries of the repository with many revisions, and of that of the series.
    pub aged_entries: usize,
    /// Entries of each nested catalog.
    pub catalog: usize,
    /// Revisions of the repository with many.
    pub revisions: usize,
    /// Files that each of these revisions changes.
    pub changed: usize,
    /// Revisions before the head that a collect keeps.
    pub kept: usize,
    /// Revisions of the series.
    pub series: usize,
    /// Rounds of each measurement but the series.
    pub repetitions: usize,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Machine and programs of the measurement.
    pub conditions: Conditions,
    /// Descriptions of the trees.
    pub trees: Vec<String>,
    /// Results, one row for each way to do it.
    pub rows: Vec<Row>,
}

/// Inputs of all parts.
struct Bench<'p> {
    plan: &'p Plan,
    reference: Option<Reference>,
    say: &'p mut dyn FnMut(&str),
    trees: Vec<String>,
}

impl Bench<'_> {
    fn say(&mut self, text: &str) {
        (self.say)(text);
    }

    /// Makes a folder for repositories, removed on drop.
    fn folder(&self) -> Result<tempfile::TempDir> {
        let made = tempfile::Builder::new().prefix("esker-bench-").tempdir_in(&self.plan.scratch);
        made.with_context(|| format!("can't make a folder in {}", self.plan.scratch.display()))
    }

    fn place(&self, folder: &std::path::Path) -> Place {
        Place::new(&self.plan.esker, folder)
    }
}

/// Measures the parts one after the other; within a part Esker and the reference take turns.
pub fn run(plan: &Plan, mut say: impl FnMut(&str)) -> Result<Report> {
    let esker = plan.esker.to_string_lossy().into_owned();
    let reference = plan.reference.as_deref().map(Reference::open).transpose()?;
    let mut conditions = Conditions::now(&[&esker]);
    conditions.versions.extend(reference.as_ref().map(Reference::version).transpose()?);
    let mut bench = Bench { plan, reference, say: &mut say, trees: Vec::new() };
    let mut rows = Vec::new();
    for scenario in &plan.scenarios {
        rows.extend(match scenario {
            Scenario::First => first::run(&mut bench)?,
            Scenario::Change => change::run(&mut bench)?,
            Scenario::Collect => aged::run(&mut bench)?,
            Scenario::Series => series::run(&mut bench)?,
        });
    }
    Ok(Report { conditions, trees: bench.trees, rows })
}

impl Report {
    /// Returns the results as a table for terminals.
    pub fn table(&self) -> String {
        format!("{}\n{}\n\n{}", self.trees.join("\n"), self.conditions.line(), rows::table(&self.rows))
    }
}
