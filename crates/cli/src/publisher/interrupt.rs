//! Handles Ctrl-C and other signals in a command that waits for a lock or an answer.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use esker_run::take_signals;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::time::Timespec;

use crate::error::{Context as _, Failure, Kind};

/// Flag that the user has interrupted the command.
#[derive(Clone)]
pub(crate) struct Interrupt {
    stop: Arc<AtomicBool>,
    /// Readable from the first signal on.
    event: Arc<OwnedFd>,
}

/// Cause of the end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// The user wants the command to end.
    Interrupted,
    /// The descriptor can be read.
    Readable,
    /// The time limit passed.
    TimedOut,
}

impl Interrupt {
    /// Starts handling the signals. Must be called before any other thread starts.
    pub(crate) fn on_signals() -> Result<Self, Failure> {
        let interrupt = Self::new().context(Kind::Failed, "can't handle signals")?;
        let received = interrupt.clone();
        take_signals(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP], move |_| received.signalled())
            .context(Kind::Failed, "can't handle signals")?;
        Ok(interrupt)
    }

    /// Makes an interrupt that another handler of signals raises.
    pub(crate) fn without_signals() -> Result<Self, Failure> {
        Self::new().context(Kind::Failed, "can't handle signals")
    }

    /// Waits until standard input can be read; false if the user wants the command to end.
    pub(crate) fn wait_for_input(&self) -> bool {
        matches!(self.wait(Some(io::stdin().as_fd()), None), Ok(Woken::Readable))
    }

    fn new() -> io::Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { stop: Arc::default(), event: Arc::new(event) })
    }

    /// Lets the command end at the next safe point.
    pub(crate) fn raise(&self) {
        self.stop.store(true, Ordering::Relaxed);
        // A counter that is full is readable as well.
        let _ = rustix::io::write(&*self.event, &[1; 8]);
    }

    /// Does the same after a signal, which ends the waits for servers that never answer, too.
    pub(crate) fn signalled(&self) {
        self.raise();
        esker_store::interrupt();
    }

    /// Returns the flag that a signal sets.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.stop.clone()
    }

    /// Waits until `readable` is readable, a signal arrives, or the time limit passes.
    pub(crate) fn wait(&self, readable: Option<BorrowedFd<'_>>, time: Option<Duration>) -> io::Result<Woken> {
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        let mut fds = vec![PollFd::from_borrowed_fd(self.event.as_fd(), PollFlags::IN)];
        fds.extend(readable.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        loop {
            match poll(&mut fds, time.as_ref()) {
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
                Ok(0) => return Ok(Woken::TimedOut),
                Ok(_) if !fds[0].revents().is_empty() => return Ok(Woken::Interrupted),
                Ok(_) => return Ok(Woken::Readable),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_ends_with_a_signal_or_something_to_read() {
        let interrupt = Interrupt::new().expect("an event");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let now = Some(Duration::ZERO);
        assert_eq!(interrupt.wait(Some(reader.as_fd()), now).expect("a wait"), Woken::TimedOut);
        rustix::io::write(&writer, b"y").expect("a byte");
        assert_eq!(interrupt.wait(Some(reader.as_fd()), None).expect("a wait"), Woken::Readable);
        interrupt.raise();
        assert_eq!(interrupt.wait(Some(reader.as_fd()), None).expect("a wait"), Woken::Interrupted);
        assert_eq!(interrupt.wait(None, None).expect("a wait"), Woken::Interrupted);
        assert!(interrupt.flag().load(Ordering::Relaxed));
    }
}
