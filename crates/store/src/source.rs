//! Where stored bytes come from.
//!
//! A [`Source`] answers with bytes as a server stores them. Sources are stacked, each doing one thing:
//! `Routed(Verifying(HttpSource))`. The order carries meaning: verification is under the choice of a way, so that a
//! damaged answer is one more reason to ask another proxy or server.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use esker_format::canary;
use esker_format::hash::{ContentHash, Hasher};
use esker_format::object::ObjectName;

use rustix::fs::FallocateFlags;

use crate::done::Done;
use crate::error::{Cause, StoreError};
use crate::memory::Share;
use crate::progress::Progress;
use crate::ranged::Whole;
use crate::status::NetworkStatus;
use crate::urgency::{Priority, Urgency};

/// A place that has stored objects.
pub trait Source: Send + Sync {
    /// Gets stored bytes; never blocks.
    fn fetch(&self, fetch: Fetch, done: Done<Stored>);

    /// The place for messages, for example its URL.
    fn describe(&self) -> String;

    /// How many ways there are to it.
    fn ways(&self) -> usize {
        1
    }

    /// What its traffic came to; nothing for a place that is not on a network.
    fn network(&self) -> NetworkStatus {
        NetworkStatus::default()
    }
}

/// Looks at bytes that have no hash.
pub type Check = Arc<dyn Fn(&[u8]) -> Result<(), Cause> + Send + Sync>;

/// One request to a [`Source`].
#[derive(Clone)]
pub struct Fetch {
    /// Path below the root of the repository.
    pub path: String,
    /// What it is, for messages.
    pub what: Arc<str>,
    /// The object, if it lies where its name says.
    pub object: Option<ObjectName>,
    /// The hash the bytes must have, if it is known.
    pub expect: Option<ContentHash>,
    /// What is asked of bytes that have no hash before they are taken; what fails it counts as damaged on the way.
    pub check: Option<Check>,
    /// The part of the file that is wanted; `None` for all of it.
    pub part: Option<Range<u64>>,
    /// What is known of the file that a part is of: one of another version is no answer.
    pub whole: Option<Arc<Whole>>,
    /// What it is for those who are told, if that is something else than in messages.
    pub about: Option<Arc<str>>,
    /// Further fields of the request.
    pub fields: Option<Arc<[(String, String)]>>,
    /// What is sent with the request (POST), as a form; nothing for one that only asks (GET).
    pub form: Option<Arc<str>>,
    /// The most bytes accepted.
    pub limit: u64,
    /// How many plain bytes that are, if it is known.
    pub plain_size: Option<u64>,
    /// Asks caches on the way not to answer.
    pub fresh: bool,
    /// So many ways are passed over, because what came on them turned out to be no good.
    pub detour: usize,
    /// Who waits.
    pub priority: Priority,
    /// When bytes of it last arrived.
    pub progress: Progress,
    /// Whether another way to it is left to try, so that a slow one need not be borne.
    pub replaceable: bool,
    /// Where to put what is too much for memory. Without it everything up to `limit` is kept in memory.
    pub spool: Option<Arc<dyn Spool>>,
}

impl Fetch {
    /// Somebody waits for a file of at most `limit` bytes that has no hash.
    pub fn new(path: impl Into<String>, what: impl Into<Arc<str>>, limit: u64) -> Self {
        Self {
            path: path.into(),
            what: what.into(),
            object: None,
            expect: None,
            check: None,
            part: None,
            whole: None,
            about: None,
            fields: None,
            form: None,
            limit,
            plain_size: None,
            fresh: false,
            detour: 0,
            priority: Priority::new(Urgency::Demand),
            progress: Progress::default(),
            replaceable: false,
            spool: None,
        }
    }

    pub(crate) fn error(&self, cause: Cause) -> StoreError {
        StoreError::new(self.what.clone(), cause)
    }
}

/// Where bytes go that are too many for memory.
pub trait Spool: Send + Sync {
    /// An empty file without a name.
    fn file(&self) -> io::Result<File>;

    /// Appends.
    fn append(&self, file: &File, bytes: &[u8]) -> io::Result<()>;

    /// The account that the bytes of a file are reserved in before they are written; none if nothing bounds them.
    fn account(&self) -> Option<Box<dyn SpoolAccount>> {
        None
    }
}

