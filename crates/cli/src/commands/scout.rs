use std::path::{Path, PathBuf};

use esker_trails::Launch;

use crate::error::{Context, Failure, Kind};

/// The name of the hidden subcommand.
pub(crate) const SCOUT: &str = "scout";

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
    // Its standard error leads nowhere; the exit code is for manual use.
    if let Some(command) = args.beside {
        esker_run::join(command)
            .context(Kind::Failed, format!("can't join the namespaces of process {command}"))?;
    }
    esker_trails::walk(&args.mountpoint, std::io::stdin())
        .context(Kind::Failed, format!("can't scout {}", args.mountpoint.display()))
}

/// Returns how a scout for a mount is started.
pub(crate) fn launch(mountpoint: &Path) -> Launch {
    Launch::of("/proc/self/exe", vec![SCOUT.into(), mountpoint.into()])
}

/// Returns how a scout is started for a mount in a directory that only the starting process can find.
pub(crate) fn launch_in(directory: &Path, name: &Path) -> Launch {
    Launch { directory: Some(directory.to_owned()), ..launch(name) }
}

/// Returns how a scout is started for a mount in a command's own namespaces.
pub(crate) fn launch_beside(command: u32, mountpoint: &Path) -> Launch {
    let mut launch = launch(mountpoint);
    launch.arguments.extend(["--beside".into(), command.to_string().into()]);
    launch
}
