//! System calls that need `unsafe`: the groups and the process of a socket's peer.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Maximum number of groups of a process in Linux.
const GROUPS_MAX: usize = 65_536;

/// Number of the option that returns the peer's process, which not every C library names.
const SO_PEERPIDFD: libc::c_int = 77;

/// Returns a descriptor of the process that connected to a socket (Linux 6.5).
pub(crate) fn peer_process(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut process: libc::c_int = -1;
    let mut len = libc::socklen_t::try_from(size_of::<libc::c_int>()).map_err(io::Error::other)?;
    // SAFETY: the buffer is a number of `len` bytes.
    let asked = unsafe {
        let (level, value) = (libc::SOL_SOCKET, (&raw mut process).cast());
        libc::getsockopt(socket.as_raw_fd(), level, SO_PEERPIDFD, value, &raw mut len)
    };
    if asked != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has opened it for this call, so no other code owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(process) })
}

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
