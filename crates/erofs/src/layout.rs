//! On-disk format of EROFS, little-endian.
//!
//! Source: `fs/erofs/erofs_fs.h` of Linux 6.15 and newer, and the kernel's documentation of the format.

use esker_vfs::{Attr, Device, Kind};

/// Block size in bytes. Pages may be larger: the kernel accepts smaller blocks.
pub(crate) const BLOCK: u64 = 4096;

/// Unit of inode numbers in bytes: an inode's number is its offset in slots of this size.
pub(crate) const SLOT: u64 = 32;

/// Length of an extended inode in bytes.
pub(crate) const INODE: usize = 64;

/// Offset of the superblock in bytes.
const SUPERBLOCK_AT: usize = 1024;
const MAGIC: u32 = 0xe0f5_e1e2;
/// Feature flag: block numbers have 48 bits, and the root's inode number 64 (Linux 6.15).
const INCOMPAT_48BIT: u32 = 0x80;

/// `i_format` of an extended inode with its content in consecutive blocks.
const EXTENDED_PLAIN: u16 = 1;
/// `i_format` of an extended inode with inline content: it follows the attributes, within the same block.
const EXTENDED_INLINE: u16 = 1 | 2 << 1;
/// `i_format` with a content layout that no kernel supports: such a file can't be opened.
const UNREADABLE: u16 = 1 | 7 << 1;

/// Length of a directory entry in bytes, without its name.
pub(crate) const DIRENT: usize = 12;

/// Encodes the first block, which holds the superblock.
pub(crate) fn first_block(root: u64, blocks: u64, inodes: u64) -> Vec<u8> {
    let mut block = vec![0; BLOCK as usize];
    let mut put = |at: usize, bytes: &[u8]| {
        block[SUPERBLOCK_AT + at..][..bytes.len()].copy_from_slice(bytes);
    };
    put(0, &MAGIC.to_le_bytes());
    // Binary logarithm of the block size.
    put(12, &[BLOCK.trailing_zeros() as u8]);
    put(14, &((blocks >> 32) as u16).to_le_bytes());
    put(16, &inodes.to_le_bytes());
    put(36, &(blocks as u32).to_le_bytes());
    put(80, &INCOMPAT_48BIT.to_le_bytes());
    put(112, &root.to_le_bytes());
    block
}

/// Location of an inode's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Consecutive blocks from this number on.
    At(u64),
    /// After the inode, in the same block.
    Inline,
    /// No content: the inode is a device, pipe or socket.
    Device(Device),
    /// Content without an address; the file can't be opened.
    Unreadable,
}

/// Encodes an inode of `size` bytes. The caller appends its extended attributes, encoded by [`attributes`].
pub(crate) fn inode(attr: &Attr, size: u64, content: Content, attributes: usize) -> [u8; INODE] {
    let mut inode = [0; INODE];
    let mut put = |at: usize, bytes: &[u8]| inode[at..][..bytes.len()].copy_from_slice(bytes);
    let (format, low, high) = match content {
        Content::At(block) => (EXTENDED_PLAIN, block as u32, (block >> 32) as u16),
        Content::Inline => (EXTENDED_INLINE, 0, 0),
        Content::Device(device) => (EXTENDED_PLAIN, device_number(device), 0),
        Content::Unreadable => (UNREADABLE, 0, 0),
    };
    put(0, &format.to_le_bytes());
    put(2, &attribute_count(attributes).to_le_bytes());
    put(4, &(attr.mode() as u16).to_le_bytes());
    put(6, &high.to_le_bytes());
    put(8, &size.to_le_bytes());
    put(16, &low.to_le_bytes());
    put(20, &(attr.ino.0 as u32).to_le_bytes());
    put(24, &attr.uid.to_le_bytes());
    put(28, &attr.gid.to_le_bytes());
    put(32, &attr.mtime.secs.to_le_bytes());
    put(40, &attr.mtime.nanos.to_le_bytes());
    put(44, &attr.nlink.to_le_bytes());
    inode
}

/// Encodes a device number in 32 bits, as Linux does.
fn device_number(device: Device) -> u32 {
    (device.minor & 0xff) | (device.major << 8) | ((device.minor & !0xff) << 12)
}

