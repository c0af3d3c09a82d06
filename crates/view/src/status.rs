//! What a view tells of itself.

use std::collections::VecDeque;
use std::error::Error;
use std::iter::successors;
use std::time::SystemTime;

use esker_format::hash::ContentHash;
use esker_store::{Counter, StoreError, names};
use esker_vfs::TreeError;
use parking_lot::Mutex;

/// How many failures are remembered.
pub const FAILURES_MAX: usize = 32;
/// How many causes of failures are told apart.
const CAUSES_MAX: usize = 16;

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

/// A cause of failures.
#[derive(Clone, Debug)]
pub struct FailureCause {
    /// The first failure that it caused.
    pub first: Failure,
    /// How many failures it caused.
    pub count: u64,
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

/// What the follower found out.
#[derive(Debug)]
pub(crate) struct HeadStatus {
    pub(crate) checked: SystemTime,
    pub(crate) offline: Option<Offline>,
}

/// The last failures.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    last: Mutex<VecDeque<Failure>>,
    /// Each cause under a text that is the same for all objects that it concerns.
    causes: Mutex<Vec<(String, FailureCause)>>,
    count: Counter,
}

impl Failures {
    /// Adds a failure of a call on an object.
    pub(crate) fn add(&self, object: String, error: &TreeError, caller: Option<u32>) {
        let (key, cause) = (cause_key(error), cause_text(&object, error));
        self.note(key, Failure { time: SystemTime::now(), object, cause, caller });
    }

    /// Adds a failure that is described by a text alone.
    pub(crate) fn add_text(&self, object: String, cause: String) {
        self.note(cause.clone(), Failure { time: SystemTime::now(), object, cause, caller: None });
    }

    fn note(&self, key: String, failure: Failure) {
        self.count.count();
        let mut causes = self.causes.lock();
        if let Some((_, cause)) = causes.iter_mut().find(|(known, _)| *known == key) {
            cause.count += 1;
        } else if causes.len() < CAUSES_MAX {
            causes.push((key, FailureCause { first: failure.clone(), count: 1 }));
        }
        drop(causes);
        let mut list = self.last.lock();
        if list.len() == FAILURES_MAX {
            list.pop_front();
        }
        list.push_back(failure);
    }

    /// Returns the first causes of failures.
    pub(crate) fn causes(&self) -> Vec<FailureCause> {
        self.causes.lock().iter().map(|(_, cause)| cause.clone()).collect()
    }

    /// How many there were, those that are forgotten included.
    pub(crate) fn count(&self) -> u64 {
        self.count.value()
    }

    pub(crate) fn all(&self) -> Vec<Failure> {
        self.last.lock().iter().cloned().collect()
    }
}

/// Returns the store's error that a tree's error comes from.
fn of_store(error: &TreeError) -> Option<&StoreError> {
    let causes = successors(Some(error as &(dyn Error + 'static)), |error| (**error).source());
    causes.filter_map(|cause| cause.downcast_ref()).next()
}

/// Returns a text that is the same for all failures of one cause.
fn cause_key(error: &TreeError) -> String {
    let kind = error.kind;
    match of_store(error) {
        Some(store) => format!("{kind:?} {:?} {}", store.place(), chain(store.cause())),
        None => format!("{kind:?} {}", error.source().map(chain).unwrap_or_default()),
    }
}

/// Returns an error and its causes in one line, which follows the name of the object.
fn cause_text(object: &str, error: &TreeError) -> String {
    let is_named = names(object, &error.object);
    let kind = if is_named {
        TreeError::new(error.kind).to_string()
    } else {
        TreeError { source: None, ..error.clone() }.to_string()
    };
    match of_store(error) {
        Some(store) => format!("{kind}: {}", store.full_text_after(&format!("{object}: {kind}"))),
        None => error.source().map_or(kind.clone(), |source| format!("{kind}: {}", chain(source))),
    }
}

/// An error and its causes in one line.
pub fn chain(error: &dyn Error) -> String {
    let causes = successors(error.source(), |cause| (**cause).source());
    causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"))
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
    use esker_store::Cause;
    use esker_vfs::ErrorKind;

    use super::*;

    #[test]
    fn only_the_last_failures_are_kept() {
        let failures = Failures::default();
        for n in 0..FAILURES_MAX + 5 {
            failures.add_text(format!("/{n}"), "because".into());
        }
        let all = failures.all();
        assert_eq!(all.len(), FAILURES_MAX);
        assert_eq!(all[0].object, "/5");
        assert_eq!(failures.count(), FAILURES_MAX as u64 + 5);
        let causes = failures.causes();
        assert_eq!((causes.len(), causes[0].count), (1, FAILURES_MAX as u64 + 5));
        assert_eq!(causes[0].first.object, "/0", "the first one is kept");
    }

    #[test]
    fn failures_of_one_cause_are_counted_together() {
        let failures = Failures::default();
        let refused = |path: &str, server: &str| {
            let reason = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
            let label = format!("{path} (file 9bd9)");
            let store = StoreError::new(label, Cause::Unreachable(reason)).from_place(server.to_owned());
            TreeError::on(ErrorKind::Unavailable, path).because(store)
        };
        for path in ["/a", "/b", "/c"] {
            failures.add(path.into(), &refused(path, "http://one"), Some(7));
        }
        failures.add("/a".into(), &refused("/a", "http://two"), None);
        failures.add("/a".into(), &TreeError::new(ErrorKind::TimedOut), None);
        let found: Vec<_> = failures
            .causes()
            .into_iter()
            .map(|cause| (cause.first.object, cause.count, cause.first.cause))
            .collect();
        let text = |server| {
            format!(
                "can't be fetched now: file 9bd9 from {server}: the server can't be reached: connection refused"
            )
        };
        assert_eq!(
            found,
            [
                ("/a".to_owned(), 3, text("http://one")),
                ("/a".to_owned(), 1, text("http://two")),
                ("/a".to_owned(), 1, "timed out".to_owned()),
            ]
        );
        for n in 0..2 * CAUSES_MAX {
            failures.add_text("/x".into(), format!("cause {n}"));
        }
        assert_eq!(failures.causes().len(), CAUSES_MAX);
    }
}
