//! Opens entries, after a check if necessary.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::MutexGuard;
use xxhash_rust::xxh3::Xxh3;

use super::descriptors::Slot;
use super::disk::read_pieces;
use super::entry::{Entry, EntryUse, State};
use super::state::CacheState;
use super::trailer::{TRAILER_LEN, Trailer};
use crate::error::Cause;
use crate::objects::handle::{Handle, Keep};
use crate::objects::request::CacheKey;
use crate::progress::Progress;

/// Result of opening an entry.
pub(crate) enum OpenOutcome {
    /// The handle of the object.
    Handle(Handle),
    /// The entry left the cache, or its file is missing or damaged.
    Gone,
    /// The object must be checked first, and is too large to do that at once.
    Unchecked,
    /// Every descriptor is in use.
    NoSlot,
    /// The file can't be opened.
    Failed,
    /// The cache was closed during a check.
    Closed,
}

/// Minimum time between two checks of an object after read failures, because a check reads all of it.
const RECHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Maximum size of an object that is checked by the thread that opens it: the kernel reads as much ahead of a first read.
const CHECKED_AT_ONCE: u64 = 128 << 10;

impl CacheState {
    /// Opens an entry that needs no check, or is small.
    pub(crate) fn open_entry(&self, entry: &Arc<Entry>) -> OpenOutcome {
        if let Some(outcome) = self.share_at_once(entry) {
            return outcome;
        }
        // Not under the entry's lock: taking a slot may close other entries.
        match self.descriptors.take() {
            Some(slot) => self.open_with_slot(entry, slot),
            None => OpenOutcome::NoSlot,
        }
    }

    /// Opens an entry with a slot that the caller has taken. The file is opened without the entry's lock,
    /// because the disk may hang and other threads need the lock. Two threads may open it at once; the second
    /// file is closed again.
    pub(crate) fn open_with_slot(&self, entry: &Arc<Entry>, slot: Slot) -> OpenOutcome {
        if let Some(outcome) = self.share_at_once(entry) {
            return outcome;
        }
        let is_checked = entry.state.lock().is_checked(self.reads.now());
        if !is_checked {
            return self.open_checked(entry, slot, &Progress::default());
        }
        match self.whole_file(entry) {
            Ok(file) => self.share_or_hand_out(entry, entry.state.lock(), file, slot),
            Err(outcome) => outcome,
        }
    }

    /// Returns the outcome like [`Self::share`], but leaves checks of small objects to their opener.
    fn share_at_once(&self, entry: &Arc<Entry>) -> Option<OpenOutcome> {
        let shared = self.share(entry, &mut entry.state.lock());
        let is_for_opener = entry.plain_len <= CHECKED_AT_ONCE;
        shared.filter(|outcome| !(is_for_opener && matches!(outcome, OpenOutcome::Unchecked)))
    }

    /// Opens an entry after comparing all its bytes with the digest in its trailer. Reads the whole file, so
    /// large ones belong on the pool; two at once for one entry are wasteful but harmless.
    pub(crate) fn open_checked(&self, entry: &Arc<Entry>, slot: Slot, progress: &Progress) -> OpenOutcome {
        // The one that is open already is the one that will be read.
        let open = entry.state.lock().file.clone();
        let file = match open.map_or_else(|| self.whole_file(entry), Ok) {
            Ok(file) => file,
            Err(outcome) => return outcome,
        };
        let goes_on = || {
            progress.mark();
            !*self.gate.read()
        };
        match self.is_sound(entry, &file, goes_on) {
            Ok(true) => self.believe(entry, file, slot),
            Err(_) if *self.gate.read() => OpenOutcome::Closed,
            Ok(false) => {
                drop(file);
                self.discard(entry);
                OpenOutcome::Gone
            }
            Err(error) => {
                // An unreadable file is as good as a damaged one; the object can be fetched again.
                self.disk_failures.note("reading", &self.layout.object(&entry.key), &error);
                drop(file);
                self.discard(entry);
                OpenOutcome::Gone
            }
        }
    }

