//! Stores the publishing settings of a repository.

mod named;
mod values;

use std::path::{Path, PathBuf};

use esker_format::chunker::ChunkSizes;
use esker_format::compress::Compression;
use esker_store::{Disk, persist};
use serde::{Deserialize, Serialize};

use crate::encode::Deflate;
use crate::error::RepositoryError;
use crate::owner_file;
use crate::storage::{self, Storage};

/// Seconds of a day.
pub const DAY: i64 = 86_400;
/// Seconds after which clients of a new repository check for a newer revision.
pub const TTL: u32 = 240;

pub use named::{NAMED, NamedSetting, SettingValue, current, set_by_name};
pub(crate) use named::{Place, closest};
pub(crate) use values::{number, parse_switch};

/// Maximum size of the settings file in bytes.
const FILE_MAX: u64 = 1 << 16;

/// Settings for the encoding of content and the recorded metadata, as the settings file has them.
///
/// A later setting with a default value is not stored, so that versions without the setting can read the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Settings {
    /// The compression of files; catalogs and the like always are zlib streams.
    pub compression: Compression,
    /// The zlib encoder.
    pub deflate: Deflate,
    /// Sizes of chunks.
    #[serde(rename = "chunk_sizes")]
    pub chunks: ChunkSizes,
    /// True if nanoseconds of modification times are recorded.
    pub nanoseconds: bool,
    /// True if extended attributes are recorded.
    pub xattrs: bool,
    /// True if each publish adds an automatic tag.
    pub automatic_tags: bool,
    /// When catalogs are split and joined; none leaves that to markers and rules.
    pub balance: Option<Balance>,
    /// Days after which automatic tags are removed at a publish; none keeps them.
    #[serde(default, skip_serializing_if = "is_default")]
    pub automatic_tags_for: Option<u32>,
    /// True if `/.cvmfs/snapshots` shows the tagged revisions.
    #[serde(default, skip_serializing_if = "is_default")]
    pub virtual_snapshots: bool,
    /// Seconds for which clients trust a revision, in root catalogs to come; none continues the published value.
    #[serde(default, skip_serializing_if = "is_default")]
    pub ttl: Option<u32>,
    /// Limits for files and catalogs.
    #[serde(default, skip_serializing_if = "is_default")]
    pub limits: Limits,
    /// True if contents of files are left to servers for external data.
    #[serde(default, skip_serializing_if = "is_default")]
    pub external_data: bool,
    /// Treatment of devices, sockets and pipes.
    #[serde(default, skip_serializing_if = "is_default")]
    pub special_files: SpecialFiles,
    /// Treatment of extended attributes that CernVM-FS before 2.14 can't read.
    #[serde(default, skip_serializing_if = "is_default")]
    pub long_xattrs: LongXattrs,
    /// Collect after a publish.
    #[serde(default, skip_serializing_if = "is_default")]
    pub automatic_collect: AutomaticCollect,
}

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}

/// Sizes from which a publish warns, or fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum number of bytes of a file.
    pub file: Option<u64>,
    /// Maximum number of entries of the root catalog.
    pub root_entries: Option<u64>,
    /// Maximum number of entries of a nested catalog.
    pub nested_entries: Option<u64>,
    /// True if exceeding a limit is an error; otherwise it is a warning.
    pub enforced: bool,
}

/// Treatment of devices, sockets and pipes in a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SpecialFiles {
    /// Publishes the entries.
    #[default]
    Publish,
    /// Leaves the entries out, with a warning.
    Skip,
}

/// Treatment of extended attributes with values of 256 to 65,535 bytes.
///
/// CernVM-FS before 2.14 shows none of the attributes of an entry with such a value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LongXattrs {
    /// Publishes the entries.
    #[default]
    Publish,
    /// Leaves the entries out, with a warning.
    Skip,
    /// The publish fails.
    Refuse,
}

/// Terms of the collect after a publish.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AutomaticCollect {
    /// Minimum number of seconds between two collects; `None` never collects.
    pub every: Option<u32>,
    /// Seconds for which revisions are kept.
    pub keep: u32,
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

impl Default for Limits {
    /// Returns the limits of the reference implementation.
    fn default() -> Self {
        Self {
            file: Some(1 << 30),
            root_entries: Some(200_000),
            nested_entries: Some(500_000),
            enforced: false,
        }
    }
}

impl Default for AutomaticCollect {
    fn default() -> Self {
        Self { every: None, keep: 3 * 86_400 }
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
            long_xattrs: LongXattrs::Publish,
            automatic_tags: true,
            balance: Some(Balance::default()),
            automatic_tags_for: None,
            virtual_snapshots: false,
            ttl: None,
            limits: Limits::default(),
            external_data: false,
            special_files: SpecialFiles::Publish,
            automatic_collect: AutomaticCollect::default(),
        }
    }
}

/// Number of days for which a new repository keeps automatic tags.
const AUTOMATIC_TAGS_DAYS: u32 = 30;

impl Settings {
    /// Returns the settings of a new repository; the default ones are of a repository without a settings file.
    pub fn of_new_repository() -> Self {
        Self { automatic_tags_for: Some(AUTOMATIC_TAGS_DAYS), ..Self::default() }
    }

    /// Returns the age in seconds from which automatic tags are removed; none keeps them.
    pub fn automatic_tags_age(&self) -> Option<i64> {
        self.automatic_tags_for.map(|days| i64::from(days) * DAY)
    }

    /// Returns the path of the settings in the publisher's state folder.
    pub fn path(state: &Path) -> PathBuf {
        state.join("settings.json")
    }

    /// Reads the settings of a repository; none if it has no state of a publisher.
    pub fn read_of(storage: &Storage) -> Result<Option<Self>, RepositoryError> {
        Self::read(&*storage.disks().private, &Self::path(&storage::state_folder(storage.place())))
    }

    /// Reads the settings; none if the file is missing.
    pub fn read(disk: &dyn Disk, path: &Path) -> Result<Option<Self>, RepositoryError> {
        let Some(text) = owner_file::read(disk, path, FILE_MAX)? else { return Ok(None) };
        serde_json::from_slice(&text)
            .map(Some)
            .map_err(|error| RepositoryError::Settings { path: path.to_owned(), reason: error.to_string() })
    }

    /// Writes the settings.
    pub fn write(&self, disk: &dyn Disk, path: &Path) -> Result<(), RepositoryError> {
        let text =
            serde_json::to_vec_pretty(self).expect("settings become JSON because all their keys are text");
        persist(disk, path, &text).map_err(RepositoryError::file("writing", path))
    }
}
