//! What is asked of a store.

use std::fmt;
use std::ops::Range;

use esker_format::compress::Compression;
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::ObjectName;

use crate::http::escaped;
use crate::progress::Requester;

/// Under what an object is kept: the hash of its stored bytes, and how they become plain ones. The kind of
/// the object is not part of it, because the hash doesn't cover it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CacheKey {
    /// The hash of the stored bytes.
    pub hash: ContentHash,
    /// How they are compressed.
    pub compression: Compression,
}

/// Bytes of [`CacheKey::to_bytes`].
pub(crate) const KEY_LEN: usize = 22;

impl CacheKey {
    /// A fixed-size form for files and messages: algorithm, compression, digest.
    pub fn to_bytes(&self) -> [u8; KEY_LEN] {
        let mut bytes = [0; KEY_LEN];
        bytes[0] = self.hash.algorithm().to_flag();
        bytes[1] = self.compression.to_flag();
        bytes[2..].copy_from_slice(self.hash.digest());
        bytes
    }

    /// Reads [`CacheKey::to_bytes`] back.
    pub fn from_bytes(bytes: &[u8; KEY_LEN]) -> Option<Self> {
        let [algorithm, compression, digest @ ..] = bytes;
        Some(Self {
            hash: ContentHash::new(HashAlgorithm::from_flag(*algorithm)?, *digest),
            compression: Compression::from_flag(*compression)?,
        })
    }
}

impl fmt::Display for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffix = match self.compression {
            Compression::Zlib => ".z",
            Compression::Stored => ".p",
            Compression::Zstd => ".s",
        };
        write!(f, "{}{suffix}", self.hash)
    }
}

/// One object, asked for.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// Its name.
    pub name: ObjectName,
    /// How it is stored.
    pub compression: Compression,
    /// Its plain size, where the repository states one. Another size is an error.
    pub size: Option<u64>,
    /// The most plain bytes it may have.
    pub limit: u64,
    /// What it is for people: a path, "root catalog".
    pub what: String,
    /// Whether it is asked for under the name that the manifest's alternative paths give it.
    pub alternative_path: bool,
    /// Where its content is, if that lies outside of the repository.
    pub external: Option<Box<External>>,
    /// The user who waits for it, and how far it has come.
    pub requester: Requester,
}

/// A place outside of the repository, on servers of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// The path below the URL of each of those servers, as it stands in a request.
    pub path: String,
    /// Where in that file the content begins, if it is a part of it.
    pub offset: Option<u64>,
}

impl External {
    /// The content of a file of the repository, or the part of it that begins at `offset`.
    pub fn of(path: &[u8], offset: Option<u64>) -> Self {
        Self { path: escaped(path.strip_prefix(b"/").unwrap_or(path)), offset }
    }
}

/// The most plain bytes of an object whose size nobody states.
pub const UNSTATED_SIZE_LIMIT: u64 = 1 << 32;

impl Wanted {
    /// An object of any size up to [`UNSTATED_SIZE_LIMIT`].
    pub fn new(name: ObjectName, compression: Compression, what: impl Into<String>) -> Self {
        Self {
            name,
            compression,
            size: None,
            limit: UNSTATED_SIZE_LIMIT,
            what: what.into(),
            alternative_path: false,
            external: None,
            requester: Requester::default(),
        }
    }

    /// Names the requester.
    #[must_use]
    pub fn for_requester(mut self, requester: Requester) -> Self {
        self.requester = requester;
        self
    }

    /// States the plain size.
    #[must_use]
    pub fn size(mut self, size: u64) -> Self {
        self.size = Some(size);
        self.limit = size;
        self
    }

    /// Bounds the plain size.
    #[must_use]
    pub fn limit(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    /// Under what it is kept.
    pub fn key(&self) -> CacheKey {
        CacheKey { hash: self.name.hash, compression: self.compression }
    }

    /// The object for messages: what it is for people, and its name.
    pub fn label(&self) -> String {
        format!("{} ({} {})", self.what, self.name.kind, self.name)
    }

    /// Whether it lies where its name says.
    pub(crate) fn is_at_its_name(&self) -> bool {
        !self.alternative_path && self.external.is_none()
    }

    /// The part of a file that it is; `None` for all of it.
    pub(crate) fn part(&self) -> Option<Range<u64>> {
        let start = self.external.as_ref()?.offset?;
        Some(start..start.saturating_add(self.size?))
    }

    /// Where it lies below the root of the repository, or below another.
    pub(crate) fn path(&self) -> String {
        if let Some(external) = &self.external {
            return external.path.clone();
        }
        if self.alternative_path { self.name.alternative_path() } else { self.name.path() }
    }

    /// How many stored bytes are accepted for it. Compression may make bytes more, not by much: zlib adds
    /// 5 bytes for each 16 KiB block and 6 around them, zstd less; an eighth and a page are far above both.
    pub(crate) fn stored_limit(&self) -> u64 {
        let plain = self.size.unwrap_or(self.limit);
        match self.compression {
            Compression::Stored => plain,
            Compression::Zlib | Compression::Zstd => plain.saturating_add(plain / 8).saturating_add(4096),
        }
    }
}
