use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, BufRead as _, IsTerminal as _};
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use esker_format::object::ObjectName;
use esker_gateway::Session;
use esker_publish::{BaseRevision, CopyTree, PublishOptions, Staged, TagRequest};
use esker_repository::{BranchRequest, Repository, published::Published};
use esker_run::{Ending, Forwarding, take_terminal};
use esker_store::FileLock;
use serde_json::json;

use crate::error::{Failure, warn};
use crate::mounting::run_mounted::{end_as, take_signals};
use crate::output::{Output, tell};
use crate::process::limits::OpenFiles;
use crate::publisher::{HookFacts, Hooked, Interrupt, LeaseArgs, Place, PublishingArgs, now, of_operation};
use crate::settings::Settings;
use crate::transaction::{OnBranch, Origin, Outcome, Record, RunningCommand, Transaction, Transactions};

use super::choices::ChoiceArgs;
use super::finish::{commit, is_kept, lease, place_of, try_commit};
use super::open::open;
use super::{StartArgs, show};

/// Runs another command or a shell in a kept transaction.
///
/// Example: esker transaction resume sw.example.org -- make check
#[derive(clap::Args, Debug)]
pub(super) struct ResumeArgs {
    /// Transaction: its id or the beginning of its id, or the name of a repository with one transaction
    #[arg(value_name = "ID|NAME")]
    transaction: String,

    #[command(flatten)]
    choices: ChoiceArgs,

    #[command(flatten)]
    how: PublishingArgs,

    /// Keep the changes instead of publishing them
    #[arg(long, conflicts_with = "dry_run")]
    keep: bool,

    /// Run no command, and keep the tree until it is published or dropped: commands in other terminals see it by `esker
    /// transaction enter`
    #[arg(long, conflicts_with_all = ["keep", "dry_run", "command"])]
    open: bool,

    /// Command and its arguments [default: $SHELL]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Use of the changes at the end of a command.
enum Choice {
    Publish,
    Keep,
    Drop,
}

/// A transaction whose command is about to run.
struct Run<'a> {
    transaction: Transaction,
    lock: FileLock,
    /// Renews the lease while the command runs.
    session: Option<Arc<Session>>,
    command: Vec<OsString>,
    how: &'a PublishingArgs,
    choices: ChoiceArgs,
    keep: bool,
    settings: &'a Settings,
    files: OpenFiles,
}

pub(super) fn run(
    args: StartArgs,
    transactions: &Transactions,
    settings: &Settings,
    files: OpenFiles,
) -> Result<ExitCode, Failure> {
    let forwarding = take_signals()?;
    let interrupt = Interrupt::without_signals()?;
    let missing = || Failure::usage("NAME is missing").hint("as in: esker transaction sw.example.org");
    let place = args.gateway.place(&args.place, &args.name.ok_or_else(missing)?, settings)?;
    let path = args.path.as_deref().map_or_else(|| Ok("/".to_owned()), inner_path)?;
    let branch = args.branch.request();
    let (command, how, keep) = (args.command, &args.how, args.keep);
    if let (Some(branch), None, false) = (&branch, &how.tag, keep || args.open) {
        // Known before a build of hours, and not after it.
        let what = format!("a revision of the branch {} needs a tag", branch.name);
        return Err(
            Failure::usage(what).hint("name one with --tag NAME, or keep the transaction with --keep")
        );
    }
    let (paths, take_over) = (&[path.clone().into_bytes()], args.gateway.take_over);
    let session = how.lease(&place, LeaseArgs { paths, token: None, take_over })?;
    let repository = how.open(&place, session.as_ref(), &interrupt)?;
    if how.tag.is_some() || how.message.is_some() && branch.is_none() {
        let description = how.message.clone().unwrap_or_default();
        let tag = TagRequest { name: how.tag.clone(), description, branch: branch.clone() };
        let checked = tag.check(&repository, now());
        checked
            .map_err(|error| of_operation(&format!("can't begin a transaction of {}", place.name), &error))?;
    }
    let (base, origin, stored) = match (&args.template[..], &branch) {
        ([from, to], _) => template(how, &place, &repository, &interrupt, (from, to), &path)?,
        (_, None) => (BaseRevision::published(&repository), None, BTreeSet::new()),
        (_, Some(branch)) => {
            let base = BaseRevision::of_branch(&repository, branch).map_err(|error| {
                of_operation(&format!("can't begin a transaction of {}", place.name), &error)
            })?;
            (base, None, BTreeSet::new())
        }
    };
    check_directory(&repository, &base, &path, args.create)?;
    drop(repository);
    let begin = Begin { place: &place, how, base, origin, stored, path, branch, transactions, settings };
    let (mut transaction, lock) = begin.transaction(&command, session.as_deref())?;
    if args.open {
        if let Err(failure) = open(&mut transaction, lock, transactions) {
            give_up(session.as_deref());
            let lock = transaction.take()?;
            transaction.remove(lock)?;
            return Err(failure);
        }
        return super::open::print(&transaction, how).map(|()| ExitCode::SUCCESS);
    }
    let choices = ChoiceArgs::default();
    Run { transaction, lock, session, command, how, choices, keep, settings, files }
        .run(forwarding, &interrupt, true)
}

