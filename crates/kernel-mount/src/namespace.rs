//! Makes mounts in a child's user namespace, so that this process keeps its own namespace.
//!
//! A child enters the namespace, makes a detached mount (`fsmount`, Linux 5.2), and ends.

use std::ffi::CStr;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsconfig_set_flag, fsconfig_set_string,
    fsmount, fsopen,
};
use rustix::net::{AddressFamily, Shutdown, SocketFlags, SocketType, shutdown, socketpair};
use rustix::process::{Pid, WaitOptions, getegid, geteuid, waitpid};

use crate::handover::{receive_device, send_device};
use crate::sys;

/// Users mapped into the namespace, with unchanged numbers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum IdMap {
    /// Only the user of this process: all that an ordinary user may map.
    Ourselves,
    /// All users, which only root may map.
    AllUsers,
}

impl IdMap {
    fn tell(self, child: Pid) -> io::Result<()> {
        let child = child.as_raw_nonzero();
        let write = |file: &str, text: &str| fs::write(format!("/proc/{child}/{file}"), text);
        let (uids, gids) = match self {
            Self::AllUsers => ("0 0 4294967295".to_owned(), "0 0 4294967295".to_owned()),
            Self::Ourselves => {
                // The group map may be written by an ordinary user only once setgroups is off.
                write("setgroups", "deny")?;
                let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
                (format!("{uid} {uid} 1"), format!("{gid} {gid} 1"))
            }
        };
        write("uid_map", &uids)?;
        write("gid_map", &gids)
    }
}

/// Returns the mount that `make` makes in a new user namespace and mount namespace. It runs in a forked child of a
/// process with threads: it may neither allocate nor take a lock.
pub(crate) fn made_in_namespace(
    known: IdMap,
    make: impl FnOnce() -> rustix::io::Result<OwnedFd>,
) -> io::Result<OwnedFd> {
    let (mut here, there) = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    let child = sys::in_child(|| {
        // The child's own copy of this end would keep it waiting for a parent that is gone.
        let alone = rustix::io::dup2(&there, &mut here);
        let entered = alone.and_then(|()| sys::unshare_user_and_mounts());
        if entered.is_ok()
            && say(&there).is_ok()
            && hear(&there).is_ok()
            && let Ok(made) = make()
        {
            // A parent that is gone wants nothing.
            let _ = send_device(&there, made.as_fd());
        }
    })?;
    drop(there);
    let made = hear(&here).and_then(|()| known.tell(child)).and_then(|()| Ok(say(&here)?));
    let made = made.and_then(|()| receive_device(&here));
    // A child that still waits sees that nothing will come.
    let _ = shutdown(&here, Shutdown::Both);
    while let Err(Errno::INTR) = waitpid(Some(child), WaitOptions::empty()) {}
    made
}

/// Makes a detached mount of the type `kind`, `nosuid`, `nodev` and `noatime`. May be called by `make` of
/// [`made_in_namespace`].
pub(crate) fn made_nowhere<'a>(
    kind: &CStr,
    settings: impl IntoIterator<Item = (&'a CStr, &'a CStr)>,
    flags: MountAttrFlags,
) -> rustix::io::Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in settings {
        fsconfig_set_string(context.as_fd(), name, value)?;
    }
    if flags.contains(MountAttrFlags::MOUNT_ATTR_RDONLY) {
        fsconfig_set_flag(context.as_fd(), c"ro")?;
    }
    fsconfig_create(context.as_fd())?;
    let flags = flags
        | MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOATIME;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

fn say(socket: impl AsFd) -> rustix::io::Result<()> {
    rustix::io::retry_on_intr(|| rustix::io::write(&socket, &[0])).map(drop)
}

fn hear(socket: impl AsFd) -> io::Result<()> {
    match rustix::io::retry_on_intr(|| rustix::io::read(&socket, &mut [0]))? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        _ => Ok(()),
    }
}
