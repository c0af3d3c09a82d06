use esker_format::time::UnixTime;
use serde::Serialize;

use crate::error::Failure;
use crate::output::Output;
use crate::transaction::{Record, State, Transaction, Transactions};

/// Lists open transactions: running, kept, or interrupted.
///
/// Example: esker transaction list
#[derive(clap::Args, Debug)]
pub(super) struct Args {
    /// List only transactions of this repository
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A transaction in JSON. Field names are an interface.
#[derive(Serialize)]
struct Shown<'t> {
    state: State,
    #[serde(flatten)]
    record: Option<&'t Record>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged: Option<(&'t str, &'t str)>,
}

pub(super) fn run(args: &Args, transactions: &Transactions) -> Result<(), Failure> {
    let mut all = transactions.list()?;
    if let Some(name) = &args.name {
        all.retain(|one| one.record.as_ref().is_ok_and(|record| record.repository == *name));
    }
    let mut out = Output::new();
    if args.json {
        out.json_array(all.iter().map(|one| Shown {
            state: one.state(),
            record: one.record.as_ref().ok(),
            damaged: one.record.as_ref().err().map(|reason| (one.id.as_str(), reason.as_str())),
        }))?;
        return out.finish();
    }
    for one in &all {
        out.line(line(one))?;
    }
    if all.is_empty() {
        out.line("no open transactions")?;
    }
    out.finish()
}

/// Returns the line that describes a transaction.
pub(super) fn line(transaction: &Transaction) -> String {
    let id = &transaction.id;
    let record = match &transaction.record {
        Ok(record) => record,
        Err(reason) => return format!("{id}  damaged: {reason}"),
    };
    let state = match (transaction.state(), record.outcome) {
        (State::Running, _) => "running".to_owned(),
        (_, Some(outcome)) => format!("kept, {}", outcome.shown()),
        (_, None) => "interrupted".to_owned(),
    };
    let command = if record.command.is_empty() { "a shell".to_owned() } else { record.command.join(" ") };
    let branch = record.branch.as_ref().map_or_else(String::new, |branch| format!(" of branch {}", branch.name));
    format!(
        "{id}  {}{}{branch}  {state}  from revision {}, {}  {}",
        record.repository,
        if record.path == "/" { "" } else { &record.path },
        record.revision,
        UnixTime(record.started),
        command.escape_debug()
    )
}
