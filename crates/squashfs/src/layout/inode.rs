//! Inode format: a common header and a body by type. Each type has a basic form and an extended one with
//! wider fields.

use super::fields::{Fields, Put};
use super::{DIRECTORY_EXTRA, LayoutError, NO_FRAGMENT, wrong};

/// Length of an inode's header in bytes.
pub const HEADER_LEN: usize = 16;

/// Number of the attribute set of an inode without extended attributes.
pub const NO_XATTRS: u32 = u32::MAX;

/// Type of an inode, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
#[expect(missing_docs, reason = "the names say it")]
pub enum InodeType {
    Directory = 1,
    File,
    Symlink,
    BlockDevice,
    CharDevice,
    Fifo,
    Socket,
    ExtendedDirectory,
    ExtendedFile,
    ExtendedSymlink,
    ExtendedBlockDevice,
    ExtendedCharDevice,
    ExtendedFifo,
    ExtendedSocket,
}

use InodeType::{
    BlockDevice, CharDevice, Directory, ExtendedBlockDevice, ExtendedCharDevice, ExtendedDirectory,
    ExtendedFifo, ExtendedFile, ExtendedSocket, ExtendedSymlink, Fifo, File, Socket, Symlink,
};

impl InodeType {
    const ALL: [Self; 14] = [
        Directory,
        File,
        Symlink,
        BlockDevice,
        CharDevice,
        Fifo,
        Socket,
        ExtendedDirectory,
        ExtendedFile,
        ExtendedSymlink,
        ExtendedBlockDevice,
        ExtendedCharDevice,
        ExtendedFifo,
        ExtendedSocket,
    ];

    /// Parses a type.
    pub fn decode(number: u16) -> Result<Self, LayoutError> {
        let known = Self::ALL.into_iter().find(|kind| *kind as u16 == number);
        known.ok_or(wrong("the type of an inode", number))
    }

    /// Returns the basic form of the type, which directory entries name for both forms.
    pub const fn basic(self) -> Self {
        match self {
            ExtendedDirectory => Directory,
            ExtendedFile => File,
            ExtendedSymlink => Symlink,
            ExtendedBlockDevice => BlockDevice,
            ExtendedCharDevice => CharDevice,
            ExtendedFifo => Fifo,
            ExtendedSocket => Socket,
            basic => basic,
        }
    }

    /// Returns the extended form of the type.
    pub const fn extended(self) -> Self {
        match self {
            Directory => ExtendedDirectory,
            File => ExtendedFile,
            Symlink => ExtendedSymlink,
            BlockDevice => ExtendedBlockDevice,
            CharDevice => ExtendedCharDevice,
            Fifo => ExtendedFifo,
            Socket => ExtendedSocket,
            extended => extended,
        }
    }

    /// Returns the length in bytes of the body's fixed part, which follows the header.
    pub const fn body_len(self) -> usize {
        match self {
            Directory | File => 16,
            Symlink | ExtendedSymlink | BlockDevice | CharDevice | ExtendedFifo | ExtendedSocket => 8,
            Fifo | Socket => 4,
            ExtendedDirectory => 24,
            ExtendedFile => 40,
            ExtendedBlockDevice | ExtendedCharDevice => 12,
        }
    }
}

/// Header that every inode begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeHeader {
    /// Type of the inode.
    pub kind: InodeType,
    /// Permission bits with setuid, setgid and sticky.
    pub permissions: u16,
    /// Index of the owner in the id table.
    pub uid: u16,
    /// Index of the group in the id table.
    pub gid: u16,
    /// Modification time in seconds since the epoch.
    pub mtime: u32,
    /// Inode number, from 1.
    pub number: u32,
}

impl InodeHeader {
    /// Parses and validates a header.
    pub fn decode(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut fields = Fields::of("an inode", bytes);
        Ok(Self {
            kind: InodeType::decode(fields.u16()?)?,
            permissions: fields.u16()? & 0o7777,
            uid: fields.u16()?,
            gid: fields.u16()?,
            mtime: fields.u32()?,
            number: fields.u32()?,
        })
    }

    /// Appends the encoded header, as [`InodeHeader::decode`] reads it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.kind as u16, self.permissions, self.uid, self.gid] {
            out.u16(number);
        }
        out.u32(self.mtime);
        out.u32(self.number);
    }
}

/// Body of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectoryBody {
    /// Position of the metadata block in which the names begin, relative to the directory table.
    pub block: u32,
    /// Offset of the names in that block, in bytes.
    pub offset: u16,
    /// Length of the names in bytes, plus [`DIRECTORY_EXTRA`].
    pub size: u32,
    /// Link count.
    pub nlink: u32,
    /// Inode number of the parent directory.
    pub parent: u32,
    /// Number of the attribute set, or [`NO_XATTRS`].
    pub xattrs: u32,
    /// Number of index entries, which follow the body.
    pub indexes: u16,
}

