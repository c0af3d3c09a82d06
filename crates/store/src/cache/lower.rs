//! Reads lower tiers: folders of plain objects that other programs fill, tried before the network.
//!
//! ```text
//!   adopted, a cache of Esker      <folder>/objects/ab/cd….z    plain bytes, then a trailer        (cache/trailer.rs)
//!   adopted, a cache of CernVM-FS  <folder>/ab/cd…[-rmd160]     plain bytes
//!   alien                          <folder>/ab/cd…[-rmd160]     the same, also written by Esker    (lower/alien.rs)
//! ```
//!
//! A found object is copied into the cache, so the folder is read once. Trust: the layout of CernVM-FS has no digests, so
//! each file is verified by compressing it (`verify_plain.rs`), or fetched if that can't be done. Files of an Esker cache
//! have a digest, which shows damage but not malice, so only its owner, root and this user may have write access to one or
//! to a folder above it (`lower/folder.rs`).
//!
//! A folder may be on a network file system that hangs. So file operations run on threads of their own
//! (`lower/hang_watchdog.rs`), and a request without progress is withdrawn and goes to the network.

mod alien;
mod folder;
mod hang_watchdog;
pub(crate) mod request;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use super::entry::Entry;
use super::passthrough::FileRoom;
use super::state::{CacheState, LowerCache};
use super::status::LowerStatus;
use super::trailer::{TRAILER_LEN, Trailer};
use super::verify_plain::{PlainVerifier, StreamVerifier};
use super::write::Writing;
use crate::error::Cause;
use crate::objects::request::{CacheKey, ObjectRequest};
use crate::progress::ObjectOrigin;
use alien::Alien;
use folder::{Folder, Writers};
use hang_watchdog::{HangWatchdog, Task};
use request::LowerRequest;

/// A lower tier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Lower {
    /// Path of the folder.
    #[serde(with = "crate::exact_path")]
    pub folder: PathBuf,
    /// Use of the folder.
    pub form: LowerForm,
    /// User number of the machine's root in this namespace: 0, or the overflow user in a user namespace.
    pub root: u32,
}

/// Use of a lower tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LowerForm {
    /// A cache of Esker or of CernVM-FS, or a folder filled beforehand, is read.
    Adopted,
    /// A folder shared by several nodes, which is read, and written if permitted.
    Alien,
}

/// Maximum plain size of objects that are verified in memory, with any encoder.
const WHOLE_MAX: u64 = 16 << 20;
/// Number of bytes in one read.
const PIECE: usize = 1 << 20;

/// The lower tiers of a cache.
pub(crate) struct LowerTiers {
    tiers: Vec<Tier>,
    watchdog: Arc<HangWatchdog>,
    prover: PlainVerifier,
    found: AtomicU64,
    found_bytes: AtomicU64,
    refused: AtomicU64,
    given: AtomicU64,
}

struct Tier {
    /// Path of the folder, for traces.
    place: Arc<str>,
    folder: Folder,
    layout: Layout,
    alien: Option<Alien>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    Esker,
    CernVmFs,
}

/// Verified plain bytes.
enum Found {
    InMemory(Vec<u8>),
    Written(Writing, FileRoom),
}

impl LowerTiers {
    /// Opens the tiers in the order of use; none if no tier is configured.
    pub(crate) fn open(lower: &[Lower]) -> Result<Option<Arc<Self>>, Cause> {
        if lower.is_empty() {
            return Ok(None);
        }
        let tiers: Result<Vec<_>, _> = lower.iter().map(Tier::open).collect();
        Ok(Some(Arc::new(Self {
            tiers: tiers?,
            watchdog: HangWatchdog::new(),
            prover: PlainVerifier::default(),
            found: AtomicU64::new(0),
            found_bytes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            given: AtomicU64::new(0),
        })))
    }

