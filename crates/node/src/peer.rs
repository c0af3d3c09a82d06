//! Who is at the other end of a socket.

use std::os::fd::AsFd;

/// Whether the peer is the same user as we are, or root.
pub(crate) fn is_trusted(socket: impl AsFd) -> bool {
    rustix::net::sockopt::socket_peercred(socket)
        .is_ok_and(|peer| peer.uid.is_root() || peer.uid == rustix::process::geteuid())
}
