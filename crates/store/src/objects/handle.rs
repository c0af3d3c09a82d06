//! Verified bytes of one object, ready to be read.

use std::fmt;
use std::fs::File;
use std::io;
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use memmap2::Mmap;
use rustix::fs::{Advice, Mode, OFlags};
use rustix::io::Errno;

use crate::cache::EntryUse;
use crate::cache::disk::descriptor_path;
use crate::sys;

/// Maximum size of objects that are read into memory as a whole when they are mapped.
const MAPPED_AHEAD: u64 = 64 << 20;

/// Verified plain bytes of one object. Only stores make it, and they only make it of bytes whose hash was
/// checked. While a handle (or the file or a mapping taken from it) lives, the cache keeps the object.
#[derive(Clone, Debug)]
pub struct Handle {
    file: Arc<OpenObject>,
    len: u64,
}

/// Open file behind one or more [`Handle`]s, which the cache may close after the last one is dropped. The cache
/// learns when the last holder lets go of it, and may then close it.
pub struct OpenObject {
    // Declared first, so that it is dropped before the guard ends this use.
    file: Arc<File>,
    keep: Keep,
}

/// Resources that live as long as the file is in use.
pub(crate) enum Keep {
    /// A use of a cache entry.
    Entry(EntryUse),
    /// Resources of a file outside the cache: space and descriptor.
    Other { _guard: Box<dyn Send + Sync> },
    /// The descriptor of a file in a cache of another process.
    Received { _slot: Box<dyn Send + Sync> },
}

impl Handle {
    pub(crate) fn new(file: Arc<File>, len: u64, keep: Keep) -> Self {
        Self { file: Arc::new(OpenObject { file, keep }), len }
    }

    /// Makes a handle of a descriptor that a store in another process sent after verifying the object: the first `len`
    /// bytes of the file. `slot` is dropped when the descriptor is closed; a mapping needs neither.
    pub fn from_fd(fd: OwnedFd, len: u64, slot: impl Send + Sync + 'static) -> Self {
        Self::new(Arc::new(File::from(fd)), len, Keep::Received { _slot: Box::new(slot) })
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if the object is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Reads from `offset`; returns fewer bytes than requested only at the end.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let left = self.len.saturating_sub(offset);
        let wanted = usize::try_from(left).map_or(buffer.len(), |left| left.min(buffer.len()));
        let mut filled = 0;
        while filled < wanted {
            match self.file.file.read_at(&mut buffer[filled..wanted], offset + filled as u64) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(got) => filled += got,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }

    /// Returns all bytes; for small objects.
    pub fn read_all(&self) -> io::Result<Vec<u8>> {
        let len = usize::try_from(self.len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let mut bytes = vec![0; len];
        self.read_at(&mut bytes, 0)?;
        Ok(bytes)
    }

    /// Makes the kernel read a part of the object into memory.
    pub(crate) fn read_ahead(&self, range: Range<u64>) {
        let end = range.end.min(self.len);
        // No length would stand for everything.
        if let Some(len) = end.checked_sub(range.start).and_then(NonZeroU64::new) {
            // Advice: a file system that can't take it serves the reads all the same.
            let _ = rustix::fs::fadvise(&*self.file.file, range.start, Some(len), Advice::WillNeed);
        }
    }

    /// Opens the file again, read-only, so that another process shares no file description with readers here.
    pub fn reopen(&self) -> io::Result<OwnedFd> {
        let own = descriptor_path(&self.file.file);
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        match rustix::fs::open(own, flags, Mode::empty()) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::ACCESS) => self.reopen_by_name(flags),
            other => Ok(other?),
        }
    }

    /// Opens the file without `/proc`: by its name in the cache, if that is still this file.
    fn reopen_by_name(&self, flags: OFlags) -> io::Result<OwnedFd> {
        let Keep::Entry(usage) = &self.file.keep else { return Err(io::ErrorKind::Unsupported.into()) };
        let file =
            rustix::fs::open(usage.path(), flags | OFlags::NOFOLLOW | OFlags::NONBLOCK, Mode::empty())?;
        let (named, open) = (rustix::fs::fstat(&file)?, rustix::fs::fstat(&*self.file.file)?);
        if (named.st_dev, named.st_ino) != (open.st_dev, open.st_ino) {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(file)
    }

    /// Returns the open file: the object is its first [`Handle::len`] bytes, more may follow.
    pub fn file(&self) -> Arc<OpenObject> {
        self.file.clone()
    }

    /// Maps the object into memory. The mapping needs no descriptor; the cache keeps the object as long as
    /// the mapping lives.
    pub fn map(&self) -> io::Result<Mapped> {
        let len = usize::try_from(self.len).map_err(|_| io::ErrorKind::FileTooLarge)?;
        // Catalogs are searched all over: page by page that takes a seek each.
        if self.len <= MAPPED_AHEAD {
            self.read_ahead(0..self.len);
        }
        // The kernel refuses to map nothing.
        let bytes = if len == 0 { None } else { Some(sys::map(&self.file.file, len)?) };
        let keep = match &self.file.keep {
            Keep::Entry(entry) => MappedKeep::Pin { _pin: entry.pin() },
            Keep::Other { .. } => MappedKeep::File { _file: self.file.clone() },
            Keep::Received { .. } => MappedKeep::Nothing,
        };
        Ok(Mapped(Arc::new(Mapping { bytes, _keep: keep })))
    }
}

impl AsFd for OpenObject {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl fmt::Debug for OpenObject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OpenObject").field(&self.file).finish()
    }
}

/// An object mapped into memory.
#[derive(Clone)]
pub struct Mapped(Arc<Mapping>);

struct Mapping {
    bytes: Option<Mmap>,
    _keep: MappedKeep,
}

enum MappedKeep {
    Pin { _pin: crate::cache::Pin },
    File { _file: Arc<OpenObject> },
    Nothing,
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes.as_deref().unwrap_or_default()
    }
}

impl fmt::Debug for Mapped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapped({} bytes)", self.as_ref().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::{Cache, CacheOptions};
    use crate::engine::{Engine, EngineOptions};

    /// Without `/proc` a file is opened by its name in the cache, if that is the same file.
    #[test]
    fn an_entry_is_reopened_by_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let engine = Engine::start(EngineOptions::default()).unwrap();
        let cache = Cache::open(&engine, folder.path(), CacheOptions::with_quota(1 << 30)).unwrap();
        let handle = cache.state.keep_for_test(b"an object");
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let again = Handle::from_fd(handle.reopen_by_name(flags).unwrap(), handle.len(), ());
        assert_eq!(again.read_all().unwrap(), b"an object");
        let Keep::Entry(usage) = &handle.file.keep else { panic!("it is in the cache") };
        std::fs::remove_file(usage.path()).unwrap();
        std::fs::write(usage.path(), "another file").unwrap();
        assert_eq!(handle.reopen_by_name(flags).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(handle.reopen().is_ok(), "through /proc it needs no name");
    }
}
