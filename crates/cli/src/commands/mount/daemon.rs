//! Serves a mount as a daemon, or in the foreground.

use std::os::fd::{OwnedFd, RawFd};
use std::sync::Arc;

use esker_confine::{Policy, Role};
use esker_journal::Journal;
use esker_node::daemon::{self, Report, Reporter, Starter};
use esker_node::mount_spec::{ContentSpec, ImagePlace, ImageSpec, MountSpec, RepositorySpec, SpecError};
use esker_node::mounted::{MountPlan, Mounted, MountedError};
use esker_node::mountpoint::refuse_taken;
use esker_node::registry::RegistryError;
use esker_node::supervisor::Supervision;

use super::helper_process;
use super::place::directory;
use super::{Args, resolve};
use crate::error::{Context, Failure, Kind, chain, chain_after};
use crate::image;
use crate::logging;
use crate::mounting::open::{offline_warning, open_resolved};
use crate::process::confine;
use crate::process::privileges;
use crate::process::respawn::read_proxies;
use crate::process::signals::StopSignals;
use crate::process::tuning;
use crate::settings::Settings;

/// Runs as the daemon that `esker mount` or a supervisor has started.
pub(super) fn run(mut args: Args, settings: &Settings, line: &[std::ffi::OsString]) -> Result<(), Failure> {
    // Started through a link in /proc, it would be called `exe` in lists of processes.
    let _ = rustix::thread::set_name(c"esker");
    let not_by_hand = |error: std::io::Error| {
        Failure::usage(format!("--daemon and --supervisor are not for use by hand: {error}"))
    };
    let inherited: Vec<RawFd> = args.daemon.into_iter().chain(args.supervisor).chain(args.spec).collect();
    daemon::close_inherited(&inherited).map_err(not_by_hand)?;
    let mut reporter = args.daemon.map(Reporter::adopt).transpose().map_err(not_by_hand)?;
    let given = args.spec.map(daemon::adopt).transpose().map_err(not_by_hand)?;
    // Without a descriptor the report fails.
    let starter = reporter.as_ref().and_then(|reporter| reporter.starter().ok());
    let mut report = |report: &Report| match reporter.take() {
        Some(reporter) => reporter.report(report),
        None => Ok(()),
    };
    let failed = |error: std::io::Error| Failure::failed(format!("can't take over the mount: {error}"));
    let supervision = args.supervisor.map(Supervision::adopt).transpose().map_err(failed);
    let outcome = supervision.and_then(|supervision| {
        let supervision = supervision.map(Arc::new);
        let spec = || {
            known(given, supervision.as_deref())?.map_or_else(
                || {
                    // A version of the program that kept no options has made the mount.
                    if args.proxy_from_input {
                        read_proxies(&mut args.repository)?;
                    }
                    let mountpoint =
                        match supervision.as_ref().and_then(|supervision| supervision.inherited()) {
                            Some(facts) => facts.mountpoint.clone(),
                            None => directory(&args.mountpoint)?,
                        };
                    resolve::resolve(&args, settings, mountpoint, line)
                },
                Ok,
            )
        };
        let ready = |warning| report(&Report::Ready { warning });
        let outcome = serve(spec, supervision.clone(), starter, ready);
        if let (Err(failure), Some(supervision)) = (&outcome, &supervision) {
            supervision.failed(&failure.message);
        }
        outcome
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

/// Returns the options that the starter or the supervisor passed to this process.
fn known(given: Option<OwnedFd>, supervision: Option<&Supervision>) -> Result<Option<MountSpec>, Failure> {
    let read = match (given, supervision) {
        (Some(given), _) => MountSpec::read(given).map(Some),
        (None, Some(supervision)) => MountSpec::kept_by(supervision),
        (None, None) => Ok(None),
    };
    // It can't pass by itself, so the code is that of a wrong call.
    let refused = |error: SpecError| Failure::usage(format!("can't take over the mount: {}", chain(&error)));
    let mut spec = read.map_err(refused)?;
    if let Some(spec) = &mut spec {
        spec.make_memory().context(Kind::Failed, "there can't be a cache in memory")?;
    }
    Ok(spec)
}

/// Mounts, calls `ready`, and serves until it is unmounted. If `ready` fails, it is unmounted.
pub(super) fn serve(
    spec: impl FnOnce() -> Result<MountSpec, Failure>,
    supervision: Option<Arc<Supervision>>,
    starter: Option<Starter>,
    ready: impl FnOnce(Option<String>) -> std::io::Result<()>,
) -> Result<(), Failure> {
    privileges::narrow_mount();
    let is_takeover = supervision.as_ref().is_some_and(|supervision| supervision.inherited().is_some());
    let mut spec = spec()?;
    if let ContentSpec::Repository(repository) = &spec.content {
        tuning::apply(&repository.tuning);
        repository.syslog.clone().into_iter().for_each(logging::copy_to_system);
    }
    spec.log_levels.as_deref().into_iter().for_each(logging::set_levels);
    logging::set_mount(&spec.mountpoint, &spec.name());
    let what = format!("can't mount {} at {}", spec.name(), spec.mountpoint.display());
    if !is_takeover {
        refuse_taken(&spec.mountpoint, &spec.runtime)?;
    }
    // From here on all paths are absolute, and no directory must be kept busy.
    std::env::set_current_dir("/").context(Kind::Failed, "can't go to /")?;
    let helper = helper_process::start(&spec).context(Kind::Failed, "can't start the helper of the mount")?;
    restrict(&spec)?;
    if is_takeover {
        // Nothing is mounted anew. If this fails, so does all else.
        let _ = helper.made();
    }
    // Until now they end the process, and nothing has to be undone. Their thread is confined, too.
    let stop = StopSignals::begin()?;
    if let Some(starter) = starter {
        let stop = stop.clone();
        // Without a thread the report fails later.
        let _ = starter.watch(move || stop.starter_gone());
    }
    let plan = MountPlan::of(&spec, Arc::clone(&helper), supervision.clone());
    let (mounted, warning) = match &mut spec.content {
        ContentSpec::Repository(repository) => start_repository(plan, repository, &stop)?,
        ContentSpec::Image(image) => start_image(plan, image, &stop)?,
    };
    let mounted = Arc::new(mounted.map_err(|error| of_mounted(&what, &error))?);
    if let Some(supervision) = &supervision {
        spec.for_successor();
        // If the supervisor is gone no other daemon follows.
        let _ = spec.keep(supervision);
        let retiring = Arc::clone(&mounted);
        let retire = move || {
            retiring.retire();
            std::process::exit(0);
        };
        supervision
            .on_retire(Arc::clone(&helper), retire)
            .context(Kind::Failed, "no thread can be started")?;
    }
    // The mount is served, whatever becomes of its helper.
    let _ = helper.made();
    if ready(warning).is_err() {
        // The starter is gone; an unknown mount would stay for ever.
        stop.end(&mounted);
    }
    let _ = helper.leave_session();
    stop.serve(&mounted);
    let all_came_back = mounted.wait();
    let outcome = stop.outcome();
    if !all_came_back {
        // The remaining threads are not joined.
        std::process::exit(outcome.map_or_else(|failure| failure.code().into(), |()| 0));
    }
    outcome
}

/// A mount, and the warning for the mounting user.
type Started = (Result<Mounted, MountedError>, Option<String>);

fn start_repository(plan: MountPlan, spec: &RepositorySpec, stop: &StopSignals) -> Result<Started, Failure> {
    let mut view = spec.view.clone();
    view.journal = plan.supervision.as_deref().map(view_journal).transpose()?;
    let (repository, view) = open_resolved(spec.options.clone(), view)?;
    let warning = offline_warning(&view.status());
    stop.hold();
    Ok((Mounted::start(plan, repository, view), warning))
}

fn start_image(plan: MountPlan, spec: &mut ImageSpec, stop: &StopSignals) -> Result<Started, Failure> {
    let taken = plan.supervision.as_ref().and_then(|supervision| supervision.take(IMAGE_FILE));
    let file = match (&spec.place, taken) {
        (_, Some(file)) => Some(file),
        (ImagePlace::File { path, .. }, None) => {
            let file = std::fs::File::open(path);
            Some(file.context(Kind::Failed, format!("can't open {}", path.display()))?.into())
        }
        _ => None,
    };
    if let (Some(supervision), Some(file)) = (&plan.supervision, &file) {
        // If the supervisor is gone no other daemon follows.
        let _ = supervision.keep(IMAGE_FILE, file);
    }
    let opened = image::mount(spec, file.as_ref())?;
    let warning = match &spec.place {
        ImagePlace::Url { url, digest: None, .. } => Some(image::unauthenticated(url)),
        _ => None,
    };
    stop.hold();
    Ok((Mounted::start_image(plan, opened), warning))
}

/// Restricts this process to what its mount needs.
fn restrict(spec: &MountSpec) -> Result<(), Failure> {
    let policy = match &spec.content {
        ContentSpec::Repository(repository) => confine::of_repository(repository, &spec.runtime),
        ContentSpec::Image(_) => Policy::new(Role::Mount).write(&spec.runtime),
    };
    confine::confine_mount(policy, spec)
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

fn of_mounted(what: &str, error: &MountedError) -> Failure {
    match error {
        MountedError::Registry(error @ RegistryError::Taken { .. }) => Failure::failed(error.to_string()),
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
