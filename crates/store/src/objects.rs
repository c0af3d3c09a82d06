//! The store of this process: cache, single-flight, fetch, verify, decompress, keep.

mod keep;

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::cache::{Cache, Entry, Inner, Leased};
use crate::done::Done;
use crate::errand::Errand;
use crate::error::{Cause, StoreError, is_full};
use crate::flight::{Answer, Waiter};
use crate::handle::Handle;
use crate::progress::Progress;
use crate::source::{Fetch, Source};
use crate::status::{Room, StoreStatus, Traffic};
use crate::store::{Holder, ObjectStore, Warmed};
use crate::urgency::{Priority, Urgency};
use crate::wanted::Wanted;

/// The objects of one repository, over a cache that several may share.
pub struct Objects {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) cache: Arc<Inner>,
    source: Arc<dyn Source>,
    /// Where content is that lies outside of the repository.
    external: Option<Arc<dyn Source>>,
    pub(crate) traffic: Traffic,
    /// Prefetches that are queued or on their way.
    warming: AtomicUsize,
}

/// Prefetches that one store may have queued or on their way: what the largest programs touch, several times
/// over. Who asks for more is refused.
const WARMING_MAX: usize = 16_384;

/// How much room is made first on a full disk for stored bytes of unstated size, twice as much the next time, and how
/// often.
const ROOM_UNSTATED: u64 = 64 << 20;
const STORED_ROUNDS: u32 = 4;

/// A place among the prefetches of a store; free again on drop.
pub(crate) struct Seat(Arc<Shared>);

