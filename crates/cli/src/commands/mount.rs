mod access;
mod daemon;
pub(crate) mod helper_process;
mod place;
mod resolve;

use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::PathBuf;

use esker_node::mount_spec::{ContentSpec, MountSpec};
use esker_node::mountpoint::refuse_taken;
use esker_node::registry;
use esker_node::runtime::RuntimeDir;

use crate::error::{Context, Failure, Kind, warn};
use crate::image::{ImageArgs, ImageNamed};
use crate::logging::LogArgs;
use crate::mounting::config_repository;
use crate::output::tell;
use crate::process::respawn::{Respawn, start_again};
use crate::process::tuning;
use crate::settings::Settings;
use crate::settings::address;
use crate::settings::address::split_tag;
use crate::settings::args::{RepositoryArgs, TestingArgs, ViewArgs};
use access::AccessArgs;
use place::{canonical, directory, remove_dead};

/// Mounts a repository or an image, and returns once the mount answers.
///
/// Example: esker mount http://server/cvmfs/sw.example.org /mnt/sw --public-key sw.example.org.pub
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Repository: http://host[:port]/cvmfs/NAME, file:///…/NAME, or the NAME of one that is configured, or published from
    /// this machine; NAME@TAG is its revision with this tag. Or a squashfs image: a file (also SIF or AppImage),
    /// http://host/image.sqfs, or a file of a repository as NAME:/path
    #[arg(value_name = "URL|NAME|IMAGE")]
    url: String,

    /// Existing directory
    #[arg(value_name = "MOUNTPOINT")]
    mountpoint: PathBuf,

    #[command(flatten)]
    repository: RepositoryArgs,

    #[command(flatten)]
    view: ViewArgs,

    #[command(flatten)]
    testing: TestingArgs,

    #[command(flatten)]
    access: AccessArgs,

    #[command(flatten)]
    pub(crate) log: LogArgs,

    #[command(flatten)]
    image: ImageArgs,

    /// Stay in the foreground until unmounted or interrupted
    #[arg(long)]
    foreground: bool,

    /// Do not restart a crashed daemon
    #[arg(long)]
    no_supervisor: bool,

    /// Descriptor to report to; a daemon is started with it
    #[arg(long, hide = true, value_name = "FD")]
    daemon: Option<RawFd>,

    /// Socket of the supervisor; a daemon is started with it
    #[arg(long, hide = true, value_name = "FD")]
    supervisor: Option<RawFd>,

    /// Descriptor of the resolved options; a daemon without a supervisor is started with it
    #[arg(long, hide = true, value_name = "FD")]
    spec: Option<RawFd>,

    /// Read the value of --proxy from standard input; keeps passwords out of command lines
    #[arg(long, hide = true)]
    proxy_from_input: bool,
}

impl Args {
    /// True if another process has started this one to serve a mount.
    pub(crate) fn is_daemon(&self) -> bool {
        self.daemon.is_some() || self.supervisor.is_some()
    }
}

/// Mounts. `line` is the command line after the program's name, with which a daemon is started.
pub(crate) fn run(args: Args, settings: &Settings, line: &[OsString]) -> Result<(), Failure> {
    if args.is_daemon() {
        return daemon::run(args, settings, line);
    }
    args.access.labels()?;
    remove_dead(&canonical(&args.mountpoint)?, &settings.runtime)?;
    let mountpoint = directory(&args.mountpoint)?;
    let (repository, _) = split_tag(&args.url)?;
    if address::is_name(repository) && ImageNamed::of(&args.url, &args.image)?.is_none() {
        config_repository::mount_first(repository, settings);
    }
    if args.foreground {
        let spec = || resolve::resolve(&args, settings, mountpoint, line);
        return daemon::serve(spec, None, None, |warning| {
            warn(warning.as_deref());
            Ok(())
        });
    }
    let spec = resolve::resolve(&args, settings, mountpoint, line)?;
    if address::is_name(repository)
        && let ContentSpec::Repository(found) = &spec.content
        && let Some(folder) = found.options.servers.url().strip_prefix("file://")
    {
        tell(&format!("esker: {repository} has no server in the configuration; it is read from {folder}\n"));
    }
    start(&spec, !args.no_supervisor, line)
}

/// Resolves the options of a mount again, as `esker mount` did with these arguments.
pub(crate) fn resolve_again(args: &Args, settings: &Settings, old: &MountSpec) -> Result<MountSpec, Failure> {
    resolve::resolve(args, settings, old.mountpoint.clone(), &old.origin.arguments)
}

/// Starts the daemon of a mount, below a supervisor or alone, and waits until the mount answers.
fn start(spec: &MountSpec, supervised: bool, line: &[OsString]) -> Result<(), Failure> {
    let (mountpoint, runtime) = (&spec.mountpoint, &spec.runtime);
    let called = match &spec.content {
        ContentSpec::Repository(repository) => tuning::name(&repository.tuning),
        ContentSpec::Image(_) => "esker",
    };
    refuse_taken(mountpoint, runtime)?;
    let folder = RuntimeDir::open(runtime).context(Kind::Failed, "can't register the mount")?;
    let log = folder.log(&RuntimeDir::id(mountpoint));
    let sealed = spec.sealed().context(Kind::Failed, "can't hand over the options of the mount")?;
    let again =
        Respawn { name: called, option: "--daemon", failed: "can't mount", supervised, spec: Some(&sealed) };
    let outcome = start_again(&again, &log, line);
    let is_there = || registry::find(runtime, mountpoint).is_ok_and(|found| found.is_some());
    if outcome.is_err() && !is_there() {
        // Its text has been read. (A log of another daemon stays.)
        let _ = std::fs::remove_file(&log);
        folder.leave();
    }
    warn(outcome?.as_deref());
    // The daemon says that it serves; this is the proof.
    std::fs::metadata(mountpoint).map(drop).map_err(|error| {
        let (name, place) = (spec.name(), mountpoint.display());
        Failure::failed(format!("{name} is mounted at {place}, but can't be read: {error}"))
            .hint("`esker status` has details")
    })
}
