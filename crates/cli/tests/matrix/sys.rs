//! What a test changes in a child process before it becomes another program.
#![allow(unsafe_code)]

use std::os::unix::process::CommandExt;
use std::process::Command;

/// Gives signals their default action: a shell ignores SIGINT and SIGQUIT for its background jobs,
/// `nohup` SIGHUP for all that follows, and a shell can't trap what was ignored when it started.
pub(crate) fn with_default_signals(command: &mut Command) {
    // SAFETY: the closure only calls signal, which may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGQUIT, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
}
