//! Sources of an image's bytes.

use std::fs::File;
use std::io;
use std::num::NonZero;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use esker_threads::waits::{WaitCause, timed};

/// The immutable bytes of an image.
pub trait Image: Send + Sync + 'static {
    /// Returns the name of the image for messages: a path or a URL.
    fn name(&self) -> Arc<str>;

    /// Returns the length in bytes.
    fn len(&self) -> u64;

    /// Returns true if the image has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buffer` from `offset`. May block: only threads of the pool call it, and never beyond
    /// [`Image::len`].
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Hints that `len` bytes from `offset` will probably be read soon. Must not block.
    fn will_read(&self, offset: u64, len: u64) {
        let _ = (offset, len);
    }

    /// Returns the preferred size and alignment of reads in bytes: the stripe of a parallel file system, or a
    /// size that is worth a request over a network. 0 where small reads cost nothing.
    fn stripe(&self) -> usize {
        0
    }

    /// Returns the offset of the image in its file; alignment counts from the start of the file.
    fn origin(&self) -> u64 {
        0
    }

    /// Returns the time of the latest arrival of bytes for any read in progress, if the source is remote.
    /// Reads that wait for a thread wait for those.
    fn progress(&self) -> Option<Instant> {
        None
    }

    /// Returns the maximum number of reads in progress at once.
    fn parallel(&self) -> usize {
        0
    }
}

/// An image in a file, or in a part of one. The file is opened once and read with positioned reads.
#[derive(Debug)]
pub struct FileImage {
    file: File,
    name: Arc<str>,
    offset: u64,
    len: u64,
    stripe: usize,
}

impl FileImage {
    /// Opens the file at `path`; the image in it begins at byte `offset`.
    pub fn open(path: &Path, offset: u64) -> io::Result<Self> {
        let file = File::open(path)?;
        let meta = file.metadata()?;
        let kind = meta.file_type();
        if meta.is_dir() {
            return Err(io::ErrorKind::IsADirectory.into());
        }
        let whole = if kind.is_block_device() {
            io::Seek::seek(&mut &file, io::SeekFrom::End(0))?
        } else {
            meta.len()
        };
        let len = whole.checked_sub(offset).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, format!("it has only {whole} bytes"))
        })?;
        Ok(Self { file, name: path.to_string_lossy().into(), offset, len, stripe: 0 })
    }

    /// Sets the name for messages.
    pub fn with_name(mut self, name: &str) -> Self {
        self.name = name.into();
        self
    }

    /// Sets the size and alignment of reads to `stripe` bytes.
    pub fn with_stripe(self, stripe: usize) -> Self {
        Self { stripe, ..self }
    }
}

impl Image for FileImage {
    fn name(&self) -> Arc<str> {
        Arc::clone(&self.name)
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let at = self.offset.checked_add(offset).ok_or(io::ErrorKind::UnexpectedEof)?;
        timed(WaitCause::Disk, || self.file.read_exact_at(buffer, at))
    }

    fn will_read(&self, offset: u64, len: u64) {
        if let Some(at) = self.offset.checked_add(offset) {
            // A file system without support for this reads on demand.
            let _ = rustix::fs::fadvise(&self.file, at, NonZero::new(len), rustix::fs::Advice::WillNeed);
        }
    }

    fn stripe(&self) -> usize {
        self.stripe
    }

    fn origin(&self) -> u64 {
        self.offset
    }
}

/// An image in memory, for tests and tools.
impl Image for Vec<u8> {
    fn name(&self) -> Arc<str> {
        "an image in memory".into()
    }

    fn len(&self) -> u64 {
        Vec::len(self) as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let bytes = start.and_then(|start| self.get(start..start.checked_add(buffer.len())?));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}
