//! Limits the open descriptors that a client has received from the writer.
//!
//! The writer bounds its own open files; here is the bound for ours. A received file takes a slot and gives it
//! back when its last user is gone. Files stay open for the next reader until their slot is needed or the
//! writer evicts the object. A file that finds no slot is closed and its request parked, to be made again once
//! there is one (requests that wait for the network take no slot, so they never delay one that doesn't). While
//! requests are parked nothing is kept open for later, so that every file given back frees its slot.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use esker_store::{CacheKey, Callback, DESCRIPTOR_LIFETIME, Handle, ObjectRequest};
use parking_lot::Mutex;

/// A pending request.
pub(super) struct Pending {
    pub(super) wanted: ObjectRequest,
    pub(super) done: Callback<Handle>,
    pub(super) attempts: u32,
}

/// Callback for a free slot while requests are parked; must not block.
type Wake = Box<dyn Fn() + Send + Sync>;

pub(super) struct Received {
    limit: usize,
    state: Mutex<State>,
    wake: Wake,
}

#[derive(Default)]
struct State {
    used: usize,
    kept: HashMap<CacheKey, Kept>,
    clock: u64,
    parked: VecDeque<Pending>,
}

struct Kept {
    handle: Handle,
    read_at: u64,
    /// Time from which on the writer is asked again, because it may have to compare the object.
    until: Instant,
}

/// Permit for one open file.
pub(super) struct Slot(Arc<Received>);

impl Drop for Slot {
    fn drop(&mut self) {
        let parked = {
            let mut state = self.0.state.lock();
            state.used -= 1;
            !state.parked.is_empty()
        };
        if parked {
            (self.0.wake)();
        }
    }
}

impl Received {
    pub(super) fn new(limit: usize, wake: impl Fn() + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { limit: limit.max(1), state: Mutex::default(), wake: Box::new(wake) })
    }

    /// Returns the file if it is still open and was received less than [`DESCRIPTOR_LIFETIME`] ago.
    pub(super) fn find(&self, key: &CacheKey) -> Option<Handle> {
        let mut state = self.state.lock();
        state.clock += 1;
        let now = state.clock;
        let kept = state.kept.get_mut(key)?;
        if kept.until <= Instant::now() {
            let old = state.kept.remove(key);
            drop(state);
            drop(old);
            return None;
        }
        kept.read_at = now;
        Some(kept.handle.clone())
    }

    /// Keeps a file open for further requests.
    pub(super) fn keep(&self, key: CacheKey, handle: &Handle) {
        let mut state = self.state.lock();
        if state.parked.is_empty() {
            state.clock += 1;
            let kept = Kept {
                handle: handle.clone(),
                read_at: state.clock,
                until: Instant::now() + DESCRIPTOR_LIFETIME,
            };
            let replaced = state.kept.insert(key, kept);
            // Its slot is given back under the same lock.
            drop(state);
            drop(replaced);
        }
    }

    /// Closes files that the writer wants to evict.
    pub(super) fn forget(&self, keys: &[CacheKey]) {
        let dropped: Vec<Kept> = {
            let mut state = self.state.lock();
            keys.iter().filter_map(|key| state.kept.remove(key)).collect()
        };
        drop(dropped);
    }

    /// Closes all unused files.
    pub(super) fn forget_all(&self) {
        let kept = std::mem::take(&mut self.state.lock().kept);
        drop(kept);
    }

    /// Takes a slot, and closes unused files if necessary.
    pub(super) fn slot(self: &Arc<Self>) -> Option<Slot> {
        loop {
            let idle = {
                let mut state = self.state.lock();
                if state.used < self.limit {
                    state.used += 1;
                    return Some(Slot(self.clone()));
                }
                state.take_idle((self.limit / 16).max(1))
            };
            if idle.is_empty() {
                return None;
            }
        }
    }

    /// Parks a request until a slot is free. Unused files are closed, so that they don't occupy slots.
    pub(super) fn park(self: &Arc<Self>, pending: Pending) {
        let (dropped, free) = {
            let mut state = self.state.lock();
            state.parked.push_back(pending);
            (std::mem::take(&mut state.kept), state.used < self.limit)
        };
        drop(dropped);
        if free {
            // A slot came back after it was looked for and before the request was parked.
            (self.wake)();
        }
    }

    /// Returns as many parked requests as there are free slots.
    pub(super) fn unpark(&self) -> Vec<Pending> {
        let mut state = self.state.lock();
        let free = self.limit.saturating_sub(state.used).min(state.parked.len());
        state.parked.drain(..free).collect()
    }

    /// Returns all parked requests, which another source will answer.
    pub(super) fn unpark_all(&self) -> VecDeque<Pending> {
        std::mem::take(&mut self.state.lock().parked)
    }
}

impl State {
    /// Removes up to `count` unused files, longest unread first.
    fn take_idle(&mut self, count: usize) -> Vec<Kept> {
        let mut idle: Vec<(u64, CacheKey)> = self
            .kept
            .iter()
            // One reference is ours, one is made by this check.
            .filter(|(_, kept)| Arc::strong_count(&kept.handle.file()) <= 2)
            .map(|(key, kept)| (kept.read_at, *key))
            .collect();
        idle.sort_unstable();
        idle.truncate(count);
        idle.iter().filter_map(|(_, key)| self.kept.remove(key)).collect()
    }
}

#[cfg(test)]
mod tests {
    use esker_format::compress::Compression;
    use esker_format::hash::{ContentHash, HashAlgorithm};

    use super::*;

    /// > C29: Before its first use after the start of the process that writes the cache, and before its first use a day after the last comparison, all bytes of a cached object are compared with the digest of those that were verified; a damaged object is fetched again, and no program sees its bytes.
    #[test]
    fn an_old_descriptor_is_requested_again() {
        let received = Received::new(2, || ());
        let hash = ContentHash::of(HashAlgorithm::Sha1, b"an object");
        let key = CacheKey { hash, compression: Compression::Zlib };
        let file = std::fs::File::open("/dev/null").unwrap();
        let slot = received.slot().unwrap();
        received.keep(key, &Handle::from_fd(file.into(), 0, slot));
        assert!(received.find(&key).is_some());
        assert!(received.state.lock().kept[&key].until > Instant::now() + DESCRIPTOR_LIFETIME / 2);
        received.state.lock().kept.get_mut(&key).unwrap().until = Instant::now();
        assert!(received.find(&key).is_none());
        let state = received.state.lock();
        assert_eq!((state.used, state.kept.len()), (0, 0), "its slot is free");
    }
}
