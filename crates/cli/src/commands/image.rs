mod build;
mod diff;
mod digest;
mod extract;
mod inspect;
mod learn;
mod look;
mod verify;

use clap::Subcommand;

use crate::error::Failure;
use crate::settings::Settings;

/// Builds, reads, verifies and compares squashfs images without mounting them.
///
/// Example: esker image inspect stack.sqfs
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    Build(Box<build::Args>),
    Inspect(inspect::Args),
    Ls(look::LsArgs),
    Cat(look::CatArgs),
    Extract(extract::Args),
    Diff(diff::Args),
    Verify(verify::Args),
    Digest(digest::Args),
    Learn(learn::Args),
}

pub(crate) fn run(args: Args, settings: &Settings) -> Result<(), Failure> {
    match args.command {
        Command::Build(args) => build::run(*args, settings),
        Command::Inspect(args) => inspect::run(&args, settings),
        Command::Ls(args) => look::ls(&args, settings),
        Command::Cat(args) => look::cat(&args, settings),
        Command::Extract(args) => extract::run(&args, settings),
        Command::Diff(args) => diff::run(&args),
        Command::Verify(args) => verify::run(&args, settings),
        Command::Digest(args) => digest::run(&args, settings),
        Command::Learn(args) => learn::run(&args, settings),
    }
}
