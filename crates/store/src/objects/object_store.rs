//! Defines the trait through which views and tools read objects.

use std::ops::Range;
use std::sync::Weak;
use std::time::Duration;

use crate::cache::status::Room;
use crate::callback::Callback;
use crate::cancel_token::CancelToken;
use crate::objects::handle::Handle;
use crate::objects::request::{CacheKey, ObjectRequest};
use crate::objects::status::StoreStatus;

/// Serves verified objects of one repository: from the cache, or fetched. Implemented in this process by
/// [`Objects`](crate::Objects), and by a client of a store in another process.
pub trait ObjectStore: Send + Sync {
    /// Requests an object without blocking. The result may arrive before the call returns.
    fn get(&self, wanted: ObjectRequest, done: Callback<Handle>);

    /// Fetches an object into the cache for later use, with low priority. It is requested only as far as that
    /// delays no demand, once (a failure is not repeated), and not opened; a demand for it takes it over. Never
    /// blocks; dropped if the token is cancelled before the request is sent, refused if too many are queued.
    fn warm(&self, wanted: ObjectRequest, token: &CancelToken, done: Callback<Warmed>);

    /// Reads a part of a cached object into the page cache, because it is probably needed soon. Returns false
    /// and does nothing if the object is not cached or the cache is another process's. Never blocks.
    fn read_ahead(&self, wanted: &ObjectRequest, range: Range<u64>) -> bool {
        let _ = (wanted, range);
        false
    }

    /// Returns the object if it is cached, verified, and can be opened now. No I/O beyond that opening, and a check of a
    /// small object if that is due.
    fn cached(&self, wanted: &ObjectRequest) -> Option<Handle>;

    /// Returns true if the object is in the cache of this process, although its check may be due. No I/O.
    fn holds(&self, wanted: &ObjectRequest) -> bool {
        let _ = wanted;
        false
    }

    /// Records that the file of an object could not be read; it is verified or fetched again before its next
    /// use.
    fn recheck(&self, wanted: &ObjectRequest) {
        let _ = wanted;
    }

    /// Adds a holder, which is asked before objects are evicted; dropped holders are forgotten.
    fn add_holder(&self, holder: Weak<dyn Holder>);

    /// Returns the known fill level of the cache without waiting.
    fn room(&self) -> Room;

    /// Returns the known round-trip time to the server without waiting.
    fn round_trip(&self) -> Option<Duration> {
        None
    }

    /// Returns the status of the store.
    fn status(&self) -> StoreStatus;
}

/// Result of [`ObjectStore::warm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Warmed {
    /// The object was cached, or in progress for another request.
    Here,
    /// The object was fetched, with this many stored bytes.
    Fetched(u64),
}

/// Component that gave objects to a kernel, which may still use them.
pub trait Holder: Send + Sync {
    /// Tries to make the kernel release these objects and returns for each whether it is still held. Called on the
    /// cache's eviction thread; may wait briefly.
    fn release(&self, victims: &[CacheKey]) -> Vec<bool>;

    /// Returns true if held objects are never evicted. If not, its objects are evicted last, and it fetches
    /// them again when needed.
    fn is_binding(&self) -> bool {
        true
    }
}
