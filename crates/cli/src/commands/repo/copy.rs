use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use esker_publish::{CopyTree, PublishOptions};

use crate::error::Failure;
use crate::publisher::{Interrupt, NamedArgs, NoSource, Publishing, PublishingArgs, now};
use crate::settings::Settings;

/// Copies a directory inside a repository without reading its content, and publishes the copy.
///
/// Only rows of catalogs are copied. Nested catalogs, owners, times and hard links of a directory stay as they are.
/// `esker transaction --template` changes the copy before it is published.
///
/// Example: esker repo copy sw.example.org /gcc/14.2 /gcc/14.3
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    named: NamedArgs,

    /// Directory to copy
    #[arg(value_name = "/FROM")]
    from: PathBuf,

    /// Path of the copy, which must not exist
    #[arg(value_name = "/TO")]
    to: PathBuf,

    #[command(flatten)]
    how: PublishingArgs<NoSource>,
}

pub(super) fn run(args: Args, settings: &Settings) -> Result<(), Failure> {
    let interrupt = Interrupt::on_signals()?;
    let place = args.named.place(settings)?;
    let how = &args.how;
    let repository = how.open(&place, None, &interrupt)?;
    let [from, to] = [&args.from, &args.to].map(|path| path.clone().into_os_string().into_vec());
    let work = |options: PublishOptions<'_>| {
        let mut copy = CopyTree { from, to, options };
        match how.dry_run {
            true => copy.dry_run(&repository, now()),
            false => copy.run(&repository, now()),
        }
    };
    let (place, repository, interrupt) = (&place, &repository, &interrupt);
    let of = Publishing { place, repository, interrupt, path: Some(&args.to), transaction: None };
    how.publish(&of, work, "was not changed")
}
