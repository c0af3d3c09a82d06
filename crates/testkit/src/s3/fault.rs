//! Faults of single requests.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::message::S3Request;

/// A fault of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum S3Fault {
    /// The answer comes later.
    Delay(Duration),
    /// The request is read and never answered, and is not applied.
    NoAnswer,
    /// The connection is closed before the request is applied.
    Drop,
    /// The request is applied, and the connection is closed without an answer.
    LoseAnswer,
    /// The request is applied, and the connection is closed after half of the body of the answer; before the answer if
    /// it has no body.
    Cut,
    /// A put is answered as if it was applied, and is not.
    LosePut,
    /// A put is applied with one changed byte, and answered with the version of that.
    DamagePut,
    /// A put is applied without its last byte, and answered with a version that is no digest.
    ShortenPut,
    /// The request is answered with this status, and is not applied.
    Status(u16),
    /// The request is answered with 503 `SlowDown`, and is not applied.
    SlowDown,
    /// The request is answered with 409, as Amazon does while another put of the same key is under way.
    Conflict,
}

/// A fault, and the number of requests that it met.
#[derive(Clone, Debug)]
pub struct S3Rule(Arc<Inner>);

struct Inner {
    picks: Picks,
    fault: S3Fault,
    numbers: Range<u64>,
    picked: AtomicU64,
    hits: AtomicU64,
}

type Picks = Box<dyn Fn(&S3Request) -> bool + Send + Sync>;

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} of {:?}", self.fault, self.numbers)
    }
}

impl S3Rule {
    /// Returns the number of requests that met the fault.
    pub fn hits(&self) -> u64 {
        self.0.hits.load(Ordering::SeqCst)
    }

    /// Panics unless a request met the fault.
    #[track_caller]
    pub fn assert_hit(&self) {
        assert!(self.hits() > 0, "no request met {:?}", self.0);
    }
}

/// The faults of a server.
#[derive(Debug, Default)]
pub(super) struct Rules(Mutex<Vec<S3Rule>>);

impl Rules {
    pub(super) fn add(&self, picks: Picks, fault: S3Fault, numbers: Range<u64>) -> S3Rule {
        let (picked, hits) = Default::default();
        let rule = S3Rule(Arc::new(Inner { picks, fault, numbers, picked, hits }));
        self.0.lock().unwrap().push(rule.clone());
        rule
    }

    /// Returns the fault of a request: that of the first rule that picks it.
    pub(super) fn striking(&self, request: &S3Request) -> Option<S3Fault> {
        let mut found = None;
        for rule in self.0.lock().unwrap().iter().map(|rule| &rule.0) {
            if (rule.picks)(request) {
                let number = rule.picked.fetch_add(1, Ordering::SeqCst);
                if rule.numbers.contains(&number) && found.is_none() {
                    rule.hits.fetch_add(1, Ordering::SeqCst);
                    found = Some(rule.fault);
                }
            }
        }
        found
    }
}
