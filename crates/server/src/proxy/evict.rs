//! Evicts the objects that were not used for longest.
//!
//! A round looks at whole folders until it has seen [`SAMPLE`] objects. Hashes spread objects evenly over the folders, so
//! the oldest of a part of the folders are about as old as the oldest of all. A small cache is looked at as a whole.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use esker_format::object::ObjectName;

use super::disk::{DiskCache, FOLDERS};

/// Maximum number of objects that one round samples. Limits its memory to some megabytes beside the largest folder.
const SAMPLE: usize = 65_536;
/// Part of the limit that is freed at once, so that rounds are rare.
const PART: u64 = 20;
/// Largest part of a sample that is evicted if it is not the whole cache.
const OLDEST: usize = 8;

struct Candidate {
    last_use: SystemTime,
    folder: usize,
    path: PathBuf,
}

/// Reserves `len` bytes, and evicts objects if that takes room. Returns false if there is none.
pub(super) fn make_room(cache: &DiskCache, len: u64) -> bool {
    if len > cache.limit {
        return false;
    }
    if cache.reserve(len) {
        return true;
    }
    let mut cursor = cache.cursor.lock();
    // Enough for each folder once.
    for _ in 0..=FOLDERS {
        if cache.reserve(len) {
            return true;
        }
        let goal = cache.limit.saturating_sub(len.max(cache.limit / PART));
        if round(cache, &mut cursor, goal) == 0 && cache.used() > goal {
            break;
        }
    }
    cache.reserve(len)
}

/// Evicts at least `len` bytes, because the disk is full. Returns false if there were none.
pub(super) fn free(cache: &DiskCache, len: u64) -> bool {
    let mut cursor = cache.cursor.lock();
    let used = cache.used();
    let goal = used.saturating_sub(len.max(used / PART));
    for _ in 0..=FOLDERS {
        if cache.used() <= goal || round(cache, &mut cursor, goal) == 0 {
            break;
        }
    }
    cache.used() < used
}

/// Evicts until `goal` bytes are left, or the oldest part of a sample is gone; returns the number of evicted objects.
fn round(cache: &DiskCache, cursor: &mut usize, goal: u64) -> u64 {
    let mut sample = Vec::new();
    let mut seen = 0;
    while seen < FOLDERS && sample.len() < SAMPLE {
        list(cache, *cursor, &mut sample);
        *cursor = (*cursor + 1) % FOLDERS;
        seen += 1;
    }
    let most = if seen == FOLDERS { sample.len() } else { sample.len().div_ceil(OLDEST) };
    sample.sort_unstable_by_key(|candidate| candidate.last_use);
    let mut evicted = 0;
    for candidate in sample.into_iter().take(most) {
        if cache.used() <= goal {
            break;
        }
        match cache.remove(candidate.folder, &candidate.path, Some(candidate.last_use)) {
            Ok(0) => {}
            Ok(_) => evicted += 1,
            Err(error) => tracing::warn!("can't evict {}: {error}", candidate.path.display()),
        }
    }
    cache.evicted.fetch_add(evicted, Ordering::Relaxed);
    evicted
}

fn list(cache: &DiskCache, folder: usize, sample: &mut Vec<Candidate>) {
    for entry in fs::read_dir(cache.folder(folder)).into_iter().flatten().flatten() {
        // One that is gone meanwhile needs no eviction.
        let Ok(last_use) = entry.metadata().and_then(|facts| facts.modified()) else { continue };
        // Only what the cache put there is its to remove.
        let name = entry.file_name();
        let object = name.to_str().and_then(|name| ObjectName::parse(&format!("{folder:02x}{name}")));
        if object.is_some_and(|object| !cache.in_use.has(object)) {
            sample.push(Candidate { last_use, folder, path: entry.path() });
        }
    }
}
