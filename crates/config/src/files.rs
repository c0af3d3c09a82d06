//! Reads the configuration's files.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

/// Maximum size of a configuration file in bytes; those of large sites have some kilobytes.
pub(super) const FILE_MAX: u64 = 256 * 1024;
/// Maximum number of files read from a configuration folder.
const NAMES_MAX: usize = 1000;

/// Test of a path, as in `[ -f … ]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Probe {
    /// `-e`: the path exists.
    Exists,
    /// `-f`: the path is a regular file.
    File,
    /// `-d`: the path is a folder.
    Folder,
    /// `-s`: the file is not empty.
    NotEmpty,
    /// `-h`: the path is a symbolic link.
    Link,
    /// `-r`: the path is readable.
    Readable,
    /// `-w`: the path is writable.
    Writable,
    /// `-x`: the path is executable.
    Executable,
}

/// File access for the configuration. Paths are absolute.
pub trait Files: Send + Sync {
    /// Reads a file of at most `limit` bytes.
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>>;
    /// Returns the names in a folder, sorted.
    fn names(&self, folder: &Path) -> io::Result<Vec<String>>;
    /// Returns whether every user may read a file, by the modes of it and of the folders above it.
    fn is_public(&self, path: &Path) -> io::Result<bool>;
    /// Returns true if the test holds for a path.
    fn probe(&self, path: &Path, probe: Probe) -> bool;
}

/// Files of this machine, or those below a folder that represents its root.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// Makes the files below `base`: `/` for this machine.
    pub fn new(base: impl Into<PathBuf>) -> Self {
        Self(base.into())
    }

    /// Returns the real path of a path in the configuration.
    pub fn place(&self, path: &Path) -> PathBuf {
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }
}

/// Reads a file of at most `limit` bytes; a pipe or a device in its place doesn't block.
pub fn read_file(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a file"));
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(io::Error::other(format!("it has more than {limit} bytes")));
    }
    Ok(bytes)
}

impl Files for Root {
    fn read(&self, path: &Path, limit: u64) -> io::Result<Vec<u8>> {
        read_file(&self.place(path), limit)
    }

    fn is_public(&self, path: &Path) -> io::Result<bool> {
        let path = self.place(path).canonicalize()?;
        let is_open = |path: &Path, bit: u32| std::fs::metadata(path).map(|meta| meta.mode() & bit != 0);
        if !is_open(&path, 0o004)? {
            return Ok(false);
        }
        // The folders above one that stands for the root are not part of the configuration.
        let base = self.0.canonicalize()?;
        for folder in
            path.ancestors().skip(1).take_while(|folder| folder.starts_with(&base) && **folder != *base)
        {
            if !is_open(folder, 0o001)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn names(&self, folder: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(self.place(folder))?.take(NAMES_MAX) {
            names.extend(entry?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }

    fn probe(&self, path: &Path, probe: Probe) -> bool {
        let path = self.place(path);
        let meta = || std::fs::metadata(&path);
        let may = |how: Access| access(&path, how).is_ok();
        match probe {
            Probe::Exists => meta().is_ok(),
            Probe::File => meta().is_ok_and(|meta| meta.is_file()),
            Probe::Folder => meta().is_ok_and(|meta| meta.is_dir()),
            Probe::NotEmpty => meta().is_ok_and(|meta| meta.len() > 0),
            Probe::Link => std::fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_symlink()),
            Probe::Readable => may(Access::READ_OK),
            Probe::Writable => may(Access::WRITE_OK),
            Probe::Executable => may(Access::EXEC_OK),
        }
    }
}
