//! Lower tiers: folders with plain objects that others put there, asked before the network.
//!
//! ```text
//!   adopted, a cache of Esker      <folder>/objects/ab/cd….z    plain bytes, then a trailer        (cache/trailer.rs)
//!   adopted, a cache of CernVM-FS  <folder>/ab/cd…[-rmd160]     plain bytes
//!   alien                          <folder>/ab/cd…[-rmd160]     the same, written by us, too       (below/alien.rs)
//! ```
//!
//! What is found is copied into our own cache, and nothing looks at the folder again. Trust: the layout of CernVM-FS has
//! nothing to verify its files with, so each is proven (`prove.rs`), and one that can't be is fetched instead. Files of
//! an Esker cache have a digest, which shows damage but not malice, so nobody but its owner, root and we may write to
//! one or to a folder above it (`below/folder.rs`).
//!
//! A folder may lie on a file system of other machines, which hangs. So all this happens on threads of its own
//! (`below/desk.rs`), and a request for which nothing moves is taken back and goes to the network.

mod alien;
mod desk;
mod folder;

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use xxhash_rust::xxh3::Xxh3;

use crate::cache::{Entry, FileRoom, Inner, TRAILER_LEN, Trailer, Writing};
use crate::error::Cause;
use crate::objects::Trip;
use crate::prove::{Proof, Prover};
use crate::wanted::{CacheKey, Wanted};
use alien::Alien;
use desk::{Desk, Task};
use folder::{Folder, Writers};

/// A lower tier.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lower {
    /// The folder.
    pub folder: PathBuf,
    /// What is done with it.
    pub form: LowerForm,
    /// How the owner of the machine's own folders is seen here: 0, or in a user namespace somebody unknown.
    pub root: u32,
}

/// What is done with a lower tier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LowerForm {
    /// A cache of Esker or of CernVM-FS, or a folder filled beforehand, is read.
    Adopted,
    /// A folder that several nodes share is read, and written as far as that is allowed.
    Alien,
}

/// What came of asking the lower tiers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LowerStatus {
    /// Objects found there.
    pub found: u64,
    /// Plain bytes of them.
    pub found_bytes: u64,
    /// Files that were there but could not be believed or read.
    pub refused: u64,
    /// Requests that were taken back because nothing moved.
    pub late: u64,
    /// Objects put there for others.
    pub given: u64,
}

/// Objects up to this many plain bytes are proven in memory, by any encoder.
const WHOLE_MAX: u64 = 16 << 20;
/// Bytes read at once.
const PIECE: usize = 1 << 20;

/// The lower tiers of a cache.
pub(crate) struct Below {
    tiers: Vec<Tier>,
    desk: Arc<Desk>,
    prover: Prover,
    found: AtomicU64,
    found_bytes: AtomicU64,
    refused: AtomicU64,
    given: AtomicU64,
}

struct Tier {
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
    Whole(Vec<u8>),
    Written(Writing, FileRoom),
}

impl Below {
    /// Opens the tiers, the first to be asked first; nothing if there are none.
    pub(crate) fn open(lower: &[Lower]) -> Result<Option<Arc<Self>>, Cause> {
        if lower.is_empty() {
            return Ok(None);
        }
        let tiers: Result<Vec<_>, _> = lower.iter().map(Tier::open).collect();
        Ok(Some(Arc::new(Self {
            tiers: tiers?,
            desk: Desk::new(),
            prover: Prover::default(),
            found: AtomicU64::new(0),
            found_bytes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            given: AtomicU64::new(0),
        })))
    }

    pub(crate) fn status(&self) -> LowerStatus {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LowerStatus {
            found: get(&self.found),
            found_bytes: get(&self.found_bytes),
            refused: get(&self.refused),
            late: self.desk.late(),
            given: get(&self.given),
        }
    }

    /// Stops taking requests. Threads that hang in a file system are not waited for.
    pub(crate) fn stop(&self) {
        self.desk.stop();
    }

