//! Represents the machine to set up: this one, or a folder that is the root of another.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use esker_store::{RealDisk, persist};

use crate::error::{Failure, Kind};

/// Path of setup's record on a machine.
const RECORD: &str = "/var/lib/esker/setup.json";

/// A root folder, or the files of a user of this machine.
#[derive(Clone, Debug)]
pub(crate) struct Machine {
    root: PathBuf,
    record: PathBuf,
}

impl Machine {
    /// Returns the machine whose root is this folder.
    pub(crate) fn at(root: &Path) -> Self {
        Self { root: root.to_owned(), record: RECORD.into() }
    }

    /// Makes the machine for a user's own files, with the record at `record`.
    pub(crate) fn of_user(record: PathBuf) -> Self {
        Self { root: "/".into(), record }
    }

    /// Returns the path of setup's record on that machine.
    pub(crate) fn record(&self) -> &Path {
        &self.record
    }

    pub(crate) fn is_this(&self) -> bool {
        self.root == Path::new("/")
    }

    /// Returns the path on this machine of a path on that machine.
    pub(crate) fn place(&self, path: &Path) -> PathBuf {
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    pub(crate) fn has(&self, path: &str) -> bool {
        fs::symlink_metadata(self.place(Path::new(path))).is_ok()
    }

    /// Returns the folder of mount(8)'s helpers: `/sbin`, or the folder that it links to.
    pub(crate) fn sbin(&self) -> PathBuf {
        let own = fs::symlink_metadata(self.place(Path::new("/sbin"))).is_ok_and(|meta| meta.is_dir());
        PathBuf::from(if own { "/sbin" } else { "/usr/sbin" })
    }

    /// True if the client of CernVM-FS is installed, by its own files.
    pub(crate) fn has_reference(&self) -> bool {
        self.has("/usr/bin/cvmfs2")
            || self.has("/etc/auto.cvmfs")
            || self.has("/etc/auto.master.d/cvmfs.autofs")
    }

    pub(super) fn read_with_mode(&self, place: &Path) -> io::Result<(Vec<u8>, u32)> {
        match fs::read(place) {
            Ok(bytes) => Ok((bytes, fs::metadata(place)?.mode() & 0o7777)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((Vec::new(), 0o644)),
            Err(error) => Err(error),
        }
    }

    /// Writes a file atomically.
    pub(super) fn write(&self, place: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
        persist(&RealDisk::SERVED, place, bytes)?;
        self.set_mode(place, mode)
    }

    pub(super) fn set_mode(&self, place: &Path, mode: u32) -> io::Result<()> {
        fs::set_permissions(place, fs::Permissions::from_mode(mode))
    }

    pub(super) fn failed(&self, action: &str, path: &Path, error: &io::Error) -> Failure {
        let place = self.place(path);
        let failure = Failure::new(Kind::Failed, format!("can't {action} {}: {error}", place.display()));
        match error.kind() {
            io::ErrorKind::PermissionDenied => failure
                .hint("a machine is set up by root; --dry-run shows what would be done, --root DIR does it elsewhere"),
            _ => failure,
        }
    }
}
