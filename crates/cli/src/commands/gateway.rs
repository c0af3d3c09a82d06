mod key;
mod lease;
mod publishers;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use esker_gateway::LeasePath;

use crate::commands::{Call, Outcome};
use crate::error::Failure;
use crate::logging::LogArgs;
use crate::settings::Settings;

/// Publishes for publishers without keys of a repository.
///
/// A publisher has a key file of the gateway, which says what it may change. It leases a directory, sends objects, and the
/// gateway publishes its changes on the newest revision. The protocol is that of CernVM-FS's gateway, so `cvmfs_server`
/// and `esker publish` can use it. Repositories and their keys are those that this user publishes with. Changed keys of
/// publishers are read within seconds, and at SIGHUP. After a restart publishers go on with their leases.
///
/// Example: esker gateway --listen 0.0.0.0:4929
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    server: serve::ServerArgs,
}

impl Args {
    /// Returns the options of the log.
    pub(crate) fn log_args(&self) -> LogArgs {
        self.server.serving.log
    }

    /// Returns true for the server.
    pub(crate) fn is_lasting(&self) -> bool {
        self.command.is_none()
    }
}

/// Options for the folder of a gateway.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct StateArgs {
    /// Folder of the gateway's database, and of the keys of publishers in `publishers` [default: /var/lib/esker-gateway for
    /// root, else ~/.local/state/esker/gateway]
    #[arg(long, value_name = "DIR")]
    state: Option<PathBuf>,
}

impl StateArgs {
    /// Returns the folder of the database.
    fn folder(&self, settings: &Settings) -> Result<PathBuf, Failure> {
        settings.gateway(self.state.as_deref())
    }

    /// Returns the folder of the keys of publishers.
    fn publishers(&self, settings: &Settings) -> Result<PathBuf, Failure> {
        Ok(self.folder(settings)?.join("publishers"))
    }
}

/// Parses a directory of a repository.
fn parse_path(text: &str) -> Result<LeasePath, String> {
    LeasePath::parse(text).map_err(|error| error.to_string())
}

/// Commands beside the server.
#[derive(clap::Subcommand)]
enum Command {
    #[command(subcommand)]
    Key(key::Command),
    #[command(subcommand)]
    Lease(lease::Command),
}

pub(crate) fn run(args: Args, call: &Call<'_>) -> Outcome {
    match args.command {
        None => serve::run(args.server, call.settings).map(|()| ExitCode::SUCCESS),
        Some(Command::Key(command)) => command.run(call),
        Some(Command::Lease(command)) => command.run(call),
    }
}
