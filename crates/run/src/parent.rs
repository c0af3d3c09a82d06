//! Implements the parent, which starts the child, serves the child's mounts, and waits for the command.

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};

use crate::channel::{Channel, FromChild};
use crate::child::{ChildArguments, Point};
use crate::signals::{Received, die_by, take_and_remember};
use crate::sys::{self, SignalMask};

/// Signals that are forwarded to the command.
const PASSED_ON: [i32; 6] =
    [libc::SIGTERM, libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

/// A command could not be started, or was lost.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// A system call of the parent failed.
    #[error("can't {what}")]
    System {
        /// Operation that failed.
        what: &'static str,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The child could not enter the namespaces, mount, or execute the command; its report.
    #[error("{text}")]
    Child {
        /// The exit code a shell would give: 126 or 127 for the command, 1 for everything before it.
        code: u8,
        /// Error text; further lines give advice.
        text: String,
    },
    /// The child mounted no tree.
    #[error("the child process mounted nothing")]
    NoDevice,
    /// The child ended without a report.
    #[error("the process that was to become the command ended early ({0})")]
    Vanished(ExitStatus),
}

/// End of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// The command ended with an exit code.
    Code(u8),
    /// A signal killed the command.
    Signal(i32),
}

enum Phase {
    /// The child does not exist yet: a signal has its usual effect on this process.
    Before,
    Running(Pid),
    /// The command has ended; its process id may be reused.
    Over,
    /// The command has ended, and signals are for this process.
    Handled(Box<dyn Fn(Received) + Send>),
}

/// Forwards signals to the command once it runs.
#[derive(Clone)]
pub struct Forwarding {
    phase: Arc<Mutex<Phase>>,
    /// Original signal mask, which the command gets.
    mask: SignalMask,
}

impl Forwarding {
    /// Starts handling the signals. Must be called first: existing threads would end the process.
    pub fn begin() -> Result<Self, RunError> {
        Self::of(&PASSED_ON)
    }

    /// Like [`Forwarding::begin`], for these signals.
    pub fn of(signals: &[i32]) -> Result<Self, RunError> {
        let phase = Arc::new(Mutex::new(Phase::Before));
        let theirs = phase.clone();
        // As under nohup. The command starts with the signal ignored, too; if it changes that, it gets the signal.
        let ignored: Vec<i32> = signals.iter().copied().filter(|signal| sys::is_ignored(*signal)).collect();
        let mask = take_and_remember(signals, move |received| pass_on(&lock(&theirs), received, &ignored))
            .map_err(|source| RunError::System { what: "handle signals", source })?;
        Ok(Self { phase, mask })
    }

    /// Calls `handle` for each signal from now on, once the command has ended.
    pub fn handle(&self, handle: impl Fn(Received) + Send + 'static) {
        *self.phase() = Phase::Handled(Box::new(handle));
    }

    /// Starts the command with the original signal mask. A signal that comes meanwhile waits until the command exists.
    pub fn start(&self, command: &mut Command) -> io::Result<Child> {
        self.mask.give_to(command);
        // Held until the phase says whom to tell: a signal in between must not get lost or end only us.
        let mut phase = self.phase();
        let child = command.spawn()?;
        *phase = Phase::Running(Pid::from_child(&child));
        Ok(child)
    }

    /// Waits until the command ends, stops forwarding, and leaves the command to be waited for.
    pub fn wait_for_end(&self, child: &Child) -> io::Result<()> {
        // While the process id is still the command's, it can be locked away from the thread that sends signals.
        rustix::io::retry_on_intr(|| {
            let pid = Pid::from_child(child);
            rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED | WaitIdOptions::NOWAIT)
        })?;
        *self.phase() = Phase::Over;
        Ok(())
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        lock(&self.phase)
    }
}

fn lock(phase: &Mutex<Phase>) -> MutexGuard<'_, Phase> {
    phase.lock().unwrap_or_else(PoisonError::into_inner)
}

