//! Entries of an image, and the sources of their content.

use std::io;

use super::WriteError;
use super::builder::TreeBuilder;

/// A tree that can be written as an image.
pub trait Input {
    /// Passes every entry to the builder. The order must be the same each time, because contents are stored
    /// in it.
    fn feed(&mut self, builder: &mut TreeBuilder<'_, '_>) -> Result<(), WriteError>;
}

/// Metadata that every entry has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Path from the root, which is empty; a leading slash and `./` are ignored.
    pub path: Vec<u8>,
    /// Permission bits with setuid, setgid and sticky (`0o7777`).
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Modification time of the content, in seconds since the epoch.
    pub mtime: i64,
    /// Extended attributes: full names and values.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// Type of an entry other than a regular file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A symbolic link, with its target.
    Symlink(Vec<u8>),
    /// A character device.
    CharDevice(Device),
    /// A block device.
    BlockDevice(Device),
    /// A named pipe.
    Fifo,
    /// A UNIX socket.
    Socket,
}

/// A device number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// Content that another thread opens on demand.
pub trait Open: Send + Sync {
    /// Opens the content at its start.
    fn open(&self) -> io::Result<Box<dyn Reading + '_>>;
}

/// Content that is read sequentially.
pub trait Reading {
    /// Fills `room` with the next bytes; fewer only at the end.
    fn fill(&mut self, room: &mut [u8]) -> io::Result<usize>;

    /// Skips the next `len` bytes and returns true if they are known to be a hole without reading them.
    fn skip_hole(&mut self, len: u64) -> io::Result<bool> {
        let _ = len;
        Ok(false)
    }
}

/// Content of an archive member, whose header lists its holes.
#[derive(Debug)]
pub struct WithHoles<C>(pub C);

impl<C: esker_archive::Holes> Reading for WithHoles<C> {
    fn fill(&mut self, room: &mut [u8]) -> io::Result<usize> {
        Plain(&mut self.0).fill(room)
    }

    fn skip_hole(&mut self, len: u64) -> io::Result<bool> {
        self.0.skip_hole(len)
    }
}

/// Any readable stream, without holes.
#[derive(Debug)]
pub struct Plain<R>(pub R);

impl<R: io::Read> Reading for Plain<R> {
    fn fill(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while let Some(rest) = room.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.0.read(rest) {
                Ok(0) => break,
                Ok(len) => filled += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}
