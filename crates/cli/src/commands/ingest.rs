use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use esker_publish::{Ingest, Owner, PublishOptions};

use crate::commands::transaction::IngestThen;
use crate::error::{Context as _, Failure, Kind};
use crate::mounting::run_mounted::take_signals;
use crate::process::limits::OpenFiles;
use crate::publisher::{
    BranchArgs, GatewayArgs, Interrupt, LeaseArgs, NamedArgs, Publishing, PublishingArgs, now,
};
use crate::settings::Settings;
use crate::transaction::Transactions;

/// Publishes the entries of an archive below a directory of a repository.
///
/// Entries with the same name are replaced; all others stay. Changes that other publishers publish in the meantime
/// stay too; if another publisher changed the same path, this command fails and names the path.
///
/// Example: esker ingest sw.example.org gcc.tar.gz --to /gcc/14.2
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    #[command(flatten)]
    named: NamedArgs,

    /// Tar archive, plain or compressed; - for standard input
    #[arg(value_name = "FILE")]
    archive: PathBuf,

    /// Directory of the repository to unpack to
    #[arg(long, value_name = "/PATH")]
    to: PathBuf,

    /// Path in the repository to delete first, with all entries below it; may be repeated
    #[arg(long, value_name = "/PATH")]
    delete: Vec<PathBuf>,

    /// File with paths to delete first, one a line
    #[arg(long, value_name = "FILE")]
    delete_list: Option<PathBuf>,

    /// Owner of all added entries, as ids UID[:GID] [default: as in the archive]
    #[arg(long, value_name = "UID[:GID]", value_parser = owner)]
    owner: Option<Owner>,

    /// Make the directory the root of a nested catalog
    #[arg(long)]
    nested: bool,

    /// Shell command to run in the directory after unpacking; its changes are published together with the archive. If
    /// it fails, archive and changes are kept as a transaction
    #[arg(long, value_name = "COMMAND", conflicts_with = "dry_run")]
    then: Option<OsString>,

    /// Folder of open transactions, for --then [default: that of `esker transaction`]
    #[arg(long, value_name = "DIR", requires = "then")]
    transactions: Option<PathBuf>,

    #[command(flatten)]
    how: PublishingArgs,

    #[command(flatten)]
    branch: BranchArgs,

    #[command(flatten)]
    gateway: GatewayArgs,
}

fn owner(text: &str) -> Result<Owner, String> {
    let (uid, gid) = text.split_once(':').unwrap_or((text, ""));
    let number = |text: &str| match text {
        "" => Ok(None),
        digits => digits.parse().map(Some).map_err(|_| format!("{digits:?} is not a number")),
    };
    Ok(Owner { uid: number(uid)?, gid: number(gid)? })
}

pub(crate) fn run(args: Args, settings: &Settings, files: OpenFiles) -> Result<ExitCode, Failure> {
    use std::os::unix::ffi::OsStringExt as _;
    let (interrupt, forwarding) = match &args.then {
        Some(_) => (Interrupt::without_signals()?, Some(take_signals()?)),
        None => (Interrupt::on_signals()?, None),
    };
    let mut delete: Vec<Vec<u8>> =
        args.delete.into_iter().map(|path| path.into_os_string().into_vec()).collect();
    if let Some(list) = &args.delete_list {
        let text = std::fs::read(list).context(Kind::Usage, format!("can't read {}", list.display()))?;
        let lines = text.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
        delete.extend(lines.map(<[u8]>::to_vec));
    }
    let place = args.gateway.place(&args.named.place, &args.named.name, settings)?;
    let how = &args.how;
    let (archive, target) = (args.archive, args.to.clone().into_os_string().into_vec());
    // The command of --then may change all of the repository.
    let own = [delete.clone(), vec![target.clone()]].concat();
    let paths = if args.then.is_some() { &[][..] } else { &own };
    let session = how.lease(&place, LeaseArgs { paths, token: None, take_over: args.gateway.take_over })?;
    let repository = how.open(&place, session.as_ref(), &interrupt)?;
    let (owner, nested) = (args.owner.unwrap_or_default(), args.nested);
    let (what, branch) = ("was not changed", args.branch.request());
    if let (Some(script), Some(forwarding)) = (args.then, forwarding) {
        let work = |mut options: PublishOptions<'_>| {
            options.tag.branch.clone_from(&branch);
            Ingest { archive, target, delete, owner, nested, options }.stage(&repository, now())
        };
        let staged = how.work(&place, &interrupt, work, what)?;
        drop(repository);
        let transactions = Transactions::new(settings.transactions(args.transactions.as_deref())?);
        let (place, target, transactions) = (&place, args.to.as_path(), &transactions);
        let then =
            IngestThen { place, staged, session, target, script, how, branch, transactions, settings, files };
        return then.run(forwarding, &interrupt);
    }
    let work = |mut given: PublishOptions<'_>| {
        given.tag.branch = branch;
        let mut ingest = Ingest { archive, target, delete, owner, nested, options: given };
        match how.dry_run {
            true => ingest.dry_run(&repository, now()),
            false => ingest.run(&repository, now()),
        }
    };
    let (place, repository, interrupt) = (&place, &repository, &interrupt);
    let of = Publishing { place, repository, interrupt, path: Some(&args.to), transaction: None };
    how.publish(&of, work, what).map(|()| ExitCode::SUCCESS)
}
