use serde::Serialize;

use crate::error::Failure;
use crate::output::show_all;
use crate::transaction::{Inside, Opened, Record, State, Transactions};

/// Lists transactions: open ones with the commands inside, running, kept and interrupted ones.
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
    /// Processes of commands in an open transaction.
    #[serde(skip_serializing_if = "Option::is_none")]
    inside: Option<Vec<Inside>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    damaged: Option<(&'t str, &'t str)>,
}

pub(super) fn run(args: &Args, transactions: &Transactions) -> Result<(), Failure> {
    let mut all = transactions.list()?;
    if let Some(name) = &args.name {
        all.retain(|one| one.record.as_ref().is_ok_and(|record| record.repository == *name));
    }
    let value = all.iter().map(|one| Shown {
        state: one.state(),
        record: one.record.as_ref().ok(),
        inside: one.opened().map(Opened::inside),
        damaged: one.record.as_ref().err().map(|reason| (one.id.as_str(), reason.as_str())),
    });
    show_all(args.json, value, |out| {
        for one in &all {
            out.line(one.line())?;
        }
        if all.is_empty() {
            out.line("no open transactions")?;
        }
        Ok(())
    })
}
