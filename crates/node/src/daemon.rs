//! Starts a daemon and waits until it is ready.
//!
//! The daemon is this same program started anew (no fork of a process with threads). It reports once over a pipe:
//! ready, or the error. If that report can't be written, its starter is gone; then the daemon must clean up and end.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use esker_cache_share::FileError;
use esker_threads::watchdog;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use crate::sys;

/// Maximum length of a report in bytes.
const REPORT_MAX: u64 = 64 * 1024;
/// Time limit for a failed daemon to end.
const ENDING: Duration = Duration::from_secs(5);
/// Number of bytes of its log that are shown when a daemon died without a report.
const LOG_TAIL: u64 = 2 * 1024;

/// The one message of a starting daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// The daemon serves the mount.
    Ready {
        /// Warning for the mounting user.
        warning: Option<String>,
    },
    /// The daemon could not start.
    Failed {
        /// The exit code to leave with.
        code: u8,
        /// Failure and its cause.
        message: String,
        /// Advice for the user.
        hint: Option<String>,
    },
}

/// Failures to start a daemon.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// Starting the process failed.
    #[error("can't start the daemon")]
    Spawn(#[source] io::Error),
    /// The daemon ended without a report.
    #[error("the daemon ended before it was ready ({status}){tail}")]
    Died {
        /// Exit status.
        status: ExitStatus,
        /// The last lines of its log, after a colon.
        tail: String,
    },
}

/// Starts `command` as a daemon and waits for its report. `arguments` makes the arguments from the number of the
/// descriptor that [`Reporter::adopt`] wants. `input` is the daemon's standard input: secrets that must not be on a
/// command line, which all users see. `inherited` stays open under its number.
pub fn spawn(
    mut command: Command,
    log: &Path,
    (input, inherited): (Option<&str>, Option<BorrowedFd<'_>>),
    arguments: impl FnOnce(RawFd) -> Vec<std::ffi::OsString>,
) -> Result<Report, DaemonError> {
    let output = OpenOptions::new()
        .create(true)
        .append(true)
        .read(true)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW)
        .open(log)
        .map_err(FileError::on("open", log))?;
    let (reader, writer) = io::pipe().map_err(DaemonError::Spawn)?;
    command.args(arguments(writer.as_raw_fd()));
    command.stdin(if input.is_some() { Stdio::piped() } else { Stdio::null() });
    command.stdout(output.try_clone().map_err(DaemonError::Spawn)?);
    command.stderr(output.try_clone().map_err(DaemonError::Spawn)?);
    sys::inherit(&mut command, writer.as_raw_fd());
    inherited.iter().for_each(|fd| sys::inherit(&mut command, fd.as_raw_fd()));
    let mut child = command.spawn().map_err(DaemonError::Spawn)?;
    drop(writer);
    if let (Some(input), Some(mut stdin)) = (input, child.stdin.take()) {
        // A daemon that ended says why below.
        let _ = stdin.write_all(input.as_bytes());
    }
    let mut line = Vec::new();
    let read = BufReader::new(reader.take(REPORT_MAX)).read_until(b'\n', &mut line);
    match (read, serde_json::from_slice(&line)) {
        (Ok(_), Ok(report)) => {
            if matches!(report, Report::Failed { .. }) {
                // It has nothing more to do than to end, which it can't while a disk doesn't answer one of its threads.
                let _ = watchdog::within(ENDING, move || child.wait());
            }
            Ok(report)
        }
        _ => {
            let status = child.wait().map_err(DaemonError::Spawn)?;
            Err(DaemonError::Died { status, tail: tail(output) })
        }
    }
}

