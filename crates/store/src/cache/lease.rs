//! Giving out entries: open, and checked if need be.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use xxhash_rust::xxh3::Xxh3;

use super::Inner;
use super::descriptors::Slot;
use super::disk::read_pieces;
use super::entry::{Entry, EntryUse, State};
use super::trailer::{TRAILER_LEN, Trailer};
use crate::error::Cause;
use crate::handle::{Handle, Keep};
use crate::wanted::CacheKey;

/// What came of trying to open an entry.
pub(crate) enum Leased {
    /// Here it is.
    Handle(Handle),
    /// It is not in the cache any more, or its file was not what it should be.
    Gone,
    /// It has to be checked first.
    Unchecked,
    /// Every descriptor is in use.
    NoSlot,
    /// The file can't be opened.
    Failed,
}

/// For how long after an object was doubted it is not compared again on a reader's word: that reads all of it.
const DOUBT_AGAIN: Duration = Duration::from_secs(10);

impl Inner {
    /// Opens an entry that needs no check. No I/O beyond the opening.
    pub(crate) fn lease(&self, entry: &Arc<Entry>) -> Leased {
        if let Some(leased) = self.share(entry, &mut entry.state.lock()) {
            return leased;
        }
        // Not under the entry's lock: taking a slot may close other entries.
        match self.descriptors.take() {
            Some(slot) => self.lease_with(entry, slot),
            None => Leased::NoSlot,
        }
    }

    /// The same with a slot at hand. The file is opened without the entry's lock, which others need who don't need the
    /// disk: it may not answer. So two may open it at once, and the second one's file is closed again.
    pub(crate) fn lease_with(&self, entry: &Arc<Entry>, slot: Slot) -> Leased {
        if let Some(leased) = self.share(entry, &mut entry.state.lock()) {
            return leased;
        }
        let file = match self.open_whole(entry) {
            Ok(Some(file)) => file,
            Ok(None) => {
                self.discard(entry);
                return Leased::Gone;
            }
            Err(_) => return Leased::Failed,
        };
        let mut state = entry.state.lock();
        if let Some(leased) = self.share(entry, &mut state) {
            drop(state);
            return leased;
        }
        let handle = self.hand_out(entry, &mut state, file);
        drop(state);
        self.descriptors.opened(slot, entry);
        Leased::Handle(handle)
    }

    /// Opens an entry after comparing all its bytes with the digest in its trailer. Reads the whole file, so
    /// it belongs on the pool; two at once for one entry are wasteful but harmless.
    pub(crate) fn lease_checked(&self, entry: &Arc<Entry>, slot: Slot) -> Leased {
        let file = match self.open_whole(entry) {
            Ok(Some(file)) => file,
            Ok(None) => {
                self.discard(entry);
                return Leased::Gone;
            }
            Err(_) => return Leased::Failed,
        };
        match self.is_sound(entry, &file) {
            Ok(true) => self.believe(entry, file, slot),
            Ok(false) => {
                drop(file);
                self.discard(entry);
                Leased::Gone
            }
            Err(error) => {
                // An unreadable file is as good as a damaged one; the object can be fetched again.
                self.note_failure("reading", &self.layout.object(&entry.key), &error);
                drop(file);
                self.discard(entry);
                Leased::Gone
            }
        }
    }

    /// Has an object compared with its digest before it is read again, because a reader could not read its file. What
    /// turns out unreadable or damaged is then fetched anew.
    pub(crate) fn doubt(&self, key: &CacheKey) {
        let Some(entry) = self.find(key) else { return };
        {
            let mut state = entry.state.lock();
            if state.doubted.is_some_and(|since| since.elapsed() < DOUBT_AGAIN) {
                return;
            }
            state.doubted = Some(Instant::now());
            state.checked = false;
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
        match self.lease(&entry) {
            Leased::Handle(handle) => handle,
            _ => panic!("it was just written"),
        }
    }

    fn believe(&self, entry: &Arc<Entry>, file: File, slot: Slot) -> Leased {
        let mut state = entry.state.lock();
        state.checked = true;
        if let Some(leased) = self.share(entry, &mut state) {
            drop(state);
            return leased;
        }
        let handle = self.hand_out(entry, &mut state, file);
        drop(state);
        self.descriptors.opened(slot, entry);
        Leased::Handle(handle)
    }

    /// What can be said without opening anything.
    fn share(&self, entry: &Arc<Entry>, state: &mut State) -> Option<Leased> {
        if state.gone {
            return Some(Leased::Gone);
        }
        if !state.checked {
            return Some(Leased::Unchecked);
        }
        let file = state.file.clone()?;
        state.users += 1;
        Some(Leased::Handle(self.handle(entry, file)))
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

    /// The file of an entry if it is there in full length.
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