impl DirectoryBody {
    /// Returns the length of the directory's names in bytes.
    pub const fn names_len(&self) -> u32 {
        self.size.saturating_sub(DIRECTORY_EXTRA)
    }
}

/// Body of a regular file. The words of its blocks follow it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileBody {
    /// Offset of the first stored block in the image, in bytes.
    pub start: u64,
    /// Length of the file in bytes.
    pub size: u64,
    /// Bytes of holes, rounded to whole blocks.
    pub sparse: u64,
    /// Link count.
    pub nlink: u32,
    /// Number of the fragment block that holds the file's tail, or [`NO_FRAGMENT`].
    pub fragment: u32,
    /// Offset of the tail in the decompressed fragment block, in bytes.
    pub fragment_offset: u32,
    /// Number of the attribute set, or [`NO_XATTRS`].
    pub xattrs: u32,
}

impl FileBody {
    /// Returns the number of blocks with a word of their own; a tail in a fragment has none.
    pub const fn blocks(&self, block_size: u32) -> u64 {
        match self.fragment {
            NO_FRAGMENT => self.size.div_ceil(block_size as u64),
            _ => self.size / block_size as u64,
        }
    }
}

/// Body of an inode, by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A directory.
    Directory(DirectoryBody),
    /// A regular file.
    File(FileBody),
    /// A symbolic link. The target follows the body; in the extended form, the number of the attribute set
    /// follows the target.
    Symlink {
        /// Link count.
        nlink: u32,
        /// Length of the target in bytes.
        target_len: u32,
    },
    /// A block or character device.
    Device {
        /// Link count.
        nlink: u32,
        /// Device number; see [`decode_device`].
        device: u32,
        /// Number of the attribute set, or [`NO_XATTRS`].
        xattrs: u32,
    },
    /// A named pipe or socket.
    Pipe {
        /// Link count.
        nlink: u32,
        /// Number of the attribute set, or [`NO_XATTRS`].
        xattrs: u32,
    },
}

impl Body {
    /// Parses the body of an inode of type `kind`.
    pub fn decode(kind: InodeType, bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut fields = Fields::of("the body of an inode", bytes);
        let extended = kind == kind.extended();
        Ok(match kind {
            Directory => {
                let (block, nlink, size) = (fields.u32()?, fields.u32()?, fields.u16()?);
                let (offset, parent) = (fields.u16()?, fields.u32()?);
                let size = size.into();
                let (xattrs, indexes) = (NO_XATTRS, 0);
                Self::Directory(DirectoryBody { block, offset, size, nlink, parent, xattrs, indexes })
            }
            ExtendedDirectory => {
                let (nlink, size, block) = (fields.u32()?, fields.u32()?, fields.u32()?);
                let (parent, indexes) = (fields.u32()?, fields.u16()?);
                let (offset, xattrs) = (fields.u16()?, fields.u32()?);
                Self::Directory(DirectoryBody { block, offset, size, nlink, parent, xattrs, indexes })
            }
            File => {
                let (start, fragment) = (fields.u32()?.into(), fields.u32()?);
                let (fragment_offset, size) = (fields.u32()?, fields.u32()?.into());
                let (sparse, nlink, xattrs) = (0, 1, NO_XATTRS);
                Self::File(FileBody { start, size, sparse, nlink, fragment, fragment_offset, xattrs })
            }
            ExtendedFile => {
                let (start, size, sparse) = (fields.u64()?, fields.u64()?, fields.u64()?);
                let (nlink, fragment) = (fields.u32()?, fields.u32()?);
                let (fragment_offset, xattrs) = (fields.u32()?, fields.u32()?);
                Self::File(FileBody { start, size, sparse, nlink, fragment, fragment_offset, xattrs })
            }
            Symlink | ExtendedSymlink => Self::Symlink { nlink: fields.u32()?, target_len: fields.u32()? },
            BlockDevice | CharDevice | ExtendedBlockDevice | ExtendedCharDevice => {
                let (nlink, device) = (fields.u32()?, fields.u32()?);
                Self::Device { nlink, device, xattrs: if extended { fields.u32()? } else { NO_XATTRS } }
            }
            Fifo | Socket | ExtendedFifo | ExtendedSocket => {
                let nlink = fields.u32()?;
                Self::Pipe { nlink, xattrs: if extended { fields.u32()? } else { NO_XATTRS } }
            }
        })
    }

