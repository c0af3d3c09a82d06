//! Sources of stored bytes.
//!
//! A [`Source`] returns bytes as a server stores them. Sources are stacked, each doing one thing:
//! `Routed(Verifying(HttpSource))`. The order matters: verification is below fail-over, so that a damaged response
//! makes it try another proxy or server.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use esker_format::canary;
use esker_format::hash::{ContentHash, Hasher};
use esker_format::object::ObjectName;
use esker_threads::waits::WaitCause;

use rustix::fs::FallocateFlags;
use serde::{Deserialize, Serialize};

use crate::callback::Callback;
use crate::error::{Cause, StoreError, is_full};
use crate::memory_budget::Share;
use crate::priority::{Priority, Urgency};
use crate::progress::Progress;
use crate::transport::attempt_watch::AttemptWatch;
use crate::transport::links::Links;
use crate::transport::relay::Relay;
use crate::transport::status::NetworkStatus;

/// A source of stored objects.
pub trait Source: Send + Sync {
    /// Requests stored bytes without blocking.
    fn fetch(&self, fetch: Fetch, done: Callback<Stored>);

    /// Returns the place for messages, for example its URL.
    fn describe(&self) -> String;

    /// Returns the number of routes to it.
    fn routes(&self) -> usize {
        1
    }

    /// Returns the traffic counters; zeros for a source that is not on a network.
    fn network(&self) -> NetworkStatus {
        NetworkStatus::default()
    }
}

/// Validator of a file's version (RFC 9110).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Validator {
    /// A strong entity tag, with its quotes.
    Tag(String),
    /// `Last-Modified`, as the server writes it.
    Time(String),
}

/// Length and version of a whole file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileVersion {
    /// Length of the file in bytes.
    pub len: u64,
    /// Validator of the version; none if the server sends none.
    pub version: Option<Validator>,
}

/// Check of bytes that have no hash.
pub type Check = Arc<dyn Fn(&[u8]) -> Result<(), Cause> + Send + Sync>;

/// Requirement on the bytes of a response.
#[derive(Clone, Default)]
pub enum Expected {
    /// Unknown.
    #[default]
    Any,
    /// Bytes of this hash.
    Hash(ContentHash),
    /// Bytes that pass this check; a failure counts as damage in transit.
    Checked(Check),
}

impl Expected {
    /// Returns the hash that the bytes must have, if it is known.
    pub fn hash(&self) -> Option<&ContentHash> {
        match self {
            Self::Hash(hash) => Some(hash),
            Self::Any | Self::Checked(_) => None,
        }
    }
}

impl From<Option<Check>> for Expected {
    fn from(check: Option<Check>) -> Self {
        check.map_or(Self::Any, Self::Checked)
    }
}

/// Part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilePart {
    /// Requested bytes.
    pub range: Range<u64>,
    /// Length and version of the file, if they are known; a response of another version is refused.
    pub whole: Option<Arc<FileVersion>>,
}

impl From<Range<u64>> for FilePart {
    fn from(range: Range<u64>) -> Self {
        Self { range, whole: None }
    }
}

/// Properties of a request over HTTP.
#[derive(Clone, Default)]
pub struct HttpRequest {
    /// Value of `cvmfs-info`, if it differs from the description.
    pub about: Option<Arc<str>>,
    /// Further fields of the request.
    pub fields: Option<Arc<[(String, String)]>>,
    /// Form to send (POST); `None` for GET.
    pub form: Option<Arc<str>>,
    /// True to ask for the header of the response only (HEAD); the body is then empty.
    pub header_only: bool,
    /// True to bypass caches (`no-cache`).
    pub fresh: bool,
    /// Collects links of the responses.
    pub links: Option<Arc<Links>>,
}

/// Relation of an attempt to other attempts of the same request.
#[derive(Clone, Default)]
pub struct AttemptRoute {
    /// Number of routes to skip, because their responses were invalid.
    pub detour: usize,
    /// True if another route is left to try, so that a slow one may be abandoned.
    pub replaceable: bool,
    /// Watch of the attempts; none if there is one route only.
    pub watch: Option<Arc<AttemptWatch>>,
}