/// Refuses a path that is no directory of the revision, and for `--create` one whose parent is none.
fn check_directory(
    repository: &Repository,
    base: &BaseRevision,
    path: &str,
    create: bool,
) -> Result<(), Failure> {
    let published = Published::with_root(repository.storage().sink().clone(), base.root, base.size);
    let what = format!("can't begin a transaction of {path}");
    let entry = |path: &str| {
        published.entry(path.trim_end_matches('/').as_bytes()).map_err(|error| of_operation(&what, &error))
    };
    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
    let revision = base.revision;
    match entry(path)? {
        Some(found) if found.is_directory() => Ok(()),
        Some(_) => Err(Failure::usage(format!("{what}: it is no directory in revision {revision}"))),
        None if !entry(parent)?.is_some_and(|found| found.is_directory()) => {
            Err(Failure::usage(format!("{what}: revision {revision} has no directory {parent}"))
                .hint("name a directory that is there"))
        }
        None if create => Ok(()),
        None => Err(Failure::usage(format!("{what}: revision {revision} has no directory {path}"))
            .hint("--create makes it")),
    }
}

/// Stores a copy of a directory as an unpublished revision; returns that, the published one, and the objects of the copy.
fn template(
    how: &PublishingArgs,
    place: &Place,
    repository: &Repository,
    interrupt: &Interrupt,
    (from, to): (&Path, &Path),
    within: &str,
) -> Result<(BaseRevision, Option<BaseRevision>, BTreeSet<ObjectName>), Failure> {
    let copy = inner_path(to)?;
    if !Path::new(&copy).starts_with(within) {
        return Err(Failure::usage(format!("--template: {copy} is not below {within}"))
            .hint("name the directory of the copy as PATH, or none"));
    }
    let work = |options: PublishOptions<'_>| {
        let (from, to) = (inner_path_bytes(from), copy.clone().into_bytes());
        CopyTree { from, to, options }.stage(repository, now())
    };
    let staged = how.work(place, interrupt, work, "was not changed")?;
    staged.warnings.iter().for_each(|warning| warn(Some(warning)));
    Ok((staged.base, Some(staged.origin), staged.stored))
}

fn inner_path_bytes(path: &Path) -> Vec<u8> {
    use std::os::unix::ffi::OsStrExt as _;
    path.as_os_str().as_bytes().to_vec()
}

/// Inputs of a new transaction.
struct Begin<'a> {
    place: &'a Place,
    how: &'a PublishingArgs,
    base: BaseRevision,
    origin: Option<BaseRevision>,
    /// Objects that were stored for an unpublished base.
    stored: BTreeSet<ObjectName>,
    path: String,
    branch: Option<BranchRequest>,
    transactions: &'a Transactions,
    settings: &'a Settings,
}

impl Begin<'_> {
    /// Makes the folder of the transaction.
    fn transaction(
        self,
        command: &[OsString],
        session: Option<&Session>,
    ) -> Result<(Transaction, FileLock), Failure> {
        let Begin { place, how, base, origin, stored, path, branch, transactions, settings } = self;
        let name = place.name.as_str();
        let within = path.clone();
        let (tag, revision, path_fact) = (how.tag.as_deref(), Some(base.revision), Some(OsStr::new(&within)));
        let facts = HookFacts { tag, revision, transaction: None, path: path_fact };
        Hooked::Transaction.before(&place.root, name, facts)?;
        let ids = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        // A tag may be moved before the transaction ends.
        let start = origin.as_ref().unwrap_or(&base).root.to_string();
        let branch = branch.map(|branch| OnBranch { from: branch.from.map(|_| start), name: branch.name });
        let origin = origin.filter(|origin| origin.root != base.root);
        let record = Record {
            id: String::new(),
            repository: name.to_owned(),
            storage: place.root.clone(),
            keys: place.keys.folder().to_owned(),
            revision: base.revision,
            root: base.root.to_string(),
            root_size: base.size,
            collections: base.collections,
            origin: origin.map(|origin| Origin { root: origin.root.to_string(), root_size: origin.size }),
            path,
            branch,
            tag: how.tag.clone(),
            message: how.message.clone(),
            command: command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
            claimed: (!settings.root).then_some(ids),
            layer: 0,
            started: now().0,
            outcome: None,
            open: None,
        };
        let (transaction, lock) = transactions.create(record, now())?;
        let kept = transaction.keep_base(&stored).and_then(|()| {
            let prepared = transaction.upper()?.prepare(&place.root);
            prepared.map_err(|error| of_operation("can't begin a transaction", &error))
        });
        let kept = kept.and_then(|()| session.map_or(Ok(()), |session| transaction.note_lease(session)));
        if let Err(failure) = kept {
            transaction.remove(lock)?;
            return Err(failure);
        }
        let facts = HookFacts { transaction: Some(&transaction.id), ..facts };
        Hooked::Transaction.after(&place.root, name, facts);
        Ok((transaction, lock))
    }
}

