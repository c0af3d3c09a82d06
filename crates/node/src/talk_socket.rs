//! Binds the socket on which a mount answers `cvmfs_talk`.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use esker_cache_share::SocketPlace;
use esker_config::TalkOptions;
use rustix::fs::{AtFlags, Uid, chownat};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

/// Mode of the socket's file.
const MODE: u32 = 0o660;
/// Length of the queue of clients that are not accepted yet.
const BACKLOG: i32 = 128;

/// Binds a socket with its owner and mode from the beginning. One with a listener is left alone: the reference's
/// client may have it from the same line of the configuration.
pub(crate) fn listen(options: &TalkOptions) -> io::Result<OwnedFd> {
    let path = &options.socket;
    if is_answered(path)? {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "another process answers there"));
    }
    let place = SocketPlace::open(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    place.bind(&socket, MODE, |file| match options.owner {
        Some(owner) => Ok(chownat(&file, "", Some(Uid::from_raw(owner)), None, AtFlags::EMPTY_PATH)?),
        None => Ok(()),
    })?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Returns true if a process listens at the socket, without waiting for it.
fn is_answered(path: &Path) -> io::Result<bool> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::NONBLOCK | SocketFlags::CLOEXEC,
        None,
    )?;
    match connect(&socket, &SocketAddrUnix::new(path)?) {
        // Its queue is full.
        Ok(()) | Err(rustix::io::Errno::AGAIN) => Ok(true),
        Err(_) => Ok(false),
    }
}
