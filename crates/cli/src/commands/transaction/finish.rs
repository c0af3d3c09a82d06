use std::sync::Arc;

use esker_gateway::Session;
use esker_publish::{PublishOptions, PublishUpper, Upper};
use esker_store::FileLock;

use crate::error::Failure;
use crate::output::{Output, tell};
use crate::publisher::{Hooked, Interrupt, LeaseArgs, Place, PublisherArgs, PublishingArgs, end_lease, now};
use crate::settings::Settings;
use crate::transaction::{OnBranch, Record, Transaction, Transactions};

use super::choices::ChoiceArgs;
use super::show;

/// Publishes a kept transaction.
///
/// Paths that a later revision changed too are a conflict, and the transaction is kept. --ours and --theirs choose a side.
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
}

pub(super) fn publish(
    args: &PublishArgs,
    transactions: &Transactions,
    settings: &Settings,
) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    crate::process::privileges::mend_umask();
    let mut transaction = transactions.find(&args.transaction)?;
    let lock = transaction.take()?;
    let PublishArgs { choices, how, .. } = args;
    if choices.rebase {
        choices.rebase(&mut transaction, how, &interrupt, settings)?;
        show::print_whole(&transaction, how.json, &interrupt.flag())?;
        tell(&format!("esker: {}\n", is_kept(&transaction.id)));
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
    try_commit(&transaction, (how, choices), interrupt, settings).map_err(kept)?;
    if how.dry_run {
        return Ok(());
    }
    transaction.release_base();
    transaction.remove(lock)
}

/// Publishes a transaction, or prints what would be published.
pub(super) fn try_commit(
    transaction: &Transaction,
    (how, choices): (&PublishingArgs, &ChoiceArgs),
    interrupt: &Interrupt,
    settings: &Settings,
) -> Result<(), Failure> {
    let choices = choices.choices()?;
    let record = transaction.record()?;
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
    how.publish(&place, &repository, interrupt, work, "was not changed")?;
    // The lease ended with the commit, unless there was nothing to publish.
    session.iter().for_each(|session| session.keep(false));
    Ok(())
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
    let transaction = transactions.find(&args.transaction)?;
    let lock = transaction.take()?;
    let text = format!("transaction {} was dropped", transaction.id);
    let of =
        transaction.record.as_ref().ok().map(|record| (record.storage.clone(), record.repository.clone()));
    if let Some((storage, name)) = &of {
        Hooked::Abort.before(storage, name)?;
    }
    let token = transaction.lease();
    transaction.remove(lock)?;
    if let (Some((storage, _)), Some(token)) = (&of, token) {
        end_lease(storage, &token);
    }
    if let Some((storage, name)) = &of {
        Hooked::Abort.after(storage, name);
    }
    let mut out = Output::new();
    out.line(text)?;
    out.finish()
}
