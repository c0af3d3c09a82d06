//! Objects that publishers announced and that are on their way, and who is told once they have come.

use std::collections::HashMap;
use std::ops::Range;

use esker_store::CacheKey;

use crate::view::View;

/// What programs will probably ask for.
#[derive(Clone, Copy, Debug)]
pub enum Foreseen<'a> {
    /// Bytes that publishers announced, and that are in the cache now.
    Bytes(&'a Arrival),
    /// Files in this folder, by a guess. What is in it can be told without waiting.
    Folder(&'a [u8]),
}

/// Hears of what is foreseen. Must not wait.
pub type Foresight = Box<dyn Fn(Foreseen<'_>) + Send + Sync>;

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
pub(super) struct Arriving(HashMap<CacheKey, Arrival>);

impl Arriving {
    pub(super) fn expect(&mut self, key: CacheKey, arrival: Arrival) {
        if self.0.len() < ARRIVING_MAX {
            self.0.entry(key).and_modify(|known| known.join(&arrival)).or_insert(arrival);
        }
    }

    pub(super) fn take(&mut self, key: &CacheKey) -> Option<Arrival> {
        self.0.remove(key)
    }

    pub(super) fn clear(&mut self) {
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

impl View {
    /// Tells of everything that is foreseen from now on. A view tells one; later ones hear nothing.
    pub fn tell_what_is_foreseen(&self, foresight: Foresight) {
        let _ = self.core.prefetch.foresight.set(foresight);
    }
}
