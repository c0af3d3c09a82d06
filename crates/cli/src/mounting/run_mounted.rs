//! Runs a command with repositories mounted below /cvmfs, for `run` and `profile record`.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::SystemTime;

use esker_fuse::SessionOptions;
use esker_kernel_mount::MountOptions;
use esker_node::mounted::{MountPlan, Mounted, trusted};
use esker_node::push::Push;
use esker_node::repository::Repository;
use esker_node::status::{MountStatus, Presentation, seconds};
use esker_run::{Ending, Forwarding, Parent, Point, RunError, Writable, die_by};
use esker_view::{View, ViewOptions};

use crate::commands::replay;
use crate::error::{Failure, Kind, chain, warn};
use crate::mounting::failures;
use crate::mounting::open::{offline_warning, open_resolved};
use crate::output::for_messages;
use crate::process::limits::OpenFiles;
use crate::settings::Settings;
use crate::settings::repository::ResolvedRepository;

/// The name of the hidden subcommand that the child runs.
pub(crate) const CHILD: &str = "run-inside";

/// A command to run, and its mounts.
pub(crate) struct MountedRun<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) files: OpenFiles,
    pub(crate) command: Vec<OsString>,
    pub(crate) view: ViewOptions,
    pub(crate) session: SessionOptions,
    /// Mount an overlay of the kernel above the FUSE mount.
    pub(crate) overlay: bool,
    /// True if recorded reads are replayed ahead of the command.
    pub(crate) replay: bool,
    /// Make the trees writable, with their changes in a folder.
    pub(crate) writable: Option<Writable>,
    /// Variables of the command's environment beside those of this process.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// True if standard output of the command is standard error of this process.
    pub(crate) output_to_stderr: bool,
    /// Called once the command runs, if it only keeps the mount for others.
    pub(crate) started: Option<Started<'a>>,
}

/// Function that gets the number of the process whose namespaces have the mounts. After its failure the command is killed.
pub(crate) type Started<'a> = Box<dyn FnOnce(u32) -> Result<(), Failure> + 'a>;

/// Starts forwarding signals to the command. Must be called first: a signal must be delivered to the forwarding
/// thread.
pub(crate) fn take_signals() -> Result<Forwarding, Failure> {
    Forwarding::begin().map_err(|error| of_run(&error))
}

/// A repository to mount for the command.
pub(crate) struct ToMount {
    pub(crate) checked: ResolvedRepository,
    /// Source of revision events.
    pub(crate) push: Push,
}

/// An opened repository and the options of its mount.
struct Opened {
    repository: Repository,
    view: Arc<View>,
    plan: MountPlan,
}