    /// Looks for the object of a request, which continues with the result.
    pub(crate) fn seek(self: &Arc<Self>, request: Box<dyn LowerRequest>) {
        let (lower, wanted) = (self.clone(), request.wanted().clone());
        let cache = Arc::downgrade(request.cache());
        let outcome = self.watchdog.run(request, move |task| {
            let found = lower.look(&wanted, task, || cache.upgrade());
            let Some(request) = task.take() else { return };
            let Some((found, place)) = found else { return request.not_found() };
            request.progress().came_from(ObjectOrigin::Lower(place));
            match found {
                Found::InMemory(plain) => request.found(plain),
                Found::Written(writing, room) => request.copied(writing, room),
            }
        });
        if let Err(request) = outcome {
            request.not_found();
        }
    }

    fn look(
        &self,
        wanted: &ObjectRequest,
        task: &Task,
        cache: impl Fn() -> Option<Arc<CacheState>>,
    ) -> Option<(Found, Arc<str>)> {
        for tier in &self.tiers {
            match tier.read(wanted, &self.prover, task, &cache) {
                Ok(Some(found)) => {
                    let len = match &found {
                        Found::InMemory(plain) => plain.len() as u64,
                        Found::Written(writing, _) => writing.len(),
                    };
                    self.found.fetch_add(1, Ordering::Relaxed);
                    self.found_bytes.fetch_add(len, Ordering::Relaxed);
                    return Some((found, tier.place.clone()));
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(None) | Err(_) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        None
    }

    /// Queues a fetched object for the tiers that are shared with other nodes.
    pub(crate) fn give(self: &Arc<Self>, cache: &Arc<CacheState>, entry: &Arc<Entry>) {
        if self.tiers.iter().all(|tier| tier.alien.is_none()) {
            return;
        }
        let (lower, cache, entry) = (self.clone(), Arc::downgrade(cache), entry.clone());
        self.watchdog.later(move || {
            let Some(Ok(Some(file))) = cache.upgrade().map(|cache| cache.open_whole(&entry)) else { return };
            for (alien, folder) in
                lower.tiers.iter().filter_map(|tier| Some((tier.alien.as_ref()?, &tier.folder)))
            {
                // If it fails, other nodes fetch the object themselves.
                if let Ok(true) = alien.put(folder, &entry.key, &file, entry.plain_len) {
                    lower.given.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
}

impl LowerCache for LowerTiers {
    fn status(&self) -> LowerStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LowerStatus {
            found: get(&self.found),
            found_bytes: get(&self.found_bytes),
            refused: get(&self.refused),
            late: self.watchdog.late(),
            given: get(&self.given),
        }
    }

    /// Stops accepting requests. Threads that hang in a file system are not awaited.
    fn stop(&self) {
        self.watchdog.stop();
    }
}

impl Tier {
    fn open(lower: &Lower) -> Result<Self, Cause> {
        let place: Arc<str> = lower.folder.to_string_lossy().into();
        let me = rustix::process::geteuid().as_raw();
        let users = |owner| vec![0, lower.root, me, owner];
        if lower.form == LowerForm::Alien {
            let folder = Folder::walk(&lower.folder, |_| Writers::AllUsers)?;
            let path = &lower.folder;
            let found = alien::foreign_entry(path);
            let failed = |source| Cause::Disk { doing: "listing", path: path.clone(), source };
            if let Some(entry) = found.map_err(failed)? {
                return Err(Cause::NotOurs { path: path.clone(), entry });
            }
            return Ok(Self { place, folder, layout: Layout::CernVmFs, alien: Some(Alien::new()) });
        }
        let folder = Folder::walk(&lower.folder, |owner| Writers::WithGroups(users(owner)))?;
        if !folder.has_folder("objects") {
            return Ok(Self { place, folder, layout: Layout::CernVmFs, alien: None });
        }
        let folder = Folder::walk(&lower.folder, |owner| Writers::Only(users(owner)))?;
        Ok(Self { place, folder, layout: Layout::Esker, alien: None })
    }

    /// Returns the verified object; `None` if the file is another one.
    fn read(
        &self,
        wanted: &ObjectRequest,
        prover: &PlainVerifier,
        task: &Task,
        cache: impl Fn() -> Option<Arc<CacheState>>,
    ) -> io::Result<Option<Found>> {
        let key = wanted.key();
        let (file, len) = self.open_object(&key)?;
        task.moved();
        let trailer_len = if self.layout == Layout::Esker { TRAILER_LEN as u64 } else { 0 };
        let Some(plain_len) = len.checked_sub(trailer_len) else { return Ok(None) };
        if wanted.size.is_some_and(|size| size != plain_len) || plain_len > wanted.limit {
            return Ok(None);
        }
        let trailer = match self.layout {
            Layout::CernVmFs => None,
            Layout::Esker => match trailer_of(&file, &key, plain_len)? {
                None => return Ok(None),
                some => some,
            },
        };
        if plain_len <= WHOLE_MAX {
            let plain = read_whole(&file, plain_len, task)?;
            let is_content = match trailer {
                Some(trailer) => xxhash_rust::xxh3::xxh3_128(&plain) == trailer.digest,
                None => prover.is_content(&key, &plain)?,
            };
            return Ok(is_content.then_some(Found::InMemory(plain)));
        }
        let Some(cache) = cache() else { return Ok(None) };
        let mut check = match trailer {
            Some(trailer) => Check::Digest(Box::default(), trailer.digest),
            None => match StreamVerifier::begin(&key)? {
                Some(proof) => Check::StreamVerifier(proof),
                None => return Ok(None),
            },
        };
        // Without room for it here it is as good as absent.
        let room = cache.room_now(plain_len).map_err(|_| io::ErrorKind::NotFound)?;
        let mut writing = Writing::begin(&cache).map_err(io::Error::other)?;
        in_pieces(&file, plain_len, task, |piece, last| {
            check.feed(piece, last)?;
            writing.write(piece)
        })?;
        Ok(check.holds().then_some(Found::Written(writing, room)))
    }

    fn open_object(&self, key: &CacheKey) -> io::Result<(File, u64)> {
        let name = match self.layout {
            Layout::Esker => key.to_string(),
            Layout::CernVmFs => key.hash.to_string(),
        };
        let (two, rest) = name.split_at(2);
        match self.layout {
            Layout::Esker => self.folder.open(&["objects", two], rest),
            Layout::CernVmFs => self.folder.open(&[two], rest),
        }
    }
}

/// Verification of an object in pieces.
enum Check {
    Digest(Box<Xxh3>, u128),
    StreamVerifier(StreamVerifier),
}

impl Check {
    fn feed(&mut self, piece: &[u8], last: bool) -> io::Result<()> {
        match self {
            Check::Digest(digest, _) => digest.update(piece),
            Check::StreamVerifier(proof) => proof.feed(piece, last)?,
        }
        Ok(())
    }

    fn holds(self) -> bool {
        match self {
            Check::Digest(digest, expected) => digest.digest128() == expected,
            Check::StreamVerifier(proof) => proof.holds(),
        }
    }
}

fn trailer_of(file: &File, key: &CacheKey, plain_len: u64) -> io::Result<Option<Trailer>> {
    let mut bytes = [0; TRAILER_LEN];
    file.read_exact_at(&mut bytes, plain_len)?;
    Ok(Trailer::decode(&bytes).filter(|trailer| trailer.key == *key && trailer.plain_len == plain_len))
}

fn read_whole(file: &File, len: u64, task: &Task) -> io::Result<Vec<u8>> {
    let mut plain = Vec::with_capacity(usize::try_from(len).unwrap_or(0));
    in_pieces(file, len, task, |piece, _| {
        plain.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(plain)
}

/// Reads so many bytes and passes them on; the last piece is marked.
fn in_pieces(
    file: &File,
    len: u64,
    task: &Task,
    mut each: impl FnMut(&[u8], bool) -> io::Result<()>,
) -> io::Result<()> {
    let mut room = vec![0; usize::try_from(len).map_or(PIECE, |len| len.min(PIECE))];
    let mut at = 0;
    loop {
        let count = usize::try_from(len - at).map_or(PIECE, |left| left.min(PIECE));
        let piece = &mut room[..count];
        file.read_exact_at(piece, at)?;
        task.moved();
        at += count as u64;
        each(piece, at == len)?;
        if at == len {
            return Ok(());
        }
        if task.is_taken() {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
}

/// Creates the folder of a shared tier, if it is missing.
pub fn make_alien(folder: &Path) -> io::Result<()> {
    alien::make(folder)
}
