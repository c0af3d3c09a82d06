//! The one binary; the only place where parts are joined and settings are read.

mod args;
mod commands;
mod exit;
mod output;
mod settings;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::exit::Failure;
use crate::settings::Settings;

/// Mounts CernVM-FS repositories and runs programs from them, verified, with or without root.
///
/// Example: esker run http://cvmfs.example.org/cvmfs/sw.example.org --public-key sw.example.org.pub -- ls /cvmfs/sw.example.org
#[derive(Parser)]
#[command(name = "esker", version, max_term_width = 100)]
struct Esker {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(commands::run::Args),
    Mount(commands::mount::Args),
    Umount(commands::umount::Args),
    Status(commands::status::Args),
    Ls(commands::ls::Args),
    Cat(commands::cat::Args),
    Stat(commands::stat::Args),
    Find(commands::find::Args),
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    let settings = Settings::from_environment()?;
    let done = match command {
        Command::Run(args) => return commands::run::run(args, &settings),
        Command::Mount(args) => commands::mount::run(args, &settings),
        Command::Umount(args) => commands::umount::run(args, &settings),
        Command::Status(args) => commands::status::run(args, &settings),
        Command::Ls(args) => commands::ls::run(args, &settings),
        Command::Cat(args) => commands::cat::run(args, &settings),
        Command::Stat(args) => commands::stat::run(args, &settings),
        Command::Find(args) => commands::find::run(args, &settings),
    };
    done.map(|()| ExitCode::SUCCESS)
}

fn main() -> ExitCode {
    match run(Esker::parse().command) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}
