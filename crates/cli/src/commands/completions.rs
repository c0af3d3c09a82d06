//! `esker completions`: completion scripts for shells.

use clap::{Arg, Command};
use clap_complete::{Shell, generate};

use crate::error::Failure;
use crate::output::Output;

/// Prints a completion script for a shell.
///
/// Example: esker completions bash
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Shell that reads the script, as in `source <(esker completions bash)`
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(args: &Args, command: &Command) -> Result<(), Failure> {
    let mut script = Vec::new();
    generate(args.shell, &mut visible(command), "esker", &mut script);
    let mut out = Output::new();
    out.bytes(&script)?;
    out.finish()
}

/// Returns a copy of a command without hidden commands and options, which clap's generators would list.
fn visible(command: &Command) -> Command {
    let arguments: Vec<Arg> = command.get_arguments().filter(|a| !a.is_hide_set()).cloned().collect();
    let below = command.get_subcommands().filter(|below| !below.is_hide_set()).map(visible);
    let about = command.get_about().cloned().unwrap_or_default();
    Command::new(command.get_name().to_owned()).about(about).args(arguments).subcommands(below)
}
