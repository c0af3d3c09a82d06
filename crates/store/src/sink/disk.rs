//! The disk as a web server needs it.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::Path;

use crate::cache::disk::{Disk, FileFacts, RealDisk};

/// The disk, with files and folders that others may read as far as the umask lets them.
#[derive(Clone, Copy, Debug, Default)]
pub struct ServedDisk;

const FILE_MODE: u32 = 0o666;
const FOLDER_MODE: u32 = 0o777;

impl Disk for ServedDisk {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        match fs::DirBuilder::new().mode(FOLDER_MODE).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            other => other,
        }
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)
    }

    fn create_spool(&self, path: &Path) -> io::Result<File> {
        OpenOptions::new().read(true).write(true).create_new(true).mode(FILE_MODE).open(path)
    }

    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        RealDisk.write(file, bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        RealDisk.sync(file)
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        RealDisk.open(path)
    }

    fn read_exact_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        RealDisk.read_exact_at(file, buffer, offset)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        RealDisk.rename(from, to)
    }

    fn link(&self, target: &Path, path: &Path) -> io::Result<()> {
        RealDisk.link(target, path)
    }

    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        RealDisk.set_mode(path, mode)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        RealDisk.remove(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        RealDisk.list(path)
    }

    fn facts(&self, path: &Path) -> io::Result<FileFacts> {
        RealDisk.facts(path)
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_dir(path)
    }

    fn sync_all(&self, path: &Path) -> io::Result<()> {
        RealDisk.sync_all(path)
    }
}