/// An ingest with a command that runs in the unpacked tree before it is published.
pub(crate) struct IngestThen<'a> {
    pub(crate) place: &'a Place,
    pub(crate) staged: Staged,
    /// Lease of a gateway that publishes.
    pub(crate) session: Option<Arc<Session>>,
    /// Working directory of the command in the repository.
    pub(crate) target: &'a Path,
    /// Script for `sh`.
    pub(crate) script: OsString,
    pub(crate) how: &'a PublishingArgs,
    pub(crate) branch: Option<BranchRequest>,
    pub(crate) transactions: &'a Transactions,
    pub(crate) settings: &'a Settings,
    pub(crate) files: OpenFiles,
}

impl IngestThen<'_> {
    /// Runs the command in a transaction above the unpublished revision, and publishes both as one.
    pub(crate) fn run(self, forwarding: Forwarding, interrupt: &Interrupt) -> Result<ExitCode, Failure> {
        let IngestThen { place, staged, session, target, script, how, branch, transactions, settings, files } =
            self;
        staged.warnings.iter().for_each(|warning| warn(Some(warning)));
        let Staged { base, origin, stored, .. } = staged;
        let directory = format!("/cvmfs/{}{}", place.name, inner_path(target)?);
        let start = OsString::from("cd \"$0\" && ");
        let command = vec!["sh".into(), "-c".into(), [start, script].into_iter().collect(), directory.into()];
        let path = "/".to_owned();
        let origin = Some(origin);
        let begin = Begin { place, how, base, origin, stored, path, branch, transactions, settings };
        let (transaction, lock) = begin.transaction(&command, session.as_deref())?;
        let choices = ChoiceArgs::default();
        let run = Run { transaction, lock, session, command, how, choices, keep: false, settings, files };
        run.run(forwarding, interrupt, true)
    }
}

pub(super) fn resume(
    args: ResumeArgs,
    transactions: &Transactions,
    settings: &Settings,
    files: OpenFiles,
) -> Result<ExitCode, Failure> {
    let forwarding = take_signals()?;
    let interrupt = Interrupt::without_signals()?;
    let mut transaction = transactions.find(&args.transaction)?;
    let lock = transaction.take()?;
    let (command, how, choices, keep) = (args.command, &args.how, args.choices, args.keep);
    choices.rebase(&mut transaction, how, &interrupt, settings)?;
    if args.open {
        transaction.add_words(how);
        open(&mut transaction, lock, transactions)
            .map_err(|failure| failure.hint_first(is_kept(&transaction.id)))?;
        return super::open::print(&transaction, how).map(|()| ExitCode::SUCCESS);
    }
    let place = place_of(transaction.record()?, settings)?;
    let session = lease(&transaction, &place, how)?;
    Run { transaction, lock, session, command, how, choices, keep, settings, files }
        .run(forwarding, &interrupt, false)
}

/// Returns a path in the repository, with a slash in front.
fn inner_path(path: &Path) -> Result<String, Failure> {
    let refused = |reason| Failure::usage(format!("PATH {}: {reason}", path.display()));
    let text = path.to_str().ok_or_else(|| refused("it is no text"))?;
    let names: Vec<&str> = text.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    if names.contains(&"..") {
        return Err(refused("`..` is not allowed").hint("name the directory as it is in the repository"));
    }
    Ok(format!("/{}", names.join("/")))
}

