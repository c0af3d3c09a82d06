//! Writes the image to its target.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::WriteError;

/// Destination of an image.
pub trait Target: Send {
    /// Writes all of `bytes` at `offset`.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes the first `len` bytes durable, and then visible. Called once, after all writes.
    fn finish(&mut self, len: u64) -> io::Result<()>;
}

/// Sequential writer of an image.
pub(super) struct Image<'t> {
    target: &'t mut dyn Target,
    end: u64,
}

impl<'t> Image<'t> {
    /// Starts an image with room for `start` bytes at its beginning.
    pub(super) fn new(target: &'t mut dyn Target, start: u64) -> Self {
        Self { target, end: start }
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    pub(super) fn append(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        self.write(self.end, bytes)?;
        self.end += bytes.len() as u64;
        Ok(())
    }

    /// Moves back to offset `to`: later writes replace the bytes there, and the end of the image cuts them
    /// off.
    pub(super) fn go_back(&mut self, to: u64) {
        self.end = to;
    }

    /// Writes the bytes `start` at the beginning, pads the image with zeros to a multiple of `unit`, and
    /// publishes it.
    pub(super) fn finish(mut self, start: &[u8], unit: u64) -> Result<u64, WriteError> {
        self.write(0, start)?;
        let len = self.end.next_multiple_of(unit);
        // Bytes of a block that was taken back may follow, so the padding is written.
        let padding = usize::try_from(len - self.end).unwrap_or(0);
        self.write(self.end, &vec![0; padding])?;
        self.target.finish(len).map_err(|source| WriteError::Image { doing: "completing", source })?;
        Ok(len)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), WriteError> {
        let written = self.target.write_at(offset, bytes);
        written.map_err(|source| WriteError::Image { doing: "writing", source })
    }
}

/// A file that gets its name only when it is complete: a failed or interrupted build keeps the file that was
/// there.
#[derive(Debug)]
pub struct ImageFile {
    file: File,
    path: PathBuf,
    temporary: Option<PathBuf>,
}

/// Maximum number of temporary names to try.
const NAMES_MAX: u32 = 1000;

impl ImageFile {
    /// Starts an image for `path`, where it will replace a file, or the target of a symbolic link.
    ///
    /// Fails with [`io::ErrorKind::InvalidInput`] if another type of file is there: replacing a device is
    /// never intended.
    pub fn create(path: &Path) -> io::Result<Self> {
        if path.metadata().is_ok_and(|there| !there.is_file()) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path exists and is not a file"));
        }
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let process = std::process::id();
        for number in 0..NAMES_MAX {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(name);
            hidden.push(format!(".{process}-{number}.part"));
            let temporary = path.with_file_name(hidden);
            match OpenOptions::new().write(true).create_new(true).open(&temporary) {
                Ok(file) => return Ok(Self { file, path: path.to_owned(), temporary: Some(temporary) }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(error) => return Err(error),
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Returns the metadata of the incomplete file.
    pub fn metadata(&self) -> io::Result<fs::Metadata> {
        self.file.metadata()
    }
}

impl Target for ImageFile {
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn finish(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        self.file.sync_all()?;
        if let Some(temporary) = &self.temporary {
            fs::rename(temporary, &self.path)?;
            self.temporary = None;
        }
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for ImageFile {
    fn drop(&mut self) {
        if let Some(temporary) = &self.temporary {
            // A file that can't be removed is hidden, and its name says that it is temporary.
            let _ = fs::remove_file(temporary);
        }
    }
}
