//! Names the kernel may have cached, for kernels that can't expire all names at once.
//!
//! Kernels before 6.16 have no epochs: when a tree announces that everything may have changed, each name has to be
//! invalidated. Negative entries count, too, and the kernel never reports when it drops one, so their number is
//! bounded: above it, negative replies are not to be cached.
//!
//! A process that takes over must know them, too, so they are recorded in a journal if there may be one: `n`, the directory,
//! the kind (0 for a negative entry) and the name; `t` and the directory when its names are taken.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};

use esker_journal::{Journal, put};
use esker_vfs::{Kind, Listing};
use parking_lot::{Mutex, RwLock};

use crate::listing::usable;
use crate::nodes::{NodeId, kind_of};

/// Number of names above which negative replies are not to be cached.
const ABSENT_MAX: usize = 1 << 20;

const SHARDS: usize = 64;

/// Number of records of names that are gone, beside as many as there are names, above which the journal is written anew.
const OUTDATED_MAX: usize = 1 << 18;

type Directory = HashMap<Box<[u8]>, Option<Kind>>;

/// Names by directory, with their kind; `None` for a negative entry.
#[derive(Debug)]
pub(crate) struct KnownDentries {
    shards: Box<[Mutex<HashMap<NodeId, Directory>>]>,
    count: AtomicUsize,
    journal: Option<Journal>,
    /// Number of records in the journal. Changes hold it shared, so that none is lost while it is written anew.
    records: RwLock<()>,
    recorded: AtomicUsize,
}

impl KnownDentries {
    /// Makes a table, with the names in the journal if there is one.
    pub(crate) fn new(journal: Option<Journal>) -> io::Result<Self> {
        let known = Self {
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            count: AtomicUsize::new(0),
            journal,
            records: RwLock::new(()),
            recorded: AtomicUsize::new(0),
        };
        for record in known.journal.as_ref().map_or_else(|| Ok(Vec::new()), Journal::records)? {
            known.restore(&record).ok_or(io::ErrorKind::InvalidData)?;
            known.recorded.fetch_add(1, Ordering::Relaxed);
        }
        Ok(known)
    }

    fn restore(&self, record: &[u8]) -> Option<()> {
        let (kind, rest) = record.split_first()?;
        let (dir, rest) = rest.split_first_chunk()?;
        let dir = NodeId(u64::from_le_bytes(*dir));
        if *kind == b't' {
            self.remove(dir);
            return Some(());
        }
        let (kind, name) = rest.split_first()?;
        let before =
            self.shard(dir).lock().entry(dir).or_default().insert(name.into(), kind_of((*kind).into()));
        self.count.fetch_add(usize::from(before.is_none()), Ordering::Relaxed);
        Some(())
    }

    /// Returns the descriptor of the journal, for a process that takes over.
    pub(crate) fn descriptor(&self) -> Option<io::Result<OwnedFd>> {
        self.journal.as_ref().map(Journal::descriptor)
    }

    fn append(&self, record: &[u8]) {
        if let Some(journal) = &self.journal {
            // A failure makes the journal invalid, and then no other process takes over.
            let _ = journal.append(record);
            self.recorded.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Writes the journal anew if most of it is outdated.
    fn compact(&self) {
        let is_outdated =
            || self.recorded.load(Ordering::Relaxed) > 2 * self.count.load(Ordering::Relaxed) + OUTDATED_MAX;
        let Some(journal) = self.journal.as_ref().filter(|_| is_outdated()) else { return };
        let _alone = self.records.write();
        if !is_outdated() {
            return;
        }
        self.recorded.store(self.count.load(Ordering::Relaxed), Ordering::Relaxed);
        let _ = journal.replace(|bytes| {
            for shard in &self.shards {
                for (dir, names) in shard.lock().iter() {
                    names.iter().for_each(|(name, kind)| put(bytes, &of_name(*dir, name, *kind)));
                }
            }
        });
    }

    fn shard(&self, dir: NodeId) -> &Mutex<HashMap<NodeId, Directory>> {
        &self.shards[dir.0 as usize % SHARDS]
    }

    /// Records a name that is about to be sent to the kernel; `kind` is `None` for a negative entry. Returns
    /// whether the kernel may cache it; false for absent names once there are too many.
    pub(crate) fn note(&self, dir: NodeId, name: &[u8], kind: Option<Kind>) -> bool {
        self.compact();
        let _shared = self.records.read();
        let mut shard = self.shard(dir).lock();
        let names = shard.entry(dir).or_default();
        if let Some(known) = names.get_mut(name) {
            if std::mem::replace(known, kind) != kind {
                self.append(&of_name(dir, name, kind));
            }
            return true;
        }
        if kind.is_none() && self.count.load(Ordering::Relaxed) >= ABSENT_MAX {
            return false;
        }
        names.insert(name.into(), kind);
        self.count.fetch_add(1, Ordering::Relaxed);
        self.append(&of_name(dir, name, kind));
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
        let _shared = self.records.read();
        let names = self.remove(dir);
        if !names.is_empty() {
            self.append(&[&b"t"[..], &dir.0.to_le_bytes()].concat());
        }
        names
    }

    fn remove(&self, dir: NodeId) -> Directory {
        let names = self.shard(dir).lock().remove(&dir).unwrap_or_default();
        self.count.fetch_sub(names.len(), Ordering::Relaxed);
        names
    }
}

fn of_name(dir: NodeId, name: &[u8], kind: Option<Kind>) -> Vec<u8> {
    let kind = [kind.map_or(0, |kind| kind as u8)];
    [&b"n"[..], &dir.0.to_le_bytes(), &kind, name].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_dentries_survive_a_restart() {
        let known = KnownDentries::new(Some(Journal::new().expect("memory"))).expect("a table");
        let (a, b) = (NodeId(2), NodeId(3 << 32 | 3));
        for (dir, name, kind) in [(a, "x", Some(Kind::File)), (a, "y", None), (b, "z", Some(Kind::Directory))]
        {
            known.note(dir, name.as_bytes(), kind);
        }
        known.note(a, b"x", None);
        known.note(NodeId(4), b"gone", None);
        known.take(NodeId(4));
        let next = || {
            let file = known.descriptor().expect("a journal").expect("a descriptor");
            KnownDentries::new(Some(Journal::attach(file).expect("attached"))).expect("a table")
        };
        let sorted = |names: Directory| names.into_iter().collect::<std::collections::BTreeMap<_, _>>();
        let expected = [(b"x"[..].into(), None), (b"y"[..].into(), None)].into();
        assert_eq!(sorted(next().take(a)), expected);
        // `next` has taken the names of `a` for all.
        assert!(next().take(a).is_empty() && next().take(NodeId(4)).is_empty());
        known.recorded.store(usize::MAX, Ordering::Relaxed);
        known.compact();
        assert_eq!(sorted(next().take(b)), [(b"z"[..].into(), Some(Kind::Directory))].into());
    }
}
