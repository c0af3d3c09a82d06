use std::ffi::OsString;
use std::process::ExitCode;

use crate::args::{RepositoryArgs, TestingArgs, ViewArgs};
use crate::around::{Around, end_as, take_signals};
use crate::exit::Failure;
use crate::join::{Checked, mount_options, session_options};
use crate::limits::OpenFiles;
use crate::settings::Settings;

/// Runs a command that sees the repository below /cvmfs, without root and without fusermount3.
///
/// Example: esker run http://server/cvmfs/sw.example.org --public-key sw.example.org.pub -- ls /cvmfs/sw.example.org
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// The repository: http://host[:port]/cvmfs/NAME, file:///…/NAME, or the NAME of one that is configured
    #[arg(value_name = "URL|NAME")]
    url: String,

    #[command(flatten)]
    repository: RepositoryArgs,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    testing: TestingArgs,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args, settings: &Settings, files: OpenFiles) -> Result<ExitCode, Failure> {
    let forwarding = take_signals()?;
    let checked = Checked::new(&args.url, &args.repository, settings)?;
    let around = Around {
        settings,
        files,
        command: args.command,
        view: mount_options(settings, &args.view, &args.testing),
        session: session_options(&args.repository, Some(&args.testing)),
        push: args.view.push.clone(),
        shield: args.view.pin().is_some(),
    };
    let (ending, ()) = around.run(checked, forwarding, |_| (), |_| ())?;
    Ok(end_as(ending))
}
