mod copy;
mod list;
mod protect;
mod request;
mod revoke;
mod rotate;

use clap::Subcommand;

use crate::error::Failure;
use crate::settings::Settings;

/// Lists, replaces, copies and encrypts keys, and signs whitelists on another machine.
///
/// Example: esker key list sw.example.org
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand, Debug)]
enum Command {
    List(list::Args),
    Rotate(rotate::Args),
    Revoke(revoke::Args),
    Import(copy::ImportArgs),
    Export(copy::ExportArgs),
    Encrypt(protect::EncryptArgs),
    Signer(protect::SignerArgs),
    Request(request::RequestArgs),
    Sign(request::SignArgs),
    Apply(request::ApplyArgs),
}

pub(crate) fn run(args: Args, settings: &Settings) -> Result<(), Failure> {
    match args.command {
        Command::List(args) => list::run(&args, settings),
        Command::Rotate(args) => rotate::run(&args, settings),
        Command::Revoke(args) => revoke::run(&args, settings),
        Command::Import(args) => copy::import(&args, settings),
        Command::Export(args) => copy::export(&args, settings),
        Command::Encrypt(args) => protect::encrypt(&args, settings),
        Command::Signer(args) => protect::signer(&args, settings),
        Command::Request(args) => request::request(&args, settings),
        Command::Sign(args) => request::sign(&args, settings),
        Command::Apply(args) => request::apply(&args, settings),
    }
}
