use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Parser as _;
use esker_node::mount_spec::MountSpec;
use esker_node::supervised::{Target, for_each};
use esker_node::supervisor::Replacement;
use serde::Serialize;

use crate::commands::Command;
use crate::error::{Failure, chain};
use crate::mounting::changes::{Changes, merge};
use crate::mounting::supervised::{Outcome, Replaced, chosen, refusal, replace};
use crate::output::{QuietArgs, plain, show};
use crate::settings::Settings;
use crate::{Called, Esker};

/// Reads the configuration of mounts again, and applies what can change while programs use them.
///
/// Proxies, servers, time-outs, name servers, keys and the size of the cache change at once, without an error for any
/// program. What needs a new mount is named and stays as it is. Configuration that can't be used changes nothing.
///
/// Example: esker reload --dry-run
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Print what would change
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    _quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Mounts to reload: repositories or mount points [default: all of this user]
    #[arg(value_name = "NAME|MOUNTPOINT")]
    mounts: Vec<PathBuf>,
}

/// Result for a mount. Field names are an interface.
#[derive(Serialize)]
struct Row {
    mountpoint: String,
    repository: String,
    outcome: Outcome,
    /// Settings that have changed, or would.
    applied: Vec<String>,
    /// Settings that differ and need a new mount.
    needs_new_mount: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

#[derive(Serialize)]
struct All<'a> {
    mounts: &'a [Row],
}

/// Timeout for a supervisor to send the options that it keeps.
const ASKED_WITHIN: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let targets = chosen(&args.mounts, false, settings)?;
    // One after the other: relative names are those of the folder where the mount was made.
    let planned: Vec<Planned> = targets.iter().map(|target| plan(target, settings)).collect();
    let outcomes = for_each(&targets, |at, target, deadline| match &planned[at] {
        Err(failed) => Err(failed.clone()),
        Ok((_, changes)) if changes.applied.is_empty() => Err((Outcome::Unchanged, String::new())),
        Ok(_) if args.dry_run => Err((Outcome::Planned, String::new())),
        Ok((spec, _)) => apply(target, spec, deadline),
    });
    let rows = targets.iter().zip(planned).zip(outcomes);
    let rows: Vec<Row> = rows.map(|((target, planned), outcome)| row(target, planned, outcome)).collect();
    print(&rows, args.json)?;
    let is_bad = |row: &&Row| matches!(row.outcome, Outcome::RolledBack | Outcome::Failed);
    match rows.iter().filter(is_bad).count() {
        0 => Ok(()),
        count => Err(Failure::failed(format!("{count} of {} mounts were not reloaded", rows.len()))
            .hint("they keep the settings that they had; `esker config check` finds mistakes")),
    }
}

/// New options of a mount with their differences, or the outcome without them.
type Planned = Result<(Box<MountSpec>, Changes), (Outcome, String)>;

fn plan(target: &Target, settings: &Settings) -> Planned {
    if let Some(why) = refusal(target) {
        return Err((Outcome::Skipped, why));
    }
    let failed = |failure: Failure| (Outcome::Failed, failure.message);
    let kept = target.options(Instant::now() + ASKED_WITHIN).map_err(|error| {
        (Outcome::Failed, format!("its supervisor doesn't hand over its settings: {error}"))
    })?;
    let old = MountSpec::read(kept).map_err(|error| (Outcome::Failed, chain(&error)))?;
    let new = resolve_again(&old, settings).map_err(failed)?;
    match merge(&old, new) {
        Some((spec, changes)) => Ok((Box::new(spec), changes)),
        None => Err((Outcome::Failed, "its name stands for something else now; mount it again".to_owned())),
    }
}

/// Resolves the options of a mount again, as its command did.
fn resolve_again(old: &MountSpec, settings: &Settings) -> Result<MountSpec, Failure> {
    let line = std::iter::once("esker".into()).chain(old.origin.arguments.iter().cloned());
    let parsed = Esker::try_parse_from(line)
        .map_err(|error| Failure::usage(format!("its command line isn't understood: {error}")))?;
    let Called::Command(Command::Mount(args)) = parsed.called else {
        return Err(Failure::usage("its command line isn't understood: it mounts nothing"));
    };
    // A folder that is gone matters only to relative names.
    let _ = std::env::set_current_dir(&old.origin.folder);
    super::mount::resolve_again(&args, settings, old)
}

fn apply(target: &Target, spec: &MountSpec, deadline: Instant) -> Replaced {
    let sealed = spec.sealed().map_err(|error| (Outcome::Failed, error.to_string()))?;
    replace(target, &Replacement::Options(sealed), deadline)
}

fn row(target: &Target, planned: Planned, outcome: Replaced) -> Row {
    let (outcome, reason) = match outcome {
        Ok(_) => (Outcome::Reloaded, String::new()),
        Err(outcome) => outcome,
    };
    let changes = planned.map(|(_, changes)| changes).unwrap_or_default();
    Row {
        mountpoint: plain(&target.entry.mountpoint.display().to_string()),
        repository: plain(&target.entry.repository),
        outcome,
        applied: changes.applied,
        needs_new_mount: changes.needs_new_mount,
        reason: Some(plain(&reason)).filter(|reason| !reason.is_empty()),
    }
}

fn print(rows: &[Row], json: bool) -> Result<(), Failure> {
    show(json, &All { mounts: rows }, |out| {
        if rows.is_empty() {
            out.line("nothing is mounted")?;
        }
        for row in rows {
            let reason = row.reason.as_ref().map(|reason| format!(": {reason}")).unwrap_or_default();
            out.line(format!("{}  {}  {}{reason}", row.mountpoint, row.repository, row.outcome.word()))?;
            for (what, settings) in [("changes", &row.applied), ("needs a new mount", &row.needs_new_mount)] {
                if !settings.is_empty() {
                    out.line(format!("  {what}: {}", settings.join(", ")))?;
                }
            }
        }
        Ok(())
    })
}
