use std::path::{Path, PathBuf};

use esker_prefetch::ReplayerCommand;

use crate::exit::{Context, Failure, Kind};

/// The name of the hidden subcommand.
pub(crate) const REPLAY: &str = "scout";

/// Replays recorded reads through a mount; not for use by hand.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Process whose namespaces have the mount
    #[arg(long, value_name = "PROCESS")]
    beside: Option<u32>,

    mountpoint: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // It was started through a link in /proc, and would be called `exe` in lists of processes.
    let _ = rustix::thread::set_name(c"esker-scout");
    esker_run::close_to_others();
    // Its standard error leads nowhere; the code is for people who try it.
    if let Some(process) = args.beside {
        esker_run::join(process)
            .context(Kind::Failed, format!("can't join the namespaces of process {process}"))?;
    }
    esker_prefetch::replay(&args.mountpoint, std::io::stdin())
        .context(Kind::Failed, format!("can't go ahead through {}", args.mountpoint.display()))
}

/// How a scout for a mount is started.
pub(crate) fn command(mountpoint: &Path) -> ReplayerCommand {
    ReplayerCommand::of("/proc/self/exe", vec![REPLAY.into(), mountpoint.into()])
}

/// How one is started for a mount of this name in a directory that only the process that starts it can find.
pub(crate) fn command_in(directory: &Path, name: &Path) -> ReplayerCommand {
    ReplayerCommand { directory: Some(directory.to_owned()), ..command(name) }
}

/// How one is started for a mount that a command has in namespaces of its own.
pub(crate) fn command_beside(process: u32, mountpoint: &Path) -> ReplayerCommand {
    let mut command = command(mountpoint);
    command.arguments.extend(["--beside".into(), process.to_string().into()]);
    command
}
