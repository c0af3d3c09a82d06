//! Administration of a cache: list, pin, evict, check and wipe.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::Cache;
use super::entry::Entry;
use super::evict::Freed;
use super::pins::{self, PinSet};
use super::state::CacheState;
use crate::error::{Cause, StoreError};
use crate::objects::request::CacheKey;

/// Properties of a cached object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CachedObject {
    /// Key of the object.
    pub key: CacheKey,
    /// Plain size in bytes.
    pub plain_len: u64,
    /// Bytes charged to the quota.
    pub charge: u64,
    /// True if the object is in a pinned set.
    pub pinned: bool,
    /// True if this process has the object open or mapped.
    pub in_use: bool,
    /// True if the content will be compared with its digest at the next use.
    pub unchecked: bool,
}

/// Progress of a check. Field names are an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckProgress {
    /// Number of objects compared with their digests.
    pub objects: u64,
    /// Number of objects to compare.
    pub objects_total: u64,
    /// Number of bytes read.
    pub bytes: u64,
    /// Number of bytes to read.
    pub bytes_total: u64,
}

/// Object whose file differs from the bytes that were written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DamagedObject {
    /// Key of the damaged object.
    pub key: CacheKey,
    /// Description of the damage.
    pub problem: &'static str,
    /// True if the object was removed.
    pub removed: bool,
}

/// Objects to evict on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Evicts the least recently read objects until the cache has at most this many bytes.
    Bytes(u64),
    /// Evicts everything that is not in use.
    Everything {
        /// True to evict pinned objects, too, and remove their sets.
        even_pinned: bool,
    },
}

/// Percentage of the quota that may be pinned; the rest is for objects that are read.
const PINNED_PERCENT: u64 = 75;

impl Cache {
    /// Returns all objects, least recently read first.
    pub fn objects(&self) -> Vec<CachedObject> {
        let entries = self.state.table.oldest_first();
        entries.iter().map(|(_, entry)| self.state.describe(entry)).collect()
    }

    /// Returns the pinned sets.
    pub fn pins(&self) -> Vec<PinSet> {
        self.state.pins.sets()
    }

    /// Returns whether an object is in a pinned set.
    pub fn is_pinned(&self, key: &CacheKey) -> bool {
        self.state.pins.has(key)
    }

    /// Pins objects, given with their plain lengths, under a label, so that they are not evicted. A set of the
    /// same label is replaced. Survives restarts.
    pub fn pin(&self, label: &str, objects: Vec<(CacheKey, u64)>) -> Result<PinSet, StoreError> {
        let inner = &self.state;
        let refused = |cause| StoreError::new(label, cause);
        if label.is_empty() || label.len() > pins::LABEL_MAX {
            return Err(refused(Cause::BadPin { why: "its name is empty or too long".into() }));
        }
        let mut unique: HashMap<CacheKey, u64> = objects.into_iter().collect();
        let mut members: Vec<_> = unique.iter().map(|(key, len)| (*key, *len)).collect();
        members.sort_unstable();
        unique.extend(inner.pins.members());
        let needed: u64 = unique.values().map(|len| inner.charge_of(*len)).sum();
        let most = inner.space.marks.quota / 100 * PINNED_PERCENT;
        if needed > most {
            let why = format!(
                "all that is pinned would take {needed} bytes, and no more than {most} may be: {PINNED_PERCENT} % of the quota"
            );
            return Err(refused(Cause::BadPin { why }));
        }
        let set = PinSet {
            label: label.to_owned(),
            objects: members.len() as u64,
            bytes: members.iter().map(|(_, len)| len).sum(),
        };
        inner.change_pins(label, Some(members)).map_err(refused)?;
        Ok(set)
    }

    /// Removes a pinned set; returns whether there was one.
    pub fn unpin(&self, label: &str) -> Result<bool, StoreError> {
        let known = self.state.pins.sets().iter().any(|set| set.label == label);
        if known {
            self.state.change_pins(label, None).map_err(|cause| StoreError::new(label, cause))?;
        }
        Ok(known)
    }

    /// Evicts objects that are not in use, least recently read first; asks holders as in any eviction.
    pub fn evict(&self, goal: Goal) -> Result<Freed, StoreError> {
        let even_pinned = goal == Goal::Everything { even_pinned: true };
        if even_pinned {
            for set in self.pins() {
                self.unpin(&set.label)?;
            }
        }
        let goal = match goal {
            Goal::Bytes(bytes) => bytes,
            Goal::Everything { .. } => 0,
        };
        let entries = self.state.table.oldest_first();
        Ok(self.state.evict_these(entries, goal))
    }