    /// Requires a check of an object before its next read, because a reader could not read its file. An unreadable or
    /// damaged object is then fetched again.
    pub(crate) fn recheck(&self, key: &CacheKey) {
        let Some(entry) = self.find(key) else { return };
        {
            let mut state = entry.state.lock();
            if state.doubted.is_some_and(|since| since.elapsed() < RECHECK_INTERVAL) {
                return;
            }
            state.doubted = Some(Instant::now());
            self.table.set_checked(&mut state, None);
        }
        self.close_unused(&entry);
    }

    /// Keeps bytes under the name of their hash.
    #[cfg(test)]
    pub(crate) fn keep_for_test(self: &Arc<Self>, plain: &[u8]) -> Handle {
        let hash = esker_format::hash::ContentHash::of(esker_format::hash::HashAlgorithm::Sha1, plain);
        let key = CacheKey { hash, compression: esker_format::compress::Compression::Stored };
        let reservation = self.space.reserve_now(self.charge_of(plain.len() as u64)).unwrap();
        let mut writing = super::Writing::begin(self).unwrap();
        writing.write(plain).unwrap();
        let entry = writing.keep(key, reservation, None).unwrap();
        match self.open_entry(&entry) {
            OpenOutcome::Handle(handle) => handle,
            _ => panic!("it was just written"),
        }
    }

    fn believe(&self, entry: &Arc<Entry>, file: Arc<File>, slot: Slot) -> OpenOutcome {
        let mut state = entry.state.lock();
        self.table.set_checked(&mut state, Some(self.reads.checked_now()));
        self.share_or_hand_out(entry, state, file, slot)
    }

    /// Opens the file of an entry. An entry whose file is missing or truncated is discarded.
    fn whole_file(&self, entry: &Arc<Entry>) -> Result<Arc<File>, OpenOutcome> {
        match self.open_whole(entry) {
            Ok(Some(file)) => Ok(Arc::new(file)),
            Ok(None) => {
                self.discard(entry);
                Err(OpenOutcome::Gone)
            }
            Err(_) => Err(OpenOutcome::Failed),
        }
    }

    /// Returns a handle of a file that another thread opened meanwhile, or else of this one, which takes the
    /// slot.
    fn share_or_hand_out(
        &self,
        entry: &Arc<Entry>,
        mut state: MutexGuard<'_, State>,
        file: Arc<File>,
        slot: Slot,
    ) -> OpenOutcome {
        if let Some(outcome) = self.share(entry, &mut state) {
            drop(state);
            return outcome;
        }
        state.file = Some(file.clone());
        state.users += 1;
        let handle = self.handle(entry, file, self.reads.now());
        drop(state);
        self.descriptors.opened(slot, entry);
        OpenOutcome::Handle(handle)
    }

    /// Returns the outcome for an open, unchecked or removed entry; `None` if its file has to be opened.
    fn share(&self, entry: &Arc<Entry>, state: &mut State) -> Option<OpenOutcome> {
        if state.is_gone() {
            return Some(OpenOutcome::Gone);
        }
        let now = self.reads.now();
        if !state.is_checked(now) {
            return Some(OpenOutcome::Unchecked);
        }
        let file = state.file.clone()?;
        state.users += 1;
        Some(OpenOutcome::Handle(self.handle(entry, file, now)))
    }

    fn handle(&self, entry: &Arc<Entry>, file: Arc<File>, now: u64) -> Handle {
        entry.read_now(now);
        let usage = EntryUse::counted(entry.clone());
        Handle::new(file, entry.plain_len, Keep::Entry(usage))
    }

