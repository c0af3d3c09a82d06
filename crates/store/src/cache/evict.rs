//! Evicts objects: least recently read first, in batches, never those in use.

use std::io;
use std::sync::{Arc, Weak};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::entry::Entry;
use super::space::{Space, Task};
use super::state::CacheState;
use crate::objects::object_store::Holder;
use crate::objects::request::CacheKey;

/// Number of objects in one request to the holders: enough to share the round trip to the kernel, and few
/// enough to evict little more than needed.
const BATCH: usize = 128;

/// Result of evicting on request. Field names are an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Freed {
    /// Number of evicted objects.
    pub objects: u64,
    /// Size of the evicted objects in bytes.
    pub bytes: u64,
    /// Number of objects kept because they are in use.
    pub in_use: u64,
    /// Number of objects kept because they are pinned.
    pub pinned: u64,
}

/// Holders to ask.
#[derive(Clone, Copy, PartialEq, Eq)]
enum HolderSet {
    All,
    /// Only holders whose objects are never evicted.
    Binding,
}

fn is_not_binding(holder: &Weak<dyn Holder>) -> bool {
    holder.upgrade().is_some_and(|holder| !holder.is_binding())
}

/// Runs the evictor's thread. It keeps the cache alive only while it evicts.
pub(super) fn run(space: &Arc<Space>, cache: &Weak<CacheState>) {
    while let Task::EvictTo(goal, until) = space.next_task() {
        let Some(cache) = cache.upgrade() else { return };
        let reached = cache.evict_to(goal, until);
        space.evicted(reached);
    }
}

impl CacheState {
    /// Evicts until at most `goal` bytes are used, all remaining objects are in use, or the time is over; returns whether it
    /// reached the goal.
    fn evict_to(&self, goal: u64, until: Option<Instant>) -> bool {
        self.evict_asking(self.table.oldest_first(), (goal, until), HolderSet::All);
        let has_time = until.is_none_or(|until| Instant::now() < until);
        if has_time && self.space.used() > goal && self.holders.lock().iter().any(is_not_binding) {
            self.evict_asking(self.table.oldest_first(), (goal, until), HolderSet::Binding);
        }
        self.space.used() <= goal
    }

    /// Evicts the unused ones of these victims in order, until at most `goal` bytes are used.
    pub(super) fn evict_these(&self, victims: Vec<(u64, Arc<Entry>)>, goal: u64) -> Freed {
        self.evict_asking(victims, (goal, None), HolderSet::All)
    }

    fn evict_asking(
        &self,
        victims: Vec<(u64, Arc<Entry>)>,
        (goal, until): (u64, Option<Instant>),
        whom: HolderSet,
    ) -> Freed {
        let mut freed = Freed::default();
        let mut victims = victims.into_iter();
        // Holders wait for what is in use: one wait for many objects, once the oldest turned out to be.
        let mut is_fruitless = false;
        loop {
            let mut excess = self.space.used().saturating_sub(goal);
            if excess == 0 || until.is_some_and(|until| Instant::now() >= until) {
                return freed;
            }
            let mut batch = Vec::new();
            while (excess > 0 || is_fruitless) && batch.len() < BATCH {
                let Some((read_at, entry)) = victims.next() else { break };
                if self.pins.has(&entry.key) {
                    freed.pinned += 1;
                    continue;
                }
                if entry.is_pinned() || entry.state.lock().users > 0 {
                    self.counts.spared.count();
                    freed.in_use += 1;
                    continue;
                }
                excess = excess.saturating_sub(self.charge_of(entry.plain_len));
                batch.push((read_at, entry));
            }
            if batch.is_empty() {
                return freed;
            }
            let before = freed.objects;
            self.evict_batch(&batch, goal, whom, &mut freed);
            is_fruitless = freed.objects == before;
        }
    }

