//! Measures publishing a tree to object storage on the loopback interface, beside a folder.
//!
//! The server is the one of the tests, in this process, which keeps the objects in memory; or one that runs already. Its
//! work counts, since both are on the same processors.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use esker_testkit::s3::{BUCKET, S3Server};
use serde::Serialize;

use crate::conditions::Conditions;
use crate::measure::{self, Cost};
use crate::statistics::{Estimate, median, median_of, ratio_of};
use crate::table;
use crate::tree_size::size;

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Directory to publish.
    pub tree: PathBuf,
    /// Path of the `esker` binary.
    pub esker: PathBuf,
    /// Folder for temporary repositories.
    pub scratch: PathBuf,
    /// Number of rounds.
    pub repetitions: usize,
    /// URL of a server that runs already, and the address of a bucket in it; none starts the one of the tests.
    pub server: Option<(String, String)>,
}

/// Results of one storage and operation.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Storage and operation.
    pub name: String,
    /// Seconds on the clock.
    pub real: Estimate,
    /// Rate relative to that of the folder.
    pub ratio: Option<Estimate>,
    /// Processor time of the publisher in seconds.
    pub cpu: f64,
    /// Files published in a second.
    pub files_per_second: f64,
    /// Cost of each run.
    pub runs: Vec<Cost>,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Machine and programs of the measurement.
    pub conditions: Conditions,
    /// Regular files of the tree.
    pub files: u64,
    /// Size of these files in bytes.
    pub bytes: u64,
    /// Results.
    pub rows: Vec<Row>,
}

const ROWS: [&str; 4] =
    ["folder, first publish", "folder, unchanged", "bucket, first publish", "bucket, unchanged"];

/// Measures both storages in turns, after reading the tree once.
pub fn run(plan: &Plan, mut progress: impl FnMut(usize)) -> Result<Report> {
    let conditions = Conditions::now(&[&plan.esker.to_string_lossy()]);
    let (files, bytes) = size(&plan.tree)?;
    let mut runs = vec![Vec::new(); ROWS.len()];
    for repetition in 0..plan.repetitions {
        progress(repetition);
        let folder = tempfile::Builder::new().prefix("esker-bench-").tempdir_in(&plan.scratch)?;
        let local = folder.path().join("storage").to_string_lossy().into_owned();
        publish_twice(plan, folder.path(), &[&local], &mut runs[..2])?;
        let own = plan.server.is_none().then(S3Server::start);
        let (endpoint, bucket) = match (&own, &plan.server) {
            (Some(server), _) => (server.endpoint(), format!("s3://{BUCKET}/bench")),
            (None, Some((endpoint, bucket))) => (endpoint.clone(), format!("{bucket}/round-{repetition}")),
            (None, None) => continue,
        };
        publish_twice(plan, folder.path(), &[&bucket, "--endpoint", &endpoint], &mut runs[2..])?;
    }
    let reals = |runs: &[Cost]| runs.iter().map(|cost| cost.real).collect::<Vec<f64>>();
    let all: Vec<Vec<f64>> = runs.iter().map(|runs| reals(runs)).collect();
    let rows = ROWS.iter().zip(runs).enumerate().map(|(at, (name, runs))| {
        let real = median_of(&all[at]);
        Row {
            name: (*name).to_owned(),
            real,
            ratio: (at >= 2).then(|| ratio_of(&all[at - 2], &all[at])),
            cpu: median(&runs.iter().map(|cost| cost.user + cost.sys).collect::<Vec<_>>()),
            files_per_second: files as f64 / real.point,
            runs,
        }
    });
    Ok(Report { conditions, files, bytes, rows: rows.collect() })
}

const NAME: &str = "bench.example.org";

/// Creates a repository, publishes the tree, and publishes it again.
fn publish_twice(plan: &Plan, folder: &Path, storage: &[&str], runs: &mut [Vec<Cost>]) -> Result<()> {
    let command = |words: &[&str]| {
        let mut command = Command::new(&plan.esker);
        command.args(words).arg("--keys").arg(folder.join("keys"));
        // Keys that the server of the tests accepts, unless others are there, and a place for the publisher's state.
        command.env("HOME", folder).env("ESKER_STORAGE", folder.join("states"));
        for variable in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"] {
            if std::env::var_os(variable).is_none() {
                command.env(variable, "bench");
            }
        }
        command
    };
    let (at, options) = storage.split_first().map_or(("", &[][..]), |(at, options)| (*at, options));
    let mut create = command(&["repo", "create", NAME, "--storage", at]);
    create.args(options);
    measure::run(create)?;
    for runs in runs {
        let mut publish = command(&["publish", NAME, "--storage", at, "--quiet"]);
        publish.arg(&plan.tree);
        runs.push(measure::run(publish)?);
    }
    Ok(())
}

impl Report {
    /// Returns the results as a table for terminals.
    pub fn table(&self) -> String {
        let row = |row: &Row| {
            vec![
                row.name.clone(),
                format!("{:.2}", row.real.point),
                format!("{:.2}–{:.2}", row.real.low, row.real.high),
                row.ratio.map_or_else(|| "1".into(), |ratio| format!("{:.2}", ratio.point)),
                format!("{:.1}", row.cpu),
                format!("{:.0}", row.files_per_second),
            ]
        };
        let rows: Vec<Vec<String>> = self.rows.iter().map(row).collect();
        let header = ["", "real s", "95 %", "rate, folder = 1", "CPU s", "files/s"];
        let (files, megabytes) = (self.files, self.bytes / 1_000_000);
        let table = table::layout(&header, &rows);
        format!("{files} files, {megabytes} MB\n{}\n\n{table}", self.conditions.line())
    }
}
