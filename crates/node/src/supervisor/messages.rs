//! Messages between a daemon and its supervisor: one packet each, with at most one descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Maximum length of a message in bytes.
const MESSAGE_MAX: usize = 16 << 10;
/// Maximum length of a text for users in bytes.
pub(super) const TEXT_MAX: usize = 4 << 10;

/// Kind of a message, its first byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A descriptor to keep, under the name in the text.
    Keep = b'k',
    /// Facts for a successor, as text.
    State = b's',
    /// The supervisor has sent all that it keeps.
    Complete = b'c',
    /// The daemon serves the mount.
    Serving = b'r',
    /// The daemon can't serve the mount, for the reason in the text.
    Failed = b'f',
    /// The mount is gone.
    Ended = b'e',
    /// The daemon has to leave the mount to a successor.
    Retire = b't',
    /// Changed options of the mount in the descriptor, which a successor has to use.
    Options = b'o',
}

const KINDS: [Kind; 8] = [
    Kind::Keep,
    Kind::State,
    Kind::Complete,
    Kind::Serving,
    Kind::Failed,
    Kind::Ended,
    Kind::Retire,
    Kind::Options,
];

/// A received message.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) kind: Kind,
    pub(super) text: Vec<u8>,
    pub(super) descriptor: Option<OwnedFd>,
}

/// Makes a connected pair of sockets.
pub(super) fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

pub(super) fn send(
    socket: impl AsFd,
    kind: Kind,
    text: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    if text.len() >= MESSAGE_MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let descriptors = descriptor.map(|descriptor| [descriptor]);
    if let Some(descriptors) = &descriptors
        && !control.push(SendAncillaryMessage::ScmRights(descriptors))
    {
        return Err(io::Error::other("no room for a descriptor"));
    }
    let kind = [kind as u8];
    let parts = [IoSlice::new(&kind), IoSlice::new(text)];
    loop {
        match sendmsg(&socket, &parts, &mut control, SendFlags::NOSIGNAL) {
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Receives the next message; `None` if the other process has ended.
pub(super) fn receive(socket: impl AsFd) -> io::Result<Option<Message>> {
    let (bytes, descriptor) = receive_bytes(socket)?;
    let Some((first, text)) = bytes.split_first() else { return Ok(None) };
    let kind = KINDS.into_iter().find(|kind| *kind as u8 == *first);
    let kind =
        kind.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a message of another version"))?;
    Ok(Some(Message { kind, text: text.to_vec(), descriptor }))
}

/// Receives the bytes of the next message, none at the end, and its descriptor.
pub(super) fn receive_bytes(socket: impl AsFd) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut bytes = vec![0; MESSAGE_MAX];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let len = loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut bytes)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(received) => break received.bytes,
            Err(Errno::INTR) => {}
            Err(Errno::CONNRESET) => break 0,
            Err(error) => return Err(error.into()),
        }
    };
    let descriptor = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    bytes.truncate(len);
    Ok((bytes, descriptor))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn messages_arrive_whole_with_their_descriptors() {
        let (a, b) = pair().expect("sockets");
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"here").expect("written");
        send(&a, Kind::Keep, b"memory", Some(file.as_fd())).expect("sent");
        send(&a, Kind::Serving, b"", None).expect("sent");
        let kept = receive(&b).expect("received").expect("a message");
        assert_eq!((kept.kind, &*kept.text), (Kind::Keep, &b"memory"[..]));
        let same = std::fs::File::from(kept.descriptor.expect("a descriptor"));
        assert_eq!(same.metadata().expect("facts").len(), 4);
        assert_eq!(receive(&b).expect("received").expect("a message").kind, Kind::Serving);
        send(&a, Kind::State, &vec![0; MESSAGE_MAX], None).expect_err("too long");
        rustix::io::write(&a, b"?").expect("sent");
        receive(&b).expect_err("an unknown kind");
        drop(a);
        assert!(receive(&b).expect("the end").is_none());
    }
}