impl Seat {
    fn take(store: &Arc<Shared>) -> Option<Self> {
        let seat = Self(store.clone());
        (store.warming.fetch_add(1, Ordering::Relaxed) < WARMING_MAX).then_some(seat)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.warming.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One object on its way, led by the request that missed it first. One that is dropped on its way, because the cache
/// is closed or its threads end, is answered all the same: all who joined it wait.
pub(crate) struct Trip {
    pub(crate) store: Arc<Shared>,
    pub(crate) wanted: Wanted,
    pub(crate) priority: Priority,
    /// When bytes of it last came.
    pub(crate) progress: Progress,
    /// Whether nobody demanded it when it began.
    pub(crate) is_prefetch: bool,
    /// The stored bytes, once they came.
    pub(crate) fetched: Option<u64>,
    /// Whether all who wait for it were told.
    pub(crate) landed: bool,
}

impl Objects {
    /// Objects of the repository at `source`, kept in `cache`.
    pub fn new(cache: &Cache, source: Arc<dyn Source>) -> Self {
        Self::with_external(cache, source, None)
    }

    /// The same, with content that lies outside of the repository at `external`.
    pub fn with_external(cache: &Cache, source: Arc<dyn Source>, external: Option<Arc<dyn Source>>) -> Self {
        let (cache, traffic, warming) = (cache.inner.clone(), Traffic::default(), AtomicUsize::new(0));
        Self { shared: Arc::new(Shared { cache, source, external, traffic, warming }) }
    }
}

impl ObjectStore for Objects {
    fn get(&self, wanted: Wanted, done: Done<Handle>) {
        self.shared.get(wanted, done);
    }

    fn warm(&self, wanted: Wanted, errand: &Errand, done: Done<Warmed>) {
        match Seat::take(&self.shared) {
            Some(seat) => self.shared.warm_seated(wanted, errand.clone(), done, seat),
            None => done.err(StoreError::new(wanted.label(), Cause::QueueFull { limit: WARMING_MAX })),
        }
    }

    fn read_ahead(&self, wanted: &Wanted, range: Range<u64>) -> bool {
        let Some(entry) = self.shared.cache.find(&wanted.key()) else { return false };
        let cache = self.shared.cache.clone();
        // Opening alone may take as long as reading: the kernel looks for the file on disk.
        self.shared.cache.pool.spawn(Urgency::Prefetch, move || {
            if let Leased::Handle(handle) = cache.lease(&entry) {
                handle.read_ahead(range);
            }
        });
        true
    }

    fn cached(&self, wanted: &Wanted) -> Option<Handle> {
        self.shared.cached(wanted)
    }

    fn doubt(&self, wanted: &Wanted) {
        self.shared.cache.doubt(&wanted.key());
    }

    fn add_holder(&self, holder: Weak<dyn Holder>) {
        self.shared.cache.add_holder(holder);
    }

    fn room(&self) -> Room {
        self.shared.cache.room()
    }

    fn round_trip(&self) -> Option<Duration> {
        self.shared.source.network().round_trip()
    }

    fn status(&self) -> StoreStatus {
        let mut status = self.shared.traffic.status(self.shared.cache.status());
        status.work = self.shared.cache.pool.status();
        status.network = self.shared.source.network();
        status.traffic.warming = self.shared.warming.load(Ordering::Relaxed) as u64;
        status
    }
}

impl Shared {
    fn cached(&self, wanted: &Wanted) -> Option<Handle> {
        let entry = self.cache.find(&wanted.key())?;
        let Leased::Handle(handle) = self.cache.lease(&entry) else { return None };
        let fits = wanted.size.is_none_or(|size| size == handle.len()) && handle.len() <= wanted.limit;
        if fits {
            self.traffic.hits.count();
            self.traffic.note_use(&entry);
        }
        fits.then_some(handle)
    }

    pub(crate) fn get(self: &Arc<Self>, wanted: Wanted, done: Done<Handle>) {
        match self.cached(&wanted) {
            Some(handle) => done.ok(handle),
            None => self.set_out(wanted, Answer::Open(done)),
        }
    }

    /// Brings an object into the cache for an errand that has a seat.
    pub(crate) fn warm_seated(
        self: &Arc<Self>,
        wanted: Wanted,
        errand: Errand,
        done: Done<Warmed>,
        seat: Seat,
    ) {
        // An entry still to be checked counts as well: whoever reads it has it checked, or fetched again.
        match self.cache.find(&wanted.key()) {
            Some(entry) => done.give(self.fitting(&wanted, entry.plain_len).map(|()| Warmed::Here)),
            None if errand.is_over() => done.err(StoreError::new(wanted.label(), Cause::CalledOff)),
            None => self.set_out(wanted, Answer::Warm { errand, done, seat }),
        }
    }

    /// Leads or joins the flight for an object.
    fn set_out(self: &Arc<Self>, mut wanted: Wanted, answer: Answer) {
        if wanted.size.is_none() {
            wanted.limit = wanted.limit.min(self.cache.unstated_limit());
        }
        let waiter = Waiter { store: self.clone(), wanted: wanted.clone(), answer };
        let Some((priority, progress)) = self.cache.flights.join(waiter) else {
            self.traffic.joined.fetch_add(1, Ordering::Relaxed);
            return;
        };
        let is_prefetch = priority.urgency() == Urgency::Prefetch;
        let store = self.clone();
        Trip { store, wanted, priority, progress, is_prefetch, fetched: None, landed: false }.look_again();
    }

    /// Whether the right object has the size that this request knows of.
    pub(crate) fn fitting(&self, wanted: &Wanted, actual: u64) -> Result<(), StoreError> {
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

impl Trip {
    pub(crate) fn urgency(&self) -> Urgency {
        self.priority.urgency()
    }

    /// Whether a failure of this trip is one of that request, too.
    pub(crate) fn stands_for(&self, waiter: &Waiter) -> bool {
        Arc::ptr_eq(&waiter.store, &self.store)
            && waiter.wanted.size == self.wanted.size
            && waiter.wanted.limit == self.wanted.limit
            && waiter.wanted.alternative_path == self.wanted.alternative_path
            && waiter.wanted.external == self.wanted.external
    }

    /// Ends the trip.
    fn land(mut self, outcome: Result<Handle, Cause>) {
        self.tell(outcome);
    }

    fn tell(&mut self, outcome: Result<Handle, Cause>) {
        let outcome = outcome.map_err(|cause| StoreError::new(self.wanted.label(), cause));
        let cache = self.store.cache.clone();
        cache.flights.land(self, outcome);
    }

    /// Looks into the cache once more: the object may have come between the miss and the flight, or be there
    /// unchecked, or lack a descriptor.
    fn look_again(self) {
        match self.store.cache.find(&self.wanted.key()) {
            Some(entry) => self.found(entry),
            None => self.seek_below(),
        }
    }

    /// Asks the lower tiers, if there are any, and then the network.
    fn seek_below(self) {
        match self.store.cache.below.clone() {
            Some(below) => below.seek(self),
            None => self.fetch(),
        }
    }

    /// The object is in the cache; opens it if somebody wants it open.
    fn found(self, entry: Arc<Entry>) {
        let cache = self.store.cache.clone();
        if let Some(trip) = cache.flights.land_warm(self, &entry) {
            trip.open(entry);
        }
    }

    /// Opens an entry, however long that takes.
    fn open(self, entry: Arc<Entry>) {
        let cache = self.store.cache.clone();
        let urgency = self.urgency();
        match cache.lease(&entry) {
            Leased::Unchecked => cache.clone().pool.run(urgency, move || {
                cache.with_slot(urgency, move |slot| {
                    let leased = self.store.cache.lease_checked(&entry, slot);
                    self.opened(&entry, leased);
                });
            }),
            Leased::NoSlot => cache.with_slot(urgency, move |slot| {
                let leased = self.store.cache.lease_with(&entry, slot);
                self.opened(&entry, leased);
            }),
            leased => self.opened(&entry, leased),
        }
    }

    fn opened(self, entry: &Entry, leased: Leased) {
        match leased {
            Leased::Handle(handle) => {
                self.store.traffic.note_use(entry);
                self.land(Ok(handle));
            }
            // What can't be opened may still be fetched and served.
            Leased::Gone | Leased::Unchecked | Leased::NoSlot | Leased::Failed => self.fetch(),
        }
    }

    pub(crate) fn fetch(self) {
        let is_kept = !(self.store.cache.streaming && self.wanted.name.kind.is_content());
        match self.wanted.size.map_or(Ok(()), |size| self.store.cache.check_size(size, is_kept)) {
            Ok(()) => self.fetch_after(0),
            Err(cause) => self.land(Err(cause)),
        }
    }

    /// Fetches it after room was made so often.
    fn fetch_after(self, rounds: u32) {
        self.fetch_or(move |trip, error| {
            // The stored bytes go through the disk if they are many; if that is full, make room.
            let room = if says_full(error.cause()) { trip.stored_room(rounds) } else { None };
            let Some(bytes) = room.filter(|_| !trip.priority.give_up()) else { return trip.fail(error) };
            let cache = trip.store.cache.clone();
            cache.space.make_room(bytes, move || trip.on_pool(move |trip| trip.fetch_after(rounds + 1)));
        });
    }

    /// How much room to make for the stored bytes; not the most that is allowed where nobody states their size, or a
    /// catalog on a full disk would cost the whole cache.
    fn stored_room(&self, rounds: u32) -> Option<u64> {
        let most = self.wanted.stored_limit();
        match self.wanted.size {
            Some(_) => (rounds == 0).then_some(most),
            None => (rounds < STORED_ROUNDS).then(|| most.min(ROOM_UNSTATED << rounds)),
        }
    }

    /// Goes on with a thread of the pool; with one for demands as soon as this is one.
    fn on_pool(self, then: impl FnOnce(Self) + Send + 'static) {
        let (pool, priority) = (self.store.cache.pool.clone(), self.priority.clone());
        pool.run_for(&priority, move || then(self));
    }

    fn fail(mut self, error: StoreError) {
        let cache = self.store.cache.clone();
        cache.flights.land(&mut self, Err(error));
    }

    /// Who has it.
    fn source(&self) -> Result<Arc<dyn Source>, StoreError> {
        match (&self.wanted.external, &self.store.external) {
            (None, _) => Ok(self.store.source.clone()),
            (Some(_), Some(external)) => Ok(external.clone()),
            (Some(_), None) => Err(StoreError::new(self.wanted.label(), Cause::Elsewhere)),
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
            expect: Some(self.wanted.name.hash),
            check: None,
            part: self.wanted.part(),
            whole: None,
            fields: None,
            form: None,
            about: Some(self.wanted.what.as_str().into()),
            limit: self.wanted.stored_limit(),
            plain_size: self.wanted.size,
            fresh: false,
            detour: 0,
            priority: self.priority.clone(),
            progress: self.progress.clone(),
            replaceable: false,
            spool: Some(self.store.cache.clone()),
        };
        source.fetch(
            fetch,
            Done::new(move |outcome| match outcome {
                Ok(stored) => self.on_pool(move |trip| trip.arrived(stored)),
                Err(error) => failed(self, error),
            }),
        );
    }
}

impl Drop for Trip {
    fn drop(&mut self) {
        if !self.landed {
            self.tell(Err(Cause::Closed));
        }
    }
}

/// Whether the disk, or somebody's quota on it, has no room.
fn says_full(cause: &Cause) -> bool {
    matches!(cause, Cause::Disk { source, .. } if is_full(source))
}
