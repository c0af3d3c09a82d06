use std::cell::RefCell;

use esker_publish::{PublishError, Rollback, RollbackReport};
use esker_repository::RepositoryError;

use crate::commands::diff;
use crate::error::Failure;
use crate::output::Output;
use crate::publisher::{ChangeArgs, HookFacts, Hooked, Interrupt, NamedArgs, now, of_operation};
use crate::settings::Settings;

/// Publishes the content of an earlier revision as a new revision.
///
/// Removes the tags of later revisions; if REVISION is a tag, it moves to the new revision. The objects of later
/// revisions stay until `esker collect` deletes them; until then a rollback to the number of a later revision
/// restores it. --dry-run lists the first 50 paths that would change.
///
/// Example: esker rollback sw.example.org --to v1.1
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    named: NamedArgs,

    /// Earlier revision: a tag, a number, or the hash of a root catalog [default: trunk-previous]
    #[arg(long, value_name = "REVISION")]
    to: Option<String>,

    #[command(flatten)]
    change: ChangeArgs,
}

/// Undoes the last publish: publishes the content of the revision before it as a new revision.
///
/// A second undo without a publish in between is refused. To go back further, or to undo an undo, name the revision:
/// `esker rollback NAME --to REVISION`. --dry-run lists the first 50 paths that would change.
///
/// Example: esker undo sw.example.org
#[derive(clap::Args, Debug)]
pub(crate) struct UndoArgs {
    #[command(flatten)]
    named: NamedArgs,

    #[command(flatten)]
    change: ChangeArgs,
}

/// Maximum number of paths that a dry run lists.
const LISTED_MAX: usize = 50;

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    roll_back(&args.named, args.to.clone(), &args.change, settings, "was not rolled back")
}

pub(crate) fn undo(args: &UndoArgs, settings: &Settings) -> Result<(), Failure> {
    roll_back(&args.named, None, &args.change, settings, "stays as it is")
}

fn roll_back(
    named: &NamedArgs,
    target: Option<String>,
    args: &ChangeArgs,
    settings: &Settings,
    what: &str,
) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let place = named.place(settings)?;
    let repository = place.open(args.lock, &interrupt, args.json || args.quiet.is_set())?;
    let rollback = Rollback { target: target.clone() };
    let facts = HookFacts { tag: target.as_deref(), ..HookFacts::default() };
    if !args.dry_run {
        Hooked::Rollback.before(&place.root, place.name.as_str(), facts)?;
    }
    let out = RefCell::new(Output::new());
    let (mut listed, mut broken) = (0usize, None);
    let done = match args.dry_run {
        true => rollback.dry_run(&repository, now(), &mut |found| {
            listed += 1;
            if args.json || listed > LISTED_MAX || broken.is_some() {
                return Ok(());
            }
            let mut out = out.borrow_mut();
            let line = diff::line(&out, found);
            // A closed pipe is reported at the end.
            broken = out.line(line).err();
            Ok(())
        }),
        false => rollback.run(&repository, now(), &interrupt.flag()),
    };
    if let Some(failure) = broken {
        return Err(failure);
    }
    let report = done.map_err(|error| failed(place.name.as_str(), what, &error))?;
    if !args.dry_run {
        let facts = HookFacts { tag: report.tag.as_deref(), revision: Some(report.revision), ..facts };
        Hooked::Rollback.after(&place.root, place.name.as_str(), facts);
    }
    let mut out = out.into_inner();
    if args.json {
        out.json(&report)?;
        return out.finish();
    }
    if listed > LISTED_MAX {
        out.line(format!("and {} more", listed - LISTED_MAX))?;
    }
    print(&mut out, place.name.as_str(), &report, args.dry_run)?;
    out.finish()
}

fn failed(name: &str, what: &str, error: &PublishError) -> Failure {
    let failure = of_operation(&format!("{name} {what}"), error);
    match error {
        PublishError::NothingToUndo { before: Some(before) } => failure.hint(format!(
            "the newest revision replaced revision {before}: `esker rollback {name} --to {before}` brings that back; \
             `esker log {name}` lists all"
        )),
        PublishError::NothingToUndo { before: None } | PublishError::Repository(RepositoryError::NoRevision { .. }) => {
            failure.hint(format!("`esker log {name}` lists the revisions"))
        }
        _ => failure,
    }
}

fn print(out: &mut Output, name: &str, report: &RollbackReport, dry_run: bool) -> Result<(), Failure> {
    let RollbackReport { before, target, revision, tags_removed, tag, counts, root } = report;
    diff::summary(out, before, target, counts, false)?;
    let would = if dry_run { "would be " } else { "" };
    if let Some(tag) = tag {
        out.line(format!("  tag       {tag} {would}moved to revision {revision}"))?;
    }
    for tag in tags_removed {
        out.line(format!("  tag       {tag} {would}removed"))?;
    }
    match root {
        Some(root) => {
            let number = before.number;
            out.line(out.bold(&format!("revision {revision} is equal to revision {}", target.number)))?;
            out.line(format!("  root      {root}"))?;
            out.line(format!("  `esker rollback {name} --to {number}` brings revision {number} back"))
        }
        None => out.line(format!("revision {revision} would be equal to revision {}", target.number)),
    }
}
