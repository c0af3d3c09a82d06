//! Lists the commands: one file each, with its arguments, whose comments are the help, and one function.

use std::process::ExitCode;

use crate::error::Failure;
use crate::process::limits::OpenFiles;
use crate::settings::Settings;

/// Inputs of a command beside its arguments.
pub(crate) struct Call<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) files: OpenFiles,
    /// Command line after the program's name.
    pub(crate) line: &'a [std::ffi::OsString],
}

/// Exit code, or failure, of a command.
pub(crate) type Outcome = Result<ExitCode, Failure>;

/// Exit code of a command; success, if it has none of its own.
trait Ended {
    fn code(self) -> ExitCode;
}

impl Ended for ExitCode {
    fn code(self) -> ExitCode {
        self
    }
}

impl Ended for () {
    fn code(self) -> ExitCode {
        ExitCode::SUCCESS
    }
}

/// Defines the commands of a group, and how each is run. The commands of `esker` are sorted by the role of their users; those
/// after the name of a feature are left out of builds without it.
macro_rules! commands {
    ($args:ident, $call:ident; $($role:literal: $($([$feature:literal])? $(#[$meta:meta])* $name:ident($of:ty) => $run:expr;)*)*) => {
        /// Roles of users with their commands, in the order of the help.
        pub(crate) const ROLES: &[(&str, &[&str])] = &[$(($role, &[$(stringify!($name)),*])),*];

        commands! { $args, $call; $($($([$feature])? $(#[$meta])* $name($of) => $run;)*)* }
    };
    ($(#[$about:meta])* $args:ident, $call:ident; $($([$feature:literal])? $(#[$meta:meta])* $name:ident($of:ty) => $run:expr;)*) => {
        $(#[$about])*
        #[derive(clap::Subcommand)]
        pub(crate) enum Command { $($(#[cfg(feature = $feature)])? $(#[$meta])* $name($of)),* }

        impl Command {
            pub(crate) fn run(self, $call: &$crate::commands::Call<'_>) -> $crate::commands::Outcome {
                match self {
                    $($(#[cfg(feature = $feature)])? Self::$name($args) => $run.map($crate::commands::Ended::code),)*
                }
            }
        }
    };
}

pub(crate) mod broker;
pub(crate) mod cache;
pub(crate) mod cat;
#[cfg(feature = "publisher")]
pub(crate) mod check;
pub(crate) mod child;
#[cfg(feature = "publisher")]
pub(crate) mod collect;
pub(crate) mod compare;
pub(crate) mod completions;
pub(crate) mod config;
#[cfg(feature = "publisher")]
pub(crate) mod diff;
pub(crate) mod doctor;
pub(crate) mod find;
#[cfg(feature = "server")]
pub(crate) mod gateway;
#[cfg(feature = "publisher")]
pub(crate) mod graft;
pub(crate) mod image;
#[cfg(feature = "publisher")]
pub(crate) mod ingest;
#[cfg(feature = "publisher")]
pub(crate) mod key;
#[cfg(feature = "publisher")]
pub(crate) mod log;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod manual;
pub(crate) mod metrics;
pub(crate) mod mount;
#[cfg(feature = "publisher")]
pub(crate) mod profile;
#[cfg(feature = "server")]
pub(crate) mod proxy;
#[cfg(feature = "publisher")]
pub(crate) mod publish;
pub(crate) mod reload;
#[cfg(feature = "publisher")]
pub(crate) mod remove;
pub(crate) mod replay;
#[cfg(feature = "publisher")]
pub(crate) mod replicate;
#[cfg(feature = "publisher")]
pub(crate) mod repo;
pub(crate) mod revision;
#[cfg(feature = "publisher")]
pub(crate) mod rollback;
pub(crate) mod run;
#[cfg(feature = "server")]
pub(crate) mod serve;
pub(crate) mod setup;
pub(crate) mod stat;
pub(crate) mod status;
#[cfg(feature = "publisher")]
pub(crate) mod tag;
pub(crate) mod top;
pub(crate) mod trace;
#[cfg(feature = "publisher")]
pub(crate) mod transaction;
pub(crate) mod umount;
pub(crate) mod upgrade;

commands! { args, call;
    "Mount and run":
    Run(run::Args) => run::run(args, call.settings, call.files, call.line);
    Mount(mount::Args) => mount::run(args, call.settings, call.line);
    Umount(umount::Args) => umount::run(args, call.settings);
    Upgrade(upgrade::Args) => upgrade::run(&args, call.settings);
    Reload(reload::Args) => reload::run(&args, call.settings);
    #[command(subcommand)] Setup(setup::Command) => args.run(call);
    "Read without a mount":
    Ls(ls::Args) => ls::run(args, call.settings);
    Cat(cat::Args) => cat::run(args, call.settings);
    Stat(stat::Args) => stat::run(args, call.settings);
    Find(find::Args) => find::run(args, call.settings);
    Compare(compare::Args) => compare::run(&args);
    Revision(revision::Args) => revision::run(&args, call.settings);
    "Find out why":
    Status(status::Args) => status::run(args, call.settings);
    Doctor(doctor::Args) => doctor::run(&args, call.settings);
    Top(top::Args) => top::run(&args, call.settings);
    Trace(trace::Args) => trace::run(args, call.settings, call.files);
    Logs(logs::Args) => logs::run(&args, call.settings);
    Metrics(metrics::Args) => metrics::run(&args, call.settings);
    #[command(name = metrics::asker::ASK_MOUNTS, hide = true)]
    AskMounts(metrics::asker::Args) => metrics::asker::run(&args, call.settings);
    Config(config::Args) => config::run(args, call.settings);
    "Cache":
    #[command(subcommand)] Cache(cache::Command) => args.run(call);
    Broker(broker::Args) => broker::run(args, call.settings);
    "Publish":
    ["publisher"] #[command(subcommand)] Repo(repo::Command) => args.run(call);
    ["publisher"] Publish(publish::Args) => publish::run(args, call.settings);
    ["publisher"] Ingest(ingest::Args) => ingest::run(args, call.settings, call.files);
    ["publisher"] Remove(remove::Args) => remove::run(args, call.settings);
    ["publisher"] Transaction(transaction::Args) => transaction::run(args, call.settings, call.files);
    ["publisher"] Diff(diff::Args) => diff::run(&args, call.settings);
    ["publisher"] Log(log::Args) => log::run(&args, call.settings);
    ["publisher"] #[command(subcommand)] Tag(tag::Command) => args.run(call);
    ["publisher"] Rollback(rollback::Args) => rollback::run(&args, call.settings);
    ["publisher"] Undo(rollback::UndoArgs) => rollback::undo(&args, call.settings);
    ["publisher"] #[command(subcommand)] Key(key::Command) => args.run(call);
    ["publisher"] Graft(graft::Args) => graft::run(&args);
    ["publisher"] #[command(subcommand)] Profile(profile::Command) => args.run(call);
    "Serve and replicate":
    ["server"] Serve(serve::Args) => serve::run(&args, call.settings);
    ["server"] Proxy(proxy::Args) => proxy::run(args, call.settings);
    ["server"] Gateway(Box<gateway::Args>) => gateway::run(*args, call);
    ["publisher"] Replicate(Box<replicate::Args>) => replicate::run(&args, call.settings);
    ["publisher"] Collect(collect::Args) => collect::run(&args, call.settings);
    ["publisher"] Check(check::Args) => check::run(&args, call.settings);
    "Images":
    #[command(subcommand)] Image(image::Command) => args.run(call);
}
