//! What a test changes in a child process before it becomes another program.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Gives the signals that a shell ignores for its background jobs their default action.
pub(crate) fn with_default_signals(command: &mut Command) {
    // SAFETY: the closure only calls signal, which may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGINT, libc::SIG_DFL);
            libc::signal(libc::SIGQUIT, libc::SIG_DFL);
            Ok(())
        });
    }
}
