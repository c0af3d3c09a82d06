//! Reads inodes.

use esker_vfs::{Attr, Device, Ino, Kind, Time};

use super::metadata::{Cursor, Stream};
use super::{Access, ReadResult};
use crate::layout::{
    Body, DirectoryBody, FileBody, HEADER_LEN, InodeHeader, InodeType, MetaRef, NO_XATTRS, decode_device,
};

/// Maximum length of a symbolic link's target in bytes, as in the kernel.
const TARGET_MAX: u32 = 4096;
/// Maximum length of an inode's body in bytes.
const BODY_MAX: usize = 40;

/// A stored inode and its position.
#[derive(Clone)]
pub(crate) struct Inode<'a> {
    pub(crate) place: MetaRef,
    pub(crate) header: InodeHeader,
    pub(crate) body: Body,
    /// Cursor at the data after the body: block words, an index, or a target.
    pub(crate) after: Cursor<'a>,
}

impl<'a> Access<'a> {
    /// Returns the stream of inodes.
    pub(super) const fn inode_stream(self) -> Stream {
        let superblock = &self.core.superblock;
        Stream { start: superblock.inode_table, end: superblock.directory_table }
    }

    /// Reads the inode at `place`.
    pub(crate) fn inode(self, place: MetaRef) -> ReadResult<Inode<'a>> {
        let mut after = self.cursor(self.inode_stream(), place)?;
        let header = InodeHeader::decode(&after.array::<HEADER_LEN>()?);
        let header = header.map_err(|error| after.fault(&error))?;
        let mut room = [0; BODY_MAX];
        let bytes = room.get_mut(..header.kind.body_len()).unwrap_or_default();
        after.fill(bytes)?;
        let body = Body::decode(header.kind, bytes).map_err(|error| after.fault(&error))?;
        Ok(Inode { place, header, body, after })
    }

    /// Returns the attributes of an inode, as stat(2) reports them.
    pub(crate) fn attr(self, inode: &Inode<'_>) -> ReadResult<Attr> {
        let (size, nlink, device) = match inode.body {
            // The kernel reports the same size: the length of the names plus three.
            Body::Directory(dir) => (dir.size.into(), dir.nlink, 0),
            Body::File(file) => (file.size, file.nlink, 0),
            Body::Symlink { nlink, target_len } => (target_len.into(), nlink, 0),
            Body::Device { nlink, device, .. } => (0, nlink, device),
            Body::Pipe { nlink, .. } => (0, nlink, 0),
        };
        if i64::try_from(size).is_err() {
            let what = format!("inode {} has {size} bytes", inode.header.number);
            return Err(self.core.fault(self.at(inode.place), what).into());
        }
        let (major, minor) = decode_device(device);
        let (uid, gid) = match self.core.owner {
            Some(owner) => owner,
            None => {
                let (first_uid, first_gid) = self.core.first_ids;
                let uid = self.id(inode.header.uid, inode.place)?;
                let gid = self.id(inode.header.gid, inode.place)?;
                (uid.saturating_add(first_uid), gid.saturating_add(first_gid))
            }
        };
        Ok(Attr {
            ino: Ino(inode.header.number.into()),
            size,
            mtime: Time { secs: inode.header.mtime.into(), nanos: 0 },
            permissions: inode.header.permissions,
            kind: kind(inode.header.kind),
            nlink,
            uid,
            gid,
            rdev: Device { major, minor },
        })
    }

    /// Returns the number of an inode's attribute set.
    pub(crate) fn xattr_set(self, inode: &Inode<'_>) -> ReadResult<u32> {
        Ok(match inode.body {
            Body::Directory(DirectoryBody { xattrs, .. })
            | Body::File(FileBody { xattrs, .. })
            | Body::Device { xattrs, .. }
            | Body::Pipe { xattrs, .. } => xattrs,
            Body::Symlink { target_len, .. } if inode.header.kind == InodeType::ExtendedSymlink => {
                self.check_target(inode, target_len)?;
                let mut after = inode.after.clone();
                after.skip(target_len.into())?;
                u32::from_le_bytes(after.array()?)
            }
            Body::Symlink { .. } => NO_XATTRS,
        })
    }

    /// Returns the target of a symbolic link; none for other types.
    pub(crate) fn target(self, inode: &Inode<'_>) -> ReadResult<Option<Vec<u8>>> {
        let Body::Symlink { target_len, .. } = inode.body else { return Ok(None) };
        self.check_target(inode, target_len)?;
        let len = usize::try_from(target_len).unwrap_or(usize::MAX);
        inode.after.clone().bytes(len).map(Some)
    }

    fn check_target(self, inode: &Inode<'_>, len: u32) -> ReadResult<()> {
        if len == 0 || len > TARGET_MAX {
            let what = format!("the target of inode {} has {len} bytes", inode.header.number);
            return Err(self.core.fault(self.at(inode.place), what).into());
        }
        Ok(())
    }

    /// Returns the image offset of the inode's metadata block.
    pub(crate) const fn at(self, place: MetaRef) -> u64 {
        self.core.superblock.inode_table.saturating_add(place.block())
    }
}

/// Converts a stored inode type.
pub(crate) const fn kind(stored: InodeType) -> Kind {
    match stored.basic() {
        InodeType::Directory => Kind::Directory,
        InodeType::Symlink => Kind::Symlink,
        InodeType::BlockDevice => Kind::BlockDevice,
        InodeType::CharDevice => Kind::CharDevice,
        InodeType::Fifo => Kind::Fifo,
        InodeType::Socket => Kind::Socket,
        _ => Kind::File,
    }
}
