//! Implements the store of this process: cache, single-flight, fetch, verification, decompression.

pub(crate) mod handle;
mod keep;
pub(crate) mod object_store;
pub(crate) mod request;
pub(crate) mod single_flight;
pub(crate) mod status;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use esker_format::object::ObjectKind;
use esker_threads::waits::WaitCause;

use crate::cache::lower::LowerTiers;
use crate::cache::lower::request::LowerRequest;
use crate::cache::status::Room;
use crate::cache::{Cache, CacheState, Entry, FileRoom, OpenOutcome, Writing};
use crate::callback::Callback;
use crate::cancel_token::CancelToken;
use crate::error::{Cause, StoreError, is_full};
use crate::objects::handle::Handle;
use crate::objects::object_store::{Holder, ObjectStore, Warmed};
use crate::objects::request::ObjectRequest;
use crate::objects::single_flight::{Answer, SingleFlight, Waiter};
use crate::objects::status::{StoreStatus, Traffic};
use crate::priority::{Priority, Urgency};
use crate::progress::Progress;
use crate::transport::source::{AttemptRoute, Expected, Fetch, FilePart, HttpRequest, Source};

/// Objects of one repository, over a cache that several repositories may share.
pub struct Objects {
    state: Arc<StoreState>,
}

pub(crate) struct StoreState {
    pub(crate) cache: Arc<CacheState>,
    single_flight: Arc<SingleFlight>,
    lower: Option<Arc<LowerTiers>>,
    source: Arc<dyn Source>,
    /// Source of external data.
    external: Option<Arc<dyn Source>>,
    pub(crate) traffic: Traffic,
    /// Prefetches queued or in progress.
    warming: AtomicUsize,
}

/// Maximum number of prefetches queued or in progress in one store; further ones are refused.
const WARMING_MAX: usize = 16_384;

/// Number of bytes to free first on a full disk for stored bytes of unstated size. Each further attempt doubles it;
/// the second constant is the number of attempts.
const ROOM_UNSTATED: u64 = 64 << 20;
const STORED_ROUNDS: u32 = 4;

/// A permit for a prefetch of a store; free again on drop.
pub(crate) struct PrefetchPermit(Arc<StoreState>);

impl PrefetchPermit {
    fn take(store: &Arc<StoreState>) -> Option<Self> {
        let permit = Self(store.clone());
        (store.warming.fetch_add(1, Ordering::Relaxed) < WARMING_MAX).then_some(permit)
    }
}