    /// Opens the file of an entry if it has its full length.
    pub(crate) fn open_whole(&self, entry: &Entry) -> Result<Option<File>, Cause> {
        let path = self.layout.object(&entry.key);
        let opened = self.disk.open(&path).and_then(|file| Ok((file.metadata()?, file)));
        match opened {
            Ok((facts, file)) => {
                let whole = facts.is_file() && facts.len() == entry.plain_len + TRAILER_LEN as u64;
                Ok(whole.then_some(file))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(self.failed("opening", &path, source)),
        }
    }

    /// Compares the content of a file with the digest in its trailer. Calls `goes_on` between pieces, and fails if that is
    /// not so.
    pub(super) fn is_sound(
        &self,
        entry: &Entry,
        file: &File,
        mut goes_on: impl FnMut() -> bool,
    ) -> io::Result<bool> {
        // One that is open may have been cut since.
        if file.metadata()?.len() != entry.plain_len + TRAILER_LEN as u64 {
            return Ok(false);
        }
        let mut trailer = [0; TRAILER_LEN];
        self.disk.read_exact_at(file, &mut trailer, entry.plain_len)?;
        let Some(trailer) = Trailer::decode(&trailer) else { return Ok(false) };
        if trailer.key != entry.key || trailer.plain_len != entry.plain_len {
            return Ok(false);
        }
        let mut digest = Xxh3::new();
        read_pieces(&*self.disk, file, entry.plain_len, |piece| {
            digest.update(piece);
            if goes_on() { Ok(()) } else { Err(io::ErrorKind::Interrupted.into()) }
        })?;
        Ok(digest.digest128() == trailer.digest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Cache, CacheOptions, DESCRIPTOR_LIFETIME};
    use crate::engine::{Engine, EngineOptions};

    /// > C29: Before its first use after the start of the process that writes the cache, and before its first use a day after the last comparison, all bytes of a cached object are compared with the digest of those that were verified; a damaged object is fetched again, and no program sees its bytes.
    #[test]
    fn an_entry_is_compared_again_after_a_day() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::start(EngineOptions::default()).unwrap();
        let cache = Cache::open(&engine, folder.path(), CacheOptions::with_quota(1 << 30)).unwrap();
        let state = &cache.state;
        let small = vec![1; 1000];
        let large = vec![2; usize::try_from(CHECKED_AT_ONCE).unwrap() + 1];
        let handles = [&small, &large].map(|plain| state.keep_for_test(plain));
        let entries: Vec<_> = state.table.oldest_first().into_iter().map(|(_, entry)| entry).collect();
        let day = 24 * 3600 - DESCRIPTOR_LIFETIME.as_secs();
        let open = |number: usize| state.open_entry(&entries[number]);
        let check = |number: usize| {
            state.open_checked(&entries[number], state.descriptors.take().unwrap(), &Progress::default())
        };
        state.reads.skip(day - 60);
        assert!([0, 1].map(open).iter().all(|opened| matches!(opened, OpenOutcome::Handle(_))), "still good");
        state.reads.skip(60);
        assert!(matches!(open(0), OpenOutcome::Handle(_)), "a small one is compared at once");
        assert!(matches!(open(1), OpenOutcome::Unchecked));
        assert!(matches!(check(1), OpenOutcome::Handle(_)));
        assert!(matches!(open(1), OpenOutcome::Handle(_)));
        let count = cache.status();
        assert_eq!((count.unchecked, count.damaged, count.objects), (0, 0, 2));

        // Also files that are open all the time.
        for entry in &entries {
            let path = state.layout.object(&entry.key);
            let mut content = std::fs::read(&path).unwrap();
            content[900] ^= 1;
            std::fs::write(&path, content).unwrap();
        }
        assert!(matches!(open(0), OpenOutcome::Handle(_)), "noticed once the comparison is due");
        state.reads.skip(day);
        assert!(matches!(open(0), OpenOutcome::Gone));
        assert!(matches!(open(1), OpenOutcome::Unchecked));
        assert!(matches!(check(1), OpenOutcome::Gone));
        let count = cache.status();
        assert_eq!((count.unchecked, count.damaged, count.objects), (0, 2, 0));
        drop(handles);
    }
}
