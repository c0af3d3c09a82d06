use std::ffi::OsString;
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use esker_confine::{Policy, Role};
use esker_fuse::MountOptions;
use esker_fuse::mount::Label;
use esker_journal::Journal;
use esker_node::daemon::{self, Report, Reporter};
use esker_node::mounted::{MountPlan, Mounted, MountedError};
use esker_node::mounts;
use esker_node::push::Push;
use esker_node::registry::{self, Registered, RegistryError};
use esker_node::runtime::RuntimeDir;
use esker_node::status::Presentation;
use esker_node::supervisor::Supervision;

use crate::commands::replay;
use crate::error::{Context, Failure, Kind, chain_after, warn};
use crate::image::{ImageArgs, ImageNamed};
use crate::logging::{self, LogArgs};
use crate::machine::doctor::{Touch, Touched, touch};
use crate::mounting::config_repository;
use crate::mounting::open::{mount_options, offline_warning, open, session_options};
use crate::process::again::{Again, read_proxies, start_again};
use crate::process::confine;
use crate::process::privileges;
use crate::process::signals::StopSignals;
use crate::process::tuning;
use crate::settings::Settings;
use crate::settings::address;
use crate::settings::address::split_tag;
use crate::settings::args::{RepositoryArgs, TestingArgs, ViewArgs};
use crate::settings::cache;
use crate::settings::repository::ResolvedRepository;

/// Mounts a repository or an image, and returns once the mount answers.
///
/// Example: esker mount http://server/cvmfs/sw.example.org /mnt/sw --public-key sw.example.org.pub
#[derive(clap::Args, Debug)]
pub(crate) struct Args {
    /// Repository: http://host[:port]/cvmfs/NAME, file:///…/NAME, or the NAME of a configured one; NAME@TAG is its
    /// revision with this tag. Or a squashfs image: a file (also SIF or AppImage), http://host/image.sqfs, or a file of
    /// a repository as NAME:/path
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

    /// End the mount with its daemon, instead of having a supervisor start another daemon that goes on
    #[arg(long)]
    no_supervisor: bool,

    /// Descriptor to report to; a daemon is started with it
    #[arg(long, hide = true, value_name = "FD")]
    daemon: Option<RawFd>,

    /// Socket of the supervisor; a daemon is started with it
    #[arg(long, hide = true, value_name = "FD")]
    supervisor: Option<RawFd>,

    /// Read the value of --proxy from standard input; keeps passwords out of command lines
    #[arg(long, hide = true)]
    proxy_from_input: bool,
}

/// Options for access to a mount and for its labels.
#[derive(clap::Args, Debug)]
struct AccessArgs {
    /// Allow other users to access the mount; always on for root, for others where /etc/fuse.conf allows it
    #[arg(long)]
    allow_other: bool,

    /// Forbid executing programs from the mount
    #[arg(long)]
    noexec: bool,

    /// SELinux context of all files, for instance system_u:object_r:httpd_sys_content_t:s0
    #[arg(long, value_name = "CONTEXT")]
    context: Option<String>,

    #[arg(long, value_name = "CONTEXT", hide = true)]
    fscontext: Option<String>,

    #[arg(long, value_name = "CONTEXT", hide = true)]
    defcontext: Option<String>,

    #[arg(long, value_name = "CONTEXT", hide = true)]
    rootcontext: Option<String>,

    /// Kernel file system to present the mount through, for images and fixed revisions of root: erofs (Linux 6.15,
    /// default for images) keeps names, attributes and pages; overlay (default for revisions) answers ioctls in the
    /// kernel; fuse is the only choice of other users
    #[arg(long, value_name = "FILE SYSTEM", value_enum)]
    show_with: Option<FileSystem>,

    /// Source that `mount` and `df` show [default: the URL]
    #[arg(long, value_name = "TEXT", hide = true)]
    source: Option<String>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum FileSystem {
    Erofs,
    Overlay,
    Fuse,
}

impl AccessArgs {
    /// Returns the labels for SELinux.
    fn labels(&self) -> Result<Vec<Label>, Failure> {
        let all = [
            ("context", &self.context),
            ("fscontext", &self.fscontext),
            ("defcontext", &self.defcontext),
            ("rootcontext", &self.rootcontext),
        ];
        let given = all.iter().filter_map(|(kind, context)| Some((kind, context.as_ref()?)));
        given
            .map(|(kind, context)| {
                Label::new(kind, context).ok_or_else(|| {
                    Failure::usage(format!("{kind}={context} is not an SELinux context"))
                        .hint("write one like system_u:object_r:usr_t:s0")
                })
            })
            .collect()
    }

