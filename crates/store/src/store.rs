//! The trait that views and tools read objects through.

use std::ops::Range;
use std::sync::Weak;
use std::time::Duration;

use crate::done::Done;
use crate::errand::Errand;
use crate::handle::Handle;
use crate::status::{Room, StoreStatus};
use crate::wanted::{CacheKey, Wanted};

/// Gives out verified objects of one repository: from the cache, or fetched. Implemented in this process by
/// [`Objects`](crate::Objects), and by a client of a store in another process.
pub trait ObjectStore: Send + Sync {
    /// Gets an object; never blocks. The answer may come before the call returns.
    fn get(&self, wanted: Wanted, done: Done<Handle>);

    /// Brings an object into the cache, so that somebody finds it there later. It is asked for only as far as
    /// that delays nothing that is demanded, once (a failure is not repeated), and not opened; a demand for it
    /// takes it over where it is. Never blocks; dropped when the errand ends before it was asked for, refused if
    /// too much is queued.
    fn warm(&self, wanted: Wanted, errand: &Errand, done: Done<Warmed>);

    /// Has the kernel read a part of an object into memory that is in the cache and probably needed soon, so that it
    /// comes from disk beside whatever the program does. Does nothing for one that isn't there, nor where the cache is
    /// another process's, and tells so. Never blocks.
    fn read_ahead(&self, wanted: &Wanted, range: Range<u64>) -> bool {
        let _ = (wanted, range);
        false
    }

    /// The object if it is in the cache, verified, and can be opened now. No I/O beyond that opening.
    fn cached(&self, wanted: &Wanted) -> Option<Handle>;

    /// Notes that the file of an object could not be read: it is compared with its digest, or fetched, before it is given
    /// out again.
    fn doubt(&self, wanted: &Wanted) {
        let _ = wanted;
    }

    /// Adds somebody to ask before objects are evicted; a dead one is forgotten.
    fn add_holder(&self, holder: Weak<dyn Holder>);

    /// How full the cache is, as far as it is known without waiting.
    fn room(&self) -> Room;

    /// How long a round trip to the server takes, as far as that is known without waiting.
    fn round_trip(&self) -> Option<Duration> {
        None
    }

    /// How the store is doing.
    fn status(&self) -> StoreStatus;
}

/// What came of [`ObjectStore::warm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmed {
    /// The object was there, or on its way for somebody else.
    Here,
    /// It came, with so many stored bytes.
    Fetched(u64),
}

/// Somebody who gave objects to a kernel, which may still use them.
pub trait Holder: Send + Sync {
    /// Tries to make the kernel let go of these objects and tells for each whether it is still held. Called
    /// on the cache's eviction thread; may wait briefly.
    fn release(&self, victims: &[CacheKey]) -> Vec<bool>;

    /// Whether its word counts even where nothing else can be evicted. If not, its objects go last: it then fetches again
    /// what it still needs.
    fn is_binding(&self) -> bool {
        true
    }
}
