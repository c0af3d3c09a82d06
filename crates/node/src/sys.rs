//! System calls that need `unsafe`: steps between fork and exec, and the local time.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Passes `fd` to the child of `command` under the same number.
pub(crate) fn inherit(command: &mut Command, fd: RawFd) {
    // SAFETY: the closure only calls fcntl, which may be called between fork and exec.
    unsafe {
        command.pre_exec(move || {
            if libc::fcntl(fd, libc::F_SETFD, 0) < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(())
        });
    }
}

/// Closes every descriptor except the standard ones and those to `keep`. Only for the start of a process, before it has
/// opened anything of its own.
pub(crate) fn close_inherited(keep: &[RawFd]) -> io::Result<()> {
    let mut inherited = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        inherited.extend(number.filter(|number| *number > 2 && !keep.contains(number)));
    }
    for number in inherited {
        // SAFETY: nothing in this process has opened a descriptor yet, so no other code owns it. (The one
        // of the directory read above is among the numbers, but closed by now: closing it again only fails.)
        unsafe { libc::close(number) };
    }
    Ok(())
}

/// Takes over a descriptor that the parent passed under this number.
pub(crate) fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: fcntl checks the number; it has no effect on memory.
    if fd < 3 || unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        return Err(io::Error::from_raw_os_error(libc::EBADF));
    }
    // SAFETY: the number is open, and by the convention between parent and child it is ours alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns a local time in the form of the system's log: `Jan  2 03:04:05`.
pub(crate) fn local_time(seconds: u64) -> String {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let seconds = libc::time_t::try_from(seconds).unwrap_or(libc::time_t::MAX);
    // SAFETY: a `tm` is numbers and a pointer that no code follows, for all of which zero is a value.
    let mut tm: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are of values that live as long as the call, which keeps neither.
    unsafe { libc::localtime_r(&raw const seconds, &raw mut tm) };
    let month = usize::try_from(tm.tm_mon).ok().and_then(|month| MONTHS.get(month)).unwrap_or(&"Jan");
    format!("{month} {:>2} {:02}:{:02}:{:02}", tm.tm_mday, tm.tm_hour, tm.tm_min, tm.tm_sec)
}
