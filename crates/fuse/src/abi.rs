//! The kernel's side of the protocol, version 7.45: numbers and plain structures, in the machine's byte order.
//!
//! Only the parts that a read-only tree needs. Structures have no padding, as [`crate::sys::Plain`] requires.

/// Major version of the protocol.
pub(crate) const MAJOR: u32 = 7;
/// Newest supported minor version of the protocol.
pub(crate) const MINOR: u32 = 45;
/// Oldest supported minor version: the first whose INIT reply has the current layout.
pub(crate) const OLDEST_MINOR: u32 = 23;
/// Smallest buffer that the kernel accepts for reading a request.
pub(crate) const MIN_READ_BUFFER: usize = 8192;
/// The nodeid of the root.
pub(crate) const ROOT_ID: u64 = 1;
/// Maximum length of a name in a directory entry on the oldest supported kernel.
pub(crate) const NAME_MAX: usize = 1024;

/// Request numbers.
pub(crate) mod opcode {
    /// Defines the numbers, and their names for counters; a name is empty where the protocol has none.
    macro_rules! opcodes {
        ($($name:ident = $number:literal,)*) => {
            $(#[allow(dead_code, reason = "counted by name only")] pub(crate) const $name: u32 = $number;)*

            pub(crate) const NAMES: [&str; 64] = {
                let mut names = [""; 64];
                names[0] = "OTHER";
                $(names[$number] = stringify!($name);)*
                names
            };
        };
    }

    opcodes! {
        LOOKUP = 1,
        FORGET = 2,
        GETATTR = 3,
        SETATTR = 4,
        READLINK = 5,
        SYMLINK = 6,
        MKNOD = 8,
        MKDIR = 9,
        UNLINK = 10,
        RMDIR = 11,
        RENAME = 12,
        LINK = 13,
        OPEN = 14,
        READ = 15,
        WRITE = 16,
        STATFS = 17,
        RELEASE = 18,
        FSYNC = 20,
        SETXATTR = 21,
        GETXATTR = 22,
        LISTXATTR = 23,
        REMOVEXATTR = 24,
        FLUSH = 25,
        INIT = 26,
        OPENDIR = 27,
        READDIR = 28,
        RELEASEDIR = 29,
        FSYNCDIR = 30,
        GETLK = 31,
        SETLK = 32,
        SETLKW = 33,
        ACCESS = 34,
        CREATE = 35,
        INTERRUPT = 36,
        BMAP = 37,
        DESTROY = 38,
        IOCTL = 39,
        POLL = 40,
        NOTIFY_REPLY = 41,
        BATCH_FORGET = 42,
        FALLOCATE = 43,
        READDIRPLUS = 44,
        RENAME2 = 45,
        LSEEK = 46,
        COPY_FILE_RANGE = 47,
        SETUPMAPPING = 48,
        REMOVEMAPPING = 49,
        SYNCFS = 50,
        TMPFILE = 51,
        STATX = 52,
        COPY_FILE_RANGE_64 = 53,
    }
}

/// Bits of the INIT exchange; those above bit 31 travel in `flags2`.
pub(crate) mod init {
    pub(crate) const ASYNC_READ: u64 = 1 << 0;
    pub(crate) const EXPORT_SUPPORT: u64 = 1 << 4;
    pub(crate) const DO_READDIRPLUS: u64 = 1 << 13;
    pub(crate) const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub(crate) const ASYNC_DIO: u64 = 1 << 15;
    pub(crate) const NO_OPEN_SUPPORT: u64 = 1 << 17;
    pub(crate) const PARALLEL_DIROPS: u64 = 1 << 18;
    pub(crate) const POSIX_ACL: u64 = 1 << 20;
    pub(crate) const MAX_PAGES: u64 = 1 << 22;
    pub(crate) const CACHE_SYMLINKS: u64 = 1 << 23;
    pub(crate) const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub(crate) const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub(crate) const INIT_EXT: u64 = 1 << 30;
    pub(crate) const HAS_EXPIRE_ONLY: u64 = 1 << 35;
    pub(crate) const HAS_RESEND: u64 = 1 << 39;
}

/// Flags of an OPEN or OPENDIR answer.
pub(crate) mod open {
    pub(crate) const KEEP_CACHE: u32 = 1 << 1;
    pub(crate) const CACHE_DIR: u32 = 1 << 3;
}

/// Notifications, sent with `unique` 0 and the code in place of the error.
pub(crate) mod notify {
    pub(crate) const INVAL_INODE: i32 = 2;
    pub(crate) const INVAL_ENTRY: i32 = 3;
    pub(crate) const RESEND: i32 = 7;
    pub(crate) const INC_EPOCH: i32 = 8;
    /// Flag of INVAL_ENTRY: expires the entry without removing it.
    pub(crate) const EXPIRE_ONLY: u32 = 1;
}

/// Head of every request.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct InHeader {
    pub(crate) len: u32,
    pub(crate) opcode: u32,
    pub(crate) unique: u64,
    pub(crate) nodeid: u64,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) pid: u32,
    pub(crate) total_extlen: u16,
    pub(crate) padding: u16,
}

