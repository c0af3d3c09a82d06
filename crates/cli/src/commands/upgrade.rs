use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use esker_node::supervised::{Target, for_each};
use esker_node::supervisor::Replacement;
use serde::Serialize;

use crate::error::{Context, Failure, Kind};
use crate::mounting::supervised::{Outcome, Replaced, chosen, refusal, replace};
use crate::output::{Output, QuietArgs, plain};
use crate::settings::Settings;

/// Replaces the daemons of mounts by those of another version while programs use the mounts.
///
/// Upgrades the mounts of this user. A daemon that doesn't serve within 30 s is rolled back.
///
/// Example: esker upgrade --dry-run
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// New esker binary [default: this one]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,

    /// Print what would be done
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    _quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Upgrade the mounts of all users, for root
    #[arg(long)]
    all_users: bool,

    /// Mounts to upgrade: repositories or mount points [default: all of this user]
    #[arg(value_name = "NAME|MOUNTPOINT")]
    mounts: Vec<PathBuf>,
}

/// Result for a mount. Field names are an interface.
#[derive(Serialize)]
struct Row {
    mountpoint: String,
    repository: String,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    new_pid: Option<u32>,
    outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Serialize)]
struct All<'a> {
    version: &'a str,
    mounts: &'a [Row],
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let binary = match &args.binary {
        Some(binary) => binary.clone(),
        None => std::env::current_exe().context(Kind::Failed, "can't find this program's own file")?,
    };
    let (program, version) = examined(&binary)?;
    let program = Replacement::Program(program);
    let targets = chosen(&args.mounts, args.all_users, settings)?;
    let rows = for_each(&targets, |_, one, deadline| {
        let outcome = match refusal(one) {
            Some(why) => Err((Outcome::Skipped, why)),
            None if args.dry_run => Err((Outcome::Planned, String::new())),
            None => replace(one, &program, deadline),
        };
        row(one, outcome)
    });
    print(&rows, &version, args.json)?;
    let count = |outcome| rows.iter().filter(|row| row.outcome == outcome).count();
    let failure = |count| Failure::failed(format!("{count} of {} mounts were not upgraded", rows.len()));
    match (count(Outcome::RolledBack), count(Outcome::Failed)) {
        (0, 0) => Ok(()),
        (count, 0) => {
            Err(failure(count).hint("they go on with the program that they had; `esker status` shows them"))
        }
        (rolled_back, failed) => Err(failure(rolled_back + failed)
            .hint("`esker status` and `esker logs` show what became of those that failed")),
    }
}

fn row(one: &Target, outcome: Replaced) -> Row {
    let entry = &one.entry;
    let (outcome, new_pid, reason) = match outcome {
        Ok(pid) => (Outcome::Upgraded, Some(pid), None),
        Err((outcome, why)) => (outcome, None, Some(plain(&why)).filter(|why| !why.is_empty())),
    };
    let mountpoint = plain(&entry.mountpoint.display().to_string());
    Row { mountpoint, repository: plain(&entry.repository), pid: entry.pid, new_pid, outcome, reason }
}

/// Opens a program and returns its version. A file that isn't this program would be tried on every mount.
fn examined(binary: &Path) -> Result<(OwnedFd, String), Failure> {
    let shown = binary.display();
    let program = File::open(binary).context(Kind::Failed, format!("can't open {shown}"))?;
    let said = Command::new(binary).arg("--version").stdin(Stdio::null()).output();
    let said = said.context(Kind::Failed, format!("can't run {shown}"))?;
    let version = String::from_utf8_lossy(&said.stdout).trim().to_owned();
    if !said.status.success() || !version.starts_with("esker ") {
        return Err(Failure::usage(format!("{shown} is not a version of esker"))
            .hint("name the file of the program with --binary"));
    }
    Ok((program.into(), version))
}

fn print(rows: &[Row], version: &str, json: bool) -> Result<(), Failure> {
    let mut out = Output::new();
    if json {
        out.json(&All { version, mounts: rows })?;
        return out.finish();
    }
    if rows.is_empty() {
        out.line("nothing is mounted")?;
        return out.finish();
    }
    out.line(format!("to {version}"))?;
    for row in rows {
        let Row { mountpoint, repository, pid, new_pid, outcome, reason } = row;
        let pids =
            new_pid.map_or_else(|| format!("process {pid}"), |new| format!("process {pid}, now {new}"));
        let reason = reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
        out.line(format!("{mountpoint}  {repository}  {pids}  {}{reason}", outcome.word()))?;
    }
    out.finish()
}
