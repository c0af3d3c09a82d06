//! Keeps large bodies on disk while they are received and verified, within the limit of the cache.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::sync::Arc;

use esker_store::{Cause, Spool, SpoolAccount};

use super::disk::DiskCache;
use super::evict;

/// Spool in the folder of the cache.
pub(crate) struct CacheSpool(pub(crate) Arc<DiskCache>);

/// Reserved bytes of one spooled body.
struct Reserved {
    cache: Arc<DiskCache>,
    bytes: u64,
}

impl Spool for CacheSpool {
    fn file(&self) -> io::Result<File> {
        let path = self.0.temporary();
        let file = OpenOptions::new().read(true).append(true).create_new(true).mode(0o600).open(&path)?;
        // The descriptor is all that is needed, and a crash leaves nothing.
        fs::remove_file(&path)?;
        Ok(file)
    }

    fn append(&self, mut file: &File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn account(&self) -> Option<Box<dyn SpoolAccount>> {
        Some(Box::new(Reserved { cache: self.0.clone(), bytes: 0 }))
    }
}

impl SpoolAccount for Reserved {
    fn grow(&mut self, bytes: u64) -> Result<(), Cause> {
        if !evict::make_room(&self.cache, bytes) {
            let (used, limit) = (self.cache.used(), self.cache.limit);
            return Err(Cause::Full { needed: bytes, used, limit });
        }
        self.bytes += bytes;
        Ok(())
    }

    fn shrink(&mut self, bytes: u64) {
        let bytes = bytes.min(self.bytes);
        self.bytes -= bytes;
        self.cache.release(bytes);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.cache.release(self.bytes);
    }
}
