//! Credentials of a socket's peer.

use std::os::fd::AsFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::sys;

/// Credentials of a connected process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// User of the process.
    pub uid: u32,
    /// Primary and supplementary groups of the process.
    pub gids: Vec<u32>,
}

impl Peer {
    /// Returns the credentials that the kernel recorded at connection, if there are any. `None` if it has none.
    pub fn of(socket: impl AsFd) -> Option<Self> {
        let credentials = rustix::net::sockopt::socket_peercred(&socket).ok()?;
        let mut gids = sys::peer_groups(socket.as_fd()).unwrap_or_default();
        gids.push(credentials.gid.as_raw());
        Some(Self { uid: credentials.uid.as_raw(), gids })
    }

    /// Returns true if the peer is root or this process's user.
    pub fn is_trusted(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }
}

/// Returns the process id of the peer, or of the listener; `None` if it is in an invisible PID namespace.
pub fn pid(socket: impl AsFd) -> Option<u32> {
    let pid = rustix::net::sockopt::socket_peercred(socket).ok()?.pid;
    u32::try_from(pid.as_raw_nonzero().get()).ok()
}

/// Returns the user of the peer's process, or of the listener's.
pub fn user(socket: impl AsFd) -> Option<u32> {
    Some(rustix::net::sockopt::socket_peercred(socket).ok()?.uid.as_raw())
}

/// True if the peer is this process's user or root.
pub fn is_trusted(socket: impl AsFd) -> bool {
    Peer::of(socket).is_some_and(|peer| peer.is_trusted())
}

/// Returns true if the process that connected is known to have ended, so that its id may be that of another one. Kernels before
/// 6.5 don't tell.
pub fn has_ended(socket: impl AsFd) -> bool {
    let Ok(process) = sys::peer_process(socket.as_fd()) else { return false };
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&now)).is_ok_and(|ended| ended > 0)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn this_process_has_not_ended() {
        let (a, _b) = UnixStream::pair().expect("sockets");
        assert_eq!(pid(&a), Some(std::process::id()));
        assert!(!has_ended(&a));
    }
}
