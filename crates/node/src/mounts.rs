//! The kernel's list of mounts.

pub mod holders;
pub mod search;

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use esker_kernel_mount::SOURCE_PREFIX;
use serde::{Deserialize, Serialize};

/// Number of the device that the kernel gives a file system; no other one has it while any namespace holds the mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Number of the class.
    pub major: u32,
    /// Number in the class.
    pub minor: u32,
}

/// A line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountLine {
    /// Device number of the file system.
    pub device: Device,
    /// Mount point.
    pub mountpoint: PathBuf,
    /// The type of file system, with its subtype.
    pub kind: String,
    /// Source of the mount.
    pub source: OsString,
    /// Mounting user, if the file system reports it.
    pub user: Option<u32>,
}

/// Returns all mounts, in the order of mounting. Touches none of them.
pub fn all() -> io::Result<Vec<MountLine>> {
    let text = fs::read("/proc/self/mountinfo")?;
    Ok(text.split(|byte| *byte == b'\n').filter_map(parse).collect())
}

/// Returns the topmost mount at `path`. Doesn't touch the mount itself, which may be dead.
pub fn at(path: &Path) -> io::Result<Option<MountLine>> {
    let text = fs::read("/proc/self/mountinfo")?;
    Ok(text.rsplit(|byte| *byte == b'\n').filter_map(parse).find(|line| line.mountpoint == path))
}

/// Returns the mount that an open descriptor is on, without accessing it. `None` if it is not mounted in this namespace.
pub(crate) fn of(descriptor: impl AsFd) -> io::Result<Option<MountLine>> {
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", descriptor.as_fd().as_raw_fd()))?;
    let Some(id) = about.lines().find_map(|line| line.strip_prefix("mnt_id:")) else { return Ok(None) };
    let text = fs::read("/proc/self/mountinfo")?;
    let mut lines = text.split(|byte| *byte == b'\n');
    let line = lines.find(|line| line.split(|byte| *byte == b' ').next() == Some(id.trim().as_bytes()));
    Ok(line.and_then(parse))
}

/// Returns the absolute path of a mount point with links resolved, without accessing the mount.
pub fn canonical(path: &Path) -> io::Result<PathBuf> {
    if let Ok(path) = fs::canonicalize(path) {
        return Ok(path);
    }
    let absolute = std::path::absolute(path)?;
    match (absolute.parent(), absolute.file_name()) {
        (Some(parent), Some(name)) => Ok(fs::canonicalize(parent)?.join(name)),
        _ => Ok(absolute),
    }
}

fn parse(line: &[u8]) -> Option<MountLine> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (major, minor) = str::from_utf8(fields.nth(2)?).ok()?.split_once(':')?;
    let mountpoint = fields.nth(1)?;
    // Optional fields end with a lone dash.
    fields.find(|field| *field == b"-")?;
    let kind = fields.next()?;
    let source = fields.next()?;
    let mut options = fields.next().unwrap_or_default().split(|byte| *byte == b',');
    let user = options.find_map(|option| option.strip_prefix(b"user_id="));
    Some(MountLine {
        device: Device { major: major.parse().ok()?, minor: minor.parse().ok()? },
        mountpoint: OsString::from_vec(unescape(mountpoint)).into(),
        kind: String::from_utf8_lossy(kind).into_owned(),
        source: OsString::from_vec(unescape(source)),
        user: user.and_then(|user| str::from_utf8(user).ok()?.parse().ok()),
    })
}

/// Decodes the kernel's escapes: a backslash and three octal digits.
fn unescape(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((byte, tail)) = rest.split_first() {
        rest = tail;
        match (*byte, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', after @ ..]) => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            (other, _) => out.push(other),
        }
    }
    out
}

impl MountLine {
    /// Returns true if the mount is one of Esker's.
    pub fn is_ours(&self) -> bool {
        self.kind == "fuse.esker" || self.is_above()
    }

    /// Returns true if the mount is a file system of the kernel above a mount of Esker.
    fn is_above(&self) -> bool {
        matches!(&*self.kind, "overlay" | "erofs")
            && self.source.as_bytes().starts_with(SOURCE_PREFIX.as_bytes())
    }

    /// Returns true if the mount is an overlay that Esker put above a mount.
    pub(crate) fn is_own_overlay(&self) -> bool {
        self.kind == "overlay" && self.is_above()
    }

    /// Returns the source as text.
    pub fn source_text(&self) -> String {
        let text = String::from_utf8_lossy(self.source.as_bytes());
        let url = text.strip_prefix(SOURCE_PREFIX).filter(|_| self.is_above());
        url.unwrap_or(&text).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo_are_parsed() {
        let line =
            br"36 35 98:0 / /mnt\0402 rw,noatime master:1 shared:7 - fuse.esker http://h/a\134b rw,user_id=0";
        let parsed = parse(line).expect("a line");
        assert_eq!(parsed.device, Device { major: 98, minor: 0 });
        assert_eq!(parsed.mountpoint, Path::new("/mnt 2"));
        assert_eq!(parsed.source_text(), r"http://h/a\b");
        assert!(parsed.is_ours());
        assert_eq!(parsed.user, Some(0));
        assert!(parse(b"").is_none());
        assert!(parse(b"36 35 98:0 / /mnt rw shared:7 fuse").is_none());
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(at(Path::new("/")).expect("mountinfo").is_some());
        assert!(at(Path::new("/proc/self/no")).expect("mountinfo").is_none());
    }
}
