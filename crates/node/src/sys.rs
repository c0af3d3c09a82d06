//! System calls that need `unsafe`: steps between fork and exec, the groups of a peer, and the local time.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
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

/// Closes every descriptor except the standard ones and `keep`. Only for the start of a process, before it has
/// opened anything of its own.
pub(crate) fn close_inherited(keep: RawFd) -> io::Result<()> {
    let mut inherited = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let number = entry?.file_name().to_str().and_then(|name| name.parse::<RawFd>().ok());
        inherited.extend(number.filter(|number| *number > 2 && *number != keep));
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

/// Maximum number of groups of a process in Linux.
const GROUPS_MAX: usize = 65_536;

/// Returns the supplementary groups of the process that connected to a socket (Linux 4.13).
pub(crate) fn peer_groups(socket: BorrowedFd<'_>) -> io::Result<Vec<u32>> {
    let mut groups = vec![0u32; 64];
    loop {
        let room = std::mem::size_of_val(groups.as_slice());
        let mut len = libc::socklen_t::try_from(room).map_err(io::Error::other)?;
        // SAFETY: the buffer has `len` bytes, and any bytes are numbers of groups.
        let asked = unsafe {
            let (level, name) = (libc::SOL_SOCKET, libc::SO_PEERGROUPS);
            libc::getsockopt(socket.as_raw_fd(), level, name, groups.as_mut_ptr().cast(), &raw mut len)
        };
        if asked == 0 {
            groups.truncate(usize::try_from(len).unwrap_or_default() / size_of::<u32>());
            return Ok(groups);
        }
        let error = io::Error::last_os_error();
        // It says how much room it needs, but twice as much will do as well.
        if error.raw_os_error() != Some(libc::ERANGE) || groups.len() >= GROUPS_MAX {
            return Err(error);
        }
        groups.resize(groups.len() * 4, 0);
    }
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
