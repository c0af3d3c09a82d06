//! The binary `esker`: resolves settings and joins the other crates.
#![deny(unsafe_code)]
// A build without all commands leaves helpers of the others unused; the linker drops them.
#![cfg_attr(not(all(feature = "publisher", feature = "server")), allow(dead_code, unused_imports))]

mod commands;
mod container;
mod cvmfs_help;
mod error;
mod image;
mod logging;
mod machine;
mod mounting;
mod output;
mod process;
mod progress;
mod publisher;
mod roles;
mod serving;
mod settings;
mod suggest;
mod transaction;
mod trees;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use esker_node::terminal::shown;

#[cfg(feature = "publisher")]
use crate::commands::PublisherCommand;
#[cfg(feature = "server")]
use crate::commands::ServerCommand;
use crate::error::{Failure, Kind};
use crate::logging::LogArgs;
use crate::mounting::mount_helper::Helper;
use crate::process::again::{SUPERVISE, supervise};
use crate::process::limits::OpenFiles;
use crate::settings::Settings;

/// Mounts CernVM-FS repositories and squashfs images, runs programs from them, and publishes them.
///
/// Example: esker run http://server/cvmfs/sw.example.org --public-key sw.example.org.pub -- ls /cvmfs/sw.example.org
#[derive(Parser)]
#[command(name = "esker", version, max_term_width = 100, help_template = roles::template(), after_help = cvmfs_help::HINT)]
struct Esker {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Run(commands::run::Args),
    Mount(commands::mount::Args),
    Umount(commands::umount::Args),
    Upgrade(commands::upgrade::Args),
    Reload(commands::reload::Args),
    Status(commands::status::Args),
    Metrics(commands::metrics::Args),
    Logs(commands::logs::Args),
    Top(commands::top::Args),
    Trace(commands::trace::Args),
    Revision(commands::revision::Args),
    Config(commands::config::Args),
    Cache(commands::cache::Args),
    Doctor(commands::doctor::Args),
    Broker(commands::broker::Args),
    Ls(commands::ls::Args),
    Cat(commands::cat::Args),
    Stat(commands::stat::Args),
    Find(commands::find::Args),
    #[cfg(feature = "server")]
    #[command(flatten)]
    Server(ServerCommand),
    Setup(commands::setup::Args),
    Compare(commands::compare::Args),
    #[cfg(feature = "publisher")]
    #[command(flatten)]
    Publisher(PublisherCommand),
    Image(commands::image::Args),
    Completions(commands::completions::Args),
    Manual(commands::manual::Args),
    #[command(name = mounting::run_mounted::CHILD, hide = true)]
    Child(commands::child::Args),
    #[command(name = commands::replay::REPLAY, hide = true)]
    Replay(commands::replay::Args),
    #[command(name = process::opener::OPEN_FILES, hide = true)]
    OpenFiles(process::opener::Args),
    /// Helps the daemon of a mount; not for use by hand.
    #[command(name = commands::mount::helper_process::HELP_MOUNT, hide = true)]
    HelpMount,
    #[command(name = commands::metrics::asker::ASK_MOUNTS, hide = true)]
    AskMounts(commands::metrics::asker::Args),
}

impl Command {
    /// Returns the options of the log, which only some commands have.
    fn log_args(&self) -> LogArgs {
        match self {
            Command::Mount(args) => args.log,
            Command::Broker(args) => args.log,
            #[cfg(feature = "server")]
            Command::Server(command) => command.log_args(),
            _ => LogArgs::default(),
        }
    }

    /// Returns true for programs that run until they are stopped, whose logs must not fill a disk.
    fn is_lasting(&self) -> bool {
        match self {
            Command::Mount(_) | Command::Broker(_) | Command::Metrics(_) | Command::AskMounts(_) => true,
            #[cfg(feature = "server")]
            Command::Server(_) => true,
            _ => false,
        }
    }

    /// Returns true for commands that run programs of the user, whose files are not ours.
    fn runs_programs(&self) -> bool {
        match self {
            Command::Run(_) | Command::Trace(_) => true,
            #[cfg(feature = "publisher")]
            Command::Publisher(command) => command.runs_programs(),
            _ => false,
        }
    }
}

