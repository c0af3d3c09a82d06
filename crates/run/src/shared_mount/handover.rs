//! Message of a shared mount's process to a command: the mount's key and its namespaces.
//!
//! ```text
//!  process → command  key, as text   + descriptors: mount namespace, and user namespace
//! ```

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg,
    socket_with,
};
use rustix::process::geteuid;

use super::Key;
use crate::namespaces::Namespaces;

/// Maximum length of a key's message: the path of an image, and some names of control groups.
const LONGEST: usize = 64 * 1024;
/// Timeout for the reply of a shared mount's process, which replies at once unless it is stopped.
const TIMEOUT: Duration = Duration::from_secs(30);

impl Namespaces {
    /// Sends the namespaces to a client. Errors are ignored: the client waits for the reply, or has ended.
    pub(super) fn send(&self, to: BorrowedFd<'_>, key: &Key) -> io::Result<()> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let all = [self.mount.as_fd(), self.user.as_fd()];
        ancillary.push(SendAncillaryMessage::ScmRights(&all));
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        sendmsg(to, &[IoSlice::new(key.text().as_bytes())], &mut ancillary, flags)?;
        Ok(())
    }
}

/// Requests the namespaces from the process at `socket`, which must have `key` and belong to this user.
pub(super) fn ask(socket: &Path, key: &Key) -> io::Result<Namespaces> {
    let stream = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    set_socket_timeout(&stream, Timeout::Recv, Some(TIMEOUT))?;
    set_socket_timeout(&stream, Timeout::Send, Some(TIMEOUT))?;
    connect(&stream, &SocketAddrUnix::new(socket)?)?;
    if socket_peercred(&stream)?.uid != geteuid() {
        return Err(io::Error::other("it belongs to another user"));
    }
    let mut text = vec![0; LONGEST];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let got = rustix::io::retry_on_intr(|| {
        recvmsg(&stream, &mut [IoSliceMut::new(&mut text)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)
    });
    let got = match got {
        Err(rustix::io::Errno::AGAIN) => return Err(io::Error::other("it doesn't answer")),
        other => other?.bytes,
    };
    let mut descriptors = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            descriptors.extend(received);
        }
    }
    let mut descriptors = descriptors.into_iter();
    match (descriptors.next(), descriptors.next()) {
        (Some(_), Some(_)) if text.get(..got) != Some(key.text().as_bytes()) => {
            Err(io::Error::other("it keeps another image"))
        }
        (Some(mount), Some(user)) => Ok(Namespaces { mount, user }),
        _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
    }
}
