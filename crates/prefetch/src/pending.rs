//! Objects that publishers announced and that are on their way, and who is told once they have come.

use std::collections::HashMap;
use std::ops::Range;

use esker_store::CacheKey;

/// What programs will probably ask for.
#[derive(Clone, Copy, Debug)]
pub enum PrefetchEvent<'a> {
    /// Bytes that publishers announced, and that are in the cache now.
    Bytes(&'a Arrival),
    /// Files in this folder, by a guess. What is in it can be told without waiting.
    Folder(&'a [u8]),
}

/// Hears of what is foreseen. Must not wait.
pub type PrefetchListener = Box<dyn Fn(PrefetchEvent<'_>) + Send + Sync>;

/// As many are remembered as can be queued.
const ARRIVING_MAX: usize = 1 << 16;

/// Bytes of a file that are in the cache now, and will be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// The path of the file.
    pub path: Box<[u8]>,
    /// Which bytes.
    pub range: Range<u64>,
    /// Whether the file ends with them.
    pub ends: bool,
}

/// By object, the file that it is announced for first, and which bytes of that.
#[derive(Default)]
pub struct PendingArrivals(HashMap<CacheKey, Arrival>);

impl PendingArrivals {
    /// Adds the bytes of an object that is being fetched; ignored if too many are pending.
    pub fn expect(&mut self, key: CacheKey, arrival: Arrival) {
        if self.0.len() < ARRIVING_MAX {
            self.0.entry(key).and_modify(|known| known.join(&arrival)).or_insert(arrival);
        }
    }

    /// Removes the bytes of an object that has arrived.
    pub fn take(&mut self, key: &CacheKey) -> Option<Arrival> {
        self.0.remove(key)
    }

    /// Removes all entries.
    pub fn clear(&mut self) {
        self.0.clear();
    }
}

impl Arrival {
    /// More of the same object is read, of the same file or of another one with the same content.
    fn join(&mut self, more: &Self) {
        if self.path == more.path {
            self.range = self.range.start.min(more.range.start)..self.range.end.max(more.range.end);
            self.ends |= more.ends;
        }
    }
}
