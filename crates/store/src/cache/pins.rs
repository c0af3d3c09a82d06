//! Pinned objects, which are never evicted.
//!
//! ```text
//!   esker pins 1
//!   pin <label, with everything but letters, digits and ./:_- as %XX>
//!   <key> <plain length>
//!   …
//!   end <XXH3-64 of all bytes before, in hexadecimal>
//! ```
//!
//! The file is written durably with each change. A damaged file is renamed and counted as a disk failure: a cache without
//! pins still serves right bytes.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::disk::{Disk, persist, read_file};
use super::layout::Layout;
use crate::objects::request::CacheKey;

const HEADER: &str = "esker pins 1";
/// Longest file of pins: some 60 bytes an object, so millions of them.
const BYTES_MAX: u64 = 256 << 20;
/// Maximum length of a label.
pub(super) const LABEL_MAX: usize = 4096;

/// Summary of a pinned set. Serialized names are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinSet {
    /// Name that the user gave to the pinned set.
    #[serde(rename = "name")]
    pub label: String,
    /// Number of objects in the set.
    pub objects: u64,
    /// Plain size of these objects in bytes, cached or not.
    pub bytes: u64,
}

/// Objects with their plain lengths.
type Members = Vec<(CacheKey, u64)>;

/// All pinned sets.
#[derive(Default)]
pub(super) struct Pins {
    /// Held for reading while an object enters or leaves the cache, so that a change counts each object once.
    state: RwLock<State>,
    cached: Cached,
    /// Lock for changes, separate from `state`, which other threads need while a change waits for the disk.
    changing: Mutex<()>,
}

/// Bytes and number of the pinned objects that are in the cache.
#[derive(Default)]
struct Cached {
    bytes: AtomicU64,
    objects: AtomicU64,
}

/// Counts pinned objects that enter or leave the cache; the pins don't change meanwhile.
pub(super) struct Counting<'a> {
    state: RwLockReadGuard<'a, State>,
    cached: &'a Cached,
}

