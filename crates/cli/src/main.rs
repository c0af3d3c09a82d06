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
#[cfg(test)]
mod vocabulary;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches as _, Parser, Subcommand};
use esker_node::terminal::shown;

use crate::commands::{Call, Command, ROLES};
use crate::error::{Failure, Kind};
use crate::logging::LogArgs;
use crate::mounting::mount_helper::Helper;
use crate::process::limits::OpenFiles;
use crate::process::respawn::{SUPERVISE, supervise};
use crate::settings::Settings;

/// Mounts CernVM-FS repositories and squashfs images, runs programs from them, and publishes them.
///
/// Example: esker run http://server/cvmfs/sw.example.org --public-key sw.example.org.pub -- ls /cvmfs/sw.example.org
#[derive(Parser)]
#[command(name = "esker", version, max_term_width = 100, help_template = roles::template(ROLES), after_help = cvmfs_help::HINT)]
struct Esker {
    #[command(subcommand)]
    called: Called,
}

#[derive(Subcommand)]
#[expect(clippy::large_enum_variant, reason = "a process has one")]
enum Called {
    #[command(flatten)]
    Bare(Bare),
    #[command(flatten)]
    Command(Command),
}

/// Commands that read no setting.
#[derive(Subcommand)]
enum Bare {
    Completions(commands::completions::Args),
    Manual(commands::manual::Args),
    #[command(name = mounting::run_mounted::CHILD, hide = true)]
    Child(commands::child::Args),
    #[command(name = commands::replay::REPLAY, hide = true)]
    Replay(commands::replay::Args),
    #[command(name = process::opener::OPEN_FILES, hide = true)]
    OpenFiles(process::opener::Args),
    #[cfg(feature = "publisher")]
    #[command(name = transaction::SWEEP, hide = true)]
    Sweep(transaction::SweepArgs),
    /// Keeps the namespaces of an open transaction; not for use by hand.
    #[cfg(feature = "publisher")]
    #[command(name = transaction::KEEPER, hide = true)]
    KeepTransaction,
    /// Helps the daemon of a mount; not for use by hand.
    #[command(name = commands::mount::helper_process::HELP_MOUNT, hide = true)]
    HelpMount,
}

impl Bare {
    fn run(self) -> Result<ExitCode, Failure> {
        let done = match self {
            // The child of `run` must not change state that the command will inherit.
            Self::Child(args) => return commands::child::run(args),
            Self::Replay(args) => commands::replay::run(&args),
            Self::OpenFiles(args) => process::opener::run(args),
            #[cfg(feature = "publisher")]
            Self::Sweep(args) => transaction::sweep(&args),
            #[cfg(feature = "publisher")]
            Self::KeepTransaction => transaction::keep(),
            Self::HelpMount => commands::mount::helper_process::run(),
            Self::Completions(args) => commands::completions::run(&args, &Esker::command()),
            Self::Manual(args) => commands::manual::run(&args, Esker::command()),
        };
        done.map(|()| ExitCode::SUCCESS)
    }
}

impl Command {
    /// Returns the options of the log, which only some commands have.
    fn log_args(&self) -> LogArgs {
        match self {
            Command::Mount(args) => args.log,
            Command::Broker(args) => args.log,
            #[cfg(feature = "server")]
            Command::Serve(args) => args.serving.log,
            #[cfg(feature = "server")]
            Command::Proxy(args) => args.serving.log,
            #[cfg(feature = "server")]
            Command::Gateway(args) => args.log_args(),
            #[cfg(feature = "publisher")]
            Command::Replicate(args) => args.log,
            _ => LogArgs::default(),
        }
    }

    /// Returns true for programs that run until they are stopped, whose logs must not fill a disk.
    fn is_lasting(&self) -> bool {
        match self {
            Command::Mount(_) | Command::Broker(_) | Command::Metrics(_) | Command::AskMounts(_) => true,
            #[cfg(feature = "server")]
            Command::Serve(_) | Command::Proxy(_) => true,
            #[cfg(feature = "server")]
            Command::Gateway(args) => args.is_lasting(),
            #[cfg(feature = "publisher")]
            Command::Replicate(args) => args.is_lasting(),
            _ => false,
        }
    }

    /// Returns true for commands that run programs of the user, whose files are not ours.
    fn runs_programs(&self) -> bool {
        match self {
            Command::Run(_) | Command::Trace(_) => true,
            #[cfg(feature = "publisher")]
            Command::Profile(_) | Command::Transaction(_) => true,
            _ => false,
        }
    }
}

/// Runs a command; `line` has the arguments after the program's name.
fn run(called: Called, line: &[OsString]) -> Result<ExitCode, Failure> {
    let command = match called {
        Called::Bare(bare) => return bare.run(),
        Called::Command(command) => command,
    };
    if !command.runs_programs() {
        process::privileges::mend_umask();
    }
    let files = OpenFiles::raise();
    let settings = Settings::from_environment()?;
    match &command {
        Command::Mount(args) if args.is_daemon() => logging::start_daemon(args.log, &settings.environment)?,
        _ => logging::start(command.log_args(), command.is_lasting(), &settings.environment)?,
    }
    command.run(&Call { settings: &settings, files, line })
}

/// Returns true for the commands of a build with all features.
pub(crate) fn has_in_full_build(name: &str) -> bool {
    ROLES.iter().any(|(_, names)| names.iter().any(|known| known.eq_ignore_ascii_case(name)))
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
    if matches!(arguments, [help, topic] if help == "help" && topic == "hooks") {
        let mut out = output::Output::new();
        let printed = out.text(publisher::HOOKS_HELP).and_then(|()| out.finish());
        return printed.map_or_else(|failure| failure.report(), |()| ExitCode::SUCCESS);
    }
    let parsed = Esker::command().try_get_matches_from(&line).and_then(|matches| {
        output::silence(&matches);
        Esker::from_arg_matches(&matches)
    });
    let esker = match parsed {
        Ok(esker) => esker,
        Err(error) => return refuse(&suggest::without_hidden(error, &line)),
    };
    run(esker.called, arguments).unwrap_or_else(|failure| failure.report())
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
