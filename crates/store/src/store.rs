//! The trait that views and tools read objects through.

use std::sync::Weak;

use crate::done::Done;
use crate::handle::Handle;
use crate::status::StoreStatus;
use crate::wanted::{CacheKey, Wanted};

/// Gives out verified objects of one repository: from the cache, or fetched. Implemented in this process by
/// [`Objects`](crate::Objects), and by a client of a store in another process.
pub trait ObjectStore: Send + Sync {
    /// Gets an object; never blocks. The answer may come before the call returns.
    fn get(&self, wanted: Wanted, done: Done<Handle>);

    /// The object if it is in the cache, verified, and can be opened now. No I/O beyond that opening.
    fn cached(&self, wanted: &Wanted) -> Option<Handle>;

    /// Adds somebody to ask before objects are evicted; a dead one is forgotten.
    fn add_holder(&self, holder: Weak<dyn Holder>);

    /// How the store is doing.
    fn status(&self) -> StoreStatus;
}

/// Somebody who gave objects to a kernel, which may still use them.
pub trait Holder: Send + Sync {
    /// Tries to make the kernel let go of these objects and tells for each whether it is still held. Called
    /// on the cache's eviction thread; may wait briefly.
    fn release(&self, victims: &[CacheKey]) -> Vec<bool>;
}
