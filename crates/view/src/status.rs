//! Status and counters of a view.

use std::collections::VecDeque;
use std::error::Error;
use std::iter::successors;
use std::time::SystemTime;

use esker_format::hash::ContentHash;
use esker_store::{Counter, StoreError, names};
use esker_vfs::TreeError;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

/// Maximum number of recorded failures.
pub const FAILURES_MAX: usize = 32;
/// Maximum number of distinct causes of failures.
const CAUSES_MAX: usize = 16;

/// State of a view, as `esker status` shows it.
#[derive(Clone, Debug)]
pub struct ViewStatus {
    /// Name of the repository.
    pub repository: String,
    /// Number of the shown revision.
    pub revision: u64,
    /// Hash of the root catalog of that revision.
    pub root_hash: ContentHash,
    /// Requested tag, if any.
    pub tag: Option<String>,
    /// True if the view stays at this revision.
    pub pinned: bool,
    /// Time of the publisher's signature, in seconds since the epoch; unknown for a pinned hash.
    pub published: Option<u64>,
    /// Time since which the view has shown it.
    pub since: SystemTime,
    /// Time of the last successful check for a head.
    pub checked: SystemTime,
    /// Error of the last check, and the time of the first failed one.
    pub offline: Option<Offline>,
    /// Last failures, oldest first.
    pub failures: Vec<Failure>,
    /// Counters since the start.
    pub counters: ViewCounters,
}

/// Failed checks for a head.
#[derive(Clone, Debug)]
pub struct Offline {
    /// Time of the first failed check.
    pub since: SystemTime,
    /// Error of the last failed check.
    pub reason: String,
}

/// A failure of a call or of the view itself.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Time of the failure.
    pub time: SystemTime,
    /// File, directory or other object of the failed call.
    pub object: String,
    /// Error with its causes.
    pub cause: String,
    /// Process of the call, if known.
    pub caller: Option<u32>,
}

/// Cause of failures.
#[derive(Clone, Debug)]
pub struct FailureCause {
    /// First failure of this cause.
    pub first: Failure,
    /// Number of failures of this cause.
    pub count: u64,
}

/// Counters of a view. Field names are an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ViewCounters {
    /// Number of mounted catalogs.
    pub catalogs: u64,
    /// Number of lookups.
    pub lookups: u64,
    /// Number of directory listings.
    pub lists: u64,
    /// Number of reads.
    pub reads: u64,
    /// Number of reads that waited for an object.
    pub misses: u64,
    /// Reads of extended attributes.
    pub xattrs: u64,
    /// Number of changes of the revision since the start.
    pub switches: u64,
    /// Number of files that may be open.
    pub held: u64,
    /// Number of failures, including those no longer recorded.
    pub failures: u64,
}

/// Results of the follower's checks.
#[derive(Debug)]
pub(crate) struct HeadStatus {
    pub(crate) checked: SystemTime,
    pub(crate) offline: Option<Offline>,
}

/// Recent failures, by cause.
#[derive(Debug, Default)]
pub(crate) struct Failures {
    last: Mutex<VecDeque<Failure>>,
    /// Failures by a text that is the same for all objects with the same cause.
    causes: Mutex<Vec<(String, FailureCause)>>,
    count: Counter,
}

impl Failures {
    /// Adds a failure of a call on an object.
    pub(crate) fn add(&self, object: String, error: &TreeError, caller: Option<u32>) {
        let (key, cause) = (cause_key(error), cause_text(&object, error));
        self.note(key, Failure { time: SystemTime::now(), object, cause, caller });
    }

    /// Adds a failure that only a text describes.
    pub(crate) fn add_text(&self, object: String, cause: String) {
        self.note(cause.clone(), Failure { time: SystemTime::now(), object, cause, caller: None });
    }

    fn note(&self, key: String, failure: Failure) {
        self.count.count();
        let Failure { object, cause, caller, .. } = &failure;
        tracing::warn!(object, caller, "{object}: {cause}");
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

    /// Returns the number of failures, including those no longer recorded.
    pub(crate) fn count(&self) -> u64 {
        self.count.value()
    }

    pub(crate) fn all(&self) -> Vec<Failure> {
        self.last.lock().iter().cloned().collect()
    }
}

/// Returns the error of the store that caused a tree's error.
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

/// Returns an error and its causes in one line, to follow the name of the object.
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

/// Returns an error and its causes in one line.
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
