//! `esker remove`: removes paths of a repository in one commit.

use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use esker_publish::{PublishOptions, RemovePaths};

use crate::error::Failure;
use crate::publisher::{
    GatewayArgs, Interrupt, LeaseArgs, NamedArgs, NoSource, Publishing, PublishingArgs, now,
};
use crate::settings::Settings;

/// Removes files and directories of a repository, and publishes it without them.
///
/// All paths are removed in one commit; nothing is removed if one of them matches nothing. Directories go with their contents.
/// A pattern has `*`, `?` and `[…]` within a name and `**` for any directories; in a shell it stands between quotes. Earlier
/// revisions keep what they have.
///
/// Example: esker remove sw.example.org /gcc/14.3 '/software/share/page3?'
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    named: NamedArgs,

    /// Paths to remove, or patterns of paths
    #[arg(value_name = "/PATH", required = true)]
    paths: Vec<PathBuf>,

    #[command(flatten)]
    how: PublishingArgs<NoSource>,

    #[command(flatten)]
    gateway: GatewayArgs,
}

pub(crate) fn run(args: Args, settings: &Settings) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let place = args.gateway.place(&args.named.place, &args.named.name, settings)?;
    let how = &args.how;
    let patterns: Vec<_> = args.paths.into_iter().map(|path| path.into_os_string().into_vec()).collect();
    let paths: Vec<_> = patterns.iter().map(|pattern| RemovePaths::start(pattern).to_vec()).collect();
    let wanted = LeaseArgs { paths: &paths, token: None, take_over: args.gateway.take_over };
    let session = how.lease(&place, wanted)?;
    let repository = how.open(&place, session.as_ref(), &interrupt)?;
    let work = |options: PublishOptions<'_>| {
        let mut removal = RemovePaths { patterns, options };
        match how.dry_run {
            true => removal.dry_run(&repository, now()),
            false => removal.run(&repository, now()),
        }
    };
    let (place, repository, interrupt) = (&place, &repository, &interrupt);
    let of = Publishing { place, repository, interrupt, path: None, transaction: None };
    how.publish(&of, work, "was not changed")
}
