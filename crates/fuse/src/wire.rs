//! Converts values of trees to those of the protocol.

use esker_vfs::{Attr, Device, Kind, StatFs};

use crate::abi::{AttrOut, EntryOut, StatFsOut, WireAttr};
use crate::nodes::NodeId;

/// Seconds for which the kernel may cache a reply, until it is notified. Ten years; the kernel turns it into ticks, so
/// it must not be too near the largest number.
const FOREVER_SECS: u64 = 10 * 365 * 86_400;

/// `st_blksize`, the same for all page sizes.
const BLOCK_SIZE: u32 = 4096;

pub(crate) fn attr(attr: &Attr) -> WireAttr {
    WireAttr {
        ino: attr.ino.0,
        size: attr.size,
        blocks: attr.size.div_ceil(512),
        atime: attr.mtime.secs,
        mtime: attr.mtime.secs,
        ctime: attr.mtime.secs,
        atime_nanos: attr.mtime.nanos,
        mtime_nanos: attr.mtime.nanos,
        ctime_nanos: attr.mtime.nanos,
        mode: attr.mode(),
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: rdev(attr.rdev),
        blksize: BLOCK_SIZE,
        flags: 0,
    }
}

/// Returns the kernel's 32-bit form of a device number.
const fn rdev(device: Device) -> u32 {
    device.minor & 0xff | (device.major & 0xfff) << 8 | (device.minor & 0xfff00) << 12
}

pub(crate) fn attr_out(told: &Attr) -> AttrOut {
    AttrOut { attr_valid: FOREVER_SECS, attr: attr(told), ..AttrOut::default() }
}

/// Makes an entry reply. `lasting`: whether the attributes may be cached beyond this call.
pub(crate) fn entry_out(id: NodeId, told: &Attr, lasting: bool) -> EntryOut {
    EntryOut {
        nodeid: id.0,
        entry_valid: FOREVER_SECS,
        attr_valid: if lasting { FOREVER_SECS } else { 0 },
        attr: attr(told),
        ..EntryOut::default()
    }
}

/// Makes a negative entry, to be cached like an existing one.
pub(crate) fn absent() -> EntryOut {
    EntryOut { entry_valid: FOREVER_SECS, ..EntryOut::default() }
}

pub(crate) fn statfs(sizes: StatFs) -> StatFsOut {
    let blocks = |bytes: u64| bytes / u64::from(BLOCK_SIZE);
    StatFsOut {
        blocks: blocks(sizes.total_bytes),
        bfree: blocks(sizes.free_bytes),
        bavail: blocks(sizes.free_bytes),
        files: sizes.files,
        ffree: sizes.free_files,
        bsize: BLOCK_SIZE,
        namelen: 255,
        frsize: BLOCK_SIZE,
        ..StatFsOut::default()
    }
}

/// Returns the type of a name in a listing (`DT_*`).
pub(crate) const fn dirent_kind(kind: Kind) -> u32 {
    kind.mode_bits() >> 12
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_keep_major_and_minor() {
        let split = |n: u32| ((n & 0xfff00) >> 8, n & 0xff | n >> 12 & 0xfff00);
        for (major, minor) in [(1, 3), (0xfff, 0xfffff), (8, 0x12345)] {
            assert_eq!(split(rdev(Device { major, minor })), (major, minor));
        }
    }
}
