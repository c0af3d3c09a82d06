//! What a view tells of itself.

use std::collections::VecDeque;
use std::time::SystemTime;

use esker_format::hash::ContentHash;
use esker_store::Counter;
use parking_lot::Mutex;

/// How many failures are remembered.
pub const FAILURES_MAX: usize = 32;

/// The state of a view, as `esker status` shows it.
#[derive(Clone, Debug)]
pub struct ViewStatus {
    /// The repository's name.
    pub repository: String,
    /// The revision that is shown.
    pub revision: u64,
    /// Its root catalog.
    pub root_hash: ContentHash,
    /// The tag that was asked for, if one was.
    pub tag: Option<String>,
    /// Whether the view stays at this revision.
    pub pinned: bool,
    /// When the publisher signed it, seconds since the epoch; unknown for a pinned hash.
    pub published: Option<u64>,
    /// When this view began to show it.
    pub since: SystemTime,
    /// When the repository was last asked for its head and answered.
    pub checked: SystemTime,
    /// Why the head could not be looked up, and since when.
    pub offline: Option<Offline>,
    /// The last failures, oldest first.
    pub failures: Vec<Failure>,
    /// What was counted so far.
    pub counters: ViewCounters,
}

/// A head that can't be looked up.
#[derive(Clone, Debug)]
pub struct Offline {
    /// Since when.
    pub since: SystemTime,
    /// The last reason.
    pub reason: String,
}

/// Something a program or the view itself failed to do.
#[derive(Clone, Debug)]
pub struct Failure {
    /// When.
    pub time: SystemTime,
    /// The file or directory, or what else it happened to.
    pub object: String,
    /// The error with its causes.
    pub cause: String,
    /// The process that asked, if it is known.
    pub caller: Option<u32>,
}

/// What a view counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ViewCounters {
    /// Catalogs mounted now.
    pub catalogs: u64,
    /// Lookups.
    pub lookups: u64,
    /// Directory listings asked for.
    pub lists: u64,
    /// Reads.
    pub reads: u64,
    /// Reads that had to wait for an object.
    pub misses: u64,
    /// Extended attributes asked for.
    pub xattrs: u64,
    /// Revisions taken over since the start.
    pub switches: u64,
    /// Files that somebody may hold open.
    pub held: u64,
    /// Failures, those that are forgotten included.
    pub failures: u64,
}

/// The last failures.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    last: Mutex<VecDeque<Failure>>,
    count: Counter,
}

impl Failures {
    pub(crate) fn add(&self, object: String, cause: String, caller: Option<u32>) {
        self.count.count();
        let mut list = self.last.lock();
        if list.len() == FAILURES_MAX {
            list.pop_front();
        }
        list.push_back(Failure { time: SystemTime::now(), object, cause, caller });
    }

    /// How many there were, those that are forgotten included.
    pub(crate) fn count(&self) -> u64 {
        self.count.value()
    }

    pub(crate) fn all(&self) -> Vec<Failure> {
        self.last.lock().iter().cloned().collect()
    }
}

/// An error and its causes in one line.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

/// The counters of a view.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) lookups: Counter,
    pub(crate) lists: Counter,
    pub(crate) reads: Counter,
    pub(crate) misses: Counter,
    pub(crate) xattrs: Counter,
    pub(crate) switches: Counter,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_failures_are_kept() {
        let failures = Failures::default();
        for n in 0..FAILURES_MAX + 5 {
            failures.add(format!("/{n}"), "because".into(), None);
        }
        let all = failures.all();
        assert_eq!(all.len(), FAILURES_MAX);
        assert_eq!(all[0].object, "/5");
        assert_eq!(failures.count(), FAILURES_MAX as u64 + 5);
    }
}
