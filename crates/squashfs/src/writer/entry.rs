//! What an image is made of: entries, and where their content comes from.

use std::io;

use super::WriteError;
use super::intake::Intake;

/// A tree that becomes an image.
pub trait Input {
    /// Hands every entry to the intake, in an order that is the same each time: contents are stored in it.
    fn feed(&mut self, intake: &mut Intake<'_, '_>) -> Result<(), WriteError>;
}

/// What every entry of a tree has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Its path from the root, which is empty; a leading slash and `./` don't matter.
    pub path: Vec<u8>,
    /// Permission bits with setuid, setgid and sticky (`0o7777`).
    pub permissions: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the content, in seconds since the epoch.
    pub mtime: i64,
    /// Its extended attributes: full names and values.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What an entry is that is no regular file.
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

/// Content that can be read when its turn comes, on another thread.
pub trait Open: Send + Sync {
    /// Opens it at its start.
    fn open(&self) -> io::Result<Box<dyn Reading + '_>>;
}

/// Content that is read from its start to its end.
pub trait Reading {
    /// Fills `room` with what comes next. Fewer bytes only at the end.
    fn fill(&mut self, room: &mut [u8]) -> io::Result<usize>;

    /// Whether the next `len` bytes are a hole, found out without reading them; if so, they are passed over.
    fn pass_hole(&mut self, len: u64) -> io::Result<bool> {
        let _ = len;
        Ok(false)
    }
}

/// Content of an archive, whose holes are told.
#[derive(Debug)]
pub struct WithHoles<C>(pub C);

impl<C: esker_archive::Holes> Reading for WithHoles<C> {
    fn fill(&mut self, room: &mut [u8]) -> io::Result<usize> {
        Plain(&mut self.0).fill(room)
    }

    fn pass_hole(&mut self, len: u64) -> io::Result<bool> {
        self.0.pass_hole(len)
    }
}

/// Anything that can be read, without holes.
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
