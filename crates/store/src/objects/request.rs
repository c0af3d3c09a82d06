//! Requests to a store.

use std::fmt;
use std::ops::Range;

use esker_format::compress::Compression;
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::ObjectName;
use serde::{Deserialize, Serialize};

use crate::escaping::escaped;
use crate::progress::Requester;

/// Key of a cached object: the hash of its stored bytes, and their compression. The kind of the object is not part of
/// it, because the hash doesn't cover it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct CacheKey {
    /// The hash of the stored bytes.
    pub hash: ContentHash,
    /// Compression of the object.
    pub compression: Compression,
}

/// Length of [`CacheKey::to_bytes`].
pub(crate) const KEY_LEN: usize = 22;

impl CacheKey {
    /// Returns the fixed-size form for files and messages: algorithm, compression, digest.
    pub fn to_bytes(&self) -> [u8; KEY_LEN] {
        let mut bytes = [0; KEY_LEN];
        bytes[0] = self.hash.algorithm().to_flag();
        bytes[1] = self.compression.to_flag();
        bytes[2..].copy_from_slice(self.hash.digest());
        bytes
    }

    /// Parses the output of [`CacheKey::to_bytes`].
    pub fn from_bytes(bytes: &[u8; KEY_LEN]) -> Option<Self> {
        let [algorithm, compression, digest @ ..] = bytes;
        Some(Self {
            hash: ContentHash::new(HashAlgorithm::from_flag(*algorithm)?, *digest),
            compression: Compression::from_flag(*compression)?,
        })
    }
}

impl From<CacheKey> for String {
    /// Returns [`CacheKey::to_bytes`] as text, two digits for each byte.
    fn from(key: CacheKey) -> Self {
        key.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl TryFrom<String> for CacheKey {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
        let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
        let bytes = bytes.and_then(|bytes| bytes.try_into().ok());
        bytes.and_then(|bytes| Self::from_bytes(&bytes)).ok_or("this is no key of an object")
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

/// Request for one object.
#[derive(Clone, Debug)]
pub struct ObjectRequest {
    /// Name of the object.
    pub name: ObjectName,
    /// Compression of the stored bytes.
    pub compression: Compression,
    /// Plain size, if the repository states one. Another size is an error.
    pub size: Option<u64>,
    /// Maximum plain size in bytes.
    pub limit: u64,
    /// Description for messages: a path, "root catalog".
    pub what: String,
    /// True if the object is requested under its alternative path.
    pub alternative_path: bool,
    /// Location of external data.
    pub external: Option<Box<External>>,
    /// User and progress of the request.
    pub requester: Requester,
}

/// A location outside of the repository, on other servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    /// Path below the URL of each of those servers, escaped for a request.
    pub path: String,
    /// Offset of the content in that file, if it is a part of it.
    pub offset: Option<u64>,
}

impl External {
    /// Returns the location of a file's external data, or of the part that begins at `offset`.
    pub fn of(path: &[u8], offset: Option<u64>) -> Self {
        Self { path: escaped(path.strip_prefix(b"/").unwrap_or(path)), offset }
    }
}

/// Maximum plain size in bytes of an object of unknown size.
pub const UNSTATED_SIZE_LIMIT: u64 = 1 << 32;

impl ObjectRequest {
    /// Makes a request for an object of up to [`UNSTATED_SIZE_LIMIT`] bytes.
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

    /// Sets the requester.
    #[must_use]
    pub fn for_requester(mut self, requester: Requester) -> Self {
        self.requester = requester;
        self
    }

    /// Sets the plain size.
    #[must_use]
    pub fn size(mut self, size: u64) -> Self {
        self.size = Some(size);
        self.limit = size;
        self
    }

    /// Limits the plain size.
    #[must_use]
    pub fn limit(mut self, limit: u64) -> Self {
        self.limit = limit;
        self
    }

    /// Returns the key in the cache.
    pub fn key(&self) -> CacheKey {
        CacheKey { hash: self.name.hash, compression: self.compression }
    }

    /// Returns the description and name for messages.
    pub fn label(&self) -> String {
        format!("{} ({} {})", self.what, self.name.kind, self.name)
    }

    /// Returns whether the object is stored at the path of its name.
    pub(crate) fn is_at_its_name(&self) -> bool {
        !self.alternative_path && self.external.is_none()
    }

    /// Returns the range of a file that it is; `None` for all of it.
    pub(crate) fn part(&self) -> Option<Range<u64>> {
        let start = self.external.as_ref()?.offset?;
        Some(start..start.saturating_add(self.size?))
    }

    /// Returns the path below the root of the repository, or of the servers for external data.
    pub(crate) fn path(&self) -> String {
        if let Some(external) = &self.external {
            return external.path.clone();
        }
        if self.alternative_path { self.name.alternative_path() } else { self.name.path() }
    }

    /// Returns the maximum stored size that is accepted. Compression may add a few bytes: zlib adds 5 bytes for
    /// each 16 KiB block and 6 around them, zstd less; an eighth and a page are far above both.
    pub(crate) fn stored_limit(&self) -> u64 {
        let plain = self.size.unwrap_or(self.limit);
        match self.compression {
            Compression::Stored => plain,
            Compression::Zlib | Compression::Zstd => plain.saturating_add(plain / 8).saturating_add(4096),
        }
    }
}
