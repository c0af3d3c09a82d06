//! Describes transactions in lists.

use esker_format::time::UnixTime;

use super::{State, Transaction, Transactions};

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
        let state = match (self.state(), record.outcome) {
            (State::Running, _) => "running".to_owned(),
            (_, Some(outcome)) => format!("kept, {}", outcome.shown()),
            (_, None) => "interrupted".to_owned(),
        };
        let command = if record.command.is_empty() { "a shell".to_owned() } else { record.command.join(" ") };
        let branch = record.branch.as_ref();
        let branch = branch.map_or_else(String::new, |branch| format!(" of branch {}", branch.name));
        format!(
            "{id}  {}{}{branch}  {state}  from revision {}, {}  {}",
            record.repository,
            if record.path == "/" { "" } else { &record.path },
            record.revision,
            UnixTime(record.started),
            command.escape_debug()
        )
    }
}
