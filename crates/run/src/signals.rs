//! Receives signals as messages instead of interruptions.

use std::io;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::OnceLock;

use crate::sys::{self, SignalMask};

/// Signals that this process blocked before it first took any.
static BEFORE: OnceLock<SignalMask> = OnceLock::new();

/// A signal that this process received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Number of the signal.
    pub signal: i32,
    /// True if the terminal (or the kernel) raised it: then the whole foreground process group has it
    /// already, and passing it on would deliver it twice.
    pub from_kernel: bool,
}

/// Calls `handle`, on a thread of its own, for each of `signals` from now on, in place of their default action; SIGHUP
/// stays ignored if it was, as under `nohup`. Call it before any other thread starts: a thread that doesn't block the
/// signals would end the process. Commands started later inherit the blocked signals, unless
/// [`give_signals_back`] is called for them.
pub fn take_signals(signals: &[i32], handle: impl Fn(Received) + Send + 'static) -> io::Result<()> {
    let outlives_terminal = |signal: &i32| *signal == libc::SIGHUP && sys::is_ignored(*signal);
    let taken: Vec<i32> = signals.iter().copied().filter(|signal| !outlives_terminal(signal)).collect();
    take_and_remember(&taken, handle).map(drop)
}

/// Makes a command start with the signals blocked that this process blocked before [`take_signals`], so that Ctrl-C
/// ends it.
pub fn give_signals_back(command: &mut Command) {
    if let Some(before) = BEFORE.get() {
        before.give_to(command);
    }
}

/// Like [`take_signals`], also for a SIGHUP that was ignored.
pub(crate) fn take_and_remember(
    signals: &[i32],
    handle: impl Fn(Received) + Send + 'static,
) -> io::Result<SignalMask> {
    let (fd, before) = sys::signal_descriptor(signals)?;
    let before = *BEFORE.get_or_init(|| before);
    std::thread::Builder::new().name("signals".into()).spawn(move || {
        while let Ok((signal, code, _)) = sys::next_signal(fd.as_fd()) {
            // kill, sigqueue and tgkill set SI_USER, SI_QUEUE, SI_TKILL; the kernel's codes are positive.
            handle(Received { signal, from_kernel: code > 0 });
        }
    })?;
    Ok(before)
}

/// Makes this process's group the one in the foreground of the terminal on standard input, if there is one: a shell in
/// another PID namespace can't give it back.
pub fn take_terminal() {
    sys::ignore(libc::SIGTTOU);
    // Without a terminal there is nothing to take, and a group outside of the PID namespace has no number in it.
    if let Some(group) = sys::process_group() {
        let _ = rustix::termios::tcsetpgrp(std::io::stdin(), group);
    }
}

/// Ends this process by `signal`, as the command ended, without a second core dump. If the signal doesn't end
/// processes, the exit code is that of a shell.
pub fn die_by(signal: i32) -> ! {
    let none = rustix::process::Rlimit { current: Some(0), maximum: Some(0) };
    // At worst there is a core dump too many.
    let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
    sys::raise_default(signal);
    std::process::exit(128 + (signal & 0x7f))
}
