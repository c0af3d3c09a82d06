//! Attributes of a node, as stat(2) reports them.

use crate::Ino;

/// The type of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// A directory.
    Directory = 1,
    /// A regular file.
    File,
    /// A symbolic link.
    Symlink,
    /// A named pipe.
    Fifo,
    /// A UNIX socket.
    Socket,
    /// A character device.
    CharDevice,
    /// A block device.
    BlockDevice,
}

impl Kind {
    /// Returns the `S_IFMT` bits of `st_mode`.
    pub const fn mode_bits(self) -> u32 {
        match self {
            Kind::Directory => libc::S_IFDIR,
            Kind::File => libc::S_IFREG,
            Kind::Symlink => libc::S_IFLNK,
            Kind::Fifo => libc::S_IFIFO,
            Kind::Socket => libc::S_IFSOCK,
            Kind::CharDevice => libc::S_IFCHR,
            Kind::BlockDevice => libc::S_IFBLK,
        }
    }

    /// Returns the kind of these `st_mode` bits, if they are valid.
    pub const fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & libc::S_IFMT {
            libc::S_IFDIR => Kind::Directory,
            libc::S_IFREG => Kind::File,
            libc::S_IFLNK => Kind::Symlink,
            libc::S_IFIFO => Kind::Fifo,
            libc::S_IFSOCK => Kind::Socket,
            libc::S_IFCHR => Kind::CharDevice,
            libc::S_IFBLK => Kind::BlockDevice,
            _ => return None,
        })
    }
}

/// A point in time since the epoch; `secs` may be negative, `nanos` is 0 to 999,999,999.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(C)]
pub struct Time {
    /// Whole seconds, rounded towards minus infinity.
    pub secs: i64,
    /// Nanoseconds after `secs`.
    pub nanos: u32,
}

/// A device number, as the two halves of `st_rdev`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Device {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

/// Attributes of a node. Plain data, so that a mount can keep them in shared memory that outlives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Attr {
    /// `st_ino`; [`crate::Node`] describes how it relates to a node's identity.
    pub ino: Ino,
    /// `st_size` in bytes.
    pub size: u64,
    /// Modification time of the content; trees have no other times, so all three are this one.
    pub mtime: Time,
    /// Permission bits with setuid, setgid and sticky (`0o7777`).
    pub permissions: u16,
    /// Type of the node.
    pub kind: Kind,
    /// Number of names; for a directory, 2 + number of subdirectories.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node, otherwise zero.
    pub rdev: Device,
}

impl Attr {
    /// Returns `st_mode`: type and permission bits.
    pub const fn mode(&self) -> u32 {
        self.kind.mode_bits() | self.permissions as u32
    }
}

/// Size of a tree as statfs(2) reports it, in bytes.
///
/// Monitoring would take a read-only tree without free space for a full disk, so the free size is what can
/// still be fetched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StatFs {
    /// Total size in bytes.
    pub total_bytes: u64,
    /// Free size in bytes.
    pub free_bytes: u64,
    /// Number of files and directories.
    pub files: u64,
    /// Number of files reported as free.
    pub free_files: u64,
}
