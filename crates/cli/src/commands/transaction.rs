mod choices;
mod contents;
mod finish;
mod list;
mod open;
mod show;
mod start;

pub(crate) use start::IngestThen;

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Subcommand;

use crate::error::Failure;
use crate::process::limits::OpenFiles;
use crate::publisher::{BranchArgs, GatewayArgs, PublisherArgs, PublishingArgs};
use crate::settings::Settings;
use crate::transaction::Transactions;

/// Runs a command or a shell in a writable repository, and publishes its changes.
///
/// The command sees the repository below /cvmfs and may change PATH in it; this needs neither root nor a daemon. Exit code 0
/// publishes the changes; any other code keeps them as a transaction. After a shell on a terminal, esker asks whether
/// to publish, keep or drop the changes. Background processes of the command end with it. A first word that is the
/// name of a subcommand runs the subcommand. `esker help hooks` describes executables that run before and after.
///
/// Example: esker transaction sw.example.org /gcc --create -- make -C /build/gcc install
#[derive(clap::Args, Debug)]
#[command(subcommand_value_name = "SUBCOMMAND")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Option<Command>,

    #[command(flatten)]
    start: StartArgs,

    /// Folder of open transactions [default: /var/spool/esker/transactions for root, else
    /// ~/.local/state/esker/transactions]
    #[arg(long, value_name = "DIR", global = true)]
    transactions: Option<PathBuf>,

    /// Hold the transaction that the first argument names; not for use by hand
    #[arg(long, value_name = "FD", hide = true)]
    hold: Option<RawFd>,
}

#[derive(clap::Args, Debug)]
struct StartArgs {
    /// Name of the repository
    #[arg(value_name = "NAME")]
    name: Option<String>,

    /// Directory of the repository that the command may change, and its working directory [default: the whole
    /// repository]
    #[arg(value_name = "PATH")]
    path: Option<PathBuf>,

    /// Make PATH if the repository lacks it; the directory above it must exist
    #[arg(long, requires = "path")]
    create: bool,

    #[command(flatten)]
    place: PublisherArgs,

    #[command(flatten)]
    how: PublishingArgs,

    #[command(flatten)]
    branch: BranchArgs,

    #[command(flatten)]
    gateway: GatewayArgs,

    /// Begin with a copy of the directory /FROM at /TO, made of catalog rows; both are published as one revision
    #[arg(long, num_args = 2, value_names = ["/FROM", "/TO"], conflicts_with = "branch")]
    template: Vec<PathBuf>,

    /// Keep the changes instead of publishing them
    #[arg(long, conflicts_with = "dry_run")]
    keep: bool,

    /// Run no command, print the transaction's id, and keep the tree until it is published or dropped: commands in other
    /// terminals see it by `esker transaction enter`
    #[arg(long, conflicts_with_all = ["keep", "dry_run", "command"])]
    open: bool,

    /// Command and its arguments [default: $SHELL]
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Subcommand, Debug)]
enum Command {
    List(list::Args),
    Show(show::Args),
    Enter(open::EnterArgs),
    Resume(start::ResumeArgs),
    Publish(finish::PublishArgs),
    Abort(finish::AbortArgs),
}

pub(crate) fn run(args: Args, settings: &Settings, files: OpenFiles) -> Result<ExitCode, Failure> {
    let transactions = Transactions::new(settings.transactions(args.transactions.as_deref())?);
    if let (Some(name), Some(_)) = (&args.start.name, &args.command) {
        return Err(Failure::usage(format!("{name} stands before a subcommand"))
            .hint("name it behind the subcommand, as in: esker transaction show sw.example.org"));
    }
    if let (Some(fd), Some(id)) = (args.hold, &args.start.name) {
        return open::hold((fd, id), &args.start.how, &transactions, settings, files);
    }
    let done = match args.command {
        Some(Command::Enter(args)) => return open::enter(args, &transactions, files),
        None => return start::run(args.start, &transactions, settings, files),
        Some(Command::Resume(args)) => return start::resume(args, &transactions, settings, files),
        Some(Command::List(args)) => list::run(&args, &transactions),
        Some(Command::Show(args)) => show::run(&args, &transactions),
        Some(Command::Publish(args)) => finish::publish(&args, &transactions, settings),
        Some(Command::Abort(args)) => finish::abort(&args, &transactions),
    };
    done.map(|()| ExitCode::SUCCESS)
}
