//! Tracks announced objects that are being fetched, and reports their arrival to a listener.

use std::collections::HashMap;
use std::ops::Range;

use esker_store::CacheKey;

/// A prediction of what programs will read.
#[derive(Clone, Copy, Debug)]
pub enum PrefetchEvent<'a> {
    /// Announced bytes that are in the cache now.
    Bytes(&'a Arrival),
    /// A folder in which files will probably be read, and whose entries are available without waiting.
    Folder(&'a [u8]),
}

/// Callback for predictions. Must not block.
pub type PrefetchListener = Box<dyn Fn(PrefetchEvent<'_>) + Send + Sync>;

/// Maximum number of pending objects: as many as can be queued.
const PENDING_MAX: usize = 1 << 16;

/// Bytes of a file that are in the cache now, and will be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Path of the file.
    pub path: Box<[u8]>,
    /// Range of the file in bytes.
    pub range: Range<u64>,
    /// True if the file ends with them.
    pub ends: bool,
}

/// The file that each object was announced for first, and the announced range of that file.
#[derive(Default)]
pub(crate) struct PendingArrivals(HashMap<CacheKey, Arrival>);

impl PendingArrivals {
    /// Adds the bytes of an object that is being fetched; ignored if too many are pending.
    pub(crate) fn expect(&mut self, key: CacheKey, arrival: Arrival) {
        if self.0.len() < PENDING_MAX {
            self.0.entry(key).and_modify(|known| known.join(&arrival)).or_insert(arrival);
        }
    }

    /// Removes the bytes of an object that has arrived.
    pub(crate) fn take(&mut self, key: &CacheKey) -> Option<Arrival> {
        self.0.remove(key)
    }

    /// Removes all entries.
    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }
}

impl Arrival {
    /// Extends the range, if more of the same file is announced.
    fn join(&mut self, more: &Self) {
        if self.path == more.path {
            self.range = self.range.start.min(more.range.start)..self.range.end.max(more.range.end);
            self.ends |= more.ends;
        }
    }
}