    /// Looks for the object of a trip, which then goes on with it, or to the network.
    pub(crate) fn seek(self: &Arc<Self>, trip: Trip) {
        let (below, wanted) = (self.clone(), trip.wanted.clone());
        let cache = Arc::downgrade(&trip.store.cache);
        let outcome = self.desk.ask(trip, move |task| {
            let found = below.look(&wanted, task, || cache.upgrade());
            let Some(trip) = task.take() else { return };
            match found {
                Some(Found::Whole(plain)) => trip.found_below(plain),
                Some(Found::Written(writing, room)) => trip.written_from_below(writing, room),
                None => trip.fetch(),
            }
        });
        if let Err(trip) = outcome {
            trip.fetch();
        }
    }

    fn look(&self, wanted: &Wanted, task: &Task, cache: impl Fn() -> Option<Arc<Inner>>) -> Option<Found> {
        for tier in &self.tiers {
            match tier.read(wanted, &self.prover, task, &cache) {
                Ok(Some(found)) => {
                    let len = match &found {
                        Found::Whole(plain) => plain.len() as u64,
                        Found::Written(writing, _) => writing.len(),
                    };
                    self.found.fetch_add(1, Ordering::Relaxed);
                    self.found_bytes.fetch_add(len, Ordering::Relaxed);
                    return Some(found);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(None) | Err(_) => {
                    self.refused.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        None
    }

    /// Puts an object that was fetched into the tiers that are shared with other nodes, at leisure.
    pub(crate) fn give(self: &Arc<Self>, cache: &Arc<Inner>, entry: &Arc<Entry>) {
        if self.tiers.iter().all(|tier| tier.alien.is_none()) {
            return;
        }
        let (below, cache, entry) = (self.clone(), Arc::downgrade(cache), entry.clone());
        self.desk.later(move || {
            let Some(Ok(Some(file))) = cache.upgrade().map(|cache| cache.open_whole(&entry)) else { return };
            for (alien, folder) in
                below.tiers.iter().filter_map(|tier| Some((tier.alien.as_ref()?, &tier.folder)))
            {
                // What can't be put there is fetched by the others, as it was by us.
                if let Ok(true) = alien.put(folder, &entry.key, &file, entry.plain_len) {
                    below.given.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
    }
}

impl Tier {
    fn open(lower: &Lower) -> Result<Self, Cause> {
        let me = rustix::process::geteuid().as_raw();
        let users = |owner| vec![0, lower.root, me, owner];
        if lower.form == LowerForm::Alien {
            let folder = Folder::walk(&lower.folder, |_| Writers::Anybody)?;
            return Ok(Self { folder, layout: Layout::CernVmFs, alien: Some(Alien::new()) });
        }
        let folder = Folder::walk(&lower.folder, |owner| Writers::WithGroups(users(owner)))?;
        if !folder.has_folder("objects") {
            return Ok(Self { folder, layout: Layout::CernVmFs, alien: None });
        }
        let folder = Folder::walk(&lower.folder, |owner| Writers::Only(users(owner)))?;
        Ok(Self { folder, layout: Layout::Esker, alien: None })
    }

    /// The object, verified; `None` if what is there isn't it.
    fn read(
        &self,
        wanted: &Wanted,
        prover: &Prover,
        task: &Task,
        cache: impl Fn() -> Option<Arc<Inner>>,
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
            return Ok(is_content.then_some(Found::Whole(plain)));
        }
        let Some(cache) = cache() else { return Ok(None) };
        let mut check = match trailer {
            Some(trailer) => Check::Digest(Box::default(), trailer.digest),
            None => match Proof::begin(&key)? {
                Some(proof) => Check::Proof(proof),
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

/// How an object that comes in pieces is verified.
enum Check {
    Digest(Box<Xxh3>, u128),
    Proof(Proof),
}

impl Check {
    fn feed(&mut self, piece: &[u8], last: bool) -> io::Result<()> {
        match self {
            Check::Digest(digest, _) => digest.update(piece),
            Check::Proof(proof) => proof.feed(piece, last)?,
        }
        Ok(())
    }

    fn holds(self) -> bool {
        match self {
            Check::Digest(digest, expected) => digest.digest128() == expected,
            Check::Proof(proof) => proof.holds(),
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

/// Reads so many bytes; the last piece is said to be it.
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

/// Makes the folder of a tier that several nodes share, if it isn't there.
pub fn make_alien(folder: &Path) -> io::Result<()> {
    alien::make(folder)
}
