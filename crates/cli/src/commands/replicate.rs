mod confined;
mod group;
mod target;

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use esker_format::trust::TrustError;
use esker_maintain::{
    Pace, Replicable, ReplicateError, ReplicateProgress, Replicated, ReplicationPlan, ReplicationSchedule,
};
use esker_repository::RepositoryError;
use esker_store::{Cause, Engine, EngineOptions, HttpOptions, Proxies, Servers};
use serde_json::json;

use crate::error::{Failure, Kind, of_store, warn};
use crate::logging::LogArgs;
use crate::output::{Output, QuietArgs, parse_duration, parse_rate, size};
use crate::process::limits::cores;
use crate::progress::ProgressMeter;
use crate::publisher::{Interrupt, Woken, now, of_operation};
use crate::settings::Settings;
use group::{Group, GroupArgs};
use target::{Target, Targets};

/// Copies repositories from servers into a folder or object storage: a Stratum 1.
///
/// Everything is verified. A new head is published last, after all objects that it references. The next run continues an
/// interrupted one. The folder can be served with `esker serve`, and has the status files of CernVM-FS.
/// With --follow, root becomes the owner of the replicas; replicas and repositories that are added later are followed too.
///
/// Example: esker replicate http://server/cvmfs/sw.example.org --to /mnt/replicas --public-key sw.example.org.pub
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    group: GroupArgs,

    /// File with a group of repositories in each line: URLs, and options for the selection, servers and storage
    #[arg(long, value_name = "FILE", conflicts_with = "sources")]
    groups: Option<PathBuf>,

    /// Replicate all replicas in the storage folder again
    #[arg(long, conflicts_with_all = ["sources", "groups"])]
    all: bool,

    /// Check every object, not only those of new catalogs
    #[arg(long, help_heading = "Selection")]
    full: bool,

    /// Keep running; replicate each new revision as soon as the server announces it
    #[arg(long, conflicts_with = "dry_run", help_heading = "New revisions")]
    follow: bool,

    /// Poll interval without announcements, with --follow
    #[arg(long, value_name = "DURATION", value_parser = parse_duration, default_value = "10m", requires = "follow", help_heading = "New revisions")]
    every: Duration,

    /// Maximum number of repositories that are copied at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..), default_value_t = 4, help_heading = "Resources")]
    parallel: u16,

    /// Maximum number of connections to one server, for all repositories together
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256), default_value_t = 32, help_heading = "Resources")]
    connections: u16,

    /// Maximum rate of what is fetched, like 50M/s, for all repositories together [default: no limit]
    #[arg(long, value_name = "RATE", value_parser = parse_rate, help_heading = "Resources")]
    rate: Option<u64>,

    /// Print what would be fetched, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Number of threads for each repository [default: one for each core]
    #[arg(long = "jobs", alias = "threads", value_name = "N", value_parser = clap::value_parser!(u16).range(1..), help_heading = "Resources")]
    threads: Option<u16>,

    #[command(flatten)]
    quiet: QuietArgs,

    /// Print each result as a JSON object in a line
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    pub(crate) log: LogArgs,
}

impl Args {
    /// True if the command runs until it is stopped.
    pub(crate) fn is_lasting(&self) -> bool {
        self.follow
    }
}

/// Result of one run for one repository.
enum Outcome {
    Planned(ReplicationPlan),
    Replicated(Replicated),
}

/// State that all repositories of a command share.
struct Shared<'a> {
    args: &'a Args,
    engine: Engine,
    interrupt: &'a Interrupt,
    meter: Mutex<ProgressMeter>,
    pace: Option<Arc<Pace>>,
}

/// A repository of the command.
struct One<'a> {
    shared: &'a Shared<'a>,
    target: Target,
}

