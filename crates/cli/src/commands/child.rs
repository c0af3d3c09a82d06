use std::ffi::OsString;
use std::process::ExitCode;

use esker_run::{ChildArguments, become_command};

use crate::error::{Context, Failure, Kind};

/// Becomes the command of `esker run`; not for use by hand.
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> Result<ExitCode, Failure> {
    let arguments = ChildArguments::parse(args.arguments).ok_or_else(|| {
        Failure::usage("this subcommand is called by `esker run`").hint("see `esker run --help`")
    })?;
    // The parent has received the reason, and reports it.
    let code = become_command(&arguments).context(Kind::Failed, "can't talk to the parent process")?;
    Ok(ExitCode::from(code))
}
