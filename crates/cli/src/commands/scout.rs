use std::path::{Path, PathBuf};

use esker_trails::Launch;

use crate::exit::{Context, Failure, Kind};

/// The name of the hidden subcommand.
pub(crate) const SCOUT: &str = "scout";

/// Goes ahead of programs through a mount, where its standard input tells; not for use by hand.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    mountpoint: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<(), Failure> {
    // It was started through a link in /proc, and would be called `exe` in lists of processes.
    let _ = rustix::thread::set_name(c"esker-scout");
    // Its standard error leads nowhere; the code is for people who try it.
    esker_trails::walk(&args.mountpoint, std::io::stdin())
        .context(Kind::Failed, format!("can't go ahead through {}", args.mountpoint.display()))
}

/// How a scout for a mount is started.
pub(crate) fn launch(mountpoint: &Path) -> Launch {
    Launch { program: "/proc/self/exe".into(), arguments: vec![SCOUT.into(), mountpoint.into()] }
}