impl Drop for PrefetchPermit {
    fn drop(&mut self) {
        self.0.warming.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Fetch of one object, started by the request that missed it first. A job that is dropped, because the cache
/// is closed or its threads end, still completes all requests that joined it.
pub(crate) struct FetchJob {
    pub(crate) store: Arc<StoreState>,
    pub(crate) wanted: ObjectRequest,
    pub(crate) priority: Priority,
    /// Progress of the fetch.
    pub(crate) progress: Progress,
    /// True if the fetch began as a prefetch.
    pub(crate) is_prefetch: bool,
    /// Stored size in bytes, once received.
    pub(crate) fetched: Option<u64>,
    /// True if all waiting requests were completed.
    pub(crate) is_completed: bool,
}

impl Objects {
    /// Creates the store of the repository at `source`, over `cache`.
    pub fn new(cache: &Cache, source: Arc<dyn Source>) -> Self {
        Self::with_external(cache, source, None)
    }

    /// Makes a store of the repository at `source` with external data at `external`.
    pub fn with_external(cache: &Cache, source: Arc<dyn Source>, external: Option<Arc<dyn Source>>) -> Self {
        let (traffic, warming) = (Traffic::default(), AtomicUsize::new(0));
        let (single_flight, lower) = (cache.single_flight.clone(), cache.lower.clone());
        let cache = cache.state.clone();
        let state = StoreState { cache, single_flight, lower, source, external, traffic, warming };
        Self { state: Arc::new(state) }
    }
}

impl ObjectStore for Objects {
    fn get(&self, wanted: ObjectRequest, done: Callback<Handle>) {
        self.state.get(wanted, done);
    }

    fn warm(&self, wanted: ObjectRequest, token: &CancelToken, done: Callback<Warmed>) {
        match PrefetchPermit::take(&self.state) {
            Some(permit) => self.state.warm_with_permit(wanted, token.clone(), done, permit),
            None => done.err(StoreError::new(wanted.label(), Cause::QueueFull { limit: WARMING_MAX })),
        }
    }

    fn read_ahead(&self, wanted: &ObjectRequest, range: Range<u64>) -> bool {
        let Some(entry) = self.state.cache.find(&wanted.key()) else { return false };
        let (state, wanted) = (self.state.clone(), wanted.clone());
        // Opening alone may take as long as reading: the kernel looks for the file on disk.
        self.state.cache.pool.spawn(Urgency::Prefetch, move || match state.cache.open_entry(&entry) {
            OpenOutcome::Handle(handle) => handle.read_ahead(range),
            // The comparison reads all of it, ahead of its use.
            OpenOutcome::Unchecked => {
                if let Some(permit) = PrefetchPermit::take(&state) {
                    state.join_or_lead(wanted, Answer::Checked { _permit: permit });
                }
            }
            _ => {}
        });
        true
    }

    fn holds(&self, wanted: &ObjectRequest) -> bool {
        self.state.cache.find(&wanted.key()).is_some()
    }

    fn cached(&self, wanted: &ObjectRequest) -> Option<Handle> {
        self.state.cached(wanted)
    }

    fn recheck(&self, wanted: &ObjectRequest) {
        self.state.cache.recheck(&wanted.key());
    }

    fn add_holder(&self, holder: Weak<dyn Holder>) {
        self.state.cache.add_holder(holder);
    }

    fn room(&self) -> Room {
        self.state.cache.room()
    }

    fn round_trip(&self) -> Option<Duration> {
        self.state.source.network().round_trip()
    }

    fn status(&self) -> StoreStatus {
        let mut status = self.state.traffic.status(self.state.cache.status());
        status.work = self.state.cache.pool.status();
        status.network = self.state.source.network();
        status.traffic.warming = self.state.warming.load(Ordering::Relaxed) as u64;
        status
    }
}

impl StoreState {
    fn cached(&self, wanted: &ObjectRequest) -> Option<Handle> {
        if is_always_compared(wanted) {
            return None;
        }
        let entry = self.cache.find(&wanted.key())?;
        let OpenOutcome::Handle(handle) = self.cache.open_entry(&entry) else { return None };
        let fits = wanted.size.is_none_or(|size| size == handle.len()) && handle.len() <= wanted.limit;
        if fits {
            self.traffic.hits.count();
            self.traffic.note_first_use(entry.first_use());
        }
        fits.then_some(handle)
    }

    pub(crate) fn get(self: &Arc<Self>, wanted: ObjectRequest, done: Callback<Handle>) {
        match self.cached(&wanted) {
            Some(handle) => done.ok(handle),
            None => self.join_or_lead(wanted, Answer::Open(done)),
        }
    }

    /// Brings an object into the cache for a prefetch that has a permit.
    pub(crate) fn warm_with_permit(
        self: &Arc<Self>,
        wanted: ObjectRequest,
        token: CancelToken,
        done: Callback<Warmed>,
        permit: PrefetchPermit,
    ) {
        // An unchecked entry counts as well: its first reader has it checked, or fetched again.
        match self.cache.find(&wanted.key()) {
            Some(entry) => done.give(self.fitting(&wanted, entry.plain_len).map(|()| Warmed::Here)),
            None if token.is_cancelled() => done.err(StoreError::new(wanted.label(), Cause::Cancelled)),
            None => self.join_or_lead(wanted, Answer::Warm { token, done, permit }),
        }
    }

    /// Joins the fetch of an object, or starts one.
    fn join_or_lead(self: &Arc<Self>, mut wanted: ObjectRequest, answer: Answer) {
        if wanted.size.is_none() {
            wanted.limit = wanted.limit.min(self.cache.unstated_limit());
        }
        let waiter = Waiter { store: self.clone(), wanted: wanted.clone(), answer };
        let Some((priority, progress)) = self.single_flight.join(waiter) else {
            self.traffic.joined.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let is_prefetch = priority.urgency() == Urgency::Prefetch;
        let store = self.clone();
        FetchJob { store, wanted, priority, progress, is_prefetch, fetched: None, is_completed: false }
            .recheck_cache();
    }

    /// Checks that the object has the size that this request states.
    pub(crate) fn fitting(&self, wanted: &ObjectRequest, actual: u64) -> Result<(), StoreError> {
        let cause = match wanted.size {
            Some(expected) if expected != actual => Cause::WrongSize { expected, actual },
            _ if actual > wanted.limit => Cause::TooLarge { limit: wanted.limit },
            _ => return Ok(()),
        };
        let error = StoreError::new(wanted.label(), cause);
        self.traffic.note_failure(&error);
        Err(error)
    }
}

impl FetchJob {
    pub(crate) fn urgency(&self) -> Urgency {
        self.priority.urgency()
    }

    /// Begins a phase of the wait of all its requests.
    pub(crate) fn enter(&self, cause: WaitCause) {
        self.progress.enter(Some(cause));
    }

    /// Returns whether a failure of this job is also a failure of that request.
    pub(crate) fn stands_for(&self, waiter: &Waiter) -> bool {
        Arc::ptr_eq(&waiter.store, &self.store)
            && waiter.wanted.size == self.wanted.size
            && waiter.wanted.limit == self.wanted.limit
            && waiter.wanted.alternative_path == self.wanted.alternative_path
            && waiter.wanted.external == self.wanted.external
    }

    /// Completes the fetch for all its requests.
    fn complete(mut self, outcome: Result<Handle, Cause>) {
        self.tell(outcome);
    }

    fn tell(&mut self, outcome: Result<Handle, Cause>) {
        let outcome = outcome.map_err(|cause| StoreError::new(self.wanted.label(), cause));
        let store = self.store.clone();
        store.single_flight.complete(self, outcome);
    }

    /// Looks the object up in the cache again. Meanwhile it may have arrived, need a check, or lack a descriptor.
    fn recheck_cache(self) {
        self.enter(WaitCause::Disk);
        match self.store.cache.find(&self.wanted.key()) {
            Some(entry) => self.found(entry),
            None => self.try_lower(),
        }
    }

    /// Tries the lower tiers, if there are any, and then the network.
    fn try_lower(self) {
        match self.store.lower.clone() {
            Some(lower) => lower.seek(Box::new(self)),
            None => self.fetch(),
        }
    }

    /// Continues with an object that is in the cache; opens it if a request needs it open.
    fn found(self, entry: Arc<Entry>) {
        let store = self.store.clone();
        if let Some(job) = store.single_flight.complete_warm(self, &entry) {
            job.open(entry);
        }
    }

    /// Opens an entry, and may wait for the disk.
    fn open(self, entry: Arc<Entry>) {
        let cache = self.store.cache.clone();
        let urgency = self.urgency();
        let is_compared = !is_always_compared(&self.wanted) || self.fetched.is_some();
        match if is_compared { cache.open_entry(&entry) } else { OpenOutcome::Unchecked } {
            OpenOutcome::Unchecked => {
                self.enter(WaitCause::Thread);
                let (priority, pool) = (self.priority.clone(), cache.pool.clone());
                let is_long = urgency == Urgency::Demand && !is_always_compared(&self.wanted);
                let check = move || {
                    cache.with_slot(self.urgency(), move |slot| {
                        self.enter(WaitCause::Disk);
                        let outcome = self.store.cache.open_checked(&entry, slot, &self.progress);
                        self.opened(&entry, outcome);
                    });
                };
                if is_long { pool.spawn_long(check) } else { pool.run_for(&priority, check) }
            }
            OpenOutcome::NoSlot => {
                self.enter(WaitCause::Thread);
                cache.with_slot(urgency, move |slot| {
                    self.enter(WaitCause::Disk);
                    let outcome = self.store.cache.open_with_slot(&entry, slot);
                    self.opened(&entry, outcome);
                })
            }
            outcome => self.opened(&entry, outcome),
        }
    }

    fn opened(self, entry: &Entry, outcome: OpenOutcome) {
        match outcome {
            OpenOutcome::Handle(handle) => {
                self.store.traffic.note_first_use(entry.first_use());
                self.complete(Ok(handle));
            }
            OpenOutcome::Closed => self.complete(Err(Cause::Closed)),
            // An object that can't be opened may still be fetched and served.
            OpenOutcome::Gone | OpenOutcome::Unchecked | OpenOutcome::NoSlot | OpenOutcome::Failed => {
                self.fetch()
            }
        }
    }

    pub(crate) fn fetch(self) {
        let is_kept = !(self.store.cache.streaming && self.wanted.name.kind.is_content());
        match self.wanted.size.map_or(Ok(()), |size| self.store.cache.check_size(size, is_kept)) {
            Ok(()) => self.fetch_after(0),
            Err(cause) => self.complete(Err(cause)),
        }
    }

    /// Fetches the object; the argument counts previous attempts after evictions.
    fn fetch_after(self, rounds: u32) {
        self.fetch_or(move |job, error| {
            // The stored bytes go through the disk if they are many; if that is full, make room.
            let room = if says_full(error.cause()) { job.stored_room(rounds) } else { None };
            let Some(bytes) = room.filter(|_| !job.priority.give_up()) else { return job.fail(error) };
            let cache = job.store.cache.clone();
            job.enter(WaitCause::Disk);
            cache.space.make_room(bytes, move |made| {
                job.on_pool(move |job| if made { job.fetch_after(rounds + 1) } else { job.fail(error) });
            });
        });
    }

    /// Returns the room to make for the stored bytes. Less than the limit if the size is unstated, or a catalog on a
    /// full disk would evict the whole cache.
    fn stored_room(&self, rounds: u32) -> Option<u64> {
        let most = self.wanted.stored_limit();
        match self.wanted.size {
            Some(_) => (rounds == 0).then_some(most),
            None => (rounds < STORED_ROUNDS).then(|| most.min(ROOM_UNSTATED << rounds)),
        }
    }

    /// Continues on a pool thread; on a demand thread once the request is a demand.
    fn on_pool(self, then: impl FnOnce(Self) + Send + 'static) {
        let (pool, priority) = (self.store.cache.pool.clone(), self.priority.clone());
        self.enter(WaitCause::Thread);
        pool.run_for(&priority, move || {
            self.enter(WaitCause::Processing);
            then(self);
        });
    }

    fn fail(mut self, error: StoreError) {
        let store = self.store.clone();
        store.single_flight.complete(&mut self, Err(error));
    }

    /// Returns the source of the object.
    fn source(&self) -> Result<Arc<dyn Source>, StoreError> {
        match (&self.wanted.external, &self.store.external) {
            (None, _) => Ok(self.store.source.clone()),
            (Some(_), Some(external)) => Ok(external.clone()),
            (Some(_), None) => Err(StoreError::new(self.wanted.label(), Cause::NoExternalServer)),
        }
    }

    fn fetch_or(self, failed: impl FnOnce(Self, StoreError) + Send + 'static) {
        let source = match self.source() {
            Ok(source) => source,
            Err(error) => return failed(self, error),
        };
        let fetch = Fetch {
            path: self.wanted.path(),
            what: self.wanted.label().into(),
            object: self.wanted.is_at_its_name().then_some(self.wanted.name),
            expected: Expected::Hash(self.wanted.name.hash),
            part: self.wanted.part().map(FilePart::from),
            limit: self.wanted.stored_limit(),
            plain_size: self.wanted.size,
            http: HttpRequest { about: Some(self.wanted.what.as_str().into()), ..HttpRequest::default() },
            attempt: AttemptRoute::default(),
            priority: self.priority.clone(),
            progress: self.progress.clone(),
            spool: Some(self.store.cache.clone()),
            relay: None,
        };
        self.enter(WaitCause::Network);
        source.fetch(
            fetch,
            Callback::new(move |outcome| match outcome {
                Ok(stored) => self.on_pool(move |job| job.arrived(stored)),
                Err(error) => failed(self, error),
            }),
        );
    }
}

impl LowerRequest for FetchJob {
    fn wanted(&self) -> &ObjectRequest {
        &self.wanted
    }

    fn priority(&self) -> &Priority {
        &self.priority
    }

    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn cache(&self) -> &Arc<CacheState> {
        &self.store.cache
    }

    fn found(self: Box<Self>, plain: Vec<u8>) {
        self.found_in_lower(plain);
    }

    fn copied(self: Box<Self>, writing: Writing, room: FileRoom) {
        self.written_from_lower(writing, room);
    }

    fn not_found(self: Box<Self>) {
        self.fetch();
    }
}

impl Drop for FetchJob {
    fn drop(&mut self) {
        if !self.is_completed {
            self.tell(Err(Cause::Closed));
        }
    }
}

/// Returns true for an object that is compared with its digest whenever it is opened: a catalog decides what is shown, and is opened
/// once for each mount.
fn is_always_compared(wanted: &ObjectRequest) -> bool {
    wanted.name.kind == ObjectKind::Catalog
}

/// Returns whether the disk, or a quota on it, is full.
fn says_full(cause: &Cause) -> bool {
    matches!(cause, Cause::Disk { source, .. } if is_full(source))
}