impl Replicable for One<'_> {
    type Outcome = Result<Outcome, Failure>;

    fn name(&self) -> &str {
        self.target.name.as_str()
    }

    fn announcer(&self) -> Option<&str> {
        // Announcements come past proxies.
        let servers = Some(&self.target.servers).filter(|servers| servers.proxies == Proxies::direct());
        servers.map(Servers::url).filter(|url| !url.starts_with("file://"))
    }

    fn replicate(&self) -> Result<Outcome, Failure> {
        one(self.shared, &self.target)
    }

    fn revision(outcome: &Result<Outcome, Failure>) -> Option<u64> {
        match outcome {
            Ok(Outcome::Replicated(done)) => Some(done.revision),
            Ok(Outcome::Planned(plan)) => Some(plan.revision),
            Err(_) => None,
        }
    }
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let groups = Group::all(args)?;
    if args.follow {
        confined::enter(&groups, settings)?;
    }
    let interrupt = Interrupt::on_signals()?;
    let connections = usize::from(args.connections);
    let http = HttpOptions {
        connections_near: connections,
        connections_far: connections.max(HttpOptions::default().connections_far),
        batch: esker_format::batch::NAMES_MAX,
        ..HttpOptions::default()
    };
    let engine = Engine::start(EngineOptions { http, ..EngineOptions::default() })
        .map_err(|error| of_store("can't start", &error))?;
    let meter = Mutex::new(ProgressMeter::new(args.quiet.is_set()));
    let pace = args.rate.map(|rate| Arc::new(Pace::new(Some(rate), interrupt.flag())));
    let shared = Shared { args, engine, interrupt: &interrupt, meter, pace };
    let found = Mutex::new(Targets::new(&groups, args, settings));
    let next = || -> Result<Vec<One<'_>>, Failure> {
        let targets = found.lock().unwrap_or_else(PoisonError::into_inner).next()?;
        Ok(targets.into_iter().map(|target| One { shared: &shared, target }).collect())
    };
    let all = next()?;
    let is_first = found.lock().unwrap_or_else(PoisonError::into_inner).refused.len();
    let repositories = all.len() + is_first;
    let (mut out, mut failures, mut printed) = (Output::new(), Vec::new(), Ok(()));
    let wait = |event: Option<BorrowedFd<'_>>, time| {
        !matches!(interrupt.wait(event, Some(time)), Ok(Woken::Interrupted))
    };
    let every = args.follow.then_some(args.every);
    let schedule = ReplicationSchedule { parallel: usize::from(args.parallel), every, wait: &wait };
    let added = || {
        next().unwrap_or_else(|failure| {
            tracing::warn!("{}", failure.message);
            Vec::new()
        })
    };
    schedule.run(all, added, |one, outcome| {
        if let Ok(mut meter) = shared.meter.lock() {
            meter.clear();
        }
        match outcome {
            Ok(outcome) => {
                let one = print(&mut out, one.name(), &outcome, args).and_then(|()| out.flush());
                if one.is_err() && printed.is_ok() {
                    // The reader of the output is gone.
                    interrupt.raise();
                    printed = one;
                }
            }
            Err(failure) if args.follow && failure.kind != Kind::Interrupted => {
                tracing::warn!(repository = one.name(), "{}", failure.message);
            }
            Err(failure) => failures.push(failure),
        }
    });
    printed?;
    out.finish()?;
    let found = found.into_inner().unwrap_or_else(PoisonError::into_inner);
    // Those of a list that could not be begun were named then.
    failures.extend(found.refused.into_iter().filter(|_| !args.follow));
    report(failures, repositories, args)
}

fn one(shared: &Shared<'_>, target: &Target) -> Result<Outcome, Failure> {
    let name = target.name.to_string();
    let progress = |progress| {
        if let Ok(mut meter) = shared.meter.try_lock() {
            meter.say(|| describe(&name, progress));
        }
    };
    let args = shared.args;
    let source = target.connect(&shared.engine)?;
    let mut replicate = target.replicate(source, &progress);
    replicate.full = args.full;
    replicate.pace.clone_from(&shared.pace);
    replicate.threads = args.threads.map_or_else(cores, usize::from);
    replicate.stop = shared.interrupt.flag();
    let outcome = match args.dry_run {
        true => replicate.dry_run(target.storage.clone(), now()).map(Outcome::Planned),
        false => {
            let outcome = replicate.run(target.storage.clone(), now());
            target.ended(&outcome).map_err(ReplicateError::from).and(outcome).map(Outcome::Replicated)
        }
    };
    outcome.map_err(|error| failure(&name, &error))
}

