//! Runs a command in the namespaces of another one.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags};

use crate::child::execute;
use crate::namespaces::{Namespaces, process_directory};
use crate::parent::RunError;
use crate::processes::join_process_namespace;

/// Executes a command in the mount, user and PID namespaces that a process of this user has for its children.
///
/// This process passes signals on and ends as the command does; it returns only if that failed. It must have a single thread.
pub fn run_beside(
    process: u32,
    directory: &Path,
    command: &[OsString],
    environment: &[(OsString, OsString)],
) -> Result<Infallible, RunError> {
    let failed = |what| move |source| RunError::System { what, source };
    join(process).map_err(failed("join the namespaces of the mount"))?;
    // Joining a mount namespace leads to its root directory.
    std::env::set_current_dir(directory).map_err(failed("enter the directory"))?;
    let failed = execute(command, environment);
    Err(RunError::Child { code: failed.code, text: failed.text })
}

fn join(process: u32) -> io::Result<()> {
    let folder = process_directory(&Path::new("/proc").join(process.to_string()))?;
    // All are opened before the first is joined, which may hide the others.
    let namespaces = Namespaces::below(folder.as_fd())?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let processes = rustix::fs::openat(&folder, "ns/pid_for_children", flags, Mode::empty())?;
    namespaces.join()?;
    join_process_namespace(processes.as_fd())
}