    /// Evicts these objects, unless they are missing or in use.
    pub fn evict_objects(&self, keys: &[CacheKey]) -> Freed {
        let entries =
            keys.iter().filter_map(|key| self.state.find(key)).map(|entry| (entry.read_at(), entry));
        self.state.evict_these(entries.collect(), 0)
    }

    /// Compares every object with the digest noted when it was verified. A damaged object is never served again, and
    /// is removed if `remove` is set. `progress` is called after each object and ends the check by returning `false`.
    pub fn check(
        &self,
        remove: bool,
        mut progress: impl FnMut(&CheckProgress, Option<&DamagedObject>) -> bool,
    ) -> CheckProgress {
        let entries = self.state.table.oldest_first();
        let mut done = CheckProgress {
            objects_total: entries.len() as u64,
            bytes_total: entries.iter().map(|(_, entry)| entry.plain_len).sum(),
            ..CheckProgress::default()
        };
        for (_, entry) in entries {
            let damaged = self.state.check_entry(&entry, remove);
            done.objects += 1;
            done.bytes += entry.plain_len;
            if !progress(&done, damaged.as_ref()) {
                break;
            }
        }
        done
    }

    /// Removes the saved heads, and with them the protection against older heads; also the learned read sequences.
    pub fn forget_heads(&self) -> Result<(), StoreError> {
        let layout = &self.state.layout;
        for folder in [layout.heads.clone(), layout.root.join("trails")] {
            let names = match self.state.disk.list(&folder) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                names => names.map_err(|source| self.failed("listing", &folder, source))?,
            };
            for name in names {
                let path = folder.join(name);
                self.state.disk.remove(&path).map_err(|source| self.failed("removing", &path, source))?;
            }
        }
        Ok(())
    }

    fn failed(&self, doing: &'static str, path: &std::path::Path, source: std::io::Error) -> StoreError {
        StoreError::new("the cache", self.state.failed(doing, path, source))
    }
}

impl CacheState {
    fn describe(&self, entry: &Arc<Entry>) -> CachedObject {
        let state = entry.state.lock();
        CachedObject {
            key: entry.key,
            plain_len: entry.plain_len,
            charge: self.charge_of(entry.plain_len),
            pinned: self.pins.has(&entry.key),
            in_use: state.users > 0 || entry.is_pinned(),
            unchecked: !state.is_checked(self.reads.now()),
        }
    }

    /// Adds a new entry; returns the entry it replaces.
    pub(super) fn enter(&self, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        let (key, charge) = (entry.key, self.charge_of(entry.plain_len));
        let counting = self.pins.count();
        let replaced = self.table.insert(entry);
        if let Some(replaced) = &replaced {
            counting.left(&key, self.charge_of(replaced.plain_len));
        }
        counting.entered(&key, charge);
        replaced
    }

    /// Removes an entry from the table, unless another took its place.
    pub(super) fn leave(&self, entry: &Arc<Entry>) {
        let counting = self.pins.count();
        if self.table.remove(entry) {
            counting.left(&entry.key, self.charge_of(entry.plain_len));
        }
    }

    fn change_pins(&self, label: &str, members: Option<Vec<(CacheKey, u64)>>) -> Result<(), Cause> {
        let path = &self.layout.pins;
        self.pins
            .put(&*self.disk, path, label, members, |key| {
                self.table.find(key).map(|entry| self.charge_of(entry.plain_len))
            })
            .map_err(|source| self.failed("writing", path, source))
    }

    fn check_entry(&self, entry: &Arc<Entry>, remove: bool) -> Option<DamagedObject> {
        let problem = match self.open_whole(entry) {
            Ok(None) => "its file is missing or has another length",
            Err(_) => "its file can't be opened",
            Ok(Some(file)) => match self.is_sound(entry, &file, || true) {
                Ok(true) => {
                    self.table.set_checked(&mut entry.state.lock(), Some(self.reads.checked_now()));
                    return None;
                }
                Ok(false) => "its content is not what was verified",
                Err(_) => "its file can't be read",
            },
        };
        {
            let mut state = entry.state.lock();
            if state.is_gone() {
                // Evicted meanwhile, which is why its file is missing.
                return None;
            }
            // The next request compares it again, and then fetches it.
            self.table.set_checked(&mut state, None);
        }
        if remove {
            self.discard(entry);
        } else {
            self.counts.damaged.count();
        }
        Some(DamagedObject { key: entry.key, problem, removed: remove })
    }
}
