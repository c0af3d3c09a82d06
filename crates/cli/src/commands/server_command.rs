//! The commands of web servers, which a client's build leaves out.

use super::{proxy, serve};
use crate::error::Failure;
use crate::logging::LogArgs;
use crate::settings::Settings;

/// A command that runs a web server.
#[derive(clap::Subcommand)]
pub(crate) enum ServerCommand {
    Serve(serve::Args),
    Proxy(proxy::Args),
}

impl ServerCommand {
    /// Returns the options of the log.
    pub(crate) fn log_args(&self) -> LogArgs {
        match self {
            Self::Serve(args) => args.serving.log,
            Self::Proxy(args) => args.serving.log,
        }
    }

    pub(crate) fn run(self, settings: &Settings) -> Result<(), Failure> {
        match self {
            Self::Serve(args) => serve::run(&args, settings),
            Self::Proxy(args) => proxy::run(args, settings),
        }
    }
}
