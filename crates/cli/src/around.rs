//! A command with a repository around it: the machinery of `run`, which others use too.

use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::SystemTime;

use esker_fuse::{MountOptions, SessionOptions};
use esker_node::mounted::{MountPlan, Mounted, trusted};
use esker_node::push::Push;
use esker_node::status::{MountStatus, ShownWith, seconds};
use esker_run::{Ending, Forwarding, Outside, Point, RunError, die_by};
use esker_view::{View, ViewOptions};

use crate::commands::scout;
use crate::exit::{Failure, Kind, chain, warn};
use crate::failures;
use crate::join::{Checked, offline_warning};
use crate::limits::OpenFiles;
use crate::settings::Settings;

/// The name of the hidden subcommand that the child runs.
pub(crate) const INSIDE: &str = "run-inside";

/// A command that is to run, and what it sees.
pub(crate) struct Around<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) files: OpenFiles,
    pub(crate) command: Vec<OsString>,
    pub(crate) view: ViewOptions,
    pub(crate) session: SessionOptions,
    /// Where to hear of new revisions.
    pub(crate) push: Push,
    /// Put an overlay of the kernel above the mount.
    pub(crate) shield: bool,
    /// Whether somebody goes ahead of the command.
    pub(crate) scout: bool,
}

/// Takes over the signals that are for the command. Call it first thing: a signal must find a thread that knows what
/// to do with it.
pub(crate) fn take_signals() -> Result<Forwarding, Failure> {
    Forwarding::begin().map_err(|error| of_run(&error))
}

impl Around<'_> {
    /// Runs the command. `before` sees the view before anything is read, `after` once the command has ended.
    pub(crate) fn run<T>(
        self,
        checked: Checked,
        forwarding: Forwarding,
        before: impl FnOnce(&View),
        after: impl FnOnce(&View) -> T,
    ) -> Result<(Ending, T), Failure> {
        let started = seconds(SystemTime::now());
        let session = checked.configured.session(self.session);
        // An overlay would ask in the name of whoever mounted, whoever asks it.
        let shield = self.shield && session.xattr_guard.is_none();
        let (path, source) =
            (PathBuf::from("/cvmfs").join(&checked.address.name), checked.address.url.clone());
        let (repository, view) = checked.open(&self.view)?;
        let point = Point { path, source, shield: shield.then(|| trusted(&view)) };
        warn(offline_warning(&view.status()).as_deref());
        before(&view);
        let mut launcher = Command::new("/proc/self/exe");
        launcher.arg0("esker").arg(INSIDE);
        let mut plan = MountPlan {
            mountpoint: point.path.clone(),
            runtime: self.settings.runtime.clone(),
            options: MountOptions::default(),
            session,
            command: self.command.first().map(|program| program.to_string_lossy().into_owned()),
            push: self.push,
            telemetry: None,
            talk: None,
            shown_with: if shield { ShownWith::Overlay } else { ShownWith::Fuse },
            scout: None,
        };
        let failed = |error: RunError| of_run(&error);
        let mut outside = Outside::start(launcher, vec![point], self.command, self.files.before, forwarding)
            .map_err(failed)?;
        // There is one point, so there is one device.
        let device = outside
            .devices()
            .and_then(|mut devices| devices.pop().ok_or(RunError::NoDevice))
            .map_err(failed)?;
        plan.scout = self.scout.then(|| scout::launch_beside(outside.id(), &plan.mountpoint));
        let (mounted, unregistered) = Mounted::attach(plan, device, repository, Arc::clone(&view))
            .map_err(|error| Failure::failed(chain(&error)))?;
        let unregistered =
            unregistered.map(|error| format!("`esker status` won't show it: {}", chain(&error)));
        warn(unregistered.as_deref());
        let ending = outside.go().and_then(|()| outside.wait());
        let seen = after(&view);
        let unknown = || MountStatus { repository: view.name().to_string(), ..MountStatus::default() };
        let status = mounted.status().unwrap_or_else(unknown);
        let failed_reads = failures::lines(&view.failure_causes(), &status, started);
        failed_reads.iter().for_each(|line| warn(Some(line)));
        // What the command left running loses its mount when this process ends.
        mounted.abandon();
        Ok((ending.map_err(failed)?, seen))
    }
}

/// Ends as the command did.
pub(crate) fn end_as(ending: Ending) -> ExitCode {
    match ending {
        Ending::Code(code) => ExitCode::from(code),
        Ending::Signal(signal) => die_by(signal),
    }
}

fn of_run(error: &RunError) -> Failure {
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
