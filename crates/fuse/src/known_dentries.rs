//! Names the kernel may have cached, for kernels that can't expire all names at once.
//!
//! Kernels before 6.16 have no epochs: when a tree announces that everything may have changed, each name has to be
//! invalidated. Negative entries count, too, and the kernel never reports when it drops one, so their number is
//! bounded: above it, negative replies are not to be cached.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};

use esker_vfs::{Kind, Listing};
use parking_lot::Mutex;

use crate::listing::usable;
use crate::nodes::NodeId;

/// Number of names above which negative replies are not to be cached.
const MOST_ABSENT: usize = 1 << 20;

const SHARDS: usize = 64;

type Directory = HashMap<Box<[u8]>, Option<Kind>>;

/// Names by directory, with their kind; `None` for a negative entry.
#[derive(Debug)]
pub(crate) struct KnownDentries {
    shards: Box<[Mutex<HashMap<NodeId, Directory>>]>,
    count: AtomicUsize,
}

impl KnownDentries {
    pub(crate) fn new() -> Self {
        Self { shards: (0..SHARDS).map(|_| Mutex::default()).collect(), count: AtomicUsize::new(0) }
    }

    fn shard(&self, dir: NodeId) -> &Mutex<HashMap<NodeId, Directory>> {
        &self.shards[dir.0 as usize % SHARDS]
    }

    /// Records a name that is about to be sent to the kernel; `kind` is `None` for a negative entry. Returns
    /// whether the kernel may cache it; false for absent names once there are too many.
    pub(crate) fn note(&self, dir: NodeId, name: &[u8], kind: Option<Kind>) -> bool {
        let mut shard = self.shard(dir).lock();
        let names = shard.entry(dir).or_default();
        if let Some(known) = names.get_mut(name) {
            *known = kind;
            return true;
        }
        if kind.is_none() && self.count.load(Ordering::Relaxed) >= MOST_ABSENT {
            return false;
        }
        names.insert(name.into(), kind);
        self.count.fetch_add(1, Ordering::Relaxed);
        true
    }

    /// Records the first `given` names of a listing, which were sent with their nodes.
    pub(crate) fn note_listing(&self, dir: NodeId, listing: &Listing, given: usize) {
        let from_start = listing.entries.iter().skip(listing.start);
        for entry in from_start.filter(|e| usable(&e.name)).take(given) {
            self.note(dir, &entry.name, Some(entry.node.kind));
        }
    }

    /// Removes and returns all recorded names of a directory.
    pub(crate) fn take(&self, dir: NodeId) -> Directory {
        let names = self.shard(dir).lock().remove(&dir).unwrap_or_default();
        self.count.fetch_sub(names.len(), Ordering::Relaxed);
        names
    }
}
