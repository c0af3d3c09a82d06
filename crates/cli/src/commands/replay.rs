use std::path::{Path, PathBuf};

use esker_prefetch::ReplayerCommand;

use crate::error::{Context, Failure, Kind};
use crate::process::confine;

/// Name of the hidden subcommand.
pub(crate) const REPLAY: &str = "replay";

/// Replays recorded reads through a mount; not for use by hand.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Process whose namespaces have the mount
    #[arg(long, value_name = "PROCESS")]
    beside: Option<u32>,

    mountpoint: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // It was started through a link in /proc, and would be named `exe` in process lists.
    let _ = rustix::thread::set_name(c"esker-replayer");
    esker_run::close_to_others();
    // Its standard error is discarded; the exit code is for users who try it.
    if let Some(process) = args.beside {
        esker_run::join(process)
            .context(Kind::Failed, format!("can't join the namespaces of process {process}"))?;
    }
    confine::confine_replayer(&args.mountpoint);
    esker_prefetch::replay(&args.mountpoint, std::io::stdin())
        .context(Kind::Failed, format!("can't replay reads through {}", args.mountpoint.display()))
}

/// Returns the command line that starts a replayer for a mount.
pub(crate) fn command(mountpoint: &Path) -> ReplayerCommand {
    ReplayerCommand::of("/proc/self/exe", vec![REPLAY.into(), mountpoint.into()])
}

/// Returns the command for a mount of this name in a directory that only the starting process can open.
pub(crate) fn command_in(directory: &Path, name: &Path) -> ReplayerCommand {
    ReplayerCommand { directory: Some(directory.to_owned()), ..command(name) }
}

/// Returns the command for a mount in the namespaces of another process.
pub(crate) fn command_beside(process: u32, mountpoint: &Path) -> ReplayerCommand {
    let mut command = command(mountpoint);
    command.arguments.extend(["--beside".into(), process.to_string().into()]);
    command
}