/// One request to a [`Source`].
#[derive(Clone)]
pub struct Fetch {
    /// Path below the root of the repository.
    pub path: String,
    /// Description for messages.
    pub what: Arc<str>,
    /// Name of the object, if it is stored at the path of its name.
    pub object: Option<ObjectName>,
    /// Requirement on the bytes.
    pub expected: Expected,
    /// Requested part of the file; `None` for all of it.
    pub part: Option<FilePart>,
    /// Maximum number of accepted bytes.
    pub limit: u64,
    /// Plain size, if known.
    pub plain_size: Option<u64>,
    /// Properties of the request over HTTP.
    pub http: HttpRequest,
    /// Relation to other attempts, which fail-over makes.
    pub attempt: AttemptRoute,
    /// Priority of the request.
    pub priority: Priority,
    /// Progress of the fetch.
    pub progress: Progress,
    /// Spool for bytes that exceed memory. Without it everything up to `limit` is kept in memory.
    pub spool: Option<Arc<dyn Spool>>,
    /// Reader of the bytes while they arrive. The response is empty then, and the reader has verified bytes only if it got the
    /// last ones.
    pub relay: Option<Arc<Relay>>,
}

impl Fetch {
    /// Creates a demand for a file of at most `limit` bytes without a hash.
    pub fn new(path: impl Into<String>, what: impl Into<Arc<str>>, limit: u64) -> Self {
        Self {
            path: path.into(),
            what: what.into(),
            object: None,
            expected: Expected::default(),
            part: None,
            limit,
            plain_size: None,
            http: HttpRequest::default(),
            attempt: AttemptRoute::default(),
            priority: Priority::new(Urgency::Demand),
            progress: Progress::default(),
            spool: None,
            relay: None,
        }
    }

    /// Returns the error of this request with a cause.
    pub fn error(&self, cause: Cause) -> StoreError {
        StoreError::new(self.what.clone(), cause)
    }
}

/// Storage for bodies that are too large for memory.
pub trait Spool: Send + Sync {
    /// Creates an empty unnamed file.
    fn file(&self) -> io::Result<File>;

    /// Appends bytes.
    fn append(&self, file: &File, bytes: &[u8]) -> io::Result<()>;

    /// Returns the account that reserves the bytes of a file before they are written; none if they are
    /// unbounded.
    fn account(&self) -> Option<Box<dyn SpoolAccount>> {
        None
    }

    /// Creates an empty file in memory, for a body that finds the disk full, and its account.
    fn memory(&self) -> io::Result<(File, Box<dyn SpoolAccount>)> {
        Err(io::ErrorKind::StorageFull.into())
    }
}

/// Account of one spooled file's bytes; releases them on drop.
pub trait SpoolAccount: Send + Sync {
    /// Reserves room for further bytes; may wait for an eviction.
    fn grow(&mut self, bytes: u64) -> Result<(), Cause>;

    /// Releases bytes that the file no longer needs.
    fn shrink(&mut self, bytes: u64);
}

/// A spooled file being written or read; gone on drop.
pub(crate) struct SpoolFile {
    // Declared first: its bytes are free again when they are given back.
    file: File,
    account: Option<Box<dyn SpoolAccount>>,
    spool: Arc<dyn Spool>,
    len: u64,
    is_memory: bool,
}

impl SpoolFile {
    pub(crate) fn begin(spool: &Arc<dyn Spool>) -> Result<Self, Cause> {
        let begun = match spool.file() {
            Ok(file) => Ok((file, spool.account(), false)),
            Err(error) if is_full(&error) => {
                let memory = spool.memory().map_err(|_| error);
                memory.map(|(file, account)| (file, Some(account), true))
            }
            Err(error) => Err(error),
        };
        let (file, account, is_memory) = begun.map_err(spooling_failed)?;
        Ok(Self { file, account, spool: spool.clone(), len: 0, is_memory })
    }

    /// Appends bytes after reserving room for them. Blocks.
    pub(crate) fn append(&mut self, bytes: &[u8]) -> Result<(), Cause> {
        if let Some(account) = &mut self.account {
            account.grow(bytes.len() as u64)?;
        }
        let appended = match self.is_memory {
            true => self.file.write_all(bytes),
            false => self.spool.append(&self.file, bytes),
        };
        match appended {
            Err(error) if is_full(&error) && !self.is_memory => {
                self.move_to_memory(bytes).map_err(|_| spooling_failed(error))?;
            }
            other => other.map_err(spooling_failed)?,
        }
        self.len += bytes.len() as u64;
        Ok(())
    }

    /// Continues in memory with these bytes, because the disk is full.
    fn move_to_memory(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (mut memory, mut account) = self.spool.memory()?;
        let no_room = |_| io::Error::from(io::ErrorKind::StorageFull);
        account.grow(self.len + bytes.len() as u64).map_err(no_room)?;
        let mut piece = vec![0; PIECE];
        let mut at = 0;
        while at < self.len {
            let piece = self.read_piece(&mut piece, at, self.len)?;
            memory.write_all(piece)?;
            at += piece.len() as u64;
        }
        memory.write_all(bytes)?;
        (self.file, self.account, self.is_memory) = (memory, Some(account), true);
        Ok(())
    }

