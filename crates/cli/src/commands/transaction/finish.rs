use std::path::Path;
use std::sync::Arc;

use esker_gateway::Session;
use esker_publish::{PublishOptions, PublishUpper, Report, Upper};
use esker_repository::Repository;
use esker_store::FileLock;

use crate::error::Failure;
use crate::output::{Output, QuietArgs, tell};
use crate::publisher::{
    Hooked, Interrupt, LeaseArgs, Place, PublisherArgs, Publishing, PublishingArgs, end_lease, now,
};
use crate::settings::Settings;
use crate::transaction::{OnBranch, Record, Transaction, Transactions};

use super::choices::ChoiceArgs;
use super::show;

/// Publishes a kept transaction, or ends and publishes an open one.
///
/// An open one is refused while commands are inside. Paths that a later revision changed too are a conflict, and the transaction is kept. --ours and --theirs choose a side.
/// --rebase publishes nothing: it moves the transaction to the newest revision, to look at it there and go on.
///
/// Example: esker transaction publish sw.example.org --tag v14
#[derive(clap::Args, Debug)]
pub(super) struct PublishArgs {
    /// Transaction: its id or the beginning of its id, or the name of a repository with one transaction
    #[arg(value_name = "ID|NAME")]
    transaction: String,

    #[command(flatten)]
    choices: ChoiceArgs,

    /// End the commands inside of an open transaction
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    how: PublishingArgs,
}

/// Drops a transaction with all its changes, also without keys, a valid whitelist or free space.
///
/// Example: esker transaction abort sw.example.org
#[derive(clap::Args, Debug)]
pub(super) struct AbortArgs {
    /// Transaction: its id or the beginning of its id, or the name of a repository with one transaction
    #[arg(value_name = "ID|NAME")]
    transaction: String,

    /// End the commands inside of an open transaction
    #[arg(long)]
    force: bool,

    #[command(flatten)]
    _quiet: QuietArgs,
}

pub(super) fn publish(
    args: &PublishArgs,
    transactions: &Transactions,
    settings: &Settings,
) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    crate::process::privileges::mend_umask();
    let PublishArgs { choices, how, force, .. } = args;
    let transaction = transactions.find(&args.transaction)?;
    if how.dry_run && transaction.opened().is_some() {
        return Err(Failure::usage(format!("--dry-run: transaction {} is open", transaction.id))
            .hint("`esker transaction show` lists its changes"));
    }
    let (mut transaction, lock) = transaction.end(*force)?;
    if choices.rebase {
        choices.rebase(&mut transaction, how, &interrupt, settings)?;
        show::print_whole(&transaction, how.json, &interrupt.flag())?;
        if !how.quiet.is_set() {
            tell(&format!("esker: {}\n", is_kept(&transaction.id)));
        }
        return Ok(());
    }
    commit(transaction, lock, (how, choices), &interrupt, settings)
}

/// Publishes a transaction and removes it. After a failure it is kept.
pub(super) fn commit(
    transaction: Transaction,
    lock: FileLock,
    (how, choices): (&PublishingArgs, &ChoiceArgs),
    interrupt: &Interrupt,
    settings: &Settings,
) -> Result<(), Failure> {
    let kept = |failure: Failure| failure.hint_first(is_kept(&transaction.id));
    let committed = try_commit(&transaction, (how, choices), interrupt, settings).map_err(kept)?;
    let (id, mut removed) = (transaction.id.clone(), Ok(()));
    if !how.dry_run {
        transaction.release_base();
        removed = transaction.remove(lock);
    }
    // Last, because the reader of the report may be gone.
    committed.print(how, &id, interrupt).and(removed)
}

/// A transaction that was published, or that would be.
pub(super) struct Committed {
    place: Place,
    repository: Repository,
    report: Report,
}

impl Committed {
    pub(super) fn print(&self, how: &PublishingArgs, id: &str, interrupt: &Interrupt) -> Result<(), Failure> {
        let Self { place, repository, report } = self;
        let of = Publishing { place, repository, interrupt, path: None, transaction: Some(id) };
        how.print(&of, report)
    }
}

/// Publishes a transaction, or computes what would be published.
pub(super) fn try_commit(
    transaction: &Transaction,
    (how, choices): (&PublishingArgs, &ChoiceArgs),
    interrupt: &Interrupt,
    settings: &Settings,
) -> Result<Committed, Failure> {
    let choices = choices.choices()?;
    let record = transaction.record()?;
    let how = &record.with_words(how);
    let place = place_of(record, settings)?;
    let session = lease(transaction, &place, how)?;
    let repository = how.open(&place, session.as_ref(), interrupt)?;
    let upper = Upper { filter: how.filter()?, ..transaction.upper()? };
    let work = |mut options: PublishOptions<'_>| {
        options.tag.branch = record.branch.as_ref().map(OnBranch::request);
        let mut publish = PublishUpper { upper, choices, options };
        match how.dry_run {
            true => publish.dry_run(&repository, now()),
            false => publish.run(&repository, now()),
        }
    };
    let path = Some(Path::new(&record.path));
    let of = Publishing {
        place: &place,
        repository: &repository,
        interrupt,
        path,
        transaction: Some(&transaction.id),
    };
    let report = how.publish_quietly(&of, work, "was not changed")?;
    // The lease ended with the commit, unless there was nothing to publish.
    session.iter().for_each(|session| session.keep(false));
    Ok(Committed { place, repository, report })
}

/// Returns the repository of a transaction.
pub(super) fn place_of(record: &Record, settings: &Settings) -> Result<Place, Failure> {
    PublisherArgs::in_folders(Some(&record.storage), Some(&record.keys)).place(&record.repository, settings)
}

/// Goes on with the lease of a transaction, or leases its directory again if that has ended; none if this user has the keys.
pub(super) fn lease(
    transaction: &Transaction,
    place: &Place,
    how: &PublishingArgs,
) -> Result<Option<Arc<Session>>, Failure> {
    let paths = &[transaction.record()?.path.clone().into_bytes()];
    let session = how.lease(place, LeaseArgs { paths, token: transaction.lease(), take_over: false })?;
    session.iter().try_for_each(|session| transaction.note_lease(session))?;
    Ok(session)
}

/// Returns the sentence that says that a transaction is kept.
pub(super) fn is_kept(id: &str) -> String {
    format!("transaction {id} is kept: `esker transaction resume|publish|abort {id}`")
}

pub(super) fn abort(args: &AbortArgs, transactions: &Transactions) -> Result<(), Failure> {
    let (transaction, lock) = transactions.find(&args.transaction)?.end(args.force)?;
    let text = format!("transaction {} was dropped", transaction.id);
    let (id, of) = (transaction.id.clone(), transaction.record.as_ref().ok().cloned());
    let facts = of.as_ref().map(|record| record.hook_facts(&id)).unwrap_or_default();
    if let Some(Record { storage, repository, .. }) = &of {
        Hooked::Abort.before(storage, repository, facts)?;
    }
    let token = transaction.lease();
    transaction.remove(lock)?;
    if let (Some(record), Some(token)) = (&of, token) {
        end_lease(&record.storage, &token);
    }
    if let Some(Record { storage, repository, .. }) = &of {
        Hooked::Abort.after(storage, repository, facts);
    }
    let mut out = Output::new();
    out.line(text)?;
    out.finish()
}
