//! Stores the publishing settings of a repository.

mod change;
mod head_terms;
mod named;

use std::path::{Path, PathBuf};

use esker_format::chunker::ChunkSizes;
use esker_format::compress::Compression;
use esker_store::{Disk, persist, read_file};
use serde::{Deserialize, Serialize};

use crate::disks::Disks;
use crate::encode::Deflate;
use crate::error::AdminError;

pub use change::{ChangedSetting, SettingsChange, SettingsChanged};
pub(crate) use head_terms::sign_head;
pub use named::{NAMED, NamedSetting, SettingValue};
pub(crate) use named::{current, set_by_name};

/// Folder of the publisher's state, below the root of the repository.
pub(crate) const STATE: &str = ".esker";
/// Maximum size of the settings file in bytes.
const FILE_MAX: u64 = 1 << 16;

/// Settings for the encoding of content and the recorded metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The compression of files; catalogs and the like always are zlib streams.
    pub compression: Compression,
    /// The zlib encoder.
    pub deflate: Deflate,
    /// Sizes of chunks.
    pub chunks: ChunkSizes,
    /// Whether nanoseconds of modification times are recorded.
    pub nanoseconds: bool,
    /// Whether extended attributes are recorded.
    pub xattrs: bool,
    /// Whether each publish gets a tag of its own.
    pub automatic_tags: bool,
    /// When catalogs are split and joined; none leaves that to markers and rules.
    pub balance: Option<Balance>,
    /// Days after which automatic tags are removed at a publish; none keeps them.
    pub automatic_tags_for: Option<u32>,
    /// Whether `/.cvmfs/snapshots` shows the tagged revisions.
    pub virtual_snapshots: bool,
    /// Seconds for which clients trust a revision, in root catalogs to come; none continues the published value.
    pub ttl: Option<u32>,
}

/// Limits for the automatic split and merge of catalogs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Balance {
    /// A catalog with more entries is split.
    pub max: u64,
    /// Minimum number of entries; a smaller automatic catalog is merged into its parent.
    pub min: u64,
}

impl Default for Balance {
    fn default() -> Self {
        Self { max: 100_000, min: 1000 }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            compression: Compression::Zlib,
            deflate: Deflate::Stock,
            chunks: ChunkSizes::DEFAULT,
            nanoseconds: true,
            xattrs: true,
            automatic_tags: true,
            balance: Some(Balance::default()),
            automatic_tags_for: None,
            virtual_snapshots: false,
            ttl: None,
        }
    }
}

/// Days for which a new repository keeps automatic tags: each publish makes one.
const AUTOMATIC_TAGS_DAYS: u32 = 30;

/// Settings as they are stored in the file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    compression: StoredCompression,
    deflate: Deflate,
    chunk_sizes: [u32; 3],
    nanoseconds: bool,
    xattrs: bool,
    automatic_tags: bool,
    balance: Option<Balance>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    automatic_tags_for: Option<u32>,
    #[serde(default, skip_serializing_if = "is_default")]
    virtual_snapshots: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ttl: Option<u32>,
}

/// Returns true for a default value; it is not stored, so that versions without the setting can read the file.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum StoredCompression {
    Zlib,
    None,
    Zstd,
}

impl Settings {
    /// Returns the settings of a new repository; the default ones are of a repository without a settings file.
    pub fn of_new_repository() -> Self {
        Self { automatic_tags_for: Some(AUTOMATIC_TAGS_DAYS), ..Self::default() }
    }

    /// Returns the path of the settings in the publisher's state folder.
    pub(crate) fn path(state: &Path) -> PathBuf {
        state.join("settings.json")
    }

    /// Reads the settings of the repository in a folder; none if it has no state of a publisher.
    pub(crate) fn read_of(disks: &Disks, root: &Path) -> Result<Option<Self>, AdminError> {
        Self::read(&*disks.private, &Self::path(&root.join(STATE)))
    }

    /// Reads the settings; none if the file is missing.
    pub(crate) fn read(disk: &dyn Disk, path: &Path) -> Result<Option<Self>, AdminError> {
        let text = read_file(disk, path, FILE_MAX).map_err(AdminError::file("reading", path))?;
        let Some(text) = text else { return Ok(None) };
        let refused = |reason: String| AdminError::Settings { path: path.to_owned(), reason };
        let stored: Stored = serde_json::from_slice(&text).map_err(|error| refused(error.to_string()))?;
        let [min, average, max] = stored.chunk_sizes;
        Ok(Some(Self {
            compression: match stored.compression {
                StoredCompression::Zlib => Compression::Zlib,
                StoredCompression::None => Compression::Stored,
                StoredCompression::Zstd => Compression::Zstd,
            },
            deflate: stored.deflate,
            chunks: ChunkSizes::new(min, average, max).map_err(|error| refused(error.to_string()))?,
            nanoseconds: stored.nanoseconds,
            xattrs: stored.xattrs,
            automatic_tags: stored.automatic_tags,
            balance: stored.balance,
            automatic_tags_for: stored.automatic_tags_for,
            virtual_snapshots: stored.virtual_snapshots,
            ttl: stored.ttl,
        }))
    }

    /// Writes the settings.
    pub(crate) fn write(&self, disk: &dyn Disk, path: &Path) -> Result<(), AdminError> {
        let stored = Stored {
            compression: match self.compression {
                Compression::Zlib => StoredCompression::Zlib,
                Compression::Stored => StoredCompression::None,
                Compression::Zstd => StoredCompression::Zstd,
            },
            deflate: self.deflate,
            chunk_sizes: [self.chunks.min(), self.chunks.average(), self.chunks.max()],
            nanoseconds: self.nanoseconds,
            xattrs: self.xattrs,
            automatic_tags: self.automatic_tags,
            balance: self.balance,
            automatic_tags_for: self.automatic_tags_for,
            virtual_snapshots: self.virtual_snapshots,
            ttl: self.ttl,
        };
        let text =
            serde_json::to_vec_pretty(&stored).expect("settings become JSON because all their keys are text");
        persist(disk, path, &text).map_err(AdminError::file("writing", path))
    }
}
