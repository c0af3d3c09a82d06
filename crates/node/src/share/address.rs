//! Where the writer of a cache directory listens: a socket in that directory.
//!
//! Paths of sockets are short (107 bytes), paths of cache directories need not be; both ends therefore name
//! the directory by a descriptor.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
    sockopt,
};

use crate::peer;

/// The socket's name in the cache directory.
const NAME: &str = "broker";

/// Clients that may wait to be accepted.
const BACKLOG: i32 = 128;

fn address(directory: &File) -> io::Result<SocketAddrUnix> {
    let path = format!("/proc/self/fd/{}/{NAME}", directory.as_raw_fd());
    Ok(SocketAddrUnix::new(path.as_str())?)
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// A listening socket; its name is removed when this is dropped.
pub(super) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Listens in `cache`, whose lock the caller holds: whatever is there was left by a dead writer.
    pub(super) fn bind(cache: &Path) -> io::Result<Self> {
        let path = cache.join(NAME);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let socket = new_socket()?;
        bind(&socket, &address(&File::open(cache)?)?)?;
        listen(&socket, BACKLOG)?;
        Ok(Self { socket, path })
    }

    /// The next client of the same user; others are turned away.
    pub(super) fn accept(&self) -> io::Result<OwnedFd> {
        loop {
            match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(client) if peer::is_trusted(&client) => return Ok(client),
                Ok(_) | Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Makes [`Listener::accept`] return with an error.
    pub(super) fn stop(&self) {
        // Fails only if it has been stopped before.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The next writer removes it if we can't.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Connects to the writer of `cache`.
pub(crate) fn dial(cache: &Path) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    connect(&socket, &address(&File::open(cache)?)?)?;
    if !peer::is_trusted(&socket) {
        let why = "another user listens in this cache directory";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(socket)
}

/// Lets sends to a peer that takes nothing fail after `patience`.
pub(super) fn limit_sends(socket: impl AsFd, patience: Duration) -> io::Result<()> {
    Ok(sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(patience))?)
}

/// Bounds how long receiving waits; `None` waits for ever.
pub(crate) fn limit_receives(socket: impl AsFd, patience: Option<Duration>) -> io::Result<()> {
    Ok(sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, patience)?)
}