/// Returns the type byte of a directory entry.
pub(crate) const fn dirent_type(kind: Kind) -> u8 {
    match kind {
        Kind::File => 1,
        Kind::Directory => 2,
        Kind::CharDevice => 3,
        Kind::BlockDevice => 4,
        Kind::Fifo => 5,
        Kind::Socket => 6,
        Kind::Symlink => 7,
    }
}

/// Name prefixes and the numbers that encode them.
const PREFIXES: [(&[u8], u8); 5] = [
    (b"user.", 1),
    (b"system.posix_acl_access", 2),
    (b"system.posix_acl_default", 3),
    (b"trusted.", 4),
    (b"security.", 6),
];

/// Bytes before the first attribute.
const ATTRIBUTES_HEADER: usize = 12;
/// Unit in bytes of the 16-bit attribute length.
const ATTRIBUTES_UNIT: usize = 4;
const ATTRIBUTES_MAX: usize = ATTRIBUTES_HEADER + ATTRIBUTES_UNIT * (u16::MAX as usize - 1);

fn attribute_count(bytes: usize) -> u16 {
    if bytes == 0 { 0 } else { (1 + (bytes - ATTRIBUTES_HEADER) / ATTRIBUTES_UNIT) as u16 }
}

/// Encodes an inode's extended attributes, which follow it; empty if there are none.
///
/// Attributes without a known prefix, and those that exceed the format's limits, are left out: Linux would
/// not ask for them.
pub(crate) fn attributes(all: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut body = vec![0; ATTRIBUTES_HEADER];
    for (name, value) in all {
        let prefix = PREFIXES.iter().find(|(prefix, _)| name.starts_with(prefix));
        let Some((prefix, index)) = prefix else { continue };
        let rest = &name[prefix.len()..];
        let (Ok(name_len), Ok(value_len)) = (u8::try_from(rest.len()), u16::try_from(value.len())) else {
            continue;
        };
        let len = (4 + rest.len() + value.len()).next_multiple_of(ATTRIBUTES_UNIT);
        if body.len() + len > ATTRIBUTES_MAX {
            continue;
        }
        let end = body.len() + len;
        body.extend_from_slice(&[name_len, *index]);
        body.extend_from_slice(&value_len.to_le_bytes());
        body.extend_from_slice(rest);
        body.extend_from_slice(value);
        body.resize(end, 0);
    }
    if body.len() == ATTRIBUTES_HEADER { Vec::new() } else { body }
}

/// A name in a directory with the inode and type it refers to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dirent<'a> {
    pub(crate) name: &'a [u8],
    pub(crate) inode: u64,
    pub(crate) kind: Kind,
}

/// Returns how many of `names`, from the first on, fit into one block: at least one, since a name has at most
/// 255 bytes.
pub(crate) fn fit<'a>(names: impl Iterator<Item = &'a [u8]>) -> usize {
    let mut used = 0;
    let fit = names.take_while(|name| {
        used += DIRENT + name.len();
        used <= BLOCK as usize
    });
    fit.count().max(1)
}

/// Returns the encoded length of a directory in bytes: whole blocks, and a last block without padding.
pub(crate) fn names_bytes<'a>(mut names: impl Iterator<Item = &'a [u8]> + Clone) -> u64 {
    let mut bytes = 0_u64;
    loop {
        let count = fit(names.clone());
        let last: usize = names.by_ref().take(count).map(|name| DIRENT + name.len()).sum();
        if names.clone().next().is_none() {
            return bytes + last as u64;
        }
        bytes += BLOCK;
    }
}

/// Encodes a block of a directory: its entries, then their names. The last block of a directory has no
/// padding.
pub(crate) fn dirents(entries: &[Dirent<'_>], out: &mut Vec<u8>) {
    let mut name_at = entries.len() * DIRENT;
    for entry in entries {
        out.extend_from_slice(&entry.inode.to_le_bytes());
        out.extend_from_slice(&(name_at as u16).to_le_bytes());
        out.extend_from_slice(&[dirent_type(entry.kind), 0]);
        name_at += entry.name.len();
    }
    entries.iter().for_each(|entry| out.extend_from_slice(entry.name));
}
