//! A file system in memory that only this process sees, and that is gone with its last descriptor.
//!
//! It is a mount without a place in any tree of names (`fsmount`, Linux 5.2). An ordinary user may make one in a user
//! namespace only; a child goes there and hands it back, so that this process stays who it is.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_string, fsmount, fsopen,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{WaitOptions, getegid, geteuid, waitpid};

use super::handover::{receive_device, send_device};
use crate::sys;

/// Makes an empty one of so many bytes; its root is its user's alone.
pub fn private_memory(bytes: u64) -> io::Result<OwnedFd> {
    let plan = Plan::new(bytes)?;
    match plan.make() {
        Err(Errno::PERM) => plan.make_in_namespace(),
        made => Ok(made?),
    }
}

/// All that a child needs, which may not allocate.
struct Plan {
    bytes: CString,
    uid_map: String,
    gid_map: String,
}

impl Plan {
    fn new(bytes: u64) -> io::Result<Self> {
        let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
        Ok(Self {
            bytes: CString::new(bytes.to_string())?,
            uid_map: format!("{uid} {uid} 1"),
            gid_map: format!("{gid} {gid} 1"),
        })
    }

    fn make(&self) -> rustix::io::Result<OwnedFd> {
        let context = fsopen(c"tmpfs", FsOpenFlags::FSOPEN_CLOEXEC)?;
        for (name, value) in [(c"size", self.bytes.as_c_str()), (c"mode", c"0700")] {
            fsconfig_set_string(context.as_fd(), name, value)?;
        }
        fsconfig_create(context.as_fd())?;
        let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
            | MountAttrFlags::MOUNT_ATTR_NODEV
            | MountAttrFlags::MOUNT_ATTR_NOATIME;
        fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)
    }

    fn make_in_namespace(&self) -> io::Result<OwnedFd> {
        let (here, there) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let child = sys::in_child(|| {
            if self.enter().is_ok()
                && let Ok(made) = self.make()
            {
                let _ = send_device(&there, made.as_fd());
            }
        })?;
        drop(there);
        let made = receive_device(&here);
        while let Err(Errno::INTR) = waitpid(Some(child), WaitOptions::empty()) {}
        made.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(
                io::ErrorKind::PermissionDenied,
                "an ordinary user may have memory of their own only where user namespaces are allowed",
            ),
            _ => error,
        })
    }

    fn enter(&self) -> rustix::io::Result<()> {
        sys::unshare_user_and_mounts()?;
        let write = |path: &CStr, text: &str| {
            let file = open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            rustix::io::write(file, text.as_bytes()).map(drop)
        };
        // The group map may be written by an ordinary user only once setgroups is off.
        write(c"/proc/self/setgroups", "deny")?;
        write(c"/proc/self/uid_map", &self.uid_map)?;
        write(c"/proc/self/gid_map", &self.gid_map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;
    use std::path::PathBuf;

    #[test]
    fn memory_is_ours_alone_bounded_and_gone_with_its_descriptor() {
        let uid = geteuid().as_raw();
        let plan = Plan::new(1 << 20).expect("a plan");
        // As root both ways are there, otherwise the second.
        let made = [plan.make().ok(), Some(plan.make_in_namespace().expect("user namespaces"))];
        assert!(!geteuid().is_root() || made[0].is_some());
        for root in made.into_iter().flatten() {
            let path = PathBuf::from(format!("/proc/self/fd/{}", root.as_raw_fd()));
            let folder = fs::metadata(path.join(".")).expect("its root");
            assert_eq!((folder.uid(), folder.mode() & 0o7777), (uid, 0o700));
            fs::create_dir(path.join("a")).expect("a folder");
            fs::write(path.join("a/b"), vec![7; 512 << 10]).expect("a file");
            fs::rename(path.join("a/b"), path.join("c")).expect("another name");
            assert_eq!(fs::read(path.join("c")).expect("the file").len(), 512 << 10);
            let full = fs::write(path.join("d"), vec![7; 2 << 20]).expect_err("too much");
            assert_eq!(full.raw_os_error(), Some(libc::ENOSPC));
            drop(root);
            assert!(fs::metadata(path.join("c")).is_err());
        }
    }
}