    /// Returns the presentation of a tree that never changes; `usual` without an option.
    fn shown_with(&self, usual: Presentation) -> Presentation {
        let labelled = self.labels().is_ok_and(|labels| !labels.is_empty());
        match self.show_with {
            // The labels belong to the FUSE mount, which a file system above it would hide.
            None if labelled => Presentation::Fuse,
            None => usual,
            Some(FileSystem::Erofs) => Presentation::Erofs,
            Some(FileSystem::Overlay) => Presentation::Overlay,
            Some(FileSystem::Fuse) => Presentation::Fuse,
        }
    }
}

/// Mounts. `line` is the command line after the program's name, with which a daemon is started.
pub(crate) fn run(args: Args, settings: &Settings, line: &[OsString]) -> Result<(), Failure> {
    if args.daemon.is_some() || args.supervisor.is_some() {
        return run_as_daemon(args, settings);
    }
    args.access.labels()?;
    remove_dead(&canonical(&args.mountpoint)?, settings)?;
    let mountpoint = directory(&args.mountpoint)?;
    let (repository, _) = split_tag(&args.url)?;
    if address::is_name(repository) && ImageNamed::of(&args.url, &args.image)?.is_none() {
        config_repository::mount_first(repository, settings);
    }
    if args.foreground {
        return serve(&args, settings, (mountpoint, None), |warning| {
            warn(warning.as_deref());
            Ok(())
        });
    }
    // Wrong arguments are reported at once, not by a daemon.
    let named = MountSource::new(&args, settings)?;
    let called = match &named {
        MountSource::Repository(checked) => tuning::name(&checked.configured.tuning),
        MountSource::Image(_) => "esker",
    };
    let name = named.name();
    refuse_taken(&mountpoint, settings)?;
    let runtime = RuntimeDir::open(&settings.runtime).context(Kind::Failed, "can't register the mount")?;
    let log = runtime.log(&RuntimeDir::id(&mountpoint));
    let again =
        Again { name: called, option: "--daemon", failed: "can't mount", supervised: !args.no_supervisor };
    let outcome = start_again(&again, &log, line);
    let is_there = || registry::find(&settings.runtime, &mountpoint).is_ok_and(|found| found.is_some());
    if outcome.is_err() && !is_there() {
        // Its text has been read. (A log of another daemon stays.)
        let _ = std::fs::remove_file(&log);
        runtime.leave();
    }
    warn(outcome?.as_deref());
    // The daemon says that it serves; this is the proof.
    std::fs::metadata(&mountpoint).map(drop).map_err(|error| {
        Failure::failed(format!("{name} is mounted at {}, but can't be read: {error}", mountpoint.display()))
            .hint("`esker status` has details")
    })
}

fn run_as_daemon(mut args: Args, settings: &Settings) -> Result<(), Failure> {
    // Started through a link in /proc, it would be called `exe` in lists of processes.
    let _ = rustix::thread::set_name(c"esker");
    let not_by_hand = |error: std::io::Error| {
        Failure::usage(format!("--daemon and --supervisor are not for use by hand: {error}"))
    };
    let inherited: Vec<RawFd> = args.daemon.into_iter().chain(args.supervisor).collect();
    daemon::close_inherited(&inherited).map_err(not_by_hand)?;
    let mut reporter = args.daemon.map(Reporter::adopt).transpose().map_err(not_by_hand)?;
    if args.proxy_from_input {
        read_proxies(&mut args.repository)?;
    }
    let mut report = |report: &Report| match reporter.take() {
        Some(reporter) => reporter.report(report),
        None => Ok(()),
    };
    let failed = |error: std::io::Error| Failure::failed(format!("can't take over the mount: {error}"));
    let supervision = args.supervisor.map(Supervision::adopt).transpose().map_err(failed);
    let outcome = supervision.and_then(|supervision| {
        let supervision = supervision.map(Arc::new);
        let mountpoint = match supervision.as_ref().and_then(|supervision| supervision.inherited()) {
            Some(facts) => facts.mountpoint.clone(),
            None => directory(&args.mountpoint)?,
        };
        serve(&args, settings, (mountpoint, supervision), |warning| report(&Report::Ready { warning }))
    });
    if let Err(failure) = &outcome {
        // If the starter is gone, the log has the failure.
        let _ = report(&failure.into());
        if args.daemon.is_none() {
            tracing::error!("{}", failure.message);
        }
    }
    outcome
}

/// Mounts, calls `ready`, and serves until it is unmounted. If `ready` fails, it is unmounted.
fn serve(
    args: &Args,
    settings: &Settings,
    (mountpoint, supervision): (PathBuf, Option<Arc<Supervision>>),
    ready: impl FnOnce(Option<String>) -> std::io::Result<()>,
) -> Result<(), Failure> {
    privileges::narrow_mount();
    let stop = StopSignals::begin()?;
    confine::start_unconfined();
    let is_takeover = supervision.as_ref().is_some_and(|supervision| supervision.inherited().is_some());
    let file = supervision.as_ref().and_then(|supervision| supervision.take(IMAGE_FILE));
    let named = match file {
        Some(file) => MountSource::Image(ImageNamed::taken_over(&args.url, &args.image, file)),
        None => MountSource::new(args, settings)?,
    };
    if let MountSource::Repository(checked) = &named {
        tuning::apply(&checked.configured.tuning);
        checked.configured.syslog.clone().into_iter().for_each(logging::copy_to_system);
    }
    logging::set_mount(&mountpoint, &named.name());
    let what = format!("can't mount {} at {}", named.name(), mountpoint.display());
    if !is_takeover {
        refuse_taken(&mountpoint, settings)?;
    }
    // From here on all paths are absolute, and no directory must be kept busy.
    std::env::set_current_dir("/").context(Kind::Failed, "can't go to /")?;
    named.confine(args, settings)?;
    let (mounted, warning) = match named {
        MountSource::Repository(checked) => {
            let push = checked.push(args.view.push.as_ref());
            let is_pinned = args.view.pin().is_some() || checked.is_tagged();
            let mut plan = plan(args, settings, mountpoint, "", supervision.clone());
            plan.session = checked.configured.session(plan.session);
            let (telemetry, talk) = (checked.configured.telemetry.clone(), checked.configured.talk.clone());
            let mut view = mount_options(settings, &args.view, &args.testing);
            view.journal = supervision.as_deref().map(view_journal).transpose()?;
            if settings.root {
                // All users see root's mount, but its process's environment is not theirs to see.
                view.variables.clear();
            }
            let (repository, view) = open(*checked, &view)?;
            let warning = offline_warning(&view.status());
            // Any other file system would send requests as root, whichever user reads.
            let may_be = is_pinned && plan.session.xattr_guard.is_none();
            let usual = Presentation::Overlay;
            let shown_with = if may_be { args.access.shown_with(usual) } else { Presentation::Fuse };
            if args.access.source.is_none() {
                plan.options.source.clone_from(&repository.url);
            }
            let plan = MountPlan { push, shown_with, telemetry, talk, ..plan };
            stop.hold();
            (Mounted::start(plan, repository, view), warning)
        }
        MountSource::Image(image) => {
            let opened = image.mount(&args.repository, settings)?;
            if let (Some(supervision), Some(file)) = (&supervision, image.file_to_keep()) {
                // If the supervisor is gone no other daemon follows.
                let _ = supervision.keep(IMAGE_FILE, file);
            }
            let warning = image.warning();
            let shown_with = args.access.shown_with(Presentation::Erofs);
            let plan = plan(args, settings, mountpoint, &opened.place, supervision.clone());
            let plan = MountPlan { shown_with, ..plan };
            stop.hold();
            (Mounted::start_image(plan, opened), warning)
        }
    };
    let mounted = Arc::new(mounted.map_err(|error| of_mounted(&what, &error))?);
    if let Some(supervision) = &supervision {
        let retiring = Arc::clone(&mounted);
        let retire = move || {
            retiring.retire();
            std::process::exit(0);
        };
        supervision.on_retire(retire).context(Kind::Failed, "no thread can be started")?;
    }
    confine::mount_is_made();
    if ready(warning).is_err() {
        // The starter is gone; an unknown mount would stay for ever.
        stop.end(&mounted);
    }
    stop.serve(&mounted);
    let all_came_back = mounted.wait();
    let outcome = stop.outcome();
    if !all_came_back {
        // The remaining threads are not joined.
        std::process::exit(outcome.map_or_else(|failure| failure.code().into(), |()| 0));
    }
    outcome
}

/// Name of the image's file among the descriptors that the supervisor keeps.
const IMAGE_FILE: &str = "image";
/// Name of the record of a view.
const VIEW: &str = "view";

/// Returns the record of the view for the daemon that follows, from the daemon before if there was one.
fn view_journal(supervision: &Supervision) -> Result<Arc<Journal>, Failure> {
    let journal = || -> std::io::Result<Journal> {
        match supervision.take(VIEW) {
            Some(file) => Journal::attach(file),
            None => {
                let journal = Journal::new()?;
                supervision.keep(VIEW, journal.descriptor()?)?;
                Ok(journal)
            }
        }
    };
    Ok(Arc::new(journal().context(Kind::Failed, "can't record the mount for a daemon that takes over")?))
}

/// Object to mount, checked as far as possible without opening it.
enum MountSource {
    Repository(Box<ResolvedRepository>),
    Image(ImageNamed),
}

impl MountSource {
    fn new(args: &Args, settings: &Settings) -> Result<Self, Failure> {
        if let Some(image) = ImageNamed::of(&args.url, &args.image)? {
            args.view.refuse_revision(&args.url)?;
            return Ok(Self::Image(image));
        }
        let checked = ResolvedRepository::new(&args.url, &args.repository, settings)?;
        Ok(Self::Repository(Box::new(checked)))
    }