fn pass_on(phase: &Phase, received: Received, ignored: &[i32]) {
    match phase {
        Phase::Before if ignored.contains(&received.signal) => {}
        Phase::Before => die_by(received.signal),
        // The terminal has sent the signal to the command, too.
        Phase::Running(_) if received.from_kernel => {}
        Phase::Running(pid) => {
            if let Some(signal) = Signal::from_named_raw(received.signal) {
                // The command may have just ended.
                let _ = rustix::process::kill_process(*pid, signal);
            }
        }
        Phase::Over => {}
        Phase::Handled(handle) => handle(received),
    }
}

/// A child that has not executed the command yet. Dropping it kills the child.
pub struct Parent {
    child: Child,
    channel: Channel,
    points: usize,
    forwarding: Forwarding,
}

impl Parent {
    /// Starts the child. `launcher` is this same program with the arguments that make it call
    /// [`crate::become_command`] with all that follow. Must be called on the main thread: the child is killed
    /// when the thread that started it ends. The command gets `open_files` as its (soft) limit.
    pub fn start(
        mut launcher: Command,
        points: Vec<Point>,
        command: Vec<OsString>,
        open_files: Option<u64>,
        forwarding: Forwarding,
    ) -> Result<Self, RunError> {
        let system = |what| move |source| RunError::System { what, source };
        let (ours, theirs) = Channel::pair().map_err(system("make a socket pair"))?;
        let number = theirs.descriptor().as_raw_fd();
        let count = points.len();
        launcher.args(ChildArguments { channel: number, open_files, points, command }.arguments());
        sys::inherit(&mut launcher, number);
        let child = forwarding.start(&mut launcher).map_err(system("start the child process"))?;
        Ok(Self { child, channel: ours, points: count, forwarding })
    }

    /// Returns the child's process id, which is the command's.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the child has mounted everything; returns the descriptors of `/dev/fuse` in order.
    pub fn devices(&mut self) -> Result<Vec<OwnedFd>, RunError> {
        let mut devices = Vec::with_capacity(self.points);
        while devices.len() < self.points {
            match self.next()? {
                FromChild::Mounted { index, device } if usize::from(index) == devices.len() => {
                    devices.push(device);
                }
                FromChild::Failed { code, text } => return Err(RunError::Child { code, text }),
                FromChild::Mounted { .. } | FromChild::Running => return Err(self.vanished()),
            }
        }
        Ok(devices)
    }

    /// Lets the child execute the command; the trees must be in service.
    pub fn go(&mut self) -> Result<(), RunError> {
        if self.channel.say_go().is_err() {
            return Err(self.vanished());
        }
        match self.next()? {
            FromChild::Running => Ok(()),
            FromChild::Failed { code, text } => Err(RunError::Child { code, text }),
            FromChild::Mounted { .. } => Err(self.vanished()),
        }
    }

    /// Waits for the command to end.
    pub fn wait(mut self) -> Result<Ending, RunError> {
        let status = self.reap()?;
        Ok(match (status.code(), status.signal()) {
            (Some(code), _) => Ending::Code((code & 0xff) as u8),
            (None, Some(signal)) => Ending::Signal(signal),
            (None, None) => return Err(RunError::Vanished(status)),
        })
    }

    fn next(&self) -> Result<FromChild, RunError> {
        self.channel.next().map_err(|source| RunError::System { what: "read from the child process", source })
    }

    fn reap(&mut self) -> Result<ExitStatus, RunError> {
        let lost = |source| RunError::System { what: "wait for the command", source };
        self.forwarding.wait_for_end(&self.child).map_err(lost)?;
        self.child.wait().map_err(lost)
    }

    fn vanished(&mut self) -> RunError {
        let _ = self.child.kill();
        match self.reap() {
            Ok(status) => RunError::Vanished(status),
            Err(error) => error,
        }
    }
}

impl Drop for Parent {
    fn drop(&mut self) {
        // Both fail harmlessly if `wait` has been here.
        if matches!(*self.forwarding.phase(), Phase::Running(_)) {
            let _ = self.child.kill();
            let _ = self.reap();
        }
    }
}
