use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use esker_format::time::UnixTime;
use esker_maintain::{Collect, CollectError, CollectPlan, Collected, Keep};
use esker_repository::{OpenWork, RepositoryError};
use serde_json::json;

use crate::error::{Failure, warn};
use crate::output::{Output, QuietArgs, parse_duration, size};
use crate::process::limits::JobsArgs;
use crate::progress::ProgressMeter;
use crate::publisher::{
    Interrupt, LockArgs, Place, PublisherArgs, collect_progress, for_each, names_in, now, of_operation,
};
use crate::settings::Settings;
use crate::transaction::Transactions;

/// Deletes the objects of old revisions that no kept revision needs.
///
/// The head and all tagged revisions are kept. The first collect lists the objects to delete; a collect after the
/// grace time deletes them. A publisher that needs a listed object in the meantime stores it again. The base revisions
/// of open transactions are kept until these are published or dropped.
///
/// Example: esker collect sw.example.org --keep 30d --dry-run
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Name of the repository
    #[arg(value_name = "NAME", required_unless_present = "all")]
    name: Option<String>,

    /// Collect all collectable repositories in the storage folder
    #[arg(long, conflicts_with = "name")]
    all: bool,

    #[command(flatten)]
    place: PublisherArgs,

    #[command(flatten)]
    lock: LockArgs,

    /// Keep revisions that are younger than this, and the one before them [default: 3d]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, conflicts_with_all = ["keep_last", "keep_tags"])]
    keep: Option<Duration>,

    /// Keep the head and this many revisions before it
    #[arg(long, value_name = "N", conflicts_with = "keep_tags")]
    keep_last: Option<u64>,

    /// Keep only the head and tagged revisions
    #[arg(long)]
    keep_tags: bool,

    /// Remove automatic tags that are older than this; 0 keeps them for ever [default: the repository's setting, 30d
    /// in new ones]
    #[arg(long, value_name = "DURATION", value_parser = parse_duration)]
    automatic_tags: Option<Duration>,

    /// Time between listing an object and deleting it; 0 deletes at once
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "1h")]
    grace: Duration,

    /// Collect objects that belong to no revision too, such as those of an interrupted publish, if they are older
    /// than a day
    #[arg(long)]
    orphans: bool,

    /// File to append the names of deleted objects to, between comments with times and causes
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,

    /// Forget this open work, as a collect names it, and keep its base revision no more: a transaction whose machine or
    /// user is gone
    #[arg(long, value_name = "ID", conflicts_with_all = ["all", "dry_run"])]
    forget: Vec<String>,

    /// Print what would be deleted and which kept revisions use the most space, and delete nothing
    #[arg(long)]
    dry_run: bool,

    #[command(flatten)]
    jobs: JobsArgs,

    #[command(flatten)]
    quiet: QuietArgs,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let names = match &args.name {
        Some(name) => vec![name.clone()],
        None => names_in(&args.place.storage_folder(settings)?)?,
    };
    for_each(&names, "were not collected", |name| {
        let mut out = Output::new();
        let (plan, done) = one(args, name, settings, &interrupt)?;
        print(&mut out, name, &plan, done.as_ref(), args.json)?;
        out.finish()
    })
}