    /// Restricts this process to what its mount needs.
    fn confine(&self, args: &Args, settings: &Settings) -> Result<(), Failure> {
        let (policy, cache) = match self {
            Self::Repository(checked) => {
                (confine::of_repository(checked, settings), Some(checked.options.cache.clone()))
            }
            Self::Image(_) => {
                let policy = Policy::new(Role::Mount).write(&settings.runtime);
                (policy, cache::for_recorded_reads(settings, &args.repository))
            }
        };
        confine::confine_mount(policy, cache, settings)
    }

    fn name(&self) -> String {
        match self {
            Self::Repository(checked) => checked.address.name.clone(),
            Self::Image(image) => image.name(),
        }
    }
}

/// Makes the plan of any mount: for a tree that may change, without notifications.
fn plan(
    args: &Args,
    settings: &Settings,
    mountpoint: PathBuf,
    source: &str,
    supervision: Option<Arc<Supervision>>,
) -> MountPlan {
    let replayer = (!args.view.no_prefetch).then(|| replay::command(&mountpoint));
    MountPlan {
        mountpoint,
        runtime: settings.runtime.clone(),
        options: MountOptions {
            source: args.access.source.clone().unwrap_or_else(|| source.to_owned()),
            allow_other: args.access.allow_other,
            noexec: args.access.noexec,
            // They were checked when the command began.
            labels: args.access.labels().unwrap_or_default(),
        },
        session: session_options(&args.repository, Some(&args.testing)),
        command: None,
        push: Push::Off,
        telemetry: None,
        talk: None,
        shown_with: Presentation::Fuse,
        replayer,
        supervision,
    }
}

fn failed_on(named: &Path, why: &str) -> Failure {
    Failure::failed(format!("can't mount on {}: {why}", named.display()))
}

/// Returns the mount point with its links resolved.
fn canonical(named: &Path) -> Result<PathBuf, Failure> {
    mounts::canonical(named).map_err(|error| failed_on(named, &error.to_string()))
}

/// Returns the mount point, if it is usable.
fn directory(named: &Path) -> Result<PathBuf, Failure> {
    let failed = |why: &str| failed_on(named, why);
    let path = canonical(named)?;
    match std::fs::metadata(&path) {
        Ok(meta) if meta.is_dir() => Ok(path),
        Ok(_) => Err(failed("it is not a directory").hint("name an existing directory")),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            Err(failed("there is a mount whose daemon has ended")
                .hint(format!("clean up with `esker umount {}`", path.display())))
        }
        Err(error) => {
            let hint = format!("make it with `mkdir -p {}`", path.display());
            let failure = failed(&error.to_string());
            let missing = error.kind() == std::io::ErrorKind::NotFound;
            Err(if missing { failure.hint(hint) } else { failure })
        }
    }
}

