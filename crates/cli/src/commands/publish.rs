use std::path::PathBuf;

use esker_publish::{Publish, PublishOptions};

use crate::error::{Context as _, Failure, Kind};
use crate::publisher::{
    BranchArgs, GatewayArgs, Interrupt, LeaseArgs, NamedArgs, Publishing, PublishingArgs, now,
};
use crate::settings::Settings;

/// Publishes a folder: makes a repository, or a directory of it, equal to the folder.
///
/// Compares the folder with the newest revision. Changes that are published meanwhile stay. If one is of the same path,
/// the command fails and names the path. A user without the keys of the repository publishes through a gateway: --gateway.
///
/// `esker help hooks` describes executables that run before and after.
///
/// Example: esker publish sw.example.org /build/software --to /software
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    named: NamedArgs,

    /// Folder
    #[arg(value_name = "DIR")]
    source: PathBuf,

    /// Directory of the repository to make equal to the folder
    #[arg(long, value_name = "/PATH", default_value = "/")]
    to: PathBuf,

    /// Rewrite the path of the folder in which DIR was built to that at clients.
    ///
    /// In scripts, activate*, pyvenv.cfg, symlinks, and where conda has recorded it; for environments that can't be built where
    /// they are published [default: DIR]
    #[arg(long, value_name = "FOLDER", num_args = 0..=1, require_equals = true)]
    relocate: Option<Option<PathBuf>>,

    #[command(flatten)]
    how: PublishingArgs,

    #[command(flatten)]
    branch: BranchArgs,

    #[command(flatten)]
    gateway: GatewayArgs,
}

pub(crate) fn run(args: Args, settings: &Settings) -> Result<(), Failure> {
    use std::os::unix::ffi::OsStringExt as _;
    let interrupt = Interrupt::on_signals()?;
    let place = args.gateway.place(&args.named.place, &args.named.name, settings)?;
    if args.source.is_file() {
        let what = format!("{} was not published: {} is not a folder", place.name, args.source.display());
        return Err(Failure::failed(what).hint("name a folder; archives are for `esker ingest`"));
    }
    let how = &args.how;
    let (source, target) = (args.source, args.to.clone().into_os_string().into_vec());
    let (paths, take_over) = (std::slice::from_ref(&target), args.gateway.take_over);
    let session = how.lease(&place, LeaseArgs { paths, token: None, take_over })?;
    let repository = how.open(&place, session.as_ref(), &interrupt)?;
    let built = args.relocate.map(|folder| std::path::absolute(folder.unwrap_or_else(|| source.clone())));
    let built = built.transpose().context(Kind::Usage, "can't find the folder of --relocate")?;
    let work = |mut given: PublishOptions<'_>| {
        given.tag.branch = args.branch.request();
        given.filter.relocate = built;
        let mut publish = Publish { source, target, options: given };
        match how.dry_run {
            true => publish.dry_run(&repository, now()),
            false => publish.run(&repository, now()),
        }
    };
    let (place, repository, interrupt) = (&place, &repository, &interrupt);
    let of = Publishing { place, repository, interrupt, path: Some(&args.to), transaction: None };
    how.publish(&of, work, "was not published")
}
