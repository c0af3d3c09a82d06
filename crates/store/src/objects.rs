//! The store of this process: cache, single-flight, fetch, verify, decompress, keep.

mod keep;

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use crate::cache::{Cache, Entry, Inner, Leased};
use crate::done::Done;
use crate::error::{Cause, StoreError, is_full};
use crate::flight::Waiter;
use crate::handle::Handle;
use crate::source::{Fetch, Source};
use crate::status::{StoreStatus, Traffic};
use crate::store::{Holder, ObjectStore};
use crate::urgency::{Priority, Urgency};
use crate::wanted::Wanted;

/// The objects of one repository, over a cache that several may share.
pub struct Objects {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) cache: Arc<Inner>,
    source: Arc<dyn Source>,
    pub(crate) traffic: Traffic,
}

/// One object on its way, led by the request that missed it first.
pub(crate) struct Trip {
    pub(crate) store: Arc<Shared>,
    pub(crate) wanted: Wanted,
    pub(crate) priority: Priority,
}

impl Objects {
    /// Objects of the repository at `source`, kept in `cache`.
    pub fn new(cache: &Cache, source: Arc<dyn Source>) -> Self {
        Self { shared: Arc::new(Shared { cache: cache.inner.clone(), source, traffic: Traffic::default() }) }
    }
}

impl ObjectStore for Objects {
    fn get(&self, wanted: Wanted, done: Done<Handle>) {
        self.shared.get(wanted, done);
    }

    fn cached(&self, wanted: &Wanted) -> Option<Handle> {
        self.shared.cached(wanted)
    }

    fn add_holder(&self, holder: Weak<dyn Holder>) {
        self.shared.cache.add_holder(holder);
    }

    fn status(&self) -> StoreStatus {
        self.shared.traffic.status(self.shared.cache.status())
    }
}

impl Shared {
    fn cached(&self, wanted: &Wanted) -> Option<Handle> {
        let entry = self.cache.find(&wanted.key())?;
        let Leased::Handle(handle) = self.cache.lease(&entry) else { return None };
        let fits = wanted.size.is_none_or(|size| size == handle.len()) && handle.len() <= wanted.limit;
        if fits {
            self.traffic.hits.fetch_add(1, Ordering::Relaxed);
        }
        fits.then_some(handle)
    }

    pub(crate) fn get(self: &Arc<Self>, wanted: Wanted, done: Done<Handle>) {
        if let Some(handle) = self.cached(&wanted) {
            return done.ok(handle);
        }
        let waiter = Waiter { store: self.clone(), wanted: wanted.clone(), done };
        match self.cache.flights.join(waiter) {
            Some(priority) => Trip { store: self.clone(), wanted, priority }.look_again(),
            None => {
                self.traffic.joined.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// A handle of the right object, if it has the size that this request knows of.
    pub(crate) fn fitting(&self, wanted: &Wanted, handle: Handle) -> Result<Handle, StoreError> {
        let actual = handle.len();
        let cause = match wanted.size {
            Some(expected) if expected != actual => Cause::WrongSize { expected, actual },
            _ if actual > wanted.limit => Cause::TooLarge { limit: wanted.limit },
            _ => return Ok(handle),
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

    /// Ends the trip.
    fn land(self, outcome: Result<Handle, Cause>) {
        let outcome = outcome.map_err(|cause| StoreError::new(self.wanted.label(), cause));
        self.store.cache.flights.land(&self.wanted.key(), outcome);
    }

    /// Looks into the cache once more: the object may have come between the miss and the flight, or be there
    /// unchecked, or lack a descriptor.
    fn look_again(self) {
        match self.store.cache.find(&self.wanted.key()) {
            Some(entry) => self.open(entry),
            None => self.fetch(),
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
                    self.opened(leased);
                });
            }),
            Leased::NoSlot => cache.with_slot(urgency, move |slot| {
                let leased = self.store.cache.lease_with(&entry, slot);
                self.opened(leased);
            }),
            leased => self.opened(leased),
        }
    }

    fn opened(self, leased: Leased) {
        match leased {
            Leased::Handle(handle) => self.land(Ok(handle)),
            // What can't be opened may still be fetched and served.
            Leased::Gone | Leased::Unchecked | Leased::NoSlot | Leased::Failed => self.fetch(),
        }
    }

    fn fetch(self) {
        self.fetch_or(|trip, error| {
            // The stored bytes go through the disk if they are many; if that is full, make room once.
            if !says_full(error.cause()) {
                return trip.fail(error);
            }
            let (cache, bytes) = (trip.store.cache.clone(), trip.wanted.stored_limit());
            let pool = cache.pool.clone();
            cache.space.make_room(bytes, move || pool.run(trip.urgency(), move || trip.fetch_or(Self::fail)));
        });
    }

    fn fail(self, error: StoreError) {
        self.store.cache.flights.land(&self.wanted.key(), Err(error));
    }

    fn fetch_or(self, failed: impl FnOnce(Self, StoreError) + Send + 'static) {
        let fetch = Fetch {
            path: self.wanted.path(),
            what: self.wanted.label().into(),
            expect: Some(self.wanted.name.hash),
            limit: self.wanted.stored_limit(),
            fresh: false,
            priority: self.priority.clone(),
            spool: Some(self.store.cache.clone()),
        };
        let source = self.store.source.clone();
        source.fetch(
            fetch,
            Done::new(move |outcome| match outcome {
                Ok(stored) => {
                    let (pool, urgency) = (self.store.cache.pool.clone(), self.urgency());
                    pool.run(urgency, move || self.arrived(stored));
                }
                Err(error) => failed(self, error),
            }),
        );
    }
}

/// Whether the disk, or somebody's quota on it, has no room.
fn says_full(cause: &Cause) -> bool {
    matches!(cause, Cause::Disk { source, .. } if is_full(source))
}