    /// Reads the piece at this offset, of a file of `len` bytes, into `room`; returns its bytes.
    fn read_piece<'r>(&self, room: &'r mut [u8], at: u64, len: u64) -> io::Result<&'r [u8]> {
        let size = usize::try_from(len - at).map_or(room.len(), |left| left.min(room.len()));
        let piece = &mut room[..size];
        self.file.read_exact_at(piece, at)?;
        Ok(piece)
    }

    /// Frees the disk space of a range; without support for holes the space is freed when the file is closed.
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

/// Maximum stored size of objects that are kept in memory while they are fetched and verified.
pub const MEMORY_MAX: u64 = 32 << 20;

/// Stored bytes of an object. They are unverified until [`Stored::verify`].
pub struct Stored {
    body: Body,
    verified: Option<ContentHash>,
    /// Length and version of the file that it is a part of, from the response.
    whole: Option<FileVersion>,
}

enum Body {
    Memory { bytes: Vec<u8>, _share: Option<Share> },
    Spooled { file: SpoolFile, len: u64 },
}

/// Number of bytes in one read of a spooled body.
const PIECE: usize = 1 << 20;

impl Stored {
    /// Creates a body from bytes in memory.
    pub fn in_memory(bytes: Vec<u8>) -> Self {
        Self { body: Body::Memory { bytes, _share: None }, verified: None, whole: None }
    }

    /// Creates a body from bytes in memory and their share of the memory budget.
    pub(crate) fn in_shared_memory(bytes: Vec<u8>, share: Option<Share>) -> Self {
        Self { body: Body::Memory { bytes, _share: share }, verified: None, whole: None }
    }

    /// Creates a body from the first `len` bytes of a spooled file.
    pub(crate) fn spooled(file: SpoolFile, len: u64) -> Self {
        Self { body: Body::Spooled { file, len }, verified: None, whole: None }
    }

    /// Returns the same bytes with the length and version of the whole file.
    pub(crate) fn part_of(self, whole: Option<FileVersion>) -> Self {
        Self { whole, ..self }
    }

    /// Returns the length and version of the file that it is a part of.
    pub fn whole(&self) -> Option<&FileVersion> {
        self.whole.as_ref()
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        match &self.body {
            Body::Memory { bytes, .. } => bytes.len() as u64,
            Body::Spooled { len, .. } => *len,
        }
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes, if they are in memory.
    pub(crate) fn memory(&self) -> Option<&[u8]> {
        match &self.body {
            Body::Memory { bytes, .. } => Some(bytes),
            Body::Spooled { .. } => None,
        }
    }

    /// Returns the bytes of a small file without a hash, such as a manifest.
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

    /// Returns the bytes as a stream.
    pub fn into_reader(self) -> Box<dyn io::Read + Send> {
        Box::new(Reading { stored: self, at: 0 })
    }

    /// Returns the file of bytes that are not in memory.
    pub(crate) fn into_file(self) -> Result<File, Self> {
        match self.body {
            Body::Spooled { file, .. } => Ok(file.file),
            Body::Memory { .. } => Err(self),
        }
    }

    /// Passes all bytes to `take`, piece by piece.
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

    /// Passes all bytes to `take`, and frees the disk space of each piece afterwards.
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

    /// Returns whether the bytes were verified to have this hash.
    pub(crate) fn is_verified_as(&self, hash: &ContentHash) -> bool {
        self.verified.as_ref() == Some(hash)
    }

    /// Compares the hash of the bytes with the expected one: the only way to verified bytes. Marks `progress`
    /// meanwhile, because a large object takes long.
    pub(crate) fn verify(mut self, expected: &ContentHash, progress: &Progress) -> Result<Self, Cause> {
        if self.is_verified_as(expected) {
            return Ok(self);
        }
        let before = progress.enter(Some(WaitCause::Processing));
        let verified = self.compare(expected, progress);
        progress.enter(before);
        verified?;
        self.verified = Some(*expected);
        Ok(self)
    }

    fn compare(&self, expected: &ContentHash, progress: &Progress) -> Result<(), Cause> {
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
        Ok(())
    }
}

/// Reader of stored bytes.
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
    /// Passes the bytes of something small without a hash to a check.
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
