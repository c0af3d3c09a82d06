//! Options and propagation of bind mounts in a container.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::mount::{MountFlags, MountPropagationFlags, mount_change, mount_remount};

use super::Stage;
use super::build::kept_flags;
use crate::sys;

/// Options of a bind of the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BindOptions {
    /// True to forbid writes.
    pub read_only: bool,
    /// True to forbid the execution of programs.
    pub no_exec: bool,
    /// True to ignore set-user-ID bits.
    pub no_suid: bool,
    /// True to disable devices.
    pub no_dev: bool,
    /// True if the users of a container of root own files as the host's users of the same numbers do.
    pub mapped: bool,
    /// True if mounts below the source are not shown.
    pub single: bool,
    /// Propagation of later mounts.
    pub propagation: Propagation,
}

/// Propagation of later mounts to a bind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    /// Mounts of the host propagate to the container, and not back.
    #[default]
    Slave,
    /// No mounts propagate.
    Private,
    /// No mounts propagate, and the mount can't be bound again.
    Unbindable,
}

impl BindOptions {
    /// Options for a read-only bind.
    pub const READ_ONLY: Self = Self {
        read_only: true,
        no_exec: false,
        no_suid: false,
        no_dev: false,
        mapped: false,
        single: false,
        propagation: Propagation::Slave,
    };

    /// Applies the options to a mount and to all mounts below it.
    pub(super) fn apply(self, target: &Path, stage: &Stage) -> io::Result<()> {
        let forbidden = [
            (self.read_only, libc::MOUNT_ATTR_RDONLY, MountFlags::RDONLY),
            (self.no_exec, libc::MOUNT_ATTR_NOEXEC, MountFlags::NOEXEC),
            (self.no_suid, libc::MOUNT_ATTR_NOSUID, MountFlags::NOSUID),
            (self.no_dev, libc::MOUNT_ATTR_NODEV, MountFlags::NODEV),
        ];
        let wanted = forbidden.iter().filter(|(wanted, ..)| *wanted);
        let attributes = wanted.clone().fold(0, |all, (_, attribute, _)| all | *attribute);
        if attributes != 0 && sys::restrict_mount(target, attributes, true).is_err() {
            // Before Linux 5.12 each mount has to be changed by itself.
            let flags = wanted.fold(MountFlags::empty(), |all, (.., flag)| all | *flag);
            for mount in mounts_at(target, stage)? {
                let flags = MountFlags::BIND | flags | kept_flags(&mount)?;
                mount_remount(&mount, flags, c"")?;
            }
        }
        let propagation = match self.propagation {
            Propagation::Slave => return Ok(()),
            Propagation::Private => MountPropagationFlags::PRIVATE,
            Propagation::Unbindable => MountPropagationFlags::UNBINDABLE,
        };
        Ok(mount_change(target, propagation | MountPropagationFlags::REC)?)
    }
}

/// Returns the mount at `target` and those below it.
pub(super) fn mounts_at(target: &Path, stage: &Stage) -> io::Result<Vec<PathBuf>> {
    let list = fs::read(stage.host(Path::new("/proc/self/mountinfo")))?;
    let point = |line: &[u8]| line.split(|byte| *byte == b' ').nth(4).map(plain);
    let mut found: Vec<PathBuf> = list
        .split(|byte| *byte == b'\n')
        .filter_map(point)
        .filter(|point| point.starts_with(target) && point != target)
        .collect();
    found.insert(0, target.to_owned());
    Ok(found)
}

/// Decodes a path of the kernel's mount list, with `\040` for a space.
fn plain(listed: &[u8]) -> PathBuf {
    let mut path = Vec::with_capacity(listed.len());
    let mut rest = listed;
    while let Some((byte, after)) = rest.split_first() {
        let octal =
            after.get(..3).filter(|_| *byte == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(escaped) => {
                path.push(escaped);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                path.push(*byte);
                rest = after;
            }
        }
    }
    OsString::from_vec(path).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listed_paths_are_read() {
        assert_eq!(plain(br"/a\040b\134c"), Path::new(r"/a b\c"));
        assert_eq!(plain(br"/a\x\04"), Path::new(r"/a\x\04"));
    }
}