fn tail(mut log: File) -> String {
    let mut bytes = Vec::new();
    let size = log.metadata().map_or(0, |meta| meta.len());
    let read = log
        .seek(SeekFrom::Start(size.saturating_sub(LOG_TAIL)))
        .and_then(|_| log.take(LOG_TAIL).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    match (read, text.trim()) {
        (Ok(_), text) if !text.is_empty() => format!(": {text}"),
        _ => String::new(),
    }
}

/// Closes all inherited descriptors but those to `keep` and the standard ones. Must be called first.
pub fn close_inherited(keep: &[RawFd]) -> io::Result<()> {
    sys::close_inherited(keep)
}

/// Takes over a descriptor that the starting process passed under this number.
pub fn adopt(fd: RawFd) -> io::Result<OwnedFd> {
    sys::adopt(fd)
}

/// The daemon's end of the pipe.
#[derive(Debug)]
pub struct Reporter {
    pipe: File,
    has_reported: Arc<AtomicBool>,
}

/// The process that waits for a daemon's report.
#[derive(Debug)]
pub struct Starter {
    pipe: File,
    has_reported: Arc<AtomicBool>,
}

impl Starter {
    /// Calls `gone` on a thread if the starting process ends before the report.
    pub fn watch(self, gone: impl FnOnce() + Send + 'static) -> io::Result<()> {
        esker_threads::spawn("starter", move || {
            // An end without a reader is an error, also if no event is requested.
            let mut wait = [PollFd::new(&self.pipe, PollFlags::empty())];
            while poll(&mut wait, None) == Err(Errno::INTR) {}
            if !self.has_reported.load(Ordering::SeqCst) {
                gone();
            }
        })?;
        Ok(())
    }
}

impl Reporter {
    /// Takes over the descriptor from the starting process.
    pub fn adopt(fd: RawFd) -> io::Result<Self> {
        Ok(Self { pipe: File::from(sys::adopt(fd)?), has_reported: Arc::default() })
    }

    /// Returns the process that waits for the report.
    pub fn starter(&self) -> io::Result<Starter> {
        Ok(Starter { pipe: self.pipe.try_clone()?, has_reported: Arc::clone(&self.has_reported) })
    }

    /// Sends the report; an error means that the starting process is gone.
    ///
    /// A daemon that is ready moves to a session of its own, and no sooner: while an automounter waits for a mount,
    /// the kernel admits only the automounter's process group to the directory, and mounting on it would wait for
    /// itself.
    pub fn report(mut self, report: &Report) -> io::Result<()> {
        if matches!(report, Report::Ready { .. }) {
            match rustix::process::setsid() {
                // It leads one already.
                Err(Errno::PERM) => {}
                other => drop(other?),
            }
        }
        let mut line = serde_json::to_vec(report)?;
        line.push(b'\n');
        self.has_reported.store(true, Ordering::SeqCst);
        self.pipe.write_all(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READY: &str = r#"echo '{"Ready":{"warning":null}}' >/proc/self/fd/$1"#;

    fn shell(script: &str) -> Result<Report, DaemonError> {
        let log = tempfile::NamedTempFile::new().expect("a file");
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(script);
        spawn(command, log.path(), (None, None), |fd| vec!["sh".into(), fd.to_string().into()])
    }

    #[test]
    fn a_report_reaches_the_starting_process() {
        assert_eq!(shell(READY).expect("report"), Report::Ready { warning: None });
        let failed =
            shell(r#"echo '{"Failed":{"code":3,"message":"m","hint":null}}' >/proc/self/fd/$1; exit 3"#);
        let expected = Report::Failed { code: 3, message: "m".into(), hint: None };
        assert_eq!(failed.expect("report"), expected);
    }

    #[test]
    fn the_end_of_a_starter_is_noticed_before_the_report_only() {
        for reports in [false, true] {
            let (reader, writer) = io::pipe().expect("a pipe");
            let writer = File::from(OwnedFd::from(writer));
            let reporter = Reporter { pipe: writer, has_reported: Arc::default() };
            let (gone, was_told) = std::sync::mpsc::channel();
            reporter
                .starter()
                .expect("a starter")
                .watch(move || gone.send(()).expect("told"))
                .expect("a thread");
            if reports {
                reporter.has_reported.store(true, Ordering::SeqCst);
            }
            drop(reader);
            assert_eq!(was_told.recv().is_ok(), !reports);
        }
    }

    #[test]
    fn the_log_of_a_dead_daemon_is_reported() {
        let error = shell("echo out of cheese >&2; kill -9 $$").expect_err("died");
        let text = error.to_string();
        assert!(text.contains("signal: 9") && text.contains("out of cheese"), "{text}");
    }

    #[test]
    fn a_starting_daemon_is_in_the_process_group_of_its_starter() {
        let log = tempfile::NamedTempFile::new().expect("a file");
        let mut command = Command::new("/bin/sh");
        command.arg("-c").arg(format!("{READY}; cut -d' ' -f5 /proc/$$/stat"));
        spawn(command, log.path(), (None, None), |fd| vec!["sh".into(), fd.to_string().into()])
            .expect("report");
        // The process writes to the log after its report: wait for the line.
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(30);
        let line = loop {
            let text = std::fs::read_to_string(log.path()).expect("log");
            if text.ends_with('\n') {
                break text;
            }
            assert!(std::time::Instant::now() < deadline, "no line in the log");
            std::thread::yield_now();
        };
        let group = rustix::process::getpgrp().as_raw_nonzero().to_string();
        assert_eq!(line.trim(), group);
    }
}
