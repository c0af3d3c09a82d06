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

/// Result of opening an entry.
pub(crate) enum OpenOutcome {
    /// The handle of the object.
    Handle(Handle),
    /// The entry left the cache, or its file is missing or damaged.
    Gone,
    /// The object must be checked first.
    Unchecked,
    /// Every descriptor is in use.
    NoSlot,
    /// The file can't be opened.
    Failed,
}

/// Minimum time between two checks of an object after read failures, because a check reads all of it.
const DOUBT_AGAIN: Duration = Duration::from_secs(10);

impl CacheState {
    /// Opens an entry that needs no check. Performs no other I/O.
    pub(crate) fn open_entry(&self, entry: &Arc<Entry>) -> OpenOutcome {
        if let Some(outcome) = self.share(entry, &mut entry.state.lock()) {
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
        if let Some(outcome) = self.share(entry, &mut entry.state.lock()) {
            return outcome;
        }
        let file = match self.whole_file(entry) {
            Ok(file) => file,
            Err(outcome) => return outcome,
        };
        self.share_or_hand_out(entry, entry.state.lock(), file, slot)
    }

    /// Opens an entry after comparing all its bytes with the digest in its trailer. Reads the whole file, so
    /// it belongs on the pool; two at once for one entry are wasteful but harmless.
    pub(crate) fn open_checked(&self, entry: &Arc<Entry>, slot: Slot) -> OpenOutcome {
        let file = match self.whole_file(entry) {
            Ok(file) => file,
            Err(outcome) => return outcome,
        };
        match self.is_sound(entry, &file) {
            Ok(true) => self.believe(entry, file, slot),
            Ok(false) => {
                drop(file);
                self.discard(entry);
                OpenOutcome::Gone
            }
            Err(error) => {
                // An unreadable file is as good as a damaged one; the object can be fetched again.
                self.note_failure("reading", &self.layout.object(&entry.key), &error);
                drop(file);
                self.discard(entry);
                OpenOutcome::Gone
            }
        }
    }

    /// Requires a check of an object before its next read, because a reader could not read its file. An unreadable or
    /// damaged object is then fetched again.
    pub(crate) fn doubt(&self, key: &CacheKey) {
        let Some(entry) = self.find(key) else { return };
        {
            let mut state = entry.state.lock();
            if state.doubted.is_some_and(|since| since.elapsed() < DOUBT_AGAIN) {
                return;
            }
            state.doubted = Some(Instant::now());
            self.table.set_checked(&mut state, false);
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

    fn believe(&self, entry: &Arc<Entry>, file: File, slot: Slot) -> OpenOutcome {
        let mut state = entry.state.lock();
        self.table.set_checked(&mut state, true);
        self.share_or_hand_out(entry, state, file, slot)
    }

    /// Opens the file of an entry. An entry whose file is missing or truncated is discarded.
    fn whole_file(&self, entry: &Arc<Entry>) -> Result<File, OpenOutcome> {
        match self.open_whole(entry) {
            Ok(Some(file)) => Ok(file),
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
        file: File,
        slot: Slot,
    ) -> OpenOutcome {
        if let Some(outcome) = self.share(entry, &mut state) {
            drop(state);
            return outcome;
        }
        let handle = self.hand_out(entry, &mut state, file);
        drop(state);
        self.descriptors.opened(slot, entry);
        OpenOutcome::Handle(handle)
    }

    /// Returns the outcome if no file has to be opened.
    fn share(&self, entry: &Arc<Entry>, state: &mut State) -> Option<OpenOutcome> {
        if state.is_gone() {
            return Some(OpenOutcome::Gone);
        }
        if !state.is_checked() {
            return Some(OpenOutcome::Unchecked);
        }
        let file = state.file.clone()?;
        state.users += 1;
        Some(OpenOutcome::Handle(self.handle(entry, file)))
    }

    fn hand_out(&self, entry: &Arc<Entry>, state: &mut State, file: File) -> Handle {
        let file = Arc::new(file);
        state.file = Some(file.clone());
        state.users += 1;
        self.handle(entry, file)
    }

    fn handle(&self, entry: &Arc<Entry>, file: Arc<File>) -> Handle {
        entry.read_now(&self.reads);
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

    pub(super) fn is_sound(&self, entry: &Entry, file: &File) -> io::Result<bool> {
        let mut trailer = [0; TRAILER_LEN];
        self.disk.read_exact_at(file, &mut trailer, entry.plain_len)?;
        let Some(trailer) = Trailer::decode(&trailer) else { return Ok(false) };
        if trailer.key != entry.key || trailer.plain_len != entry.plain_len {
            return Ok(false);
        }
        let mut digest = Xxh3::new();
        read_pieces(&*self.disk, file, entry.plain_len, |piece| digest.update(piece))?;
        Ok(digest.digest128() == trailer.digest)
    }
}
