//! Bytes of databases: in memory if they are few, else in an unnamed file that is mapped.
//!
//! A publisher decides how long its catalogs and histories are, and compressed bytes may stand for a thousand times as many.
//! [`LargeWriter`] takes what arrives and moves to a file before it takes much memory; [`inflated`] also stops at the
//! stated size. All files of a process together are bounded.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::{fmt, mem};

use esker_format::compress::{Compression, DecompressError, decompress, inflate_into};
use memmap2::Mmap;

use crate::folder_spool::FolderSpool;
use crate::objects::handle::Mapped;
use crate::sys;
use crate::transport::source::{Spool as _, Stored};

/// Maximum number of bytes that stay in memory.
const MEMORY_MAX: usize = 64 << 20;
/// Maximum number of bytes in files of a process at a time.
const FILES_MAX: u64 = 16 << 30;
/// Steps in which the room for files is reserved, in bytes.
const STEP: u64 = 16 << 20;

/// Bytes in files now.
static IN_FILES: AtomicU64 = AtomicU64::new(0);

/// Bytes in memory or in a mapped file. Cheap to clone.
#[derive(Clone)]
pub struct LargeBytes(Arc<Place>);

enum Place {
    Memory(Vec<u8>),
    /// An object in a cache.
    Object(Mapped),
    /// An unnamed file; it is unmapped before its room counts as free.
    File {
        bytes: Mmap,
        _room: Room,
    },
}

/// Room that a file takes; free once dropped.
struct Room(u64);

impl Room {
    fn grow_to(&mut self, bytes: u64) -> io::Result<()> {
        while self.0 < bytes {
            if IN_FILES.fetch_add(STEP, Ordering::Relaxed) + STEP > FILES_MAX {
                IN_FILES.fetch_sub(STEP, Ordering::Relaxed);
                let text = format!("the databases being read have more than {} GiB", FILES_MAX >> 30);
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
            }
            self.0 += STEP;
        }
        Ok(())
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        IN_FILES.fetch_sub(self.0, Ordering::Relaxed);
    }
}

impl LargeBytes {
    /// Returns the bytes of a received body. Blocks.
    pub fn of_stored(stored: Stored, folder: &Path) -> io::Result<Self> {
        let len = stored.len();
        match stored.into_file() {
            Ok(file) => {
                let mut room = Room(0);
                room.grow_to(len)?;
                Self::of_file(&file, len, room)
            }
            Err(stored) => {
                let mut writer = LargeWriter::new(folder, u64::MAX);
                stored.pieces(|piece| writer.write_all(piece))?;
                writer.finish()
            }
        }
    }

    /// Maps the first `len` bytes of an unnamed file that nothing writes to any more.
    fn of_file(file: &File, len: u64, room: Room) -> io::Result<Self> {
        let len = usize::try_from(len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        // The kernel refuses to map nothing.
        if len == 0 {
            return Ok(Vec::new().into());
        }
        Ok(Self(Arc::new(Place::File { bytes: sys::map(file, len)?, _room: room })))
    }

    /// Returns the bytes in memory.
    pub fn into_vec(self) -> Vec<u8> {
        match Arc::try_unwrap(self.0) {
            Ok(Place::Memory(bytes)) => bytes,
            Ok(place) => Self(Arc::new(place)).to_vec(),
            Err(shared) => Self(shared).to_vec(),
        }
    }
}

impl Deref for LargeBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &*self.0 {
            Place::Memory(bytes) => bytes,
            Place::Object(mapped) => mapped.as_ref(),
            Place::File { bytes, .. } => bytes,
        }
    }
}

impl AsRef<[u8]> for LargeBytes {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl From<Vec<u8>> for LargeBytes {
    fn from(bytes: Vec<u8>) -> Self {
        Self(Arc::new(Place::Memory(bytes)))
    }
}

impl From<Mapped> for LargeBytes {
    fn from(object: Mapped) -> Self {
        Self(Arc::new(Place::Object(object)))
    }
}

impl fmt::Debug for LargeBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LargeBytes({} bytes)", self.len())
    }
}

