//! Resolved options of a mount, which outlive its daemon.
//!
//! The command line makes a [`MountSpec`] once, from options, environment, configuration and key files. The supervisor
//! keeps it in a sealed memory file and hands it to each daemon, which reads none of these again: what a file says after
//! the mount was made can't end the mount.
//!
//! Read again by design, and survived when they are gone: `/etc/resolv.conf` and `/etc/hosts`, certificates of
//! authorities, and credentials of object storage, all of which are renewed during the life of a mount.
//!
//! The form is JSON with a version. A program refuses fields that it doesn't know, and names them: an option that it
//! ignored could be one that protects. So a field that is added has a default, and isn't written while it has it.

mod image;
mod repository;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use esker_cache_share::BrokerAddress;
use esker_fuse::{Deadlines, KernelMask, SessionOptions};
use esker_kernel_mount::Label;
use esker_kernel_mount::MountOptions;
use serde::{Deserialize, Serialize};

pub use image::{ImagePlace, ImageSpec};
pub use repository::RepositorySpec;

use crate::status::Presentation;
use crate::supervisor::{SPEC, Supervision, sealed};

/// Version of the form. It rises when a field changes its meaning; new fields need none.
const VERSION: u32 = 1;
/// Maximum length in bytes. An environment has at most a few megabytes.
const LEN_MAX: u64 = 64 << 20;

/// Resolved options of a mount.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MountSpec {
    version: u32,
    /// Mount point, absolute and with its links resolved.
    #[serde(with = "esker_store::exact_path")]
    pub mountpoint: PathBuf,
    /// Runtime directory, where the mount is registered.
    #[serde(with = "esker_store::exact_path")]
    pub runtime: PathBuf,
    /// Options of the mount itself.
    pub options: AccessSpec,
    /// Requested presentation.
    pub shown_with: Presentation,
    /// Newest kernel whose capabilities are used.
    #[serde(with = "esker_format::serde_text")]
    pub kernel: KernelMask,
    /// Time without progress after which a request fails, in place of the defaults.
    pub deadline: Option<Duration>,
    /// True if recorded reads are replayed ahead of programs.
    pub replay: bool,
    /// True if the daemon is confined.
    pub confined: bool,
    /// Written by earlier versions, whose mounts wrote to the folder around the cache; without effect.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub is_cache_in_home: bool,
    /// Levels of the daemon's log, empty for the usual ones; none if an earlier version made the mount.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_levels: Option<String>,
    /// Mounted repository or image.
    pub content: ContentSpec,
    /// Command line and folder from which all of this was resolved, for resolving it again on request.
    pub origin: Origin,
}

/// Resolved options of mount(2).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessSpec {
    /// Source that `mount` and `df` show.
    pub source: String,
    /// True if other users may access the mount.
    pub allow_other: bool,
    /// True if programs on the mount can't be executed.
    pub noexec: bool,
    /// Names and values of the SELinux options.
    pub labels: Vec<(String, String)>,
}

impl AccessSpec {
    /// Returns the options in the form for mounting.
    pub(crate) fn mount_options(&self) -> MountOptions {
        let labels = self.labels.iter();
        MountOptions {
            source: self.source.clone(),
            allow_other: self.allow_other,
            noexec: self.noexec,
            labels: labels.filter_map(|(kind, context)| Label::new(kind, context)).collect(),
        }
    }
}

/// Content of a mount.
#[derive(Clone, Serialize, Deserialize)]
pub enum ContentSpec {
    /// A repository.
    Repository(Box<RepositorySpec>),
    /// An image.
    Image(Box<ImageSpec>),
}

/// Arguments of the command that made a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Origin {
    /// Arguments after the program's name, with passwords.
    pub arguments: Vec<OsString>,
    /// Folder of relative names among them.
    #[serde(with = "esker_store::exact_path")]
    pub folder: PathBuf,
}

/// Reasons why a program can't go on with the options of a mount.
#[derive(Debug, thiserror::Error)]
pub enum SpecError {
    /// The memory file can't be read or written.
    #[error("the mount's options can't be read")]
    File(#[from] io::Error),
    /// Another version of the program wrote the options.
    #[error("the mount's options have version {0}, and this program understands version {VERSION}")]
    Version(u32),
    /// The options have a field or value that this program doesn't know.
    #[error("this program doesn't understand the mount's options: {0}")]
    Unknown(String),
}

/// Version alone, whatever else the form has.
#[derive(Deserialize)]
struct Versioned {
    version: u32,
}

impl MountSpec {
    /// Creates the options of a mount that has no other than the content's.
    pub fn new(mountpoint: PathBuf, runtime: PathBuf, content: ContentSpec) -> Self {
        Self {
            version: VERSION,
            mountpoint,
            runtime,
            options: AccessSpec::default(),
            shown_with: Presentation::Fuse,
            kernel: KernelMask::default(),
            deadline: None,
            replay: false,
            confined: true,
            is_cache_in_home: false,
            log_levels: None,
            content,
            origin: Origin::default(),
        }
    }

