mod confined;
mod follow;
mod target;
mod turns;

use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use esker_maintain::{ReplicateError, ReplicateProgress, Replicated, ReplicationPlan};
use esker_repository::RepositoryError;
use esker_store::{Engine, EngineOptions, HttpOptions};
use serde_json::json;

use crate::error::{Failure, Kind, of_store, warn};
use crate::output::{Output, parse_duration, parse_size, size};
use crate::progress::ProgressMeter;
use crate::publisher::{BucketArgs, Interrupt, now, of_operation};
use crate::settings::Settings;
use follow::Follower;
use target::Target;
use turns::Turns;

/// Copies repositories from servers into a folder or object storage: a Stratum 1.
///
/// Everything is verified. The head is switched only when all that it leads to is here. A run that was interrupted is
/// continued by the next one. The folder can be served with `esker serve`, and has the status files of CernVM-FS.
/// With --follow, root becomes the owner of the replicas.
///
/// Example: esker replicate http://server/cvmfs/sw.example.org --to /mnt/replicas --public-key sw.example.org.pub
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// URLs of repositories; further servers of the same one follow after `;`. Or names of replicas that are here
    #[arg(value_name = "URL|NAME", required_unless_present = "all")]
    sources: Vec<String>,

    /// Replicate all replicas in the storage folder again
    #[arg(long, conflicts_with = "sources")]
    all: bool,

    /// Folder of repositories, each below its name, or the folder of this one; or object storage, like
    /// s3://BUCKET/PREFIX [default: /srv/cvmfs for root, else ~/.local/share/esker/repositories]
    #[arg(long, value_name = "DIR|URL", alias = "storage")]
    to: Option<PathBuf>,

    /// Master public key or a folder of them [default: those that the replica was made with, else /etc/cvmfs/keys]
    #[arg(long, value_name = "FILE|DIR")]
    public_key: Vec<PathBuf>,

    /// Number of tagged revisions to copy besides the head, the newest first [default: all]
    #[arg(long, value_name = "N")]
    revisions: Option<u64>,

    /// Copy only the catalogs above, at and below this path; clients read the others from other servers [default: the
    /// whole repository]
    #[arg(long, value_name = "/PATH")]
    path: Vec<PathBuf>,

    /// Copy all revisions and paths of a replica that was made with --revisions or --path
    #[arg(long, conflicts_with_all = ["revisions", "path"])]
    whole: bool,

    /// Look for every object, also those of catalogs that are here already
    #[arg(long)]
    full: bool,

    /// Go on: replicate each new revision as soon as the server announces it, and look for one now and then
    #[arg(long, conflicts_with = "dry_run")]
    follow: bool,

    /// Time between two looks for a new revision with --follow
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10m", requires = "follow")]
    every: Duration,

    /// Number of repositories that are copied at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), default_value_t = 4)]
    parallel: u16,

    /// Number of connections to one server, for all repositories together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256), default_value_t = 32)]
    connections: u16,

    /// Space that stays free on the file system of the replica
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "256M")]
    reserve: u64,

    /// Print what would be fetched, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Number of threads for each repository [default: one for each core]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,

    /// Show no progress
    #[arg(long, short)]
    quiet: bool,

    #[command(flatten)]
    bucket: BucketArgs,

    /// Print each result as a JSON object in a line
    #[arg(long)]
    json: bool,
}

/// Result of one run for one repository.
enum Outcome {
    Planned(ReplicationPlan),
    Replicated(Replicated),
}

/// A result, with the name of its repository.
type Message = (String, Result<Outcome, Failure>);

/// What all repositories of a command share.
struct Shared<'a> {
    args: &'a Args,
    engine: Engine,
    interrupt: &'a Interrupt,
    meter: Mutex<ProgressMeter>,
    turns: Turns,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    if args.follow {
        confined::enter(args, settings)?;
    }
    let interrupt = Interrupt::on_signals()?;
    let targets = Target::all(args, settings)?;
    let connections = usize::from(args.connections);
    let http = HttpOptions {
        connections_near: connections,
        connections_far: connections.max(HttpOptions::default().connections_far),
        batch: esker_format::batch::NAMES_MAX,
        ..HttpOptions::default()
    };
    let engine = Engine::start(EngineOptions { http, ..EngineOptions::default() })
        .map_err(|error| of_store("can't start", &error))?;
    let shared = Shared {
        args,
        engine,
        interrupt: &interrupt,
        meter: Mutex::new(ProgressMeter::new(args.quiet)),
        turns: Turns::new(usize::from(args.parallel)),
    };
    let mut out = Output::new();
    let mut failures = Vec::new();
    let (sender, results) = mpsc::channel::<Message>();
    let printed = std::thread::scope(|scope| {
        for target in &targets {
            let (sender, shared) = (sender.clone(), &shared);
            scope.spawn(move || work(shared, target, &sender));
        }
        drop(sender);
        let mut printed = Ok(());
        for (name, outcome) in results {
            if let Ok(mut meter) = shared.meter.lock() {
                meter.clear();
            }
            let one = match outcome {
                Ok(outcome) => print(&mut out, &name, &outcome, args).and_then(|()| out.flush()),
                Err(failure) if args.follow && failure.kind != Kind::Interrupted => {
                    warn(Some(&failure.message));
                    Ok(())
                }
                Err(failure) => {
                    failures.push(failure);
                    Ok(())
                }
            };
            if one.is_err() && printed.is_ok() {
                // The reader of the output is gone.
                shared.interrupt.raise();
                printed = one;
            }
        }
        printed
    });
    printed?;
    out.finish()?;
    report(failures, targets.len(), args)
}