/// Counts the bytes of one spooled file; gives them back on drop.
pub trait SpoolAccount: Send + Sync {
    /// Reserves room for further bytes; may wait for an eviction.
    fn grow(&mut self, bytes: u64) -> Result<(), Cause>;

    /// Gives bytes back that the file takes no more.
    fn shrink(&mut self, bytes: u64);
}

/// A spooled file being written or read; gone on drop.
pub(crate) struct SpoolFile {
    // Declared first: its bytes are free again when they are given back.
    file: File,
    account: Option<Box<dyn SpoolAccount>>,
    spool: Arc<dyn Spool>,
}

impl SpoolFile {
    pub(crate) fn begin(spool: &Arc<dyn Spool>) -> Result<Self, Cause> {
        let file = spool.file().map_err(spooling_failed)?;
        Ok(Self { file, account: spool.account(), spool: spool.clone() })
    }

    /// Appends bytes after reserving room for them. Blocks.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), Cause> {
        if let Some(account) = &mut self.account {
            account.grow(bytes.len() as u64)?;
        }
        self.spool.append(&self.file, bytes).map_err(spooling_failed)
    }

    /// Reads the piece at this offset, of a file of `len` bytes, into `room`; returns its bytes.
    fn read_piece<'r>(&self, room: &'r mut [u8], at: u64, len: u64) -> io::Result<&'r [u8]> {
        let size = usize::try_from(len - at).map_or(room.len(), |left| left.min(room.len()));
        let piece = &mut room[..size];
        self.file.read_exact_at(piece, at)?;
        Ok(piece)
    }

    /// Gives the disk space of a range back; a file system that can't do that keeps it until the file is closed.
    fn free(&mut self, at: u64, len: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        if let Some(account) = &mut self.account
            && rustix::fs::fallocate(&self.file, flags, at, len).is_ok()
        {
            account.shrink(len);
        }
    }
}

pub(crate) fn spooling_failed(source: io::Error) -> Cause {
    Cause::Disk { doing: "spooling to", path: "the cache folder".into(), source }
}

/// Objects up to this many stored bytes are kept in memory while they are fetched and verified.
pub const MEMORY_MAX: u64 = 32 << 20;

/// Bytes as a server stores them. What its hash says about them is known only after [`Stored::verify`].
pub struct Stored {
    body: Body,
    verified: Option<ContentHash>,
    /// What the server said of the file that it is a part of.
    whole: Option<Whole>,
}

enum Body {
    Memory { bytes: Vec<u8>, _share: Option<Share> },
    Spooled { file: SpoolFile, len: u64 },
}

/// Bytes read at once when a spooled body is gone through.
const PIECE: usize = 1 << 20;

impl Stored {
    /// Bytes in memory.
    pub fn in_memory(bytes: Vec<u8>) -> Self {
        Self { body: Body::Memory { bytes, _share: None }, verified: None, whole: None }
    }

    /// Bytes in memory, with the share of the memory budget that they take.
    pub(crate) fn in_shared_memory(bytes: Vec<u8>, share: Option<Share>) -> Self {
        Self { body: Body::Memory { bytes, _share: share }, verified: None, whole: None }
    }

    /// The first `len` bytes of a spooled file.
    pub(crate) fn spooled(file: SpoolFile, len: u64) -> Self {
        Self { body: Body::Spooled { file, len }, verified: None, whole: None }
    }

    /// The same bytes, with what the server said of the file that they are a part of.
    pub(crate) fn part_of(self, whole: Option<Whole>) -> Self {
        Self { whole, ..self }
    }

    /// What the server said of the file that it is a part of.
    pub fn whole(&self) -> Option<&Whole> {
        self.whole.as_ref()
    }