impl Counting<'_> {
    /// Counts an object with this charge in bytes, if it is pinned.
    pub(super) fn entered(&self, key: &CacheKey, charge: u64) {
        if self.state.counts.contains_key(key) {
            self.cached.bytes.fetch_add(charge, Ordering::Relaxed);
            self.cached.objects.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends the counting of an object with this charge in bytes, if it is pinned.
    pub(super) fn left(&self, key: &CacheKey, charge: u64) {
        if self.state.counts.contains_key(key) {
            self.cached.bytes.fetch_sub(charge, Ordering::Relaxed);
            self.cached.objects.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[derive(Default)]
struct State {
    sets: BTreeMap<String, Members>,
    /// Number of sets that contain an object.
    counts: HashMap<CacheKey, u32>,
}

impl Pins {
    /// Reads the file; an error means that it exists and can't be used.
    pub(super) fn load(disk: &dyn Disk, path: &Path) -> (Self, Option<io::Error>) {
        let text = match read_file(disk, path, BYTES_MAX) {
            Ok(None) => return (Self::default(), None),
            Ok(Some(bytes)) => bytes,
            Err(error) => return (Self::default(), Some(error)),
        };
        match std::str::from_utf8(&text).ok().and_then(decode) {
            Some(sets) => (Self { state: RwLock::new(State::of(sets)), ..Self::default() }, None),
            None => {
                // Kept for inspection; the next change writes a good file.
                let aside = disk.rename(path, &path.with_extension("damaged"));
                let error = aside.err().unwrap_or_else(|| io::ErrorKind::InvalidData.into());
                (Self::default(), Some(error))
            }
        }
    }

    /// Returns the bytes and number of the pinned objects in the cache.
    pub(super) fn cached(&self) -> (u64, u64) {
        (self.cached.bytes.load(Ordering::Relaxed), self.cached.objects.load(Ordering::Relaxed))
    }

    /// Keeps the pins as they are while an object enters or leaves the cache.
    pub(super) fn count(&self) -> Counting<'_> {
        Counting { state: self.state.read(), cached: &self.cached }
    }

    pub(super) fn has(&self, key: &CacheKey) -> bool {
        self.state.read().counts.contains_key(key)
    }

    pub(super) fn sets(&self) -> Vec<PinSet> {
        let state = self.state.read();
        let set = |(label, members): (&String, &Members)| PinSet {
            label: label.clone(),
            objects: members.len() as u64,
            bytes: members.iter().map(|(_, len)| len).sum(),
        };
        state.sets.iter().map(set).collect()
    }

    /// Returns all pinned objects, each once.
    pub(super) fn members(&self) -> HashMap<CacheKey, u64> {
        self.state.read().sets.values().flatten().copied().collect()
    }

    /// Replaces (or, with none, removes) a set and writes all down; if that fails nothing is changed. `charge` returns
    /// the bytes of an object in the cache.
    pub(super) fn put(
        &self,
        disk: &dyn Disk,
        path: &Path,
        label: &str,
        members: Option<Members>,
        charge: impl Fn(&CacheKey) -> Option<u64>,
    ) -> io::Result<()> {
        let _changing = self.changing.lock();
        let mut sets = self.state.read().sets.clone();
        match members {
            Some(members) => drop(sets.insert(label.to_owned(), members)),
            None => drop(sets.remove(label)),
        }
        persist(disk, path, encode(&sets).as_bytes())?;
        let changed = State::of(sets);
        let mut state = self.state.write();
        let (bytes, objects) = changed
            .counts
            .keys()
            .filter_map(charge)
            .fold((0, 0), |(bytes, objects), charge| (bytes + charge, objects + 1));
        self.cached.bytes.store(bytes, Ordering::Relaxed);
        self.cached.objects.store(objects, Ordering::Relaxed);
        *state = changed;
        Ok(())
    }
}

impl State {
    fn of(sets: BTreeMap<String, Members>) -> Self {
        let mut counts = HashMap::new();
        for (key, _) in sets.values().flatten() {
            *counts.entry(*key).or_default() += 1;
        }
        Self { sets, counts }
    }
}

fn encode(sets: &BTreeMap<String, Members>) -> String {
    let mut text = format!("{HEADER}\n");
    for (label, members) in sets {
        // Writing to a string can't fail.
        let _ = writeln!(text, "pin {}", escape(label));
        for (key, len) in members {
            let _ = writeln!(text, "{key} {len}");
        }
    }
    let digest = xxh3_64(text.as_bytes());
    let _ = writeln!(text, "end {digest:016x}");
    text
}

fn decode(text: &str) -> Option<BTreeMap<String, Members>> {
    let at = text.rfind("end ")?;
    let (body, end) = text.split_at_checked(at)?;
    let digest = u64::from_str_radix(end.strip_prefix("end ")?.strip_suffix('\n')?, 16).ok()?;
    if digest != xxh3_64(body.as_bytes()) {
        return None;
    }
    let mut sets: BTreeMap<String, Members> = BTreeMap::new();
    let mut current: Option<&mut Members> = None;
    for line in body.strip_prefix(HEADER)?.strip_prefix('\n')?.lines() {
        match line.strip_prefix("pin ") {
            Some(label) => current = Some(sets.entry(unescape(label)?).or_default()),
            None => {
                let (key, len) = line.split_once(' ')?;
                let key = Layout::key(key.get(..2)?, key.get(2..)?)?;
                current.as_mut()?.push((key, len.parse().ok()?));
            }
        }
    }
    Some(sets)
}

fn escape(label: &str) -> String {
    let mut text = String::new();
    for byte in label.bytes() {
        if byte.is_ascii_alphanumeric() || b"./:_-".contains(&byte) {
            text.push(char::from(byte));
        } else {
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

fn unescape(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let taken = if first == '%' {
            bytes.push(u8::from_str_radix(rest.get(1..3)?, 16).ok()?);
            3
        } else {
            bytes.push(u8::try_from(first).ok()?);
            1
        };
        rest = rest.get(taken..)?;
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_format::compress::Compression;
    use esker_format::hash::{ContentHash, HashAlgorithm};

    fn key(number: u8) -> CacheKey {
        let hash = ContentHash::of(HashAlgorithm::Rmd160, &[number]);
        CacheKey { hash, compression: Compression::Zstd }
    }

    #[test]
    fn a_damaged_file_of_pins_is_an_error() {
        let mut sets = BTreeMap::new();
        sets.insert("a.test:/with space\n%end é".to_owned(), vec![(key(1), 7), (key(2), u64::MAX)]);
        sets.insert("b.test:/".to_owned(), vec![]);
        let text = encode(&sets);
        assert_eq!(decode(&text).as_ref(), Some(&sets));
        assert_eq!(decode(&encode(&BTreeMap::new())), Some(BTreeMap::new()));
        for cut in 0..text.len() {
            assert_eq!(decode(&text[..cut]), None, "cut at {cut}");
        }
        for at in 0..text.len() {
            let mut changed = text.clone().into_bytes();
            changed[at] ^= 2;
            let read = std::str::from_utf8(&changed).ok().and_then(decode);
            assert!(read.is_none_or(|read| read == sets), "byte {at}");
        }
    }
}
