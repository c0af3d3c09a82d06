use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use esker_node::mounts;
use esker_node::registry::{self, Entry, users};
use esker_node::supervisor;
use serde::Serialize;

use crate::error::{Context, Failure, Kind, chain};
use crate::output::Output;
use crate::settings::Settings;

/// Has all mounts of this user, for root those of all users, go on with another version of the program, while programs use them.
///
/// A mount whose new daemon doesn't serve goes on with the program that it had.
///
/// Example: esker upgrade --dry-run
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Program to go on with [default: this one]
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,

    /// Print what would be done
    #[arg(long)]
    dry_run: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Mounts to upgrade: repositories or mount points [default: all]
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

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Outcome {
    /// `--dry-run` was given.
    Planned,
    Upgraded,
    /// The new program didn't serve the mount, and the one before does.
    RolledBack,
    /// The mount has no supervisor.
    Skipped,
    Failed,
}

impl Outcome {
    const fn word(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Upgraded => "upgraded",
            Self::RolledBack => "rolled back",
            Self::Skipped => "skipped",
            Self::Failed => "failed",
        }
    }
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
    let chosen = chosen(&args.mounts, settings)?;
    let rows: Vec<Row> = chosen.iter().map(|one| upgrade(one, &program, args.dry_run)).collect();
    print(&rows, &version, args.json)?;
    match rows.iter().filter(|row| matches!(row.outcome, Outcome::RolledBack | Outcome::Failed)).count() {
        0 => Ok(()),
        count => Err(Failure::failed(format!("{count} of {} mounts were not upgraded", rows.len()))
            .hint("they go on with the program that they had; `esker status` shows them")),
    }
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

/// A mount, and the socket of its supervisor.
struct Target {
    entry: Entry,
    user: u32,
    socket: Option<PathBuf>,
    /// Keeps the socket's path valid.
    _of_user: Option<users::UserMount>,
}

/// Returns all mounts of this user, for root those of all users.
fn all(settings: &Settings) -> Result<Vec<Target>, Failure> {
    let user = rustix::process::geteuid().as_raw();
    let own = registry::all(&settings.runtime).context(Kind::Failed, "can't look up the mounts")?;
    let own = own.into_iter().filter(|one| one.alive).map(|one| Target {
        entry: one.entry,
        user,
        socket: Some(one.upgrades),
        _of_user: None,
    });
    let mut all: Vec<Target> = own.collect();
    // Root of a user namespace has no rights over other users.
    if settings.root {
        let theirs = users::of_users(&users::Places::default()).into_iter().filter(|one| one.alive);
        all.extend(theirs.map(|one| Target {
            entry: one.entry.clone(),
            user: one.user,
            socket: one.upgrades(),
            _of_user: Some(one),
        }));
    }
    all.retain(|one| one.entry.command.is_none());
    Ok(all)
}

/// Returns the mounts that the arguments name.
fn chosen(named: &[PathBuf], settings: &Settings) -> Result<Vec<Target>, Failure> {
    let mut all = all(settings)?;
    if named.is_empty() {
        return Ok(all);
    }
    let mut is_named = vec![false; all.len()];
    for name in named {
        let path = mounts::canonical(name).unwrap_or_else(|_| name.clone());
        let mut found = false;
        for (one, is_named) in all.iter().zip(&mut is_named) {
            if one.entry.mountpoint == path || Path::new(&one.entry.repository) == name {
                (found, *is_named) = (true, true);
            }
        }
        if !found {
            let failure = Failure::failed(format!("{} is no mount of yours", name.display()));
            return Err(failure.hint("`esker status` lists all that are"));
        }
    }
    let mut is_named = is_named.into_iter();
    all.retain(|_| is_named.next().unwrap_or(false));
    Ok(all)
}

fn upgrade(one: &Target, program: &OwnedFd, dry_run: bool) -> Row {
    let entry = &one.entry;
    let row = |outcome, new_pid, reason| Row {
        mountpoint: entry.mountpoint.display().to_string(),
        repository: entry.repository.clone(),
        pid: entry.pid,
        new_pid,
        outcome,
        reason,
    };
    let Some(socket) = one.socket.as_ref().filter(|_| entry.supervisor.is_some()) else {
        let why = "it was mounted without a supervisor; unmount it and mount it again".to_owned();
        return row(Outcome::Skipped, None, Some(why));
    };
    if dry_run {
        return row(Outcome::Planned, None, None);
    }
    match supervisor::request(socket, one.user, program) {
        Ok(pid) => row(Outcome::Upgraded, Some(pid), None),
        Err(error @ supervisor::UpgradeError::RolledBack(_)) => {
            row(Outcome::RolledBack, None, Some(error.to_string()))
        }
        Err(error) => row(Outcome::Failed, None, Some(chain(&error))),
    }
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
