//! Creates a pid namespace for one command.
//!
//! The command sees only the processes that it starts. A namespace needs a first process that takes in orphans, and the process
//! that was started as `esker run` stays to end as the command does:
//!
//! ```text
//!  esker run                    first process of the namespace          command
//!    │ fork ─────────────────────► fork ────────────────────────────────► makes its root, becomes the command
//!    │ passes signals on ────────► passes signals on ───────────────────►
//!    │                             waits for all processes                ends
//!    │ ◄──── how the command ended ┤
//!    ▼ ends in the same way        ▼ ends with the last process
//! ```
//!
//! Both waiting processes get the command's root directory when the command makes it, and are closed to other processes.

use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_parent_process_death_signal, waitpid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::signals::die_by;
use crate::sys;

/// Signals for the command. Those that stop and continue processes act on each of them alone.
const PASSED_ON: [i32; 10] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
    libc::SIGALRM,
    libc::SIGXCPU,
    libc::SIGCHLD,
];

/// Exit code if the namespace was killed before its command had ended.
const KILLED: u8 = 128 + 9;

/// Fate of the processes that a command leaves running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orphans {
    /// They continue.
    Kept,
    /// They end with the command: none is left when the process that represents it ends.
    Killed,
}

/// Makes a PID namespace and returns in a child process inside of it; the caller waits for the child. After an error
/// there is no child. The process must have a single thread.
pub fn enter_process_namespace(orphans: Orphans) -> io::Result<()> {
    enter_with(orphans, None)
}

/// Like [`enter_process_namespace`]; the waiting processes close the descriptor `only`, which is for the command alone.
pub(crate) fn enter_with(orphans: Orphans, only: Option<RawFd>) -> io::Result<()> {
    sys::unshare(UnshareFlags::NEWPID)?;
    let taken = signals_to_take();
    let (told, say) = io::pipe()?;
    let (signals, _) = sys::signal_descriptor(&taken)?;
    let Some(first) = sys::fork()? else {
        drop(told);
        return be_first(&taken, say, orphans, only);
    };
    drop(say);
    only.into_iter().for_each(sys::close);
    stand_for(first, &signals, told, orphans)
}

/// Joins a PID namespace and returns in a child process inside of it; the caller passes signals on and ends as the child
/// does. After an error there is no child. The process must have a single thread.
pub(crate) fn join_process_namespace(namespace: BorrowedFd<'_>) -> io::Result<()> {
    move_into_link_name_space(namespace, Some(LinkNameSpaceType::ProcessID))?;
    let (signals, _) = sys::signal_descriptor(&signals_to_take())?;
    let Some(command) = sys::fork()? else { return Ok(()) };
    loop {
        pass_on(&signals, command);
        match waitpid(Some(command), WaitOptions::NOHANG) {
            Ok(None) => {}
            Ok(Some((_, status))) => end_as(status.as_raw()),
            Err(_) => std::process::exit(KILLED.into()),
        }
    }
}

/// Returns the signals that are passed on. Ignored ones stay so for the command, as under nohup.
fn signals_to_take() -> Vec<i32> {
    // Exit codes of children are lost while the signal is ignored.
    sys::set_default(libc::SIGCHLD);
    PASSED_ON.into_iter().filter(|signal| !sys::is_ignored(*signal)).collect()
}

/// Ends this process as the command ended.
fn end_as(status: i32) -> ! {
    if libc::WIFSIGNALED(status) {
        die_by(libc::WTERMSIG(status));
    }
    std::process::exit(libc::WEXITSTATUS(status))
}

/// Waits for the command, and ends in the same way.
fn stand_for(first: Pid, signals: &OwnedFd, mut told: PipeReader, orphans: Orphans) -> ! {
    loop {
        let mut watched = [PollFd::new(signals, PollFlags::IN), PollFd::new(&told, PollFlags::IN)];
        if poll(&mut watched, None).is_err() {
            continue;
        }
        let [signalled, ended] = watched.map(|watched| !watched.revents().is_empty());
        if signalled {
            pass_on(signals, first);
        }
        if ended {
            let mut status = [0; 4];
            if told.read_exact(&mut status).is_err() {
                std::process::exit(KILLED.into());
            }
            if orphans == Orphans::Killed {
                // The kernel ends all processes of the namespace before its first one is gone.
                let _ = rustix::io::retry_on_intr(|| waitpid(Some(first), WaitOptions::empty()));
            }
            end_as(i32::from_le_bytes(status));
        }
    }
}

/// Acts as the first process of the namespace; returns in the command's.
fn be_first(taken: &[i32], say: PipeWriter, orphans: Orphans, only: Option<RawFd>) -> io::Result<()> {
    // A command whose `esker run` was killed ends with it.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let (signals, _) = sys::signal_descriptor(taken)?;
    let Some(command) = sys::fork()? else { return Ok(()) };
    only.into_iter().for_each(sys::close);
    // It is the one process of these that the command sees.
    let _ = rustix::thread::set_name(c"init");
    let mut say = Some(say);
    loop {
        pass_on(&signals, command);
        loop {
            match waitpid(None, WaitOptions::NOHANG) {
                Ok(Some((pid, status))) if pid == command => {
                    // Processes that the command leaves running outlive the process that represents it.
                    let _ = set_parent_process_death_signal(None);
                    if let Some(mut say) = say.take() {
                        let _ = say.write_all(&status.as_raw().to_le_bytes());
                    }
                    if orphans == Orphans::Killed {
                        std::process::exit(0);
                    }
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(_) => std::process::exit(0),
            }
        }
    }
}

/// Waits for a signal, and forwards it unless the terminal has sent it to the process itself.
fn pass_on(signals: &OwnedFd, to: Pid) {
    if let Ok((signal, code, _)) = sys::next_signal(signals.as_fd())
        && signal != libc::SIGCHLD
        && code <= 0
        && let Some(signal) = Signal::from_named_raw(signal)
    {
        // It may have just ended; then there is nothing to tell it.
        let _ = kill_process(to, signal);
    }
}
