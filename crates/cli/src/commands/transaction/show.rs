use std::sync::atomic::AtomicBool;

use esker_publish::PathChange;
use esker_repository::ChangeKind;
use serde::Serialize;

use super::contents;
use crate::error::Failure;
use crate::output::{Output, show};
use crate::publisher::{Interrupt, list_changes, of_operation};
use crate::transaction::{Record, State, Transaction, Transactions};

/// Shows the changes of a transaction, also without keys or a valid whitelist.
///
/// Example: esker transaction show sw.example.org
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// Transaction: its id or the beginning of its id, or the name of a repository with one transaction
    #[arg(value_name = "ID|NAME")]
    transaction: String,

    /// Print the number of changed lines and bytes of each file, as git does
    #[arg(long, conflicts_with = "patch")]
    stat: bool,

    /// Print the differences between text files, in the unified format
    #[arg(long, conflicts_with = "json")]
    patch: bool,

    /// Print JSON, with all paths
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Shown<'t> {
    state: State,
    #[serde(flatten)]
    record: &'t Record,
    changes: &'t [PathChange],
}

pub(super) fn run(args: &Args, transactions: &Transactions) -> Result<(), Failure> {
    let stop = Interrupt::on_signals()?.flag();
    let transaction = transactions.find(&args.transaction)?;
    if args.stat {
        let stat = contents::stat(&transaction, &stop)?;
        return show(args.json, &stat, |out| stat.print(out));
    }
    if args.patch {
        let mut out = Output::new();
        contents::print_patch(&transaction, &mut out, &stop)?;
        return out.finish();
    }
    print_whole(&transaction, args.json, &stop)
}

/// Prints a transaction with its changes.
pub(super) fn print_whole(transaction: &Transaction, json: bool, stop: &AtomicBool) -> Result<(), Failure> {
    let record = transaction.record()?;
    let changes = changes(transaction, stop)?;
    show(json, &Shown { state: transaction.state(), record, changes: &changes }, |out| {
        out.line(transaction.line())?;
        print(out, &changes)
    })
}

/// Lists what a transaction changes.
pub(super) fn changes(transaction: &Transaction, stop: &AtomicBool) -> Result<Vec<PathChange>, Failure> {
    let record = transaction.record()?;
    let changes = transaction.upper()?.changes(&record.storage, stop);
    changes.map_err(|error| of_operation(&format!("can't compare transaction {}", transaction.id), &error))
}

/// Prints the counts, and the first paths.
pub(super) fn print(out: &mut Output, changes: &[PathChange]) -> Result<(), Failure> {
    let count = |kind| changes.iter().filter(|change| change.change == kind).count();
    out.line(format!(
        "{} added, {} changed, {} removed",
        count(ChangeKind::Added),
        count(ChangeKind::Changed),
        count(ChangeKind::Removed)
    ))?;
    list_changes(out, changes)
}