/// Unmounts the mount of a killed daemon of this user. A mount that is alive, that another user made, or of another
/// file system stays.
fn remove_dead(mountpoint: &Path, settings: &Settings) -> Result<(), Failure> {
    let found =
        registry::find(&settings.runtime, mountpoint).context(Kind::Failed, "can't look up mounts")?;
    let left_by_killed = match &found {
        Some(found) if found.alive => return Ok(()),
        found => found.is_some(),
    };
    let line = mounts::at(mountpoint).context(Kind::Failed, "can't read the list of mounts")?;
    let me = rustix::process::geteuid().as_raw();
    // A file system above a mount of ours is root's, and doesn't report its user.
    let Some(line) = line.filter(|line| line.is_ours() && line.user.unwrap_or(0) == me) else {
        return Ok(());
    };
    // A dead FUSE mount has no connection; one that another session made after the daemon was killed is alive. A file
    // system above it still answers from its cache, or blocks its caller: for it the entry counts.
    let is_left = left_by_killed && line.kind != "fuse.esker";
    if !is_left && !is_disconnected(mountpoint) {
        return Ok(());
    }
    esker_fuse::mount::unmount(mountpoint, esker_fuse::Unmount::Lazy).map_err(|error| {
        let said = "can't unmount the mount of a killed daemon";
        Failure::failed(format!("{said}: {}", chain_after(said, &error)))
    })?;
    warn(Some(&format!(
        "unmounted {} from {} first, whose daemon was killed",
        line.source_text(),
        mountpoint.display()
    )));
    if let Some(left) = found {
        left.forget();
    }
    Ok(())
}

