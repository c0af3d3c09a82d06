//! What a store tells about itself.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;

use crate::below::LowerStatus;
use crate::cache::Entry;
use crate::counter::Counter;
use crate::error::StoreError;

/// A snapshot of counters and states.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreStatus {
    /// The cache.
    pub cache: CacheStatus,
    /// The traffic.
    pub traffic: TrafficStatus,
    /// The requests that it took.
    pub network: NetworkStatus,
    /// How long work waited for a thread, for all stores of this engine.
    pub work: WorkStatus,
    /// The last failures, newest last: seconds since 1970, and the text.
    pub errors: Vec<(u64, String)>,
}

/// The state of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheStatus {
    /// The byte quota.
    pub quota: u64,
    /// Up to where it may be exceeded by objects in use.
    pub hard_limit: u64,
    /// Bytes that objects take, reservations of writes under way included.
    pub used: u64,
    /// Number of objects.
    pub objects: u64,
    /// Bytes of them that are pinned, and therefore never evicted.
    pub pinned: u64,
    /// Number of pinned objects that are here.
    pub pinned_objects: u64,
    /// Descriptors open now.
    pub descriptors: u64,
    /// The most that were ever open at once.
    pub descriptors_peak: u64,
    /// The most that may be open.
    pub descriptors_limit: u64,
    /// Objects evicted.
    pub evicted: u64,
    /// Objects spared by eviction because they were in use.
    pub spared: u64,
    /// How often an eviction ended above the quota because all that was left was in use.
    pub over_quota: u64,
    /// Objects served without being kept, because they had no room or the disk failed.
    pub unkept: u64,
    /// Local file operations that failed.
    pub disk_errors: u64,
    /// The last of them: when, in Unix time, and what was wrong.
    pub disk_failure: Option<(u64, String)>,
    /// Entries that were found damaged on disk and dropped.
    pub damaged: u64,
    /// Entries that will be checked before their first use.
    pub unchecked: u64,
    /// Whether the last writer did not shut down cleanly.
    pub opened_unclean: bool,
    /// Unfinished files of that writer that were removed.
    pub leftovers: u64,
    /// What came from folders below the cache.
    pub lower: LowerStatus,
}

/// How much a cache may hold and does hold, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Room {
    /// The quota.
    pub quota: u64,
    /// What objects take.
    pub used: u64,
}

/// What was fetched.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrafficStatus {
    /// Requests answered from the cache.
    pub hits: u64,
    /// Objects fetched.
    pub fetched: u64,
    /// Stored bytes of them.
    pub fetched_bytes: u64,
    /// Of the objects fetched, those that nobody had demanded when they were asked for.
    pub prefetched: u64,
    /// Stored bytes of them.
    pub prefetched_bytes: u64,
    /// Of those, the ones that somebody has used since.
    pub prefetched_used: u64,
    /// Stored bytes of them.
    pub prefetched_used_bytes: u64,
    /// Prefetches that failed; nobody noticed.
    pub prefetches_failed: u64,
    /// Prefetches that are queued or on their way.
    pub warming: u64,
    /// Requests that joined another one for the same object.
    pub joined: u64,
    /// Requests that failed.
    pub failed: u64,
}

/// What the requests of a repository to its server came to, and how the way there is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkStatus {
    /// Requests sent.
    pub requests: u64,
    /// Connections opened for them.
    pub connections: u64,
    /// Bytes of answers, without their headers.
    pub received_bytes: u64,
    /// The least round trip lately, in microseconds; 0 before there was a connection.
    pub round_trip_us: u64,
    /// The fastest delivery lately.
    pub bytes_per_second: u64,
    /// Requests at once up to which prefetches are started.
    pub window: u64,
    /// Who is asked.
    pub route: RouteStatus,
}

impl NetworkStatus {
    /// The least round trip lately, if there was one.
    pub fn round_trip(&self) -> Option<Duration> {
        (self.round_trip_us > 0).then(|| Duration::from_micros(self.round_trip_us))
    }
}

/// Servers and proxies of a repository, and what failed of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteStatus {
    /// The servers.
    pub servers: Vec<Reach>,
    /// The proxies, group by group; `DIRECT` for none.
    pub proxies: Vec<Vec<Reach>>,
    /// How often a server was left.
    pub server_failovers: u64,
    /// How often a proxy was left.
    pub proxy_failovers: u64,
    /// How often something that was left answered again.
    pub recoveries: u64,
    /// Attempts beyond the first of a request.
    pub retries: u64,
    /// The last failure of an attempt: seconds since 1970, and the text.
    pub last_error: Option<(u64, String)>,
}

/// A server or a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Its URL.
    pub name: String,
    /// Whether requests go there.
    pub active: bool,
    /// Whether it failed, and was not seen to answer since.
    pub out: bool,
    /// When it failed, in seconds since 1970.
    pub since: Option<u64>,
    /// How it failed.
    pub why: Option<String>,
}

/// How long hashing, inflating and writing waited for a thread.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WorkStatus {
    /// What was demanded.
    pub demand: WaitStatus,
    /// What was prefetched.
    pub prefetch: WaitStatus,
    /// Of both, what came while a thread for it had nothing to do.
    pub idle: WaitStatus,
}

/// How long jobs waited. Times are powers of two, the upper ends of what was counted together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WaitStatus {
    /// Jobs.
    pub jobs: u64,
    /// What half of them waited at most, in microseconds.
    pub half_us: u64,
    /// What 99 of 100 waited at most.
    pub p99_us: u64,
}

/// How many failures are remembered.
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

/// Objects and their stored bytes.
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

/// Seconds of Unix time.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

impl Traffic {
    pub(crate) fn note_fetch(&self, stored_bytes: u64, is_prefetch: bool) {
        self.fetched.add(stored_bytes);
        if is_prefetch {
            self.prefetched.add(stored_bytes);
        }
    }

    /// Counts the first use of an object that was prefetched.
    pub(crate) fn note_use(&self, entry: &Entry) {
        if let Some(stored_bytes) = entry.first_use() {
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
