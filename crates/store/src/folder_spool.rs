//! Nameless files in a folder, for what is too large for memory.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::cache::disk::{Disk, RealDisk};
use crate::transport::source::Spool;

/// Spool in a folder.
#[derive(Clone, Debug)]
pub struct FolderSpool(pub PathBuf);

impl Spool for FolderSpool {
    fn file(&self) -> io::Result<File> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let disk = &RealDisk::PRIVATE;
        if let Some(file) = disk.create_nameless(&self.0)? {
            return Ok(file);
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = self.0.join(format!(".esker-spool-{}-{number}", std::process::id()));
        let file = disk.create_spool(&path)?;
        disk.remove(&path)?;
        Ok(file)
    }

    fn append(&self, file: &File, bytes: &[u8]) -> io::Result<()> {
        RealDisk::PRIVATE.write(file, bytes)
    }
}
