//! Counters of one store, and the snapshots that it reports.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::cache::status::CacheStatus;
use crate::clock::unix_now;
use crate::counter::Counter;
use crate::error::StoreError;
use crate::pool::WorkStatus;
use crate::transport::status::NetworkStatus;

/// A snapshot of counters and states.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct StoreStatus {
    /// Status of the cache.
    pub cache: CacheStatus,
    /// Traffic of the store.
    pub traffic: TrafficStatus,
    /// Requests to the network for this traffic.
    pub network: NetworkStatus,
    /// Waits for a thread, for all stores of this engine.
    pub work: WorkStatus,
    /// The last failures, newest last: seconds since 1970, and the text. Other processes don't get them.
    #[serde(skip)]
    pub errors: Vec<(u64, String)>,
}

/// Counters of requests and fetches. Serialized names are an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrafficStatus {
    /// Requests answered from the cache.
    pub hits: u64,
    /// Number of fetched objects.
    #[serde(rename = "objects")]
    pub fetched: u64,
    /// Stored size of these objects in bytes.
    #[serde(rename = "bytes")]
    pub fetched_bytes: u64,
    /// Of the objects fetched, those requested as prefetches.
    #[serde(rename = "prefetched_objects")]
    pub prefetched: u64,
    /// Stored size of prefetched objects in bytes.
    pub prefetched_bytes: u64,
    /// Number of prefetched objects that were used.
    #[serde(rename = "prefetched_used_objects")]
    pub prefetched_used: u64,
    /// Stored size of these in bytes.
    pub prefetched_used_bytes: u64,
    /// Number of failed prefetches.
    pub prefetches_failed: u64,
    /// Prefetches queued or in progress.
    #[serde(rename = "prefetches_queued")]
    pub warming: u64,
    /// Number of requests that joined another one for the same object.
    pub joined: u64,
    /// Number of failed requests.
    pub failed: u64,
}

/// Number of failures kept for the status.
const ERRORS_KEPT: usize = 16;

/// Counters of one store.
#[derive(Default)]
pub(crate) struct Traffic {
    pub(crate) hits: Counter,
    fetched: Amount,
    prefetched: Amount,
    used: Amount,
    prefetches_failed: AtomicU64,
    pub(crate) joined: AtomicU64,
    failed: AtomicU64,
    errors: Mutex<VecDeque<(u64, String)>>,
}

/// Number of objects, and their stored size in bytes.
#[derive(Default)]
struct Amount {
    objects: AtomicU64,
    bytes: AtomicU64,
}

impl Amount {
    fn add(&self, bytes: u64) {
        self.objects.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl Traffic {
    pub(crate) fn note_fetch(&self, stored_bytes: u64, is_prefetch: bool) {
        self.fetched.add(stored_bytes);
        if is_prefetch {
            self.prefetched.add(stored_bytes);
        }
    }

    /// Counts the first use of an object that was prefetched.
    pub(crate) fn note_first_use(&self, stored_bytes: Option<u64>) {
        if let Some(stored_bytes) = stored_bytes {
            self.used.add(stored_bytes);
        }
    }

    pub(crate) fn note_failed_prefetch(&self) {
        self.prefetches_failed.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_failure(&self, error: &StoreError) {
        self.failed.fetch_add(1, Ordering::Relaxed);
        let mut errors = self.errors.lock();
        if errors.len() == ERRORS_KEPT {
            errors.pop_front();
        }
        errors.push_back((unix_now(), error.full_text()));
    }

    pub(crate) fn status(&self, cache: CacheStatus) -> StoreStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let traffic = TrafficStatus {
            hits: self.hits.value(),
            fetched: get(&self.fetched.objects),
            fetched_bytes: get(&self.fetched.bytes),
            prefetched: get(&self.prefetched.objects),
            prefetched_bytes: get(&self.prefetched.bytes),
            prefetched_used: get(&self.used.objects),
            prefetched_used_bytes: get(&self.used.bytes),
            prefetches_failed: get(&self.prefetches_failed),
            warming: 0,
            joined: get(&self.joined),
            failed: get(&self.failed),
        };
        let errors = self.errors.lock().iter().cloned().collect();
        StoreStatus { cache, traffic, errors, ..StoreStatus::default() }
    }
}