/// True if no process serves a mount any more. A mount that hangs is served.
fn is_disconnected(mountpoint: &Path) -> bool {
    match touch(Touch::Mount, mountpoint, ANSWER) {
        Ok(Touched::Failed { errno, .. }) => errno == libc::ENOTCONN,
        _ => false,
    }
}

/// Timeout of the test whether a mount is served.
const ANSWER: Duration = Duration::from_secs(5);

fn refuse_taken(mountpoint: &Path, settings: &Settings) -> Result<(), Failure> {
    let found =
        registry::find(&settings.runtime, mountpoint).context(Kind::Failed, "can't look up mounts")?;
    match found {
        Some(found) if found.alive && !ends(&found, mountpoint)? => {
            let entry = &found.entry;
            Err(taken(mountpoint).hint(format!(
                "{} is mounted there by process {}; `esker umount {}` unmounts it",
                entry.repository,
                entry.pid,
                mountpoint.display()
            )))
        }
        _ => refuse_orphan(mountpoint),
    }
}

/// Time that a daemon may take to end once its mount is gone. It may have to write objects to a slow disk.
const ENDING: Duration = Duration::from_secs(10);

/// True if a registered mount was unmounted, by any process, and is gone by now. An automounter unmounts idle mounts,
/// and a program may trigger it again at that moment.
fn ends(found: &Registered, mountpoint: &Path) -> Result<bool, Failure> {
    let line = mounts::at(mountpoint).context(Kind::Failed, "can't read the list of mounts")?;
    let mounted = line.is_some_and(|line| line.is_ours());
    Ok(!mounted && found.wait_until_gone(ENDING))
}

/// Refuses a mount whose daemon was killed; it looks alive as long as the kernel answers from its cache.
fn refuse_orphan(mountpoint: &Path) -> Result<(), Failure> {
    let line = mounts::at(mountpoint).context(Kind::Failed, "can't read the list of mounts")?;
    match line {
        Some(line) if line.is_ours() => {
            let (place, source) = (mountpoint.display(), line.source_text());
            Err(Failure::failed(format!(
                "can't mount on {place}: {source} is still mounted there, without a daemon of yours"
            ))
            .hint(format!("clean up with `esker umount {place}`")))
        }
        _ => Ok(()),
    }
}

fn taken(mountpoint: &Path) -> Failure {
    Failure::failed(format!("{} is mounted already", mountpoint.display()))
}

fn of_mounted(what: &str, error: &MountedError) -> Failure {
    match error {
        MountedError::Registry(RegistryError::Taken { mountpoint }) => taken(mountpoint),
        MountedError::Mount(refused) => {
            let failure = Failure::failed(format!("{what}: {}", chain_after(what, refused)));
            // fusermount3 reports what failed but not why.
            match esker_run::device_blocked() {
                Some(blocked) => failure.hint(format!("{blocked}\n{}", blocked.remedy)),
                None => failure,
            }
        }
        _ => Failure::failed(format!("{what}: {}", chain_after(what, error))),
    }
}
