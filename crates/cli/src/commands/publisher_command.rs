//! The commands of publishers and Stratum 1 servers, which a client's build leaves out.

use std::process::ExitCode;

use super::{
    check, collect, diff, graft, ingest, key, log, profile, publish, replicate, repo, rollback, tag,
    transaction,
};
use crate::error::Failure;
use crate::process::limits::OpenFiles;
use crate::settings::Settings;

/// A command that publishes, replicates or maintains repositories.
#[derive(clap::Subcommand)]
pub(crate) enum PublisherCommand {
    Repo(repo::Args),
    Key(key::Args),
    Publish(publish::Args),
    Ingest(ingest::Args),
    Graft(graft::Args),
    Diff(diff::Args),
    Log(log::Args),
    Tag(tag::Args),
    Rollback(rollback::Args),
    Undo(rollback::UndoArgs),
    Replicate(Box<replicate::Args>),
    Collect(collect::Args),
    Check(check::Args),
    Transaction(transaction::Args),
    Profile(profile::Args),
}

impl PublisherCommand {
    /// Returns true for commands that run programs of the user, whose files are not ours.
    pub(crate) fn runs_programs(&self) -> bool {
        matches!(self, Self::Profile(_) | Self::Transaction(_))
    }

    pub(crate) fn run(self, settings: &Settings, files: OpenFiles) -> Result<ExitCode, Failure> {
        let done = match self {
            Self::Ingest(args) => return ingest::run(args, settings, files),
            Self::Transaction(args) => return transaction::run(args, settings, files),
            Self::Profile(args) => return profile::run(args, settings, files),
            Self::Repo(args) => repo::run(args, settings),
            Self::Key(args) => key::run(args, settings),
            Self::Publish(args) => publish::run(args, settings),
            Self::Graft(args) => graft::run(&args),
            Self::Diff(args) => diff::run(&args, settings),
            Self::Log(args) => log::run(&args, settings),
            Self::Tag(args) => tag::run(args, settings),
            Self::Rollback(args) => rollback::run(&args, settings),
            Self::Undo(args) => rollback::undo(&args, settings),
            Self::Replicate(args) => replicate::run(&args, settings),
            Self::Collect(args) => collect::run(&args, settings),
            Self::Check(args) => check::run(&args, settings),
        };
        done.map(|()| ExitCode::SUCCESS)
    }
}