/// Replicates one repository: once, or until the command is interrupted.
fn work(shared: &Shared<'_>, target: &Target, sender: &Sender<Message>) {
    let mut follower = Follower::new(shared.args, shared.interrupt, target);
    loop {
        let outcome = shared.turns.with(|| one(shared, target));
        let next = follower.after(&outcome);
        // The receiver lives until all senders are gone.
        let _ = sender.send((target.name.to_string(), outcome));
        if !shared.args.follow || !follower.wait(next) {
            return;
        }
    }
}

fn one(shared: &Shared<'_>, target: &Target) -> Result<Outcome, Failure> {
    let name = target.name.to_string();
    let progress = |progress| {
        if let Ok(mut meter) = shared.meter.try_lock() {
            meter.say(|| describe(&name, progress));
        }
    };
    let (args, cores) = (shared.args, || std::thread::available_parallelism().map_or(1, usize::from));
    let source = target.connect(&shared.engine)?;
    let mut replicate = target.replicate(source, &progress);
    replicate.full = args.full;
    replicate.reserve = args.reserve;
    replicate.threads = args.threads.map_or_else(cores, usize::from);
    replicate.stop = shared.interrupt.flag();
    let outcome = match args.dry_run {
        true => replicate.dry_run_in(target.storage.clone(), now()).map(Outcome::Planned),
        false => {
            let outcome = replicate.run_in(target.storage.clone(), now());
            target.ended(&outcome).map_err(ReplicateError::from).and(outcome).map(Outcome::Replicated)
        }
    };
    outcome.map_err(|error| failure(&name, &error))
}

fn failure(name: &str, error: &ReplicateError) -> Failure {
    let failure = of_operation(&format!("{name} was not replicated"), error);
    match error {
        ReplicateError::Full { .. } => {
            failure.hint("free some space, for example with `esker collect NAME`; the next run goes on where this one stopped")
        }
        ReplicateError::Repository(RepositoryError::NotReplica(_)) => failure.hint("name another folder with --to DIR"),
        ReplicateError::Repository(RepositoryError::Locked { .. }) => failure.hint("another `esker replicate` copies it now"),
        ReplicateError::Repository(RepositoryError::Missing { .. }) => {
            failure.hint("the replica keeps its revision; repeat this when the server has the object")
        }
        _ => failure,
    }
}

fn report(mut failures: Vec<Failure>, repositories: usize, args: &Args) -> Result<(), Failure> {
    if let Some(at) = failures.iter().position(|failure| failure.kind == Kind::Interrupted) {
        // With --follow, a signal is the usual end.
        return if args.follow { Ok(()) } else { Err(failures.swap_remove(at)) };
    }
    let last = match failures.pop() {
        None => return Ok(()),
        Some(last) if repositories == 1 => return Err(last),
        Some(last) => last,
    };
    failures.iter().chain([&last]).for_each(|failure| warn(Some(&failure.message)));
    let count = failures.len() + 1;
    Err(Failure::new(last.kind, format!("{count} of {repositories} repositories were not replicated")))
}

fn describe(name: &str, progress: ReplicateProgress) -> String {
    match progress {
        ReplicateProgress::Catalogs { done } => format!("{name}: read {done} catalogs"),
        ReplicateProgress::Objects { done, total, bytes } => {
            format!("{name}: {done} of {total} objects, {} fetched", size(bytes))
        }
        ReplicateProgress::Commit => format!("{name}: switching the head"),
    }
}

fn print(out: &mut Output, name: &str, outcome: &Outcome, args: &Args) -> Result<(), Failure> {
    if args.json {
        return match outcome {
            Outcome::Planned(plan) => {
                out.json(&json!({ "repository": name, "dry_run": true, "result": plan }))
            }
            Outcome::Replicated(done) => {
                out.json(&json!({ "repository": name, "dry_run": false, "result": done }))
            }
        };
    }
    let skipped = match outcome {
        Outcome::Planned(plan) => {
            let from = plan.before.map(|before| format!(" in place of {before}")).unwrap_or_default();
            out.line(format!("{name}: would copy revision {}{from}", plan.revision))?;
            out.line(format!(
                "  {} objects with {} uncompressed, {} catalogs, {} tagged revisions",
                plan.objects,
                size(plan.plain_bytes),
                plan.catalogs,
                plan.revisions
            ))?;
            &plan.skipped
        }
        Outcome::Replicated(done) if !done.changed && done.objects == 0 && done.revisions == 0 => {
            if !args.follow {
                let but = if done.skipped.is_empty() { "" } else { ", but for what no server has" };
                out.line(format!("{name}: revision {} is up to date{but}", done.revision))?;
            }
            &done.skipped
        }
        Outcome::Replicated(done) => {
            let from = done.before.map(|before| format!("{before} → ")).unwrap_or_default();
            out.line(format!(
                "{name}: revision {from}{}: {} objects ({}), {} catalogs ({}) in {:.1} s",
                done.revision,
                done.objects,
                size(done.bytes),
                done.catalogs,
                size(done.catalog_bytes),
                done.seconds
            ))?;
            done.warnings.iter().for_each(|warning| warn(Some(&format!("{name}: {warning}"))));
            &done.skipped
        }
    };
    for skipped in skipped {
        let (revision, tags) = (skipped.revision, skipped.tags.join(", "));
        let which = if tags.is_empty() {
            "a revision without a tag".to_owned()
        } else {
            format!("revision {revision} ({tags})")
        };
        let again = "the next run looks for it again";
        warn(Some(&format!("{name}: {which} is left out: {}; {again}", skipped.reason)));
    }
    Ok(())
}