impl Run<'_> {
    /// Runs the command, shows the difference, and publishes, keeps or drops it. A new transaction whose command never ran
    /// is removed.
    fn run(self, forwarding: Forwarding, interrupt: &Interrupt, is_new: bool) -> Result<ExitCode, Failure> {
        let Run { mut transaction, lock, session, command, how, choices, keep, settings, files } = self;
        transaction.add_words(how);
        let is_shell = command.is_empty();
        let command = if is_shell { vec![shell()] } else { command };
        let signals = forwarding.clone();
        let json = how.json;
        let running =
            RunningCommand { transaction: &mut transaction, command, settings, files, json, opened: None };
        let ending = match running.run(forwarding) {
            Ok(ending) => ending,
            Err(failure) if is_new => {
                give_up(session.as_deref());
                transaction.remove(lock)?;
                return Err(failure);
            }
            Err(failure) => return Err(failure.hint_first(is_kept(&transaction.id))),
        };
        let raised = interrupt.clone();
        signals.handle(move |_| raised.signalled());
        take_terminal();
        // What the command made is not ours, but what follows is.
        crate::process::privileges::mend_umask();
        let is_terminal = io::stdin().is_terminal() && io::stderr().is_terminal();
        let shown = !how.quiet.is_set() && !how.json && !how.dry_run;
        if shown {
            let changes = show::changes(&transaction, &interrupt.flag());
            let changes = changes.map_err(|failure| failure.hint_first(is_kept(&transaction.id)))?;
            let mut out = Output::new();
            // The reader may be gone: that decides nothing about the changes.
            let _ = show::print(&mut out, &changes).and_then(|()| out.finish());
        }
        let choice = match ending {
            _ if keep => Choice::Keep,
            _ if how.dry_run => Choice::Drop,
            _ if is_shell && is_terminal => ask(interrupt),
            Ending::Code(0) => Choice::Publish,
            Ending::Code(_) | Ending::Signal(_) => Choice::Keep,
        };
        match choice {
            Choice::Publish => {
                let id = transaction.id.clone();
                commit(transaction, lock, (how, &choices), interrupt, settings).or_else(|failure| {
                    print_kept(how, &id, ending)?;
                    Err(failure)
                })?;
            }
            Choice::Keep => {
                let outcome = transaction.record()?.outcome.filter(|_| !matches!(ending, Ending::Code(0)));
                let ended = outcome.map_or_else(String::new, |outcome| {
                    format!("the command ended with {}, so nothing was published; ", outcome.shown())
                });
                if !ended.is_empty() || !how.quiet.is_set() {
                    warn_or_note(&format!("{ended}{}", is_kept(&transaction.id)));
                }
                print_kept(how, &transaction.id, ending)?;
            }
            Choice::Drop => {
                give_up(session.as_deref());
                let planned =
                    how.dry_run.then(|| try_commit(&transaction, (how, &choices), interrupt, settings));
                let id = transaction.id.clone();
                transaction.remove(lock)?;
                planned.transpose()?.map_or(Ok(()), |planned| planned.print(how, &id, interrupt))?;
            }
        }
        Ok(end_as(ending))
    }
}

/// Prints the id of a transaction that is kept, and how its command ended, as JSON if that is requested.
fn print_kept(how: &PublishingArgs, id: &str, ending: Ending) -> Result<(), Failure> {
    if !how.json {
        return Ok(());
    }
    let mut out = Output::new();
    out.json(&json!({ "transaction": id, "published": false, "outcome": Outcome::from(ending) }))?;
    out.finish()
}

/// Gives up the lease of a transaction that is dropped, at the end of its session.
fn give_up(session: Option<&Session>) {
    session.into_iter().for_each(|session| session.keep(false));
}

fn warn_or_note(text: &str) {
    tell(&format!("esker: {text}\n"));
}

pub(super) fn shell() -> OsString {
    std::env::var_os("SHELL").filter(|shell| !shell.is_empty()).unwrap_or_else(|| "/bin/sh".into())
}

/// Asks what is to be done with the changes. Without an answer they are kept.
fn ask(interrupt: &Interrupt) -> Choice {
    loop {
        tell("[p]ublish, [k]eep or [d]rop these changes? [k] ");
        if !interrupt.wait_for_input() {
            tell("\n");
            return Choice::Keep;
        }
        let mut answer = String::new();
        match io::stdin().lock().read_line(&mut answer) {
            Ok(0) | Err(_) => return Choice::Keep,
            Ok(_) => {}
        }
        match answer.trim().to_ascii_lowercase().as_str() {
            "p" | "publish" => return Choice::Publish,
            "" | "k" | "keep" => return Choice::Keep,
            "d" | "drop" => return Choice::Drop,
            other => warn(Some(&format!("{other:?} is none of these"))),
        }
    }
}