/// Collects bytes, at most `limit` of them.
pub struct LargeWriter {
    folder: FolderSpool,
    limit: u64,
    len: u64,
    memory: Vec<u8>,
    file: Option<(File, Room)>,
}

impl LargeWriter {
    /// Creates a writer whose file, if one is needed, is in this folder.
    pub fn new(folder: &Path, limit: u64) -> Self {
        Self { folder: FolderSpool(folder.to_owned()), limit, len: 0, memory: Vec::new(), file: None }
    }

    /// Returns the collected bytes.
    pub fn finish(self) -> io::Result<LargeBytes> {
        match self.file {
            None => Ok(self.memory.into()),
            Some((file, room)) => LargeBytes::of_file(&file, self.len, room),
        }
    }

    fn move_to_file(&mut self) -> io::Result<()> {
        let mut file = self.folder.file()?;
        let mut room = Room(0);
        room.grow_to(self.len)?;
        file.write_all(&mem::take(&mut self.memory))?;
        self.file = Some((file, room));
        Ok(())
    }
}

impl Write for LargeWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() as u64 > self.limit - self.len {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        if self.file.is_none() && self.memory.len() + bytes.len() > MEMORY_MAX {
            self.move_to_file()?;
        }
        self.len += bytes.len() as u64;
        match &mut self.file {
            None => self.memory.extend_from_slice(bytes),
            Some((file, room)) => {
                room.grow_to(self.len)?;
                file.write_all(bytes)?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Decompresses an object. `size` is the plain size that the repository states, if it does: any other one is an error. Never
/// produces more than `limit` bytes; a file, if one is needed, is in `folder`.
pub fn inflated(
    stored: &[u8],
    compression: Compression,
    size: Option<u64>,
    limit: u64,
    folder: &Path,
) -> Result<LargeBytes, DecompressError> {
    if size.is_some_and(|size| size <= MEMORY_MAX as u64) {
        // Faster, because the length is known.
        return decompress(stored, compression, size, limit).map(LargeBytes::from);
    }
    let mut plain = LargeWriter::new(folder, size.unwrap_or(limit));
    inflate_into(stored, compression, size, limit, &mut |piece| plain.write_all(piece))?;
    plain.finish().map_err(DecompressError::Sink)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use esker_format::compress::compress_zlib;
    use esker_testkit::waiting::until;

    use super::*;

    #[test]
    fn many_bytes_go_to_a_file_and_few_stay_in_memory() {
        let folder = tempfile::tempdir().unwrap();
        for (len, is_file) in [(0, false), (1000, false), (MEMORY_MAX, false), (MEMORY_MAX + 1, true)] {
            let plain: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
            let mut writer = LargeWriter::new(folder.path(), u64::MAX);
            plain.chunks(1 << 20).for_each(|piece| writer.write_all(piece).unwrap());
            let bytes = writer.finish().unwrap();
            assert_eq!(matches!(*bytes.0, Place::File { .. }), is_file, "{len}");
            assert!(*bytes == plain[..], "{len}");
        }
        // The other test has files, too.
        let is_free = || IN_FILES.load(Ordering::Relaxed) == 0;
        assert!(until(Duration::from_secs(60), is_free), "all room is free again");
        assert_eq!(folder.path().read_dir().unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn an_object_inflates_to_no_more_than_is_stated() {
        let folder = tempfile::tempdir().unwrap();
        let bomb = compress_zlib(&vec![0; 100 << 20]);
        let inflate = |size, limit| inflated(&bomb, Compression::Zlib, size, limit, folder.path());
        assert!(matches!(inflate(Some(4096), 1 << 30), Err(DecompressError::Length { expected: 4096, .. })));
        assert!(matches!(inflate(Some(1 << 30), 1 << 30), Err(DecompressError::Length { .. })));
        assert!(matches!(inflate(None, 1 << 20), Err(DecompressError::TooLarge { limit: 0x10_0000 })));
        assert!(matches!(inflate(Some(2 << 20), 1 << 20), Err(DecompressError::TooLarge { .. })));
        assert_eq!(inflate(Some(100 << 20), 1 << 30).unwrap().len(), 100 << 20);
        assert_eq!(inflate(None, 1 << 30).unwrap().len(), 100 << 20);
    }
}
