//! Messages between a daemon and its supervisor: one packet each, with at most one descriptor.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::packets;

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

pub(super) fn send(
    socket: impl AsFd,
    kind: Kind,
    text: &[u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    packets::send(socket, &[&[kind as u8], text], descriptor)
}

/// Receives the next message; `None` if the other process has ended.
pub(super) fn receive(socket: impl AsFd) -> io::Result<Option<Message>> {
    let (bytes, descriptor) = packets::receive(socket)?;
    let Some((first, text)) = bytes.split_first() else { return Ok(None) };
    let kind = KINDS.into_iter().find(|kind| *kind as u8 == *first);
    let kind =
        kind.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a message of another version"))?;
    Ok(Some(Message { kind, text: text.to_vec(), descriptor }))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn messages_arrive_whole_with_their_descriptors() {
        let (a, b) = packets::pair().expect("sockets");
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"here").expect("written");
        send(&a, Kind::Keep, b"memory", Some(file.as_fd())).expect("sent");
        send(&a, Kind::Serving, b"", None).expect("sent");
        let kept = receive(&b).expect("received").expect("a message");
        assert_eq!((kept.kind, &*kept.text), (Kind::Keep, &b"memory"[..]));
        let same = std::fs::File::from(kept.descriptor.expect("a descriptor"));
        assert_eq!(same.metadata().expect("facts").len(), 4);
        assert_eq!(receive(&b).expect("received").expect("a message").kind, Kind::Serving);
        send(&a, Kind::State, &vec![0; packets::LEN_MAX], None).expect_err("too long");
        rustix::io::write(&a, b"?").expect("sent");
        receive(&b).expect_err("an unknown kind");
        drop(a);
        assert!(receive(&b).expect("the end").is_none());
    }
}