fn failure(name: &str, error: &ReplicateError) -> Failure {
    let failure = of_operation(&format!("{name} was not replicated"), error);
    match error {
        ReplicateError::Full { .. } => failure.hint(format!(
            "free some space, for example with `esker collect {name}`; the next run goes on where this one stopped"
        )),
        ReplicateError::NoRepository { .. } => {
            failure.hint("see whether the name is right; `esker replicate http://HOST/cvmfs/` copies all that a server lists")
        }
        ReplicateError::Repository(error) if is_older(error) => failure.hint(format!(
            "if its owner has made it anew, accept that with `esker replicate {name} --forget-history`; otherwise its server is \
             out of date"
        )),
        ReplicateError::Repository(RepositoryError::NotReplica(_)) => failure.hint("name another folder with --to DIR"),
        ReplicateError::Repository(RepositoryError::Locked { .. }) => failure.hint("another `esker replicate` copies it now"),
        ReplicateError::Repository(RepositoryError::Missing { .. }) => {
            failure.hint("the replica keeps its revision; repeat this when the server has the object")
        }
        _ => failure,
    }
}

/// Returns true if the servers offer a head that is older than that of the replica, or another one of the same revision.
fn is_older(error: &RepositoryError) -> bool {
    let source = match error {
        RepositoryError::Untrusted { source, .. } => &**source,
        RepositoryError::Storage(error) => match error.cause() {
            Cause::Untrusted(source) => source,
            _ => return false,
        },
        _ => return false,
    };
    use TrustError as E;
    matches!(
        source,
        E::OlderRevision { .. } | E::OlderTimestamp { .. } | E::TwoRoots { .. } | E::RevisionJump { .. }
    )
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
            say(out, args, &format!("{name}: would copy revision {}{from}", plan.revision))?;
            let (objects, bytes) = (plan.objects, size(plan.plain_bytes));
            let (catalogs, revisions) = (plan.catalogs, plan.revisions);
            say(
                out,
                args,
                &format!(
                    "  {objects} objects with {bytes} uncompressed, {catalogs} catalogs, {revisions} tagged revisions"
                ),
            )?;
            &plan.skipped
        }
        Outcome::Replicated(done) if !done.changed && done.objects == 0 && done.revisions == 0 => {
            if !args.follow {
                let but = if done.skipped.is_empty() { "" } else { ", but for what no server has" };
                say(out, args, &format!("{name}: revision {} is up to date{but}", done.revision))?;
            }
            &done.skipped
        }
        Outcome::Replicated(done) => {
            let from = done.before.map(|before| format!("{before} → ")).unwrap_or_default();
            let line = format!(
                "{name}: revision {from}{}: {} objects ({}), {} catalogs ({}) in {:.1} s",
                done.revision,
                done.objects,
                size(done.bytes),
                done.catalogs,
                size(done.catalog_bytes),
                done.seconds
            );
            say(out, args, &line)?;
            done.warnings.iter().for_each(|warning| warn_of(args, &format!("{name}: {warning}")));
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
        warn_of(args, &format!("{name}: {which} is left out: {}; {again}", skipped.reason));
    }
    Ok(())
}

/// Prints a line, or logs it with its time if the command runs until it is stopped.
fn say(out: &mut Output, args: &Args, line: &str) -> Result<(), Failure> {
    if args.follow {
        tracing::info!("{line}");
        return Ok(());
    }
    out.line(line)
}

fn warn_of(args: &Args, warning: &str) {
    if args.follow { tracing::warn!("{warning}") } else { warn(Some(warning)) }
}
