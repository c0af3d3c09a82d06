//! Runs the replayer as a process of its own, which receives its steps through a pipe.
//!
//! It can't be a thread. A thread that waits in the kernel for an answer of this mount can't be ended with the process
//! it belongs to, and as long as it exists the kernel goes on waiting for that answer.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::NamedStep;

/// Starts replayers: in this process, or in another one for a process that may start no programs.
pub trait StartReplayer: Send + Sync {
    /// Starts a replayer.
    fn start(&self) -> io::Result<RunningReplayer>;
}

/// A replayer that runs.
pub struct RunningReplayer {
    /// Pipe for its steps; a write that would wait fails.
    pub pipe: File,
    /// Waits for its end once the pipe is closed, and kills it if it takes too long.
    pub end: Box<dyn FnOnce() + Send>,
}

/// Command that starts a replayer: a program that calls [`replay`](crate::replay()) with its standard input.
#[derive(Clone, Debug)]
pub struct ReplayerCommand {
    /// Path of the program.
    pub program: PathBuf,
    /// Arguments of the program.
    pub arguments: Vec<OsString>,
    /// Working directory, if the command needs one: a mountpoint may be relative to a directory that only this process
    /// can open.
    pub directory: Option<PathBuf>,
}

impl ReplayerCommand {
    /// Returns a command that may run in any directory.
    pub fn of(program: impl Into<PathBuf>, arguments: Vec<OsString>) -> Self {
        Self { program: program.into(), arguments, directory: None }
    }
}

impl StartReplayer for ReplayerCommand {
    fn start(&self) -> io::Result<RunningReplayer> {
        let mut command = Command::new(&self.program);
        self.directory.iter().for_each(|directory| _ = command.current_dir(directory));
        command.args(&self.arguments).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut process = command.spawn()?;
        let pipe = File::from(OwnedFd::from(process.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?));
        fcntl_setfl(&pipe, fcntl_getfl(&pipe)? | OFlags::NONBLOCK)?;
        Ok(RunningReplayer { pipe, end: Box::new(move || end(process)) })
    }
}

