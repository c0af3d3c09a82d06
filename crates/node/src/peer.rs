//! Who is at the other end of a socket.

use std::os::fd::AsFd;

/// The process that the peer is, or that listened for it; `None` if it is in a pid namespace out of our sight.
pub(crate) fn pid(socket: impl AsFd) -> Option<u32> {
    let pid = rustix::net::sockopt::socket_peercred(socket).ok()?.pid;
    u32::try_from(pid.as_raw_nonzero().get()).ok()
}

/// Whether the peer is the same user as we are, or root.
pub(crate) fn is_trusted(socket: impl AsFd) -> bool {
    rustix::net::sockopt::socket_peercred(socket)
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}
