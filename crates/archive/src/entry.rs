//! Entries of an archive.

use crate::sparse::Data;

/// Maximum length of a file name on Linux, in bytes.
pub const NAME_MAX: usize = 255;
/// Maximum length of a path that Linux accepts in one call, without the final zero byte.
pub const PATH_MAX: usize = 4095;
/// Maximum length of a symlink's target in bytes: the kernel reads it into one page.
pub const TARGET_MAX: usize = 4095;

/// An entry of an archive, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Name as stored in the archive.
    pub name: Vec<u8>,
    /// Normalised path below the target folder: no `.`, no `..`, no empty names; empty for the folder itself.
    pub path: Vec<u8>,
    /// Type of the entry.
    pub kind: Kind,
    /// Permission bits with setuid, setgid and sticky (`0o7777`).
    pub mode: u32,
    /// Owner, below 2^32 - 1.
    pub uid: u32,
    /// Group, below 2^32 - 1.
    pub gid: u32,
    /// Modification time of the content.
    pub mtime: Time,
    /// Extended attributes: names and values, each name once.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Type byte of the header if it is unknown; the entry is then a regular file, as POSIX requires.
    pub unknown_type: Option<u8>,
    /// Offset of the header in the decompressed archive, in bytes.
    pub offset: u64,
}

/// Type of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file, with the positions of its content.
    File(Data),
    /// A hard link to the entry at this path.
    Hardlink(Vec<u8>),
    /// A symbolic link with its target.
    Symlink(Vec<u8>),
    /// A character device.
    CharDevice(Device),
    /// A block device.
    BlockDevice(Device),
    /// A named pipe.
    Fifo,
}

/// A device number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Device {
    /// Major number, below 2^12.
    pub major: u32,
    /// Minor number, below 2^20.
    pub minor: u32,
}

/// A time since the epoch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Whole seconds, rounded down.
    pub seconds: i64,
    /// Nanoseconds after `seconds`, below a billion.
    pub nanoseconds: u32,
}

/// Returns the path of a name in an archive, relative to the target folder; an error text if the name is
/// invalid.
pub fn normalised(name: &[u8]) -> Result<Vec<u8>, String> {
    let mut path = Vec::with_capacity(name.len());
    for part in name.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => continue,
            b".." => {
                return Err(
                    "`..` is not allowed: it would name what is above it, outside of the folder".to_owned()
                );
            }
            part if part.contains(&0) => return Err("its name has a zero byte in it".to_owned()),
            part if part.len() > NAME_MAX => {
                return Err(format!("a name in it has {} bytes, more than {NAME_MAX}", part.len()));
            }
            part => {
                if !path.is_empty() {
                    path.push(b'/');
                }
                path.extend_from_slice(part);
            }
        }
    }
    if path.len() > PATH_MAX {
        return Err(format!("it has {} bytes, more than {PATH_MAX}", path.len()));
    }
    Ok(path)
}

/// Checks the target of a symlink; returns an error text if it is invalid.
pub(crate) fn check_target(target: &[u8]) -> Result<(), String> {
    if target.is_empty() {
        Err("it is a symlink without a target".to_owned())
    } else if target.contains(&0) {
        Err("its target has a zero byte in it".to_owned())
    } else if target.len() > TARGET_MAX {
        Err(format!("its target has {} bytes, more than {TARGET_MAX}", target.len()))
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_normalised_to_paths() {
        assert_eq!(normalised(b"./a//b/./c/").as_deref(), Ok(&b"a/b/c"[..]));
        assert_eq!(normalised(b"/etc/x").as_deref(), Ok(&b"etc/x"[..]));
        for name in [&b""[..], b"/", b"./", b"."] {
            assert_eq!(normalised(name).as_deref(), Ok(&b""[..]));
        }
        let (long, deep) = ([b'x'; 256], b"d/".repeat(2049));
        for bad in [&b"../x"[..], b"a/..", b"a\0b", &long, &deep] {
            assert!(normalised(bad).is_err(), "{bad:?}");
        }
        for bad in [&b""[..], b"a\0b", &[b'x'; 4096]] {
            assert!(check_target(bad).is_err(), "{bad:?}");
        }
        assert_eq!(check_target(&[b'x'; 4095]), Ok(()));
    }
}