    fn evict_batch(&self, batch: &[(u64, Arc<Entry>)], goal: u64, whom: HolderSet, freed: &mut Freed) {
        let keys: Vec<_> = batch.iter().map(|(_, entry)| entry.key).collect();
        let held = self.ask_holders(&keys, whom);
        for ((read_at, entry), held) in batch.iter().zip(held) {
            if self.space.used() <= goal {
                return;
            }
            if held {
                // In use is as good as read now; and so it is not asked about again at once.
                entry.read_now(self.reads.now());
                self.counts.spared.count();
            } else if entry.read_at() == *read_at && self.evict(entry) {
                // Read since it was chosen means: not among the longest unread any more, and perhaps in
                // the kernel's hands again.
                self.counts.evicted.count();
                freed.objects += 1;
                freed.bytes += self.charge_of(entry.plain_len);
                continue;
            } else {
                self.counts.spared.count();
            }
            freed.in_use += 1;
        }
    }

    fn ask_holders(&self, keys: &[CacheKey], whom: HolderSet) -> Vec<bool> {
        let holders: Vec<_> = {
            let mut holders = self.holders.lock();
            holders.retain(|holder| holder.strong_count() > 0);
            let all = holders.iter().filter_map(Weak::upgrade);
            all.filter(|holder| whom == HolderSet::All || holder.is_binding()).collect()
        };
        let mut held = vec![false; keys.len()];
        let mut note = |answers: Vec<bool>| {
            // An answer that is missing is taken for "held": that can't lose anything.
            let answers = answers.into_iter().chain(std::iter::repeat(true));
            for (held, answer) in held.iter_mut().zip(answers) {
                *held |= answer;
            }
        };
        match holders.as_slice() {
            [] => {}
            [only] => note(only.release(keys)),
            // In parallel, so that many slow holders delay an eviction no more than one.
            many => std::thread::scope(|scope| {
                let asked = many.iter().map(|holder| {
                    std::thread::Builder::new()
                        .name("esker-release".to_owned())
                        .spawn_scoped(scope, || holder.release(keys))
                        .map_err(|_| holder)
                });
                let asked: Vec<_> = asked.collect();
                for one in asked {
                    note(match one {
                        Ok(thread) => thread.join().unwrap_or_default(),
                        // No thread for it: on this one, then.
                        Err(holder) => holder.release(keys),
                    });
                }
            }),
        }
        held
    }

    /// Removes an unused entry.
    fn evict(&self, entry: &Arc<Entry>) -> bool {
        let mut state = entry.state.lock();
        if state.is_gone() || state.users > 0 || entry.is_pinned() {
            return false;
        }
        let path = self.layout.object(&entry.key);
        match self.disk.remove(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                // It takes its space still, so it stays in the account.
                self.disk_failures.note("removing", &path, &error);
                return false;
            }
        }
        self.table.set_gone(&mut state);
        let file = state.file.take();
        drop(state);
        if file.is_some() {
            drop(file);
            self.descriptors.give_back();
        }
        // The thread that marks an entry as gone releases its bytes, even if a new entry took its place meanwhile.
        self.leave(entry);
        self.space.release(self.charge_of(entry.plain_len));
        true
    }

    /// Removes a damaged or missing entry, so that the object is fetched again.
    pub(super) fn discard(&self, entry: &Arc<Entry>) {
        let first = self.table.set_gone(&mut entry.state.lock());
        if !first {
            return;
        }
        self.counts.damaged.count();
        self.leave(entry);
        let path = self.layout.object(&entry.key);
        if let Err(error) = self.disk.remove(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            self.disk_failures.note("removing", &path, &error);
            self.keep_no_index();
        }
        self.close_unused(entry);
        self.space.release(self.charge_of(entry.plain_len));
    }

    /// Removes the charge of an entry whose file was replaced.
    pub(super) fn retire(&self, entry: &Arc<Entry>) {
        let first = self.table.set_gone(&mut entry.state.lock());
        if first {
            self.space.release(self.charge_of(entry.plain_len));
        }
        self.close_unused(entry);
    }

    pub(super) fn close_unused(&self, entry: &Entry) {
        let mut state = entry.state.lock();
        if state.users == 0
            && let Some(file) = state.file.take()
        {
            drop(state);
            drop(file);
            self.descriptors.give_back();
        }
    }
}
