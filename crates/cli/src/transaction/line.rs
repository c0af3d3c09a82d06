//! Describes transactions in lists.

use std::time::Duration;

use esker_format::time::UnixTime;

use super::{State, Transaction, Transactions, named};
use crate::progress::duration;
use crate::publisher::now;

impl Transactions {
    /// Returns the open transactions of a repository; none if their folder can't be read.
    pub(crate) fn of_repository(&self, name: &str) -> Vec<Transaction> {
        let mut all = self.list().unwrap_or_default();
        all.retain(|one| one.record.as_ref().is_ok_and(|record| record.repository == name));
        all
    }
}

impl Transaction {
    /// Returns the line that describes the transaction.
    pub(crate) fn line(&self) -> String {
        let id = &self.id;
        let record = match &self.record {
            Ok(record) => record,
            Err(reason) => return format!("{id}  damaged: {reason}"),
        };
        let opened = self.opened();
        let state = match (opened, self.state(), record.outcome) {
            (Some(opened), ..) => {
                let seconds = now().0.saturating_sub(record.started).try_into().unwrap_or(0);
                let inside = match &opened.inside()[..] {
                    [] => "no command".to_owned(),
                    inside => named(inside),
                };
                format!("open for {}, {inside} inside", duration(Duration::from_secs(seconds)))
            }
            (None, State::Running, _) => "running".to_owned(),
            (None, _, Some(outcome)) => format!("kept, {}", outcome.shown()),
            (None, _, None) => "interrupted".to_owned(),
        };
        let command = match &record.command[..] {
            _ if opened.is_some() => String::new(),
            [] => "  a shell".to_owned(),
            words => format!("  {}", words.join(" ").escape_debug()),
        };
        let branch = record.branch.as_ref();
        let branch = branch.map_or_else(String::new, |branch| format!(" of branch {}", branch.name));
        format!(
            "{id}  {}{}{branch}  {state}  from revision {}, {}{command}",
            record.repository,
            if record.path == "/" { "" } else { &record.path },
            record.revision,
            UnixTime(record.started)
        )
    }
}