fn end(mut process: Child) {
    let begun = Instant::now();
    while matches!(process.try_wait(), Ok(None)) {
        if begun.elapsed() > GRACE {
            let _ = process.kill();
            // If the kernel does not end the process yet, it does when the mount ends.
            let _ = esker_threads::spawn("killed", move || process.wait());
            return;
        }
        // There is no waiting for a process with a deadline before Linux 5.3.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Interval of checks whether a replayer that accepts no more input is still needed.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time that a replayer may take to end. It may wait for a server.
const GRACE: Duration = Duration::from_millis(500);
/// Number of replayers that ended early after which no more are started.
const LOST_MAX: u32 = 3;

/// Replayer of a mount; the process is started with the first steps.
pub(crate) struct Replayer {
    starter: Arc<dyn StartReplayer>,
    running: Option<RunningReplayer>,
    lost: u32,
}

impl Replayer {
    pub(crate) fn new(starter: Arc<dyn StartReplayer>) -> Self {
        Self { starter, running: None, lost: 0 }
    }

    /// Returns true if the process is running.
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Sends steps, until `is_over` returns true.
    pub(crate) fn send(&mut self, steps: &[NamedStep], is_over: impl Fn() -> bool) {
        if self.lost >= LOST_MAX {
            return;
        }
        let mut message = Vec::new();
        steps.iter().for_each(|step| encode(step, &mut message));
        if self.remember(&message, is_over).is_err() {
            // The kernel may be too old for it; the mount works without a replayer.
            self.lost += 1;
            self.stop();
        }
    }

    fn remember(&mut self, mut message: &[u8], is_over: impl Fn() -> bool) -> io::Result<()> {
        let RunningReplayer { pipe, .. } = match &mut self.running {
            Some(running) => running,
            None => self.running.insert(self.starter.start()?),
        };
        while !message.is_empty() && !is_over() {
            match pipe.write(message) {
                Ok(written) => message = message.get(written..).unwrap_or_default(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => wait(&*pipe)?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Stops the process.
    pub(crate) fn stop(&mut self) {
        let Some(RunningReplayer { pipe, end }) = self.running.take() else { return };
        drop(pipe);
        end();
    }
}

impl Drop for Replayer {
    fn drop(&mut self) {
        self.stop();
    }
}

fn wait(pipe: impl AsFd) -> io::Result<()> {
    let within = Timespec::try_from(POLL_INTERVAL).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(&pipe, PollFlags::OUT)], Some(&within)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Encodes a step for the pipe: length of its path (2 bytes, little endian), part (4), path.
pub(crate) fn encode((path, part): &NamedStep, message: &mut Vec<u8>) {
    if let Ok(len) = u16::try_from(path.len()) {
        message.extend_from_slice(&len.to_le_bytes());
        message.extend_from_slice(&part.to_le_bytes());
        message.extend_from_slice(path);
    }
}

/// Decodes the first step of a message; returns its length too. `None` if it is incomplete.
pub(crate) fn decode(message: &[u8]) -> Option<((&[u8], u32), usize)> {
    let (len, pause) = message.split_first_chunk::<2>()?;
    let (part, pause) = pause.split_first_chunk::<4>()?;
    let len = usize::from(u16::from_le_bytes(*len));
    Some(((pause.get(..len)?, u32::from_le_bytes(*part)), 2 + 4 + len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::NAME;

    #[test]
    fn encoded_steps_are_decoded_unchanged() {
        let mut message = Vec::new();
        for step in [("/a", 7), ("/b/\u{e4}", NAME)] {
            encode(&(step.0.as_bytes().into(), step.1), &mut message);
        }
        let (first, len) = decode(&message).expect("it is whole");
        assert_eq!(first, (&b"/a"[..], 7));
        let pause = &message[len..];
        assert_eq!(decode(pause).map(|(step, _)| step), Some(("/b/\u{e4}".as_bytes(), NAME)));
        for cut in 0..pause.len() {
            assert!(decode(&pause[..cut]).is_none());
        }
    }

    /// Returns a replayer that copies its input to a file.
    fn copies_to(file: &std::path::Path) -> ReplayerCommand {
        let script = format!("cat > {}", file.display());
        ReplayerCommand::of("/bin/sh", vec!["-c".into(), script.into()])
    }

    #[test]
    fn sent_steps_arrive_and_stop_ends_the_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("told");
        let mut replayer = Replayer::new(Arc::new(copies_to(&file)));
        let step = |number: u32| (format!("/file/{number}").into_bytes().into(), number);
        // More than a pipe holds.
        let steps: Vec<NamedStep> = (0..20_000).map(step).collect();
        replayer.send(&steps, || false);
        assert!(replayer.is_running());
        replayer.stop();
        assert!(!replayer.is_running());
        let (requested, mut expected) = (std::fs::read(&file).expect("the copy"), Vec::new());
        steps.iter().for_each(|step| encode(step, &mut expected));
        assert_eq!(requested, expected);
    }

    #[test]
    fn replayers_that_end_early_are_not_restarted_forever() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("started");
        let script = format!("echo >> {}", file.display());
        let command = ReplayerCommand::of("/bin/sh", vec!["-c".into(), script.into()]);
        let mut replayer = Replayer::new(Arc::new(command));
        let long: Vec<NamedStep> = vec![(vec![b'/'; 4000].into(), 0); 100];
        (0..10).for_each(|_| replayer.send(&long, || false));
        assert_eq!(std::fs::read(&file).expect("it ran").len() as u32, LOST_MAX);
    }

    #[test]
    fn a_replayer_that_reads_nothing_does_not_block_after_cancellation() {
        let command = ReplayerCommand::of("/bin/sh", vec!["-c".into(), "exec sleep 1000".into()]);
        let mut replayer = Replayer::new(Arc::new(command));
        let asked = std::cell::Cell::new(0);
        let long: Vec<NamedStep> = vec![(vec![b'/'; 4000].into(), 0); 100];
        replayer.send(&long, || asked.replace(asked.get() + 1) > 20);
        assert!(asked.get() > 20);
        replayer.stop();
    }
}
