//! Simulates a disk of limited size.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Mutex;

use esker_store::{Disk, FileFacts, RealDisk};

/// `ENOSPC`.
const FULL: i32 = 28;

/// A real folder that is full after a number of bytes. A file without a name takes room only while it is
/// written.
pub struct SmallDisk {
    inner: RealDisk,
    free: Mutex<u64>,
}

impl SmallDisk {
    /// Creates a disk with `free` bytes.
    pub fn new(free: u64) -> Self {
        Self { inner: RealDisk::PRIVATE, free: Mutex::new(free) }
    }
}

impl Disk for SmallDisk {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.make_dir(path)
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        self.inner.create(path)
    }

    fn create_spool(&self, path: &Path) -> io::Result<File> {
        self.inner.create_spool(path)
    }

    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        let (len, facts) = (bytes.len() as u64, file.metadata()?);
        let has_name = facts.nlink() > 0;
        let mut free = self.free.lock().unwrap();
        let needed = if has_name { len } else { facts.len() + len };
        if needed > *free {
            return Err(io::Error::from_raw_os_error(FULL));
        }
        *free -= if has_name { len } else { 0 };
        self.inner.write(file, bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        self.inner.sync(file)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        self.inner.open(path)
    }

    fn read_exact_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.inner.read_exact_at(file, buffer, offset)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn link(&self, target: &Path, path: &Path) -> io::Result<()> {
        self.inner.link(target, path)
    }

    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        self.inner.set_mode(path, mode)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut free = self.free.lock().unwrap();
        let len = fs::symlink_metadata(path)?.len();
        self.inner.remove(path)?;
        *free += len;
        Ok(())
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        self.inner.list(path)
    }

    fn facts(&self, path: &Path) -> io::Result<FileFacts> {
        self.inner.facts(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_dir(path)
    }

    fn sync_all(&self, path: &Path) -> io::Result<()> {
        self.inner.sync_all(path)
    }
}