/// Head of every answer and notification.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct OutHeader {
    pub(crate) len: u32,
    pub(crate) error: i32,
    pub(crate) unique: u64,
}

/// Fields of INIT that every supported kernel sends.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct InitIn {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct InitOut {
    pub(crate) major: u32,
    pub(crate) minor: u32,
    pub(crate) max_readahead: u32,
    pub(crate) flags: u32,
    pub(crate) max_background: u16,
    pub(crate) congestion_threshold: u16,
    pub(crate) max_write: u32,
    pub(crate) time_gran: u32,
    pub(crate) max_pages: u16,
    pub(crate) map_alignment: u16,
    pub(crate) flags2: u32,
    pub(crate) max_stack_depth: u32,
    pub(crate) unused: [u32; 6],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct WireAttr {
    pub(crate) ino: u64,
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    pub(crate) atime: i64,
    pub(crate) mtime: i64,
    pub(crate) ctime: i64,
    pub(crate) atime_nanos: u32,
    pub(crate) mtime_nanos: u32,
    pub(crate) ctime_nanos: u32,
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u32,
    pub(crate) blksize: u32,
    pub(crate) flags: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct EntryOut {
    pub(crate) nodeid: u64,
    pub(crate) generation: u64,
    pub(crate) entry_valid: u64,
    pub(crate) attr_valid: u64,
    pub(crate) entry_valid_nanos: u32,
    pub(crate) attr_valid_nanos: u32,
    pub(crate) attr: WireAttr,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct AttrOut {
    pub(crate) attr_valid: u64,
    pub(crate) attr_valid_nanos: u32,
    pub(crate) dummy: u32,
    pub(crate) attr: WireAttr,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct OpenOut {
    pub(crate) fh: u64,
    pub(crate) open_flags: u32,
    pub(crate) backing_id: u32,
}

/// READ, READDIR and READDIRPLUS.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ReadIn {
    pub(crate) fh: u64,
    pub(crate) offset: u64,
    pub(crate) size: u32,
    pub(crate) read_flags: u32,
    pub(crate) lock_owner: u64,
    pub(crate) flags: u32,
    pub(crate) padding: u32,
}

/// GETXATTR (followed by the name) and LISTXATTR; also the reply with a size.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct XattrSize {
    pub(crate) size: u32,
    pub(crate) padding: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct StatFsOut {
    pub(crate) blocks: u64,
    pub(crate) bfree: u64,
    pub(crate) bavail: u64,
    pub(crate) files: u64,
    pub(crate) ffree: u64,
    pub(crate) bsize: u32,
    pub(crate) namelen: u32,
    pub(crate) frsize: u32,
    pub(crate) padding: u32,
    pub(crate) spare: [u32; 6],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct BatchForgetIn {
    pub(crate) count: u32,
    pub(crate) dummy: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct ForgetOne {
    pub(crate) nodeid: u64,
    pub(crate) nlookup: u64,
}

/// Fixed part of one entry in a READDIR reply.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Dirent {
    pub(crate) ino: u64,
    pub(crate) off: u64,
    pub(crate) namelen: u32,
    pub(crate) kind: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct InvalInode {
    pub(crate) nodeid: u64,
    pub(crate) offset: i64,
    pub(crate) len: i64,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct InvalEntry {
    pub(crate) parent: u64,
    pub(crate) namelen: u32,
    pub(crate) flags: u32,
}
