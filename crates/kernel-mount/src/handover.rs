//! Passes an open connection to another process over a UNIX socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};

/// Sends an open connection to another process.
pub fn send_device(socket: impl AsFd, device: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let devices = [device];
    if !control.push(SendAncillaryMessage::ScmRights(&devices)) {
        return Err(io::Error::other("no room for a descriptor"));
    }
    // A descriptor travels with at least one byte.
    sendmsg(socket, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives an open connection from another process.
pub fn receive_device(socket: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    loop {
        match recvmsg(&socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Ok(_) => break,
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let sent = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut devices) => devices.next(),
        _ => None,
    });
    sent.ok_or_else(|| io::Error::new(io::ErrorKind::UnexpectedEof, "no descriptor was sent"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::io::Write;

    #[test]
    fn a_descriptor_arrives_or_its_absence_is_an_error() {
        let pair = || socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (a, b) = pair().expect("sockets");
        let mut file = tempfile::tempfile().expect("a file");
        file.write_all(b"here").expect("written");
        send_device(&a, file.as_fd()).expect("sent");
        let same = std::fs::File::from(receive_device(&b).expect("received"));
        assert_eq!(same.metadata().expect("metadata").len(), 4);
        drop(a);
        assert_eq!(receive_device(&b).expect_err("nothing").kind(), io::ErrorKind::UnexpectedEof);
    }
}
