//! Messages between parent and child: packets over a socket pair, one message each.
//!
//! ```text
//!  child → parent   'M' index(1)  + descriptor    tree number `index` is mounted
//!                   'E' code(1) text              failure: message, and exit code
//!                   end of file                   the command runs (the socket closes on exec)
//!  parent → child   'G'                           all sessions run: go
//! ```

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};

/// Maximum length of a message: a longer error text is cut.
const LONGEST: usize = 16 * 1024;

/// A message of the child.
#[derive(Debug)]
pub(crate) enum FromChild {
    Mounted { index: u8, device: OwnedFd },
    Failed { code: u8, text: String },
    Running,
}

/// One end of the socket pair.
#[derive(Debug)]
pub(crate) struct Channel(OwnedFd);

impl Channel {
    pub(crate) fn pair() -> io::Result<(Self, Self)> {
        let (a, b) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        Ok((Self(a), Self(b)))
    }

    pub(crate) fn from_descriptor(fd: OwnedFd) -> Self {
        Self(fd)
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    pub(crate) fn say_mounted(&self, index: u8, device: BorrowedFd<'_>) -> io::Result<()> {
        let devices = [device];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&devices));
        self.send(&[b'M', index], &mut ancillary)
    }

    pub(crate) fn say_failed(&self, code: u8, text: &str) -> io::Result<()> {
        let mut message = vec![b'E', code];
        message.extend_from_slice(text.as_bytes().get(..LONGEST - 2).unwrap_or(text.as_bytes()));
        self.send(&message, &mut SendAncillaryBuffer::default())
    }

    pub(crate) fn say_go(&self) -> io::Result<()> {
        self.send(b"G", &mut SendAncillaryBuffer::default())
    }

    /// Waits for the parent's permission to continue; an error if the parent died or gave up.
    pub(crate) fn wait_for_go(&self) -> io::Result<()> {
        match self.receive()? {
            (message, _) if message == b"G" => Ok(()),
            _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        }
    }

    pub(crate) fn next(&self) -> io::Result<FromChild> {
        let (message, device) = self.receive()?;
        let unknown = || io::Error::new(io::ErrorKind::InvalidData, "unknown message from the child");
        Ok(match (message.first(), message.get(1), device) {
            (None, _, _) => FromChild::Running,
            (Some(b'M'), Some(index), Some(device)) => FromChild::Mounted { index: *index, device },
            (Some(b'E'), Some(code), _) => {
                let text = message.get(2..).unwrap_or_default();
                FromChild::Failed { code: *code, text: String::from_utf8_lossy(text).into_owned() }
            }
            _ => return Err(unknown()),
        })
    }

    fn send(&self, message: &[u8], ancillary: &mut SendAncillaryBuffer<'_, '_, '_>) -> io::Result<()> {
        // A vanished peer is an error to handle, not a signal to die of.
        rustix::io::retry_on_intr(|| {
            sendmsg(&self.0, &[IoSlice::new(message)], ancillary, SendFlags::NOSIGNAL)
        })?;
        Ok(())
    }

    fn receive(&self) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
        let mut message = vec![0; LONGEST];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = loop {
            let mut into = [IoSliceMut::new(&mut message)];
            match recvmsg(&self.0, &mut into, &mut ancillary, RecvFlags::CMSG_CLOEXEC) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?.bytes,
            }
        };
        message.truncate(got);
        let device = ancillary.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
            _ => None,
        });
        Ok((message, device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_whole_with_their_descriptor() {
        let (parent, child) = Channel::pair().expect("pair");
        let file = tempfile::tempfile().expect("file");
        child.say_mounted(3, file.as_fd()).expect("send");
        child.say_failed(127, &"x".repeat(2 * LONGEST)).expect("send");
        drop(child);
        assert!(matches!(parent.next(), Ok(FromChild::Mounted { index: 3, .. })));
        match parent.next() {
            Ok(FromChild::Failed { code: 127, text }) => assert_eq!(text.len(), LONGEST - 2),
            other => panic!("{other:?}"),
        }
        assert!(matches!(parent.next(), Ok(FromChild::Running)));
    }

    #[test]
    fn a_parent_that_gives_up_is_noticed() {
        let (parent, child) = Channel::pair().expect("pair");
        drop(parent);
        assert!(child.wait_for_go().is_err());
    }
}
