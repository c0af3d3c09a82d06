//! Transactions that stay open after the command that began them.

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::process::ExitCode;

use esker_store::FileLock;
use rustix::process::setsid;
use serde_json::json;

use crate::error::Failure;
use crate::mounting::run_mounted::take_signals;
use crate::output::{show, tell};
use crate::process::limits::OpenFiles;
use crate::process::respawn::{Respawn, run_again, start_again};
use crate::publisher::PublishingArgs;
use crate::settings::Settings;
use crate::transaction::{KEEPER, Outcome, RunningCommand, Transaction, Transactions};

use super::finish::{lease, place_of};
use super::start::shell;

/// Option of the process that holds an open transaction.
const HOLD: &str = "--hold";

/// Runs a command or a shell in an open transaction, beside others.
///
/// It sees the tree below /cvmfs and begins in the directory of the transaction. Its exit code is that of the command.
///
/// Example: esker transaction enter sw.example.org -- make -C /build/gcc install
#[derive(clap::Args, Debug)]
pub(super) struct EnterArgs {
    /// Transaction: its id or the beginning of its id, or the name of a repository with one transaction
    #[arg(value_name = "ID|NAME")]
    transaction: String,

    /// Command and its arguments [default: $SHELL]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(super) fn enter(
    args: EnterArgs,
    transactions: &Transactions,
    files: OpenFiles,
) -> Result<ExitCode, Failure> {
    let transaction = transactions.find(&args.transaction)?;
    let Some(opened) = transaction.opened() else {
        let id = &transaction.id;
        return Err(Failure::usage(format!("transaction {id} is not open"))
            .hint(format!("`esker transaction resume {id} --open` opens one that is kept")));
    };
    let command = if args.command.is_empty() { vec![shell()] } else { args.command };
    files.give_back();
    Err(transaction.enter(opened, &command))
}

/// Starts the process that holds the mount of a transaction.
pub(super) fn open(
    transaction: &mut Transaction,
    lock: FileLock,
    transactions: &Transactions,
) -> Result<(), Failure> {
    transaction.note(None);
    drop(lock);
    let folder = transactions.folder().as_os_str();
    let line = ["transaction".as_ref(), "--transactions".as_ref(), folder, transaction.id.as_ref()];
    let line = line.map(OsString::from);
    let again = Respawn {
        name: "esker",
        option: HOLD,
        failed: "can't start a process that holds the transaction",
        supervised: false,
        spec: None,
    };
    start_again(&again, &transaction.log_file(), &line).map(drop)
}

/// Prints the id of a transaction that was opened.
pub(super) fn print(transaction: &Transaction, how: &PublishingArgs) -> Result<(), Failure> {
    let id = &transaction.id;
    if !how.quiet.is_set() && !how.json {
        tell(&format!("esker: transaction {id} is open: `esker transaction enter|publish|abort {id}`\n"));
    }
    show(how.json, json!({ "transaction": id, "published": false, "open": true }), |out| out.fault(id))
}

/// Runs as the process that holds the mount of a transaction until a signal ends it.
pub(super) fn hold(
    (fd, id): (RawFd, &str),
    how: &PublishingArgs,
    transactions: &Transactions,
    settings: &Settings,
    files: OpenFiles,
) -> Result<ExitCode, Failure> {
    run_again(HOLD, fd, |ready| {
        // No signal of the terminal reaches it or its children.
        let _ = setsid();
        let forwarding = take_signals()?;
        let mut transaction = transactions.find(id)?;
        let _lock = transaction.take()?;
        // Renews a lease as long as the transaction is open.
        let _session = lease(&transaction, &place_of(transaction.record()?, settings)?, how)?;
        let command = vec!["/proc/self/exe".into(), KEEPER.into()];
        let transaction = &mut transaction;
        RunningCommand { transaction, command, settings, files, json: true, opened: Some(ready) }
            .run(forwarding)?;
        transaction.note(Some(Outcome::Code(0)));
        Ok(ExitCode::SUCCESS)
    })
}
