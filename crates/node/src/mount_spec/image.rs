//! Resolved options of a mounted image.

use std::path::{Path, PathBuf};
use std::time::Duration;

use esker_store::{FileVersion, KeptAuthorities, Servers};
use serde::{Deserialize, Serialize};

use super::repository::{RepositorySpec, in_own_memory};

/// Resolved options of a mounted image.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSpec {
    /// Location of the image.
    pub place: ImagePlace,
    /// Offset of the image in the file; detected if `None`.
    pub offset: Option<u64>,
    /// Size and alignment of reads in bytes.
    pub stripe: Option<u64>,
    /// User and group that own all files; as in the image if `None`.
    pub owner: Option<(u32, u32)>,
}

/// Location of an image.
#[derive(Clone, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "a mount has one, which is in a box")]
#[serde(deny_unknown_fields)]
pub enum ImagePlace {
    /// A file of this machine. A daemon that takes over gets it as a descriptor.
    File {
        /// Path of the file.
        #[serde(with = "esker_store::exact_path")]
        path: PathBuf,
        /// Cache folder in which recorded reads are kept; empty for none.
        #[serde(with = "esker_store::exact_path")]
        cache: PathBuf,
    },
    /// A file on a web server.
    Url {
        /// URL of the file.
        url: String,
        /// Servers of the folder that has the file.
        #[serde(with = "esker_format::serde_text")]
        servers: Servers,
        /// Root digest that authenticates it.
        digest: Option<String>,
        /// Version that the first daemon found, which all further ones show.
        known: Option<FileVersion>,
        /// Cache folder.
        #[serde(with = "esker_store::exact_path")]
        cache: PathBuf,
        /// Maximum size of the cache in bytes.
        quota: u64,
        /// Timeout for a server to begin a reply, in place of the default.
        deadline: Option<Duration>,
        /// Texts of certificate authorities that stand in for files that are gone.
        #[serde(default, skip_serializing_if = "KeptAuthorities::is_empty")]
        kept: KeptAuthorities,
    },
    /// A file in a repository.
    Object {
        /// Text that named the repository.
        named: String,
        /// The repository, at the revision that has the image.
        repository: Box<RepositorySpec>,
        /// Path of the file.
        path: String,
    },
}

impl ImageSpec {
    /// Returns the name of the image for messages.
    pub fn describe(&self) -> String {
        match &self.place {
            ImagePlace::File { path, .. } => path.display().to_string(),
            ImagePlace::Url { url, .. } => url.clone(),
            ImagePlace::Object { named, path, .. } => format!("{named}:{path}"),
        }
    }

    /// Returns the last part of its name.
    pub fn name(&self) -> String {
        let whole = self.describe();
        let whole = whole.split('?').next().unwrap_or(&whole);
        whole.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("image").to_owned()
    }

    /// Returns the folder of the cache, which is empty for none.
    pub fn cache(&self) -> Option<&Path> {
        match &self.place {
            ImagePlace::File { cache, .. } | ImagePlace::Url { cache, .. } => Some(cache),
            ImagePlace::Object { repository, .. } => Some(&repository.options.cache),
        }
    }

    /// Makes the memory of a cache in memory, which each process has for itself.
    pub fn make_memory(&mut self) -> std::io::Result<()> {
        match &mut self.place {
            ImagePlace::File { .. } => Ok(()),
            ImagePlace::Url { cache, quota, .. } => in_own_memory(cache, *quota),
            ImagePlace::Object { repository, .. } => repository.options.make_memory(),
        }
    }
}
