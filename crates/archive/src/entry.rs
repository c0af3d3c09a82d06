//! Entries of an archive.

use crate::sparse::Data;

/// Longest name of a file on Linux, in bytes.
pub const NAME_MAX: usize = 255;
/// Longest path that Linux takes in one call, without the zero byte at its end.
pub const PATH_MAX: usize = 4095;
/// Longest target of a symlink: the kernel reads it into one page.
pub const TARGET_MAX: usize = 4095;

/// An entry of an archive, without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name as the archive has it.
    pub name: Vec<u8>,
    /// Its path below the folder that the archive is unpacked to, which is empty: no `.`, no `..`, no empty names.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// Permission bits with setuid, setgid and sticky (`0o7777`).
    pub mode: u32,
    /// Owner, below 2^32 - 1.
    pub uid: u32,
    /// Group, below 2^32 - 1.
    pub gid: u32,
    /// Last change of the content.
    pub mtime: Time,
    /// Extended attributes: names and values, each name once.
    pub xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    /// Type of the header, if it is none that is known; the entry is a regular file then, as POSIX wants it.
    pub unknown_type: Option<u8>,
    /// Where its header is, in the archive without its compression.
    pub offset: u64,
}

/// Kind of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A regular file, with the places of its content.
    File(Data),
    /// Another name of the entry at this path.
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

/// A time since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Time {
    /// Whole seconds, rounded towards the past.
    pub seconds: i64,
    /// The rest in nanoseconds, below a billion.
    pub nanoseconds: u32,
}

/// Returns the path below a folder that a name in an archive stands for; the reason if it stands for none.
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

/// Checks the target of a symlink; returns the reason if none can have it.
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
    fn names_become_paths() {
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
