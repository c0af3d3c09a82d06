//! One descriptor of a FUSE connection, for requests and replies.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::abi::OutHeader;
use crate::sys::{Plain, bytes_of};

/// A descriptor of the connection.
#[derive(Debug)]
pub(crate) struct Channel {
    /// Number among the channels of the session. A request must be answered on the channel that it was read from, also
    /// by a process that takes over.
    pub(crate) number: usize,
    device: OwnedFd,
}

impl Channel {
    pub(crate) fn new(number: usize, device: OwnedFd) -> Self {
        Self { number, device }
    }

    pub(crate) fn device(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }

    /// Returns whether a request is ready, or the connection is closed.
    pub(crate) fn has_request(&self) -> bool {
        !matches!(self.wait(Duration::ZERO), Ok(false))
    }

    /// Waits for a request; returns true if there is one, or the connection is closed.
    pub(crate) fn wait(&self, within: Duration) -> io::Result<bool> {
        let within = Timespec::try_from(within).map_err(io::Error::other)?;
        let mut device = [PollFd::new(&self.device, PollFlags::IN)];
        Ok(poll(&mut device, Some(&within))? > 0)
    }

    /// Receives the next request, whole.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.device, buffer)?)
    }

    /// Answers with a structure. Allocates nothing.
    pub(crate) fn plain<T: Plain>(&self, unique: u64, value: &T) -> io::Result<()> {
        self.send(unique, 0, &[IoSlice::new(bytes_of(value))])
    }

    /// Replies with bytes. Allocates nothing.
    pub(crate) fn bytes(&self, unique: u64, bytes: &[u8]) -> io::Result<()> {
        self.send(unique, 0, &[IoSlice::new(bytes)])
    }

    /// Answers with an error number. Allocates nothing.
    pub(crate) fn error(&self, unique: u64, errno: i32) -> io::Result<()> {
        self.send(unique, -errno, &[])
    }

    /// Sends a notification with a value and a name to the kernel.
    pub(crate) fn notify<T: Plain>(&self, code: i32, value: &T, name: &[u8]) -> io::Result<()> {
        let value = bytes_of(value);
        if name.is_empty() {
            return self.send(0, code, &[IoSlice::new(value)]);
        }
        // A name ends with a zero byte.
        self.send(0, code, &[IoSlice::new(value), IoSlice::new(name), IoSlice::new(&[0])])
    }

    /// Sends a notification without a name to the kernel.
    pub(crate) fn notify_bare(&self, code: i32) -> io::Result<()> {
        self.send(0, code, &[])
    }

    /// Sends a header and `body` in one write, as the kernel demands.
    pub(crate) fn send(&self, unique: u64, error: i32, body: &[IoSlice<'_>]) -> io::Result<()> {
        /// Maximum number of parts of a reply that is sent without an allocation.
        const INLINE: usize = 8;
        let bytes: usize = body.iter().map(|part| part.len()).sum();
        let len = u32::try_from(size_of::<OutHeader>() + bytes).map_err(io::Error::other)?;
        let header = OutHeader { len, error, unique };
        let header = IoSlice::new(bytes_of(&header));
        let parts = std::iter::once(&header).chain(body);
        if body.len() < INLINE {
            let mut all = [IoSlice::new(&[]); INLINE];
            for (to, from) in all.iter_mut().zip(parts) {
                *to = IoSlice::new(from);
            }
            rustix::io::writev(&self.device, &all[..=body.len()])?;
        } else {
            let all: Vec<_> = parts.map(|part| IoSlice::new(part)).collect();
            rustix::io::writev(&self.device, &all)?;
        }
        Ok(())
    }
}