/// Runs a command; `line` has the arguments after the program's name.
fn run(command: Command, line: &[OsString]) -> Result<ExitCode, Failure> {
    // The child of `run` must not change state that the command will inherit.
    if let Command::Child(args) = command {
        return commands::child::run(args);
    }
    if let Command::Replay(args) = command {
        return commands::replay::run(&args).map(|()| ExitCode::SUCCESS);
    }
    if let Command::OpenFiles(args) = command {
        return process::opener::run(args).map(|()| ExitCode::SUCCESS);
    }
    if let Command::HelpMount = command {
        return commands::mount::helper_process::run().map(|()| ExitCode::SUCCESS);
    }
    // Both read the command line's own description, and no setting.
    match &command {
        Command::Completions(args) => {
            return commands::completions::run(args, &Esker::command()).map(|()| ExitCode::SUCCESS);
        }
        Command::Manual(args) => {
            return commands::manual::run(args, Esker::command()).map(|()| ExitCode::SUCCESS);
        }
        _ => {}
    }
    if !command.runs_programs() {
        process::privileges::mend_umask();
    }
    let files = OpenFiles::raise();
    let settings = Settings::from_environment()?;
    match &command {
        Command::Mount(args) if args.is_daemon() => logging::start_daemon(args.log, &settings.environment)?,
        _ => logging::start(command.log_args(), command.is_lasting(), &settings.environment)?,
    }
    let done = match command {
        Command::Run(args) => return commands::run::run(args, &settings, files, line),
        #[cfg(feature = "publisher")]
        Command::Publisher(command) => return command.run(&settings, files),
        Command::Trace(args) => return commands::trace::run(args, &settings, files),
        Command::Child(_)
        | Command::Replay(_)
        | Command::OpenFiles(_)
        | Command::HelpMount
        | Command::Completions(_)
        | Command::Manual(_) => {
            unreachable!("handled above")
        }
        Command::Mount(args) => commands::mount::run(args, &settings, line),
        Command::Umount(args) => commands::umount::run(args, &settings),
        Command::Upgrade(args) => commands::upgrade::run(&args, &settings),
        Command::Reload(args) => commands::reload::run(&args, &settings),
        Command::Status(args) => commands::status::run(args, &settings),
        Command::Metrics(args) => commands::metrics::run(&args, &settings),
        Command::AskMounts(args) => commands::metrics::asker::run(&args, &settings),
        Command::Logs(args) => commands::logs::run(&args, &settings),
        Command::Top(args) => commands::top::run(&args, &settings),
        Command::Config(args) => commands::config::run(args, &settings),
        Command::Revision(args) => commands::revision::run(&args, &settings),
        Command::Broker(args) => commands::broker::run(args, &settings),
        Command::Cache(args) => commands::cache::run(args, &settings),
        Command::Doctor(args) => commands::doctor::run(&args, &settings),
        Command::Ls(args) => commands::ls::run(args, &settings),
        Command::Cat(args) => commands::cat::run(args, &settings),
        Command::Stat(args) => commands::stat::run(args, &settings),
        Command::Find(args) => commands::find::run(args, &settings),
        #[cfg(feature = "server")]
        Command::Server(command) => command.run(&settings),
        Command::Setup(args) => commands::setup::run(&args, &settings),
        Command::Compare(args) => commands::compare::run(&args),
        Command::Image(args) => commands::image::run(args, &settings),
    };
    done.map(|()| ExitCode::SUCCESS)
}

/// Options of find(1) that users type with one dash.
const FIND_OPTIONS: [&str; 3] = ["-name", "-type", "-maxdepth"];

/// Returns the command line, with find's options as ours.
fn command_line() -> Vec<OsString> {
    let mut all: Vec<OsString> = std::env::args_os().collect();
    if all.get(1).is_some_and(|command| command == "find") {
        for argument in all.iter_mut().skip(2) {
            if FIND_OPTIONS.iter().any(|option| argument == option) {
                let name = argument.to_string_lossy().replace("-maxdepth", "-max-depth");
                *argument = format!("-{name}").into();
            }
        }
    }
    all
}

fn main() -> ExitCode {
    let line = command_line();
    let (program, arguments) =
        line.split_first().map_or((None, &[][..]), |(first, rest)| (Some(first), rest));
    if let Some(helper) = program.and_then(|program| Helper::called_as(program)) {
        return helper.run(arguments.to_vec());
    }
    if let Some((SUPERVISE, arguments)) =
        arguments.split_first().and_then(|(c, rest)| Some((c.to_str()?, rest)))
    {
        return supervise(arguments);
    }
    if cvmfs_help::requested(arguments) {
        return cvmfs_help::print().map_or_else(|failure| failure.report(), |()| ExitCode::SUCCESS);
    }
    let esker = match Esker::try_parse_from(&line) {
        Ok(esker) => esker,
        Err(error) => return refuse(&suggest::without_hidden(error, &line)),
    };
    match run(esker.command, arguments) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

/// Prints an error of the command line, or the help that was asked for, and returns the exit code.
fn refuse(error: &clap::Error) -> ExitCode {
    let text = error.render().to_string();
    // The parser shows an argument as it is, but for escape sequences of seven bits.
    if shown(&text) == text {
        error.exit();
    }
    output::tell(&text);
    ExitCode::from(Kind::Usage as u8)
}