fn one(
    args: &Args,
    name: &str,
    settings: &Settings,
    interrupt: &Interrupt,
) -> Result<(CollectPlan, Option<Collected>), Failure> {
    let place = args.place.place(name, settings)?;
    let meter = Mutex::new(ProgressMeter::new(args.quiet.is_set()));
    let progress = |progress| {
        if let Ok(mut meter) = meter.try_lock() {
            meter.say(|| collect_progress(name, progress));
        }
    };
    let seconds = |duration: Duration| i64::try_from(duration.as_secs()).unwrap_or(i64::MAX);
    let mut collect = Collect::new(&progress);
    collect.keep = match (args.keep, args.keep_last) {
        _ if args.keep_tags => Keep::Tags,
        (_, Some(count)) => Keep::Last(count),
        (Some(age), None) => Keep::Age(seconds(age)),
        (None, None) => Keep::default(),
    };
    collect.grace = seconds(args.grace);
    collect.orphans = args.orphans.then(|| collect.orphan_age());
    collect.log.clone_from(&args.log);
    collect.threads = args.jobs.count();
    collect.stop = interrupt.flag();
    let repository = match args.dry_run {
        true => place.open_for_reading()?,
        false => place.open_for_collect(args.lock, interrupt, args.quiet.is_set())?,
    };
    let failed = |error| of_operation(&format!("{name} was not collected"), &error);
    forget(&args.forget, &place).map_err(failed)?;
    Transactions::new(settings.transactions(None)?).keep_bases(&place.root).map_err(failed)?;
    let usual = repository.settings().automatic_tags_age();
    collect.automatic_tags = args.automatic_tags.map(seconds).or(usual).filter(|age| *age > 0);
    let outcome = match args.dry_run {
        true => collect.dry_run(&repository, now()).map(|plan| (plan, None)),
        false => collect.run(&repository, now()).map(|done| (done.plan.clone(), Some(done))),
    };
    outcome.map_err(|error| {
        let failure = of_operation(&format!("{name} was not collected"), &error);
        match error {
            CollectError::NotCollectable(_) => {
                failure.hint(format!("allow it with `esker repo set {name} garbage_collectable=true`"))
            }
            CollectError::Repository(RepositoryError::Missing { .. } | RepositoryError::Corrupt { .. }) => {
                failure.hint(format!(
                    "list the missing objects with `esker check {name}`, and fetch them with --repair FROM"
                ))
            }
            _ => failure,
        }
    })
}

/// Removes the records of open work with these ids.
fn forget(ids: &[String], place: &Place) -> Result<(), RepositoryError> {
    if ids.is_empty() {
        return Ok(());
    }
    let open = OpenWork::list(&place.root)?;
    for id in ids {
        if !open.iter().any(|work| work.id == *id) {
            return Err(RepositoryError::OpenWork { id: id.clone(), reason: "there is none".to_owned() });
        }
        OpenWork::end(&place.root, id)?;
    }
    Ok(())
}

fn print(
    out: &mut Output,
    name: &str,
    plan: &CollectPlan,
    done: Option<&Collected>,
    json: bool,
) -> Result<(), Failure> {
    if json {
        let value = match done {
            Some(done) => json!({ "repository": name, "dry_run": false, "result": done }),
            None => json!({ "repository": name, "dry_run": true, "result": { "plan": plan } }),
        };
        return out.json(&value);
    }
    let dropped = plan.dropped.len();
    out.line(format!("{name}: revision {}, {} revisions kept, {dropped} dropped", plan.revision, plan.kept))?;
    if !plan.tags_removed.is_empty() {
        let verb = if done.is_some() { "removed" } else { "would be removed" };
        out.line(format!("  automatic tags   {} {verb}", plan.tags_removed.len()))?;
    }
    for OpenWork { id, what, started, .. } in &plan.open {
        out.line(format!("  kept for         {what}, since {} ({id})", UnixTime(*started)))?;
    }
    match done {
        None => {
            let (objects, bytes) = (plan.objects, size(plan.bytes));
            out.line(format!("  would delete     {objects} objects, {bytes}"))?;
            if plan.orphans > 0 {
                out.line(format!("  without revision {} of them", plan.orphans))?;
            }
            for kept in &plan.largest {
                let tags = if kept.tags.is_empty() { "its age".to_owned() } else { kept.tags.join(", ") };
                let (revision, objects, bytes) = (kept.revision, kept.objects, size(kept.bytes));
                out.line(format!(
                    "  only revision {revision} holds {bytes} in {objects} objects; kept by {tags}"
                ))?;
            }
        }
        Some(done) => {
            let deleted = done.deleted;
            out.line(format!("  deleted          {} objects, {}", deleted.objects, size(deleted.bytes)))?;
            if deleted.revived > 0 {
                out.line(format!("  taken back       {} objects that are in use again", deleted.revived))?;
            }
        }
    }
    if let Some(waiting) = done.map_or(plan.waiting, |done| done.waiting) {
        let until = UnixTime(waiting.until);
        out.line(format!(
            "  waiting          {} objects; a collect from {until} on deletes them",
            waiting.objects
        ))?;
    }
    plan.warnings.iter().for_each(|warning| warn(Some(warning)));
    Ok(())
}
