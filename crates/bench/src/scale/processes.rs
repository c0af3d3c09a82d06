//! Many processes on one mount: all have the same files open, or each its own.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde::Serialize;
use serde_json::Value;

use super::site_model::OfNode;
use crate::child::Ending;
use crate::conditions::Conditions;
use crate::jitter::mounted::Mounted;
use crate::serve::Served;
use crate::table;

/// Options of the measurement.
#[derive(Clone, Debug)]
pub struct ProcessPlan {
    /// The repository's folder.
    pub repository: PathBuf,
    /// Public key of the repository.
    pub key: PathBuf,
    /// The esker binary.
    pub esker: String,
    /// Number of processes that run at the same time.
    pub processes: usize,
    /// Files that each process opens and reads.
    pub files: usize,
}

/// Files that the processes read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Package {
    /// One process reads.
    One,
    /// All processes read the same files.
    Same,
    /// Each process reads its own files.
    Different,
}

/// Results of one round, with an empty cache.
#[derive(Clone, Debug, Serialize)]
pub struct OfProcesses {
    /// Files that the processes read.
    pub package: Package,
    /// Number of processes.
    pub processes: usize,
    /// Files of each process.
    pub files: usize,
    /// Seconds until the last process had read its files.
    pub seconds: f64,
    /// Objects that the daemon fetched.
    pub objects: u64,
    /// Bytes that the daemon received.
    pub bytes: u64,
    /// Processor seconds of the daemon.
    pub processor: f64,
    /// Largest resident size of the daemon in bytes.
    pub memory: u64,
    /// Open descriptors of the daemon while all processes have their files open.
    pub descriptors: usize,
}

/// Results of the measurement.
#[derive(Clone, Debug, Serialize)]
pub struct ProcessReport {
    /// Machine and programs.
    pub conditions: Conditions,
    /// One row for each kind of package.
    pub rows: Vec<OfProcesses>,
}

/// Runs all rounds.
pub fn run(plan: &ProcessPlan, mut say: impl FnMut(&str)) -> Result<ProcessReport> {
    let conditions = Conditions::now(&[&plan.esker]);
    let served = Served::start(&plan.esker, &plan.repository)?;
    let mut rows = Vec::new();
    for package in [Package::One, Package::Same, Package::Different] {
        say(&format!("{package:?}"));
        rows.push(round(plan, package, &served)?);
    }
    Ok(ProcessReport { conditions, rows })
}

fn round(plan: &ProcessPlan, package: Package, served: &Served) -> Result<OfProcesses> {
    let mounted = Mounted::start(&plan.esker, &served.url, &plan.key)?;
    let processes = if package == Package::One { 1 } else { plan.processes };
    let lists = if package == Package::Different { processes } else { 1 };
    let found = files_below(mounted.mountpoint(), lists * plan.files)?;
    let files = (found.len() / lists).min(plan.files);
    ensure!(files > 0, "{} has too few files for {lists} processes", plan.repository.display());
    let folder = tempfile::tempdir()?;
    let reader = std::env::current_exe()?.with_file_name("esker-read-list");
    let before = traffic(plan, mounted.mountpoint())?;
    let start = Instant::now();
    let mut running = Vec::new();
    for number in 0..processes {
        let list = folder.path().join((number % lists).to_string());
        if number < lists {
            write_list(&list, &found[number * files..(number + 1) * files])?;
        }
        let mut command = Command::new(&reader);
        command.arg("--keep-open").arg(mounted.mountpoint()).arg("0/1").arg(&list);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        running.push(Ending(command.spawn().with_context(|| format!("can't start {}", reader.display()))?));
    }
    for child in &mut running {
        let lines = child.0.stdout.take().context("a reader without output")?;
        // The failure of a reader without a line is reported below.
        BufReader::new(lines).read_line(&mut String::new())?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let after = traffic(plan, mounted.mountpoint())?;
    let (processor, memory, descriptors) = of_process(mounted.pid())?;
    for child in &mut running {
        drop(child.0.stdin.take());
        ensure!(child.0.wait()?.success(), "a reader failed");
    }
    Ok(OfProcesses {
        package,
        processes,
        files,
        seconds,
        objects: after.0.saturating_sub(before.0),
        bytes: after.1.saturating_sub(before.1),
        processor,
        memory,
        descriptors,
    })
}

fn write_list(path: &Path, files: &[PathBuf]) -> Result<()> {
    use std::os::unix::ffi::OsStrExt;
    let mut list = std::io::BufWriter::new(std::fs::File::create(path)?);
    for file in files {
        list.write_all(file.as_os_str().as_bytes())?;
        list.write_all(b"\n")?;
    }
    Ok(list.flush()?)
}

/// Returns up to `wanted` paths of files below `root`, relative to it.
fn files_below(root: &Path, wanted: usize) -> Result<Vec<PathBuf>> {
    let (mut found, mut folders) = (Vec::new(), vec![root.to_owned()]);
    while let Some(folder) = folders.pop().filter(|_| found.len() < wanted) {
        for entry in std::fs::read_dir(&folder)? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                folders.push(entry.path());
            } else if kind.is_file() {
                found.push(entry.path().strip_prefix(root)?.to_owned());
            }
        }
    }
    Ok(found)
}

/// Returns the objects and bytes that a mount has fetched.
fn traffic(plan: &ProcessPlan, mountpoint: &Path) -> Result<(u64, u64)> {
    let output = Command::new(&plan.esker).args(["status", "--json"]).arg(mountpoint).output()?;
    let status: Value = serde_json::from_slice(&output.stdout).context("no status of the mount")?;
    let fetched = &status["mounts"][0]["fetched"];
    let number = |name: &str| fetched[name].as_u64().with_context(|| format!("no {name} in the status"));
    Ok((number("objects")?, number("bytes")?))
}

/// Returns processor seconds, largest resident size and open descriptors of a process.
fn of_process(pid: u32) -> Result<(f64, u64, usize)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    // utime and stime are the fields 14 and 15; two stand before the parenthesis.
    let processor = (ticks(11) + ticks(12)) as f64 / rustix::param::clock_ticks_per_second() as f64;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse::<u64>().ok());
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"))?.count();
    Ok((processor, peak.unwrap_or(0) * 1024, descriptors))
}

impl ProcessReport {
    /// Returns what one node fetches whose processes all read the same files.
    pub fn node(&self) -> Option<OfNode> {
        let same = self.rows.iter().find(|row| row.package == Package::Same)?;
        Some(OfNode { seconds: same.seconds, requests: same.objects as f64, bytes: same.bytes as f64 })
    }

    /// Returns the results as a table for terminals.
    pub fn table(&self) -> String {
        let header = [
            "package",
            "processes",
            "files each",
            "s",
            "objects",
            "MB",
            "daemon CPU s",
            "MB resident",
            "descriptors",
        ];
        let rows: Vec<Vec<String>> = self
            .rows
            .iter()
            .map(|row| {
                vec![
                    format!("{:?}", row.package).to_lowercase(),
                    row.processes.to_string(),
                    row.files.to_string(),
                    format!("{:.2}", row.seconds),
                    row.objects.to_string(),
                    format!("{:.1}", row.bytes as f64 / 1e6),
                    format!("{:.2}", row.processor),
                    format!("{:.0}", row.memory as f64 / 1e6),
                    row.descriptors.to_string(),
                ]
            })
            .collect();
        format!("{}\n\n{}", self.conditions.line(), table::layout(&header, &rows))
    }
}