    /// The number of bytes.
    pub fn len(&self) -> u64 {
        match &self.body {
            Body::Memory { bytes, .. } => bytes.len() as u64,
            Body::Spooled { len, .. } => *len,
        }
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if they are in memory.
    pub(crate) fn memory(&self) -> Option<&[u8]> {
        match &self.body {
            Body::Memory { bytes, .. } => Some(bytes),
            Body::Spooled { .. } => None,
        }
    }

    /// The bytes of something small that has no hash, such as a manifest.
    pub fn into_bytes(self) -> io::Result<Vec<u8>> {
        match self.body {
            Body::Memory { bytes, .. } => Ok(bytes),
            Body::Spooled { .. } => {
                let mut all = Vec::new();
                self.pieces(|piece| {
                    all.extend_from_slice(piece);
                    Ok::<(), io::Error>(())
                })?;
                Ok(all)
            }
        }
    }

    /// The bytes as a stream.
    pub fn into_reader(self) -> Box<dyn io::Read + Send> {
        Box::new(Reading { stored: self, at: 0 })
    }

    /// Hands all bytes to `take`, piece by piece.
    pub(crate) fn pieces<E: From<io::Error>>(
        &self,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        match &self.body {
            Body::Memory { bytes, .. } => take(bytes),
            Body::Spooled { file, len } => {
                let mut piece = vec![0; PIECE];
                let mut at = 0;
                while at < *len {
                    let piece = file.read_piece(&mut piece, at, *len)?;
                    take(piece)?;
                    at += piece.len() as u64;
                }
                Ok(())
            }
        }
    }

    /// The same, and gives the disk space of each piece back once it was taken.
    pub(crate) fn drain<E: From<io::Error>>(
        mut self,
        mut take: impl FnMut(&[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let Body::Spooled { file, len } = &mut self.body else { return self.pieces(take) };
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while at < *len {
            let piece = file.read_piece(&mut piece, at, *len)?;
            let read = piece.len();
            take(piece)?;
            if read == PIECE {
                file.free(at, PIECE as u64);
            }
            at += read as u64;
        }
        Ok(())
    }

    /// Whether the bytes were found to have this hash.
    pub(crate) fn is_verified_as(&self, hash: &ContentHash) -> bool {
        self.verified.as_ref() == Some(hash)
    }

    /// Compares the hash of the bytes with the one they must have; this is the only way to verified bytes.
    /// Marks `progress` as it goes on: of a large object that takes long.
    pub(crate) fn verify(mut self, expected: &ContentHash, progress: &Progress) -> Result<Self, Cause> {
        if self.is_verified_as(expected) {
            return Ok(self);
        }
        let mut hasher = Hasher::new(expected.algorithm());
        let mut start = Vec::new();
        self.pieces(|piece| {
            if start.is_empty() {
                start.extend_from_slice(piece.get(..piece.len().min(256)).unwrap_or_default());
            }
            hasher.update(piece);
            progress.mark();
            Ok::<(), io::Error>(())
        })
        .map_err(|source| Cause::Disk {
            doing: "reading back",
            path: "spooled bytes".into(),
            source,
        })?;
        let actual = hasher.finish();
        if actual != *expected && !canary::skipped("object-hash") {
            let html = looks_like_html(&start);
            return Err(Cause::Corrupt { expected: *expected, actual, len: self.len(), html });
        }
        self.verified = Some(*expected);
        Ok(self)
    }
}

/// Stored bytes that are read one after the other.
struct Reading {
    stored: Stored,
    at: u64,
}

impl io::Read for Reading {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let len = match &self.stored.body {
            Body::Memory { bytes, .. } => {
                let rest = usize::try_from(self.at).ok().and_then(|at| bytes.get(at..)).unwrap_or_default();
                let len = rest.len().min(room.len());
                room[..len].copy_from_slice(&rest[..len]);
                len
            }
            Body::Spooled { file, len } => {
                let most = usize::try_from(len.saturating_sub(self.at)).unwrap_or(usize::MAX).min(room.len());
                file.file.read_at(&mut room[..most], self.at)?
            }
        };
        self.at += len as u64;
        Ok(len)
    }
}

impl Stored {
    /// Has the bytes of something small without a hash looked at.
    pub(crate) fn look_at(self, check: &Check) -> Result<Self, Cause> {
        if let Body::Memory { bytes, .. } = &self.body {
            check(bytes)?;
        }
        Ok(self)
    }
}

fn looks_like_html(start: &[u8]) -> bool {
    let text = start.trim_ascii_start().to_ascii_lowercase();
    text.starts_with(b"<!doctype html") || text.starts_with(b"<html") || text.starts_with(b"<?xml")
}