    /// Parses the JSON form.
    pub fn parse(text: &[u8]) -> Result<Self, SpecError> {
        let unknown = |error: serde_json::Error| SpecError::Unknown(error.to_string());
        match serde_json::from_slice(text).map_err(unknown)? {
            Versioned { version: VERSION } => serde_json::from_slice(text).map_err(unknown),
            Versioned { version } => Err(SpecError::Version(version)),
        }
    }

    /// Reads the options from a memory file.
    pub fn read(file: OwnedFd) -> Result<Self, SpecError> {
        let (mut file, mut text) = (File::from(file), Vec::new());
        file.seek(SeekFrom::Start(0))?;
        file.take(LEN_MAX).read_to_end(&mut text)?;
        Self::parse(&text)
    }

    /// Returns a sealed memory file with the options.
    pub fn sealed(&self) -> io::Result<OwnedFd> {
        sealed(&serde_json::to_vec(self)?)
    }

    /// Returns the options that the supervisor keeps; `None` if an older version of the program made the mount.
    pub fn kept_by(supervision: &Supervision) -> Result<Option<Self>, SpecError> {
        supervision.take(SPEC).map(Self::read).transpose()
    }

    /// Has the supervisor keep these options for each further daemon.
    pub fn keep(&self, supervision: &Supervision) -> io::Result<()> {
        supervision.keep(SPEC, self.sealed()?)
    }

    /// Returns the name of the mounted repository or image.
    pub fn name(&self) -> String {
        match &self.content {
            ContentSpec::Repository(repository) => repository.options.name.to_string(),
            ContentSpec::Image(image) => image.name(),
        }
    }

    /// Returns the folder of the cache, if there is one.
    pub fn cache(&self) -> Option<&Path> {
        let cache = match &self.content {
            ContentSpec::Repository(repository) => Some(repository.options.cache.as_path()),
            ContentSpec::Image(image) => image.cache(),
        };
        cache.filter(|cache| !cache.as_os_str().is_empty())
    }

    /// Returns the broker of the node that the mount uses, if there is one.
    pub(crate) fn broker(&self) -> Option<&BrokerAddress> {
        let repository = match &self.content {
            ContentSpec::Repository(repository) => repository,
            ContentSpec::Image(image) => match &image.place {
                ImagePlace::Object { repository, .. } => repository,
                _ => return None,
            },
        };
        repository.options.broker.as_ref()
    }

    /// Returns the folders that the daemon may write to, with all below, beside memory of its own.
    pub fn writable(&self) -> Vec<PathBuf> {
        let mut folders = vec![self.runtime.clone()];
        folders.extend(self.cache().map(Path::to_owned));
        if let ContentSpec::Repository(repository) = &self.content {
            folders.extend(repository.writable().map(Path::to_owned));
        }
        folders
    }

    /// Makes the memory of a cache in memory, if another process has resolved these options: each has its own.
    pub fn make_memory(&mut self) -> io::Result<()> {
        match &mut self.content {
            ContentSpec::Repository(repository) => repository.options.make_memory(),
            ContentSpec::Image(image) => image.make_memory(),
        }
    }

    /// Changes what holds for the first daemon alone.
    pub fn for_successor(&mut self) {
        if let ContentSpec::Repository(repository) = &mut self.content {
            // A successor must accept no head that is older than the one which its predecessor accepted.
            repository.options.forget_history = false;
        }
    }
}

/// Returns the options of a session, with a deadline in place of the defaults.
pub fn session(kernel: KernelMask, deadline: Option<Duration>) -> SessionOptions {
    let mut deadlines = Deadlines::default();
    if let Some(deadline) = deadline {
        deadlines =
            Deadlines { lookup: deadline, attributes: deadline, list: deadline, read: deadline, ..deadlines };
    }
    SessionOptions { kernel, deadlines, ..SessionOptions::default() }
}

#[cfg(test)]
pub(crate) mod tests;