impl MountedRun<'_> {
    /// Runs the command with the repositories mounted. `before` sees the view of the first one before any read, `after` once
    /// the command has ended.
    pub(crate) fn run<T>(
        self,
        repositories: Vec<ToMount>,
        forwarding: Forwarding,
        before: impl FnOnce(&View),
        after: impl FnOnce(&View) -> T,
    ) -> Result<(Ending, T), Failure> {
        let started = seconds(SystemTime::now());
        let mut opened: Vec<Opened> = Vec::new();
        let mut points = Vec::new();
        for repository in repositories {
            match self.open(repository) {
                Ok((one, point)) => {
                    opened.push(one);
                    points.push(point);
                }
                Err(failure) => {
                    opened.iter().for_each(|one| one.repository.close());
                    return Err(failure);
                }
            }
        }
        let views: Vec<Arc<View>> = opened.iter().map(|one| Arc::clone(&one.view)).collect();
        let first = views.first().ok_or_else(|| Failure::usage("no repository is named"))?;
        before(first);
        let mut launcher = Command::new("/proc/self/exe");
        launcher.arg0("esker").arg(CHILD).envs(self.environment);
        if self.output_to_stderr {
            launcher.stdout(for_messages());
        }
        let failed = |error: RunError| of_run(&error);
        let mut parent =
            Parent::start(launcher, points, self.command, self.files.before, forwarding).map_err(failed)?;
        let devices = parent.devices().map_err(failed)?;
        let mut mounts = Vec::new();
        for (Opened { repository, view, mut plan }, device) in opened.into_iter().zip(devices) {
            plan.replayer =
                self.replay.then(|| Arc::new(replay::command_beside(parent.id(), &plan.mountpoint)) as _);
            let (mounted, unregistered) = Mounted::attach(plan, device, repository, view)
                .map_err(|error| Failure::failed(chain(&error)))?;
            let unregistered =
                unregistered.map(|error| format!("`esker status` won't show it: {}", chain(&error)));
            warn(unregistered.as_deref());
            mounts.push(mounted);
        }
        let ending = parent.go().map_err(failed).and_then(|()| {
            let is_known = self.started.map_or(Ok(()), |started| started(parent.id()));
            is_known.and_then(|()| parent.wait().map_err(failed))
        });
        let seen = after(first);
        for (mounted, view) in mounts.iter().zip(&views) {
            let unknown = || MountStatus { repository: view.name().to_string(), ..MountStatus::default() };
            let status = mounted.status().unwrap_or_else(unknown);
            let failed_reads = failures::lines(&view.failure_causes(), &status, started);
            failed_reads.iter().for_each(|line| warn(Some(line)));
        }
        // Processes that the command left running lose their mounts when this process ends.
        mounts.iter().for_each(|mounted| _ = mounted.abandon());
        Ok((ending?, seen))
    }

    /// Opens a repository, and returns it with its mount point.
    fn open(&self, ToMount { checked, push }: ToMount) -> Result<(Opened, Point), Failure> {
        let spec = checked.into_spec(&self.view, push)?;
        let session = spec.session(self.session.clone());
        // An overlay would send requests as the mounting user, whichever user reads.
        let overlay = self.overlay && session.xattr_guard.is_none();
        let path = PathBuf::from("/cvmfs").join(spec.options.name.as_str());
        let source = spec.options.servers.url().to_owned();
        let push = spec.push;
        let (repository, view) = open_resolved(spec.options, spec.view)?;
        let writable = self.writable.clone();
        let point = Point { path: path.clone(), source, overlay: overlay.then(|| trusted(&view)), writable };
        warn(offline_warning(&view.status()).as_deref());
        let plan = MountPlan {
            mountpoint: path,
            runtime: self.settings.runtime.clone(),
            options: MountOptions::default(),
            session,
            command: match self.started {
                // The command only keeps the mount for others.
                Some(_) => Some("esker transaction".to_owned()),
                None => self.command.first().map(|program| program.to_string_lossy().into_owned()),
            },
            push,
            telemetry: None,
            talk: None,
            shown_with: if overlay || self.writable.is_some() {
                Presentation::Overlay
            } else {
                Presentation::Fuse
            },
            replayer: None,
            helper: None,
            supervision: None,
            spec: None,
        };
        Ok((Opened { repository, view, plan }, point))
    }
}

/// Ends this process as the command ended.
pub(crate) fn end_as(ending: Ending) -> ExitCode {
    match ending {
        Ending::Code(code) => ExitCode::from(code),
        Ending::Signal(signal) => die_by(signal),
    }
}

/// Returns the failure of a command that was not executed.
pub(crate) fn of_run(error: &RunError) -> Failure {
    match error {
        RunError::Child { code, text } => {
            let (message, remedy) = text.split_once('\n').unwrap_or((text, ""));
            let failure = Failure::failed(message).with_code(*code);
            if remedy.is_empty() { failure } else { failure.hint(remedy) }
        }
        RunError::Vanished(status) if status.signal() == Some(libc::SIGINT) => {
            Failure::new(Kind::Interrupted, "interrupted before the command began")
        }
        _ => Failure::failed(chain(error)),
    }
}
