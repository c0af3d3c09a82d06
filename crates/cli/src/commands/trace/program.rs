//! Runs the traced command, or waits for a process that runs already.

use std::ffi::OsString;
use std::io::{self, PipeReader, Write as _};
use std::os::fd::AsFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitCode, ExitStatus};
use std::time::{Duration, Instant};

use esker_run::{Forwarding, die_by, take_signals};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open, set_child_subreaper};

use super::main_thread::Scheduled;
use crate::error::{Context, Failure, Kind};
use crate::process::limits::OpenFiles;

/// Signals that end a trace.
const SIGNALS: [i32; 4] = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT];

/// The traced program, before it is watched.
pub(super) enum Program {
    /// A command, which gets the signals.
    Command(Forwarding),
    /// A process that runs already, and a pipe that becomes readable with a signal.
    Process(u32, PipeReader),
}

/// Outcome of the traced program.
pub(super) struct Watched {
    /// Command line, or the process.
    pub(super) name: String,
    pub(super) pid: u32,
    /// Time of the trace.
    pub(super) wall: Duration,
    /// Times of the command's main thread; `None` for a process that ran already.
    pub(super) scheduled: Option<Scheduled>,
    status: Option<ExitStatus>,
}

impl Watched {
    /// Returns the exit code of the command; a signal that ended it ends this process.
    pub(super) fn exit_code(&self) -> ExitCode {
        match self.status {
            None => ExitCode::SUCCESS,
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => ExitCode::from(u8::try_from(code).unwrap_or(1)),
                (None, signal) => die_by(signal.unwrap_or(libc::SIGKILL)),
            },
        }
    }

    #[cfg(test)]
    pub(super) fn of_test(name: &str, wall: Duration) -> Self {
        Self { name: name.to_owned(), pid: 7, wall, scheduled: None, status: None }
    }
}

impl Program {
    /// Takes the signals; called before other threads start.
    pub(super) fn prepare(pid: Option<u32>) -> Result<Self, Failure> {
        let Some(pid) = pid else {
            let forwarding = Forwarding::of(&SIGNALS).context(Kind::Failed, "can't trace a command")?;
            return Ok(Self::Command(forwarding));
        };
        let (signals, writer) = io::pipe().context(Kind::Failed, "can't make a pipe")?;
        take_signals(&SIGNALS, move |_| {
            // A full pipe is readable, too.
            let _ = (&writer).write(&[0]);
        })
        .context(Kind::Failed, "can't handle signals")?;
        Ok(Self::Process(pid, signals))
    }

    /// Runs the command until it ends; or waits until the process or the time ends, or a signal comes.
    pub(super) fn watch(
        &self,
        command: &[OsString],
        files: OpenFiles,
        limit: Option<Duration>,
    ) -> Result<Watched, Failure> {
        match self {
            Self::Command(forwarding) => Self::run(forwarding, command, files),
            Self::Process(pid, signals) => Self::follow(*pid, signals, limit),
        }
    }

    fn run(forwarding: &Forwarding, command: &[OsString], files: OpenFiles) -> Result<Watched, Failure> {
        let Some((program, arguments)) = command.split_first() else {
            return Err(Failure::usage("a COMMAND is missing"));
        };
        // Children whose parent ended stay below this process. Without it they are lost to the trace.
        let _ = set_child_subreaper(Some(rustix::process::getpid()));
        files.give_back();
        let began = Instant::now();
        let mut child = forwarding.start(Command::new(program).args(arguments)).map_err(|error| {
            let code = if error.kind() == io::ErrorKind::NotFound { 127 } else { 126 };
            Failure::failed(format!("can't start {}: {error}", program.display())).with_code(code)
        })?;
        let cannot_wait = "can't wait for the command";
        forwarding.wait_for_end(&child).context(Kind::Failed, cannot_wait)?;
        let wall = began.elapsed();
        let scheduled = Scheduled::of_ended(child.id());
        let status = Some(child.wait().context(Kind::Failed, cannot_wait)?);
        let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
        Ok(Watched { name: words.join(" "), pid: child.id(), wall, scheduled, status })
    }

    fn follow(pid: u32, signals: &PipeReader, limit: Option<Duration>) -> Result<Watched, Failure> {
        let began = Instant::now();
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let process = number
            .ok_or(rustix::io::Errno::SRCH)
            .and_then(|pid| pidfd_open(pid, PidfdFlags::empty()))
            .map_err(|error| {
                Failure::failed(format!("can't watch process {pid}: {}", io::Error::from(error)))
                    .hint("give the number of a process that runs")
            })?;
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        loop {
            let left = limit.map(|limit| limit.saturating_sub(began.elapsed()));
            let timeout = left.and_then(|left| Timespec::try_from(left).ok());
            let mut ready = [
                PollFd::new(&process, PollFlags::IN),
                PollFd::from_borrowed_fd(signals.as_fd(), PollFlags::IN),
            ];
            match poll(&mut ready, timeout.as_ref()) {
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    return Err(Failure::failed(format!(
                        "can't wait for process {pid}: {}",
                        io::Error::from(error)
                    )));
                }
                Ok(_) => break,
            }
        }
        let name = format!("{} (process {pid})", name.trim_end());
        Ok(Watched { name, pid, wall: began.elapsed(), scheduled: None, status: None })
    }
}
