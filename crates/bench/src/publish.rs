//! Measures publishing a tree, and `tar | pigz -6` for comparison.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};
use serde::Serialize;

use crate::conditions::Conditions;
use crate::measure::{self, Cost};
use crate::statistics::{Estimate, median, median_of, ratio_of};
use crate::table;

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Directory to measure.
    pub tree: PathBuf,
    /// Path of the `esker` binary.
    pub esker: PathBuf,
    /// Folder for temporary repositories and archives.
    pub scratch: PathBuf,
    /// Number of rounds.
    pub repetitions: usize,
}

/// Names of the measured methods.
const WAYS: [&str; 6] = [
    "tar | pigz -6",
    "esker publish, first",
    "esker publish, unchanged",
    "esker publish, first, zlib itself",
    "esker publish, first, fast",
    "esker publish, first, zstd",
];
/// Options of `esker repo create` for the encoders, and the number of threads for each of them.
const ENCODERS: [(&[&str], &[usize]); 4] = [
    (&[], &[1, 2]),
    (&["--deflate", "zlib"], &[3]),
    (&["--deflate", "fast"], &[4]),
    (&["--compress", "zstd"], &[5]),
];

/// Results of one method.
#[derive(Clone, Debug, Serialize)]
pub struct Way {
    /// Name of the method.
    pub name: String,
    /// Seconds on the clock.
    pub real: Estimate,
    /// Time relative to that of `tar | pigz`.
    pub ratio: Option<Estimate>,
    /// Processor time in seconds.
    pub cpu: f64,
    /// Files published in a second.
    pub files_per_second: f64,
    /// Megabytes of plain content a second.
    pub megabytes_per_second: f64,
    /// Largest resident size of one process, in bytes.
    pub peak: u64,
    /// Bytes on disk afterwards.
    pub stored: u64,
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
    /// Results, one row for each method.
    pub ways: Vec<Way>,
}

/// Measures all methods in turns, after reading the tree once so that no method alone pays for the disk.
pub fn run(plan: &Plan, mut progress: impl FnMut(usize)) -> Result<Report> {
    let esker = plan.esker.to_string_lossy().into_owned();
    let conditions = Conditions::now(&[&esker, "pigz", "tar"]);
    let (files, bytes) = size(&plan.tree)?;
    let mut runs = vec![Vec::new(); WAYS.len()];
    let mut stored = [0; WAYS.len()];
    measure::run(archive(&plan.tree, Path::new("/dev/null")))?;
    for repetition in 0..plan.repetitions {
        progress(repetition);
        let folder = tempfile::Builder::new().prefix("esker-bench-").tempdir_in(&plan.scratch)?;
        let packed = folder.path().join("tree.tar.gz");
        runs[0].push(measure::run(archive(&plan.tree, &packed))?);
        stored[0] = packed.metadata()?.len();
        let (storage, keys) = (folder.path().join("storage"), folder.path().join("keys"));
        let command = |words: &[&str]| {
            let mut command = Command::new(&plan.esker);
            command.args(words).arg("--storage").arg(&storage).arg("--keys").arg(&keys);
            command
        };
        for (encoder, ways) in ENCODERS {
            let mut create = command(&["repo", "create", NAME]);
            create.args(encoder);
            measure::run(create)?;
            for way in ways {
                let mut publish = command(&["publish", NAME]);
                publish.arg(&plan.tree).arg("--quiet");
                runs[*way].push(measure::run(publish)?);
                stored[*way] = size(&storage)?.1;
            }
            fs::remove_dir_all(&storage)?;
        }
    }
    let archives: Vec<f64> = runs[0].iter().map(|cost| cost.real).collect();
    let ways = WAYS.iter().zip(runs).zip(stored).enumerate().map(|(at, ((name, runs), stored))| {
        let reals: Vec<f64> = runs.iter().map(|cost| cost.real).collect();
        let real = median_of(&reals);
        Way {
            name: (*name).to_owned(),
            real,
            ratio: (at > 0).then(|| ratio_of(&reals, &archives)),
            cpu: median(&runs.iter().map(|cost| cost.user + cost.sys).collect::<Vec<_>>()),
            files_per_second: files as f64 / real.point,
            megabytes_per_second: bytes as f64 / 1e6 / real.point,
            peak: runs.iter().map(|cost| cost.peak).max().unwrap_or(0),
            stored,
            runs,
        }
    });
    Ok(Report { conditions, files, bytes, ways: ways.collect() })
}

const NAME: &str = "bench.example.org";

fn archive(tree: &Path, to: &Path) -> Command {
    let mut command = Command::new("bash");
    command.args(["-o", "pipefail", "-c", "tar -cf - -C \"$1\" . | pigz -6 > \"$2\""]);
    command.arg("bash").arg(tree).arg(to);
    command
}

/// Returns the number of regular files below a folder, and their bytes.
pub(crate) fn size(folder: &Path) -> Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("can't read {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if metadata.is_file() {
                files += 1;
                bytes += metadata.len();
            }
        }
    }
    Ok((files, bytes))
}

impl Report {
    /// Returns the results as a table for terminals.
    pub fn table(&self) -> String {
        let rows: Vec<Vec<String>> = self
            .ways
            .iter()
            .map(|way| {
                let range = |estimate: &Estimate| format!("{:.2}–{:.2}", estimate.low, estimate.high);
                vec![
                    way.name.clone(),
                    String::new(),
                    format!("{:.2}", way.real.point),
                    range(&way.real),
                    way.ratio.map_or_else(|| "1".into(), |ratio| format!("{:.2}", ratio.point)),
                    format!("{:.1}", way.cpu),
                    format!("{:.0}", way.files_per_second),
                    format!("{:.0}", way.megabytes_per_second),
                    format!("{}", way.peak >> 20),
                    format!("{}", way.stored >> 20),
                ]
            })
            .collect();
        let header =
            ["", "", "real s", "95 %", "ratio", "CPU s", "files/s", "MB/s", "peak MiB", "stored MiB"];
        format!(
            "{} files, {} MB\n{}\n\n{}",
            self.files,
            self.bytes / 1_000_000,
            self.conditions.line(),
            table::layout(&header, &rows)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("sub")).expect("a folder");
        fs::write(folder.path().join("sub/a"), b"four").expect("a file");
        std::os::unix::fs::symlink("sub", folder.path().join("link")).expect("a link");
        assert_eq!(size(folder.path()).expect("a size"), (1, 4));
        assert!(size(Path::new("absent")).is_err());
    }
}
