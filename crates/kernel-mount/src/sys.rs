//! System calls that need unsafe code.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Lets a child that `command` starts inherit `fd`.
pub(crate) fn inherit(command: &mut Command, fd: BorrowedFd<'_>) {
    let fd = fd.as_raw_fd();
    // SAFETY: between fork and exec only fcntl(2) is called, which is async-signal-safe. The descriptor is
    // open, because the caller keeps it until the child was started.
    unsafe {
        command.pre_exec(move || {
            let fd = BorrowedFd::borrow_raw(fd);
            rustix::io::fcntl_setfd(fd.as_fd(), rustix::io::FdFlags::empty()).map_err(io::Error::from)
        });
    }
}

/// Runs `work` in a forked child, which then ends. Locks that other threads have are never let go of there, so
/// `work` may neither allocate nor take any: system calls alone.
pub(crate) fn in_child(work: impl FnOnce()) -> io::Result<rustix::process::Pid> {
    // SAFETY: the child runs `work`, which does no more than may be done in a copy of a process with threads, and ends
    // without running anything else.
    match unsafe { libc::fork() } {
        0 => {
            work();
            // SAFETY: it ends the child, running none of what the parent left to run.
            unsafe { libc::_exit(0) }
        }
        child => {
            rustix::process::Pid::from_raw(child).filter(|_| child > 0).ok_or_else(io::Error::last_os_error)
        }
    }
}

/// Enters a user namespace and a mount namespace in it.
pub(crate) fn unshare_user_and_mounts() -> rustix::io::Result<()> {
    use rustix::thread::UnshareFlags;
    // SAFETY: neither flag unshares the descriptor table, which is what could pull a descriptor from under its owner.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }
}

/// Unshares the working directory of this thread from the others.
pub(crate) fn unshare_working_directory() -> rustix::io::Result<()> {
    // SAFETY: the flag doesn't unshare the descriptor table.
    unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::FS) }
}
