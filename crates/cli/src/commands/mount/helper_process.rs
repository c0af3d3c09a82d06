//! Runs the helper of a confined mount daemon ([`esker_node::helper_process`]).

use std::io;
use std::os::fd::AsFd as _;
use std::process::Command;
use std::sync::Arc;

use esker_cache_share::set_cache_sockets;
use esker_node::daemon::close_inherited;
use esker_node::helper_process::{self, Helper};
use esker_node::mount_spec::MountSpec;
use esker_run::take_signals;

use crate::commands::replay;
use crate::error::{Context as _, Failure, Kind};
use crate::process::confine;

/// Name of the hidden subcommand.
pub(crate) const HELP_MOUNT: &str = "help-mount";

/// Starts the helper of a mount; called while this process has all rights that the helper needs.
pub(super) fn start(spec: &MountSpec) -> io::Result<Arc<Helper>> {
    let mut command = Command::new("/proc/self/exe");
    command.arg(HELP_MOUNT);
    let helper = Arc::new(Helper::start(command, &spec.mountpoint, &spec.sealed()?)?);
    let maker = Arc::clone(&helper);
    set_cache_sockets(Box::new(move |which| maker.cache_socket(which)));
    Ok(helper)
}

/// Works for the daemon that has started this process, until it ends.
pub(crate) fn run() -> Result<(), Failure> {
    // It was started through a link in /proc, and would be named `exe` in process lists.
    let _ = rustix::thread::set_name(c"esker-helper");
    close_inherited(&[]).context(Kind::Failed, "can't close what was open")?;
    let connection = io::stdin().as_fd().try_clone_to_owned();
    let connection = connection.context(Kind::Failed, "can't talk to the daemon")?;
    let begin = |spec: &MountSpec| {
        confine::confine_helper(spec);
        // The end of the daemon ends it: until then it may have to unmount.
        take_signals(&[libc::SIGTERM, libc::SIGINT, libc::SIGHUP], |_| ())?;
        Ok(replay::command(&spec.mountpoint))
    };
    helper_process::run(connection, begin, confine::mount_is_made)
        .context(Kind::Failed, "can't help the daemon of the mount")
}