    /// Appends the encoded body, as [`Body::decode`] reads it.
    ///
    /// A basic type must have room for every value: start, size and length that fit, one link of a file, no
    /// extended attributes, no index.
    pub fn encode(&self, kind: InodeType, out: &mut Vec<u8>) {
        let extended = kind == kind.extended();
        let narrow = |number: u64| u32::try_from(number).expect("a basic inode has room for its fields");
        match *self {
            Self::Directory(dir) if extended => {
                for number in [dir.nlink, dir.size, dir.block, dir.parent] {
                    out.u32(number);
                }
                out.u16(dir.indexes);
                out.u16(dir.offset);
                out.u32(dir.xattrs);
            }
            Self::Directory(dir) => {
                out.u32(dir.block);
                out.u32(dir.nlink);
                out.u16(u16::try_from(dir.size).expect("a basic inode has room for its fields"));
                out.u16(dir.offset);
                out.u32(dir.parent);
            }
            Self::File(file) if extended => {
                for number in [file.start, file.size, file.sparse] {
                    out.u64(number);
                }
                for number in [file.nlink, file.fragment, file.fragment_offset, file.xattrs] {
                    out.u32(number);
                }
            }
            Self::File(file) => {
                for number in [narrow(file.start), file.fragment, file.fragment_offset, narrow(file.size)] {
                    out.u32(number);
                }
            }
            Self::Symlink { nlink, target_len } => {
                out.u32(nlink);
                out.u32(target_len);
            }
            Self::Device { nlink, device, xattrs } => {
                out.u32(nlink);
                out.u32(device);
                if extended {
                    out.u32(xattrs);
                }
            }
            Self::Pipe { nlink, xattrs } => {
                out.u32(nlink);
                if extended {
                    out.u32(xattrs);
                }
            }
        }
    }
}

/// Returns the major and minor number of a device.
pub const fn decode_device(device: u32) -> (u32, u32) {
    ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xf_ff00))
}

/// Returns the encoded device number of a major number below 4,096 and a minor one below 1,048,576.
pub const fn encode_device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & 0xf_ff00) << 12
}

#[cfg(test)]
mod tests {
    use super::*;

    fn comes_back(kind: InodeType, body: Body) {
        let mut bytes = Vec::new();
        body.encode(kind, &mut bytes);
        assert_eq!(bytes.len(), kind.body_len(), "{kind:?}");
        assert_eq!(Body::decode(kind, &bytes), Ok(body), "{kind:?}");
        for len in 0..bytes.len() {
            assert!(Body::decode(kind, &bytes[..len]).is_err(), "{kind:?} of {len} bytes");
        }
    }

    #[test]
    fn every_inode_type_survives_encoding() {
        for number in 1..=14 {
            let kind = InodeType::decode(number).expect("a type");
            let extended = kind == kind.extended();
            let xattrs = if extended { 4 } else { NO_XATTRS };
            let big = if extended { 1 << 42 } else { 1 << 31 };
            let nlink = if extended { 3 } else { 1 };
            let body = match kind.basic() {
                Directory => Body::Directory(DirectoryBody {
                    block: 5,
                    offset: 6,
                    size: if extended { 1 << 20 } else { 40 },
                    nlink: 7,
                    parent: 8,
                    xattrs,
                    indexes: if extended { 9 } else { 0 },
                }),
                File => Body::File(FileBody {
                    start: big,
                    size: big,
                    sparse: if extended { 4096 } else { 0 },
                    nlink,
                    fragment: 11,
                    fragment_offset: 12,
                    xattrs,
                }),
                Symlink => Body::Symlink { nlink: 2, target_len: 77 },
                BlockDevice | CharDevice => Body::Device { nlink: 2, device: 0x801, xattrs },
                _ => Body::Pipe { nlink: 2, xattrs },
            };
            comes_back(kind, body);
            let header = InodeHeader { kind, permissions: 0o4755, uid: 1, gid: 2, mtime: 3, number: 4 };
            let mut bytes = Vec::new();
            header.encode(&mut bytes);
            assert_eq!((bytes.len(), InodeHeader::decode(&bytes)), (HEADER_LEN, Ok(header)));
        }
        assert!(InodeType::decode(0).is_err() && InodeType::decode(15).is_err());
    }

    #[test]
    fn device_numbers_survive_encoding() {
        for (major, minor) in [(0, 0), (8, 1), (4095, 1_048_575), (1, 3), (259, 70_000)] {
            assert_eq!(decode_device(encode_device(major, minor)), (major, minor));
        }
    }

    #[test]
    fn a_tail_in_a_fragment_is_not_counted_as_a_block() {
        let mut file = FileBody {
            start: 0,
            size: 10_000,
            sparse: 0,
            nlink: 1,
            fragment: NO_FRAGMENT,
            fragment_offset: 0,
            xattrs: NO_XATTRS,
        };
        assert_eq!(file.blocks(4096), 3);
        file.fragment = 0;
        assert_eq!(file.blocks(4096), 2);
    }
}
