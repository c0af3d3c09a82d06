//! Reads the source folder through descriptors, name by name, so that long paths work and new symlinks can't
//! lead outside.

mod attributes;

use std::ffi::{CStr, OsStr};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use esker_archive::folder::{self, OPEN_DIRECTORY, OPEN_FILE};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, fstatfs, openat, readlinkat, statat};

use crate::error::PublishError;

pub(crate) use attributes::{pack_xattrs, read_xattr_pairs};

/// A time with nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Time {
    pub(crate) seconds: i64,
    pub(crate) nanoseconds: u32,
}

/// Metadata of a file, from `stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    pub(crate) mode: u32,
    pub(crate) links: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    pub(crate) device: u64,
    pub(crate) inode: u64,
    /// The number of the device that a device file is.
    pub(crate) special: u64,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
}

impl Facts {
    #[expect(clippy::unnecessary_cast, reason = "the fields have other types on other architectures")]
    fn of(stat: &rustix::fs::Stat) -> Self {
        let time = |seconds: i64, nanoseconds: u64| Time {
            seconds,
            nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
        };
        Self {
            mode: stat.st_mode as u32,
            links: stat.st_nlink as u64,
            uid: stat.st_uid as u32,
            gid: stat.st_gid as u32,
            size: (stat.st_size as i64).cast_unsigned(),
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
            special: stat.st_rdev as u64,
            mtime: time(stat.st_mtime as i64, stat.st_mtime_nsec as u64),
            ctime: time(stat.st_ctime as i64, stat.st_ctime_nsec as u64),
        }
    }

    /// Returns the metadata of an open file.
    pub(crate) fn of_file(file: BorrowedFd<'_>) -> rustix::io::Result<Self> {
        rustix::fs::fstat(file).map(|stat| Self::of(&stat))
    }

    fn kind(&self) -> u32 {
        self.mode & 0o170_000
    }

    pub(crate) fn is_directory(&self) -> bool {
        self.kind() == 0o040_000
    }

    pub(crate) fn is_file(&self) -> bool {
        self.kind() == 0o100_000
    }

    pub(crate) fn is_symlink(&self) -> bool {
        self.kind() == 0o120_000
    }

    pub(crate) fn is_device(&self) -> bool {
        matches!(self.kind(), 0o020_000 | 0o060_000)
    }
}

/// An entry of a source directory.
#[derive(Debug)]
pub(crate) struct SourceEntry {
    pub(crate) name: Vec<u8>,
    pub(crate) facts: Facts,
    /// The target of a symlink.
    pub(crate) target: Vec<u8>,
    /// True if the ctime of a file on this file system changes with every change of the file.
    pub(crate) dated: bool,
}

/// File systems without change times of their own: images show the times that their builder wrote, FUSE those of its
/// server. Another file at the same path may have the same metadata.
const UNDATED: [u32; 6] = [
    0x7371_7368, // squashfs
    0xe0f5_e1e2, // EROFS
    0x9660,      // iso9660
    0x28cd_3d45, // cramfs
    0x7275,      // romfs
    0x6573_5546, // FUSE
];

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the numbers have 32 bits")]
fn is_dated(directory: &OwnedFd) -> rustix::io::Result<bool> {
    fstatfs(directory).map(|facts| !UNDATED.contains(&(facts.f_type as u32)))
}

/// The folder to publish.
#[derive(Debug)]
pub(crate) struct Source {
    path: PathBuf,
    folder: OwnedFd,
}

impl Source {
    pub(crate) fn open(path: &Path) -> Result<Self, PublishError> {
        // The path itself may be a symlink, which is followed.
        let folder = openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let folder = folder.map_err(|error| PublishError::Source {
            doing: "opening",
            path: path.to_owned(),
            source: error.into(),
        })?;
        Ok(Self { path: path.to_owned(), folder })
    }

    /// Returns the path of an entry for messages.
    pub(crate) fn shown(&self, relative: &[u8]) -> PathBuf {
        let relative = relative.strip_prefix(b"/").unwrap_or(relative);
        if relative.is_empty() { self.path.clone() } else { self.path.join(OsStr::from_bytes(relative)) }
    }

    pub(crate) fn failed(
        &self,
        doing: &'static str,
        relative: &[u8],
    ) -> impl FnOnce(rustix::io::Errno) -> PublishError {
        let path = self.shown(relative);
        move |error| PublishError::Source { doing, path, source: error.into() }
    }

    /// Returns the metadata of the source folder.
    pub(crate) fn root_facts(&self) -> Result<Facts, PublishError> {
        Facts::of_file(self.folder.as_fd()).map_err(self.failed("looking at", b""))
    }

    /// Opens a directory by its path below the folder, name by name.
    pub(crate) fn open_directory(&self, relative: &[u8]) -> Result<OwnedFd, PublishError> {
        let failed = || self.failed("opening directory", relative);
        let mut directory = openat(&self.folder, c".", OPEN_DIRECTORY, Mode::empty()).map_err(failed())?;
        for name in relative.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            directory = openat(&directory, OsStr::from_bytes(name), OPEN_DIRECTORY, Mode::empty())
                .map_err(failed())?;
        }
        Ok(directory)
    }

    /// Opens a file of a directory for reading.
    pub(crate) fn open_file(
        &self,
        directory: &OwnedFd,
        relative: &[u8],
        name: &[u8],
    ) -> Result<OwnedFd, PublishError> {
        openat(directory, OsStr::from_bytes(name), OPEN_FILE, Mode::empty())
            .map_err(self.failed("opening", &esker_repository::path::join(relative, name)))
    }

    /// Reads a whole open file of at most `limit` bytes.
    pub(crate) fn read_whole(
        &self,
        file: &OwnedFd,
        path: &[u8],
        limit: u64,
    ) -> Result<Vec<u8>, PublishError> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let (mut bytes, mut room) = (Vec::new(), vec![0; 64 << 10]);
        loop {
            match rustix::io::read(file, &mut room) {
                Ok(0) => return Ok(bytes),
                Ok(len) if bytes.len() + len > limit => {
                    return Err(self.failed("reading", path)(rustix::io::Errno::FBIG));
                }
                Ok(len) => bytes.extend_from_slice(&room[..len]),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(self.failed("reading", path)(error)),
            }
        }
    }

    /// Lists a directory by name.
    pub(crate) fn list(
        &self,
        directory: &OwnedFd,
        relative: &[u8],
    ) -> Result<Vec<SourceEntry>, PublishError> {
        let dated = is_dated(directory).map_err(self.failed("looking at the file system of", relative))?;
        let names = folder::names(directory).map_err(self.failed("reading directory", relative))?;
        names.iter().map(|name| self.look_at(directory, relative, name, dated)).collect()
    }

    fn look_at(
        &self,
        directory: &OwnedFd,
        relative: &[u8],
        name: &CStr,
        dated: bool,
    ) -> Result<SourceEntry, PublishError> {
        let path = || esker_repository::path::join(relative, name.to_bytes());
        let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW);
        let facts = Facts::of(&stat.map_err(|error| self.failed("looking at", &path())(error))?);
        let target = match facts.is_symlink() {
            true => readlinkat(directory, name, Vec::new())
                .map_err(|error| self.failed("reading symlink", &path())(error))?
                .into_bytes(),
            false => Vec::new(),
        };
        Ok(SourceEntry { name: name.to_bytes().to_vec(), facts, target, dated })
    }
}
