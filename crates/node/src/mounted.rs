//! Serves a mounted repository or image in this process, from mounting to cleaning up.

mod activity;
mod announced;
mod plan;

use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use esker_cache_share::FileError;
use esker_cache_share::memory::is_memory;
use esker_config::{TalkOptions, Telemetry};
use esker_confine::Confinement;
use esker_erofs::XattrPolicy;
use esker_fuse::{MountHelper, Session, SessionOptions};
use esker_kernel_mount::Trusted;
use esker_kernel_mount::{MountError, MountOptions, Unmount};
use esker_prefetch::{RecordingTree, SequenceStore, StartReplayer};
use esker_store::{Datagrams, ObjectStore};
use esker_threads::watchdog;
use esker_vfs::Tree;
use esker_view::{Refreshed, View};
use parking_lot::Mutex;

use announced::{PendingMount, with_device};

use crate::attributes::OfMount;
use crate::control::{Control, Request, Response};
use crate::helper_process::Helper;
use crate::layered_mount::LayeredMount;
pub use crate::mount_error::MountedError;
use crate::mount_spec::MountSpec;
use crate::mounts;
use crate::push::{self, Push};
use crate::registry::Registration;
use crate::replay;
use crate::repository::Repository;
use crate::repository_status::of_repository;
use crate::revisions::{RevisionChecks, Shown};
use crate::status::{self, MountStatus, Presentation, seconds};
use crate::supervisor::{Inherited, Supervision};
use crate::takeover;
use crate::talk::{Changes, TalkSocket};
use crate::telemetry;
use crate::trace::TraceRequest;
use crate::trace::subscriber::Traces;
use crate::usage;

/// Time limit for clients of the control socket to read their last reply.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);
/// Time limit of requests in progress when another daemon takes over, which repeats what is left.
const RETIRE_TIMEOUT: Duration = Duration::from_secs(2);
/// Time limit of a request for an update; the update continues afterwards.
const UPDATE_TIMEOUT: Duration = Duration::from_secs(30);

/// Extended attributes of the root that are fixed for a revision.
const OF_REVISION: [&str; 4] = ["user.fqrn", "user.revision", "user.root_hash", "user.tag"];

/// Plan of a repository's mount.
#[derive(Clone)]
pub struct MountPlan {
    /// The mount point, absolute and with its links resolved.
    pub mountpoint: PathBuf,
    /// The runtime directory.
    pub runtime: PathBuf,
    /// Mount options.
    pub options: MountOptions,
    /// Session options.
    pub session: SessionOptions,
    /// Command that has the mount for itself, in its own namespace; none for a mount visible to all.
    pub command: Option<String>,
    /// Source of push notifications.
    pub push: Push,
    /// Destination of counters, if configured.
    pub telemetry: Option<Telemetry>,
    /// Socket for `cvmfs_talk`, if configured.
    pub talk: Option<TalkOptions>,
    /// Requested presentation. Only a tree that never changes may be presented through anything but FUSE.
    pub shown_with: Presentation,
    /// Starts replayers; none if replay is off.
    pub replayer: Option<Arc<dyn StartReplayer>>,
    /// Process that mounts and unmounts; none for a mount that a command makes.
    pub helper: Option<Arc<Helper>>,
    /// Connection to the supervisor; none for a mount that ends with its process.
    pub supervision: Option<Arc<Supervision>>,
    /// Options of the mount, if they are kept for further daemons.
    pub spec: Option<Box<MountSpec>>,
}

/// Data of an image that a mount needs.
pub struct ImageMount {
    /// Mounted tree.
    pub tree: Arc<dyn Tree>,
    /// Recorded sequences of the image; none if replay is off.
    pub sequences: Option<SequenceStore>,
    /// Name of the image.
    pub name: String,
    /// Source of the image: a path or URL.
    pub place: String,
    /// Identity of its content.
    pub fingerprint: String,
    /// Function that returns the current status, and failures.
    pub status: Box<dyn Fn() -> (status::Image, Vec<status::Failure>) + Send + Sync>,
}

/// Content of a mount.
pub(crate) enum Content {
    Repository(Box<Repository>, Arc<View>),
    Image(ImageMount),
}

/// Returns the handling of `trusted.` attributes by an overlay above a view: without any, root need not ask.
pub fn trusted(view: &View) -> Trusted {
    if view.has_attributes() { Trusted::Shown } else { Trusted::Hidden }
}

impl Content {
    fn tree(&self) -> Arc<dyn Tree> {
        match self {
            Self::Repository(_, view) => view.clone(),
            Self::Image(image) => image.tree.clone(),
        }
    }

    /// Returns name, source and cache for the registry.
    fn names(&self) -> (String, String, PathBuf) {
        match self {
            Self::Repository(repository, view) => {
                let cache = repository.store.cache();
                // No other process finds a cache in memory.
                let cache = if is_memory(cache) { PathBuf::new() } else { cache.to_owned() };
                (view.name().to_string(), repository.url.clone(), cache)
            }
            Self::Image(image) => (image.name.clone(), image.place.clone(), PathBuf::new()),
        }
    }

    fn trusted(&self) -> Trusted {
        match self {
            Self::Repository(_, view) => trusted(view),
            // An image without attributes says so to the kernel, once (`Tree::xattr`).
            Self::Image(_) => Trusted::Shown,
        }
    }

    /// Returns the extended attributes for an EROFS image of it.
    fn told(&self) -> XattrPolicy {
        match self {
            Self::Image(_) => XattrPolicy::All,
            // Those that tell of the mount change with it, but for these.
            Self::Repository(_, view) => {
                XattrPolicy::Some { of_root: &OF_REVISION, of_others: view.has_attributes() }
            }
        }
    }

    /// Returns the identity of a tree that can't be told otherwise.
    fn fingerprint(&self) -> Option<String> {
        match self {
            Self::Repository(..) => None,
            Self::Image(image) => Some(image.fingerprint.clone()),
        }
    }

    fn close(&self) {
        if let Self::Repository(repository, view) = self {
            view.close();
            repository.close();
        }
    }

    /// Returns the repository, or the error that only a repository has the requested facts.
    fn repository(&self) -> Result<(&Repository, &Arc<View>), Response> {
        match self {
            Self::Repository(repository, view) => Ok((repository, view)),
            Self::Image(_) => {
                Err(Response::Failed { message: "it is an image, which has no revisions".to_owned() })
            }
        }
    }
}

/// Mount point or device of a session.
enum MountTarget {
    /// A FUSE device that is mounted already.
    Device(OwnedFd),
    /// None yet: the tree is mounted at a private place, and then presented at the mountpoint.
    Layered(Arc<Helper>),
    /// The mount of an earlier daemon.
    Inherited(Arc<Supervision>, Inherited),
}

/// A mounted repository or image.
pub struct Mounted {
    served: Arc<Served>,
    control: Option<Control>,
    supervision: Option<Arc<Supervision>>,
    /// Services; none once the tree is unmounted.
    beside: Mutex<Option<Services>>,
}

/// State that the control socket reports and changes.
pub(crate) struct Served {
    pub(crate) mountpoint: PathBuf,
    command: Option<String>,
    pub(crate) content: Content,
    pub(crate) session: Session,
    /// Options that commands of `cvmfs_talk` change; none without a supervisor.
    pub(crate) changes: Option<Changes>,
    replayer: Option<Arc<RecordingTree>>,
    shown_with: Presentation,
    looks: RevisionChecks,
    /// Listener for new revisions.
    listening: Option<esker_store::SseListener>,
    /// Registration; none once the tree is unmounted, so that another mount may take the path.
    registration: Mutex<Option<Registration>>,
    pub(crate) mounted: SystemTime,
    traces: Traces,
}

/// Services that report about a mount during its lifetime.
struct Services {
    _telemetry: Option<Datagrams>,
    _talk: Option<TalkSocket>,
}

impl Services {
    /// Starts the services. Failures are only logged: they don't prevent the mount.
    fn start(
        telemetry: Option<Telemetry>,
        talk: Option<(TalkOptions, Arc<Helper>)>,
        served: &Arc<Served>,
    ) -> Self {
        let telemetry = telemetry.and_then(|telemetry| {
            let started = telemetry::start(&telemetry, Arc::downgrade(served));
            started
                .inspect_err(|error| tracing::warn!("no counters are sent: {}", esker_view::chain(error)))
                .ok()
        });
        let talk = talk.and_then(|(talk, helper)| {
            let socket = talk.socket.display().to_string();
            let started = TalkSocket::start(talk, &helper, Arc::downgrade(served));
            started
                .inspect_err(|error| tracing::warn!("cvmfs_talk is not answered at {socket}: {error}"))
                .ok()
        });
        Self { _telemetry: telemetry, _talk: talk }
    }
}

impl Mounted {
    /// Registers, mounts and serves a repository.
    pub fn start(plan: MountPlan, repository: Repository, view: Arc<View>) -> Result<Self, MountedError> {
        Self::begin(plan, Content::Repository(Box::new(repository), view))
    }

    /// Registers, mounts and serves an image.
    pub fn start_image(plan: MountPlan, image: ImageMount) -> Result<Self, MountedError> {
        Self::begin(plan, Content::Image(image))
    }

    fn begin(plan: MountPlan, content: Content) -> Result<Self, MountedError> {
        let announced = PendingMount::new(&plan, &content)?;
        if let Some(supervision) = &plan.supervision
            && let Some(facts) = supervision.inherited()
        {
            // The daemon before has told both; the options are those of the supervisor.
            if facts.mountpoint != plan.mountpoint {
                return Err(MountedError::Takeover(std::io::Error::other("the mount is at another place")));
            }
            if facts.fingerprint != content.fingerprint() {
                return Err(MountedError::Takeover(std::io::Error::other("the image is another one now")));
            }
            let target = MountTarget::Inherited(Arc::clone(supervision), facts.clone());
            return Self::serve(plan, target, Some(announced), content);
        }
        let Some(helper) = plan.helper.clone() else {
            return Err(MountedError::Thread(std::io::ErrorKind::NotFound.into()));
        };
        if plan.shown_with != Presentation::Fuse && rustix::process::geteuid().is_root() {
            return Self::serve(plan, MountTarget::Layered(helper), Some(announced), content);
        }
        let device = helper.mount()?;
        Self::serve(plan, MountTarget::Device(device), Some(announced), content).inspect_err(|_| {
            // No process serves it, so it is unusable; a remaining mount is visible in `mount`.
            let _ = helper.unmount(Unmount::Lazy);
        })
    }

    /// Serves a mount that a command made in its own namespace; returns an error of the registration beside the
    /// mount. A failure to register is no reason not to: the error is returned beside it.
    pub fn attach(
        plan: MountPlan,
        device: OwnedFd,
        repository: Repository,
        view: Arc<View>,
    ) -> Result<(Self, Option<MountedError>), MountedError> {
        let content = Content::Repository(Box::new(repository), view);
        let (announced, error) = match PendingMount::new(&plan, &content) {
            Ok(announced) => (Some(announced), None),
            Err(error) => (None, Some(error)),
        };
        let shown_with = plan.shown_with;
        let mounted = Self::serve(plan, MountTarget::Device(device), announced, content)?;
        if shown_with == Presentation::Overlay {
            // The child mounts the overlay. Where the kernel refuses, the missing marks don't matter.
            mounted.served.session.put_below_overlay();
        }
        Ok((mounted, error))
    }

    fn serve(
        plan: MountPlan,
        target: MountTarget,
        announced: Option<PendingMount>,
        mut content: Content,
    ) -> Result<Self, MountedError> {
        let mountpoint = plan.command.is_none().then(|| plan.mountpoint.clone());
        let outlives = plan.supervision.is_some();
        let session = SessionOptions { mountpoint, outlives, ..plan.session };
        let replayer = plan.replayer.and_then(|starter| record_and_replay(starter, &mut content));
        let tree = replayer.clone().map_or_else(|| content.tree(), |replayer| replayer as Arc<dyn Tree>);
        let (session, shown_with) = match target {
            MountTarget::Device(device) => (Session::start(device, tree, session)?, Presentation::Fuse),
            MountTarget::Layered(helper) => {
                let (options, supervision) = (&plan.options, plan.supervision.as_deref());
                let (trusted, told) = (content.trusted(), content.told());
                LayeredMount { helper, tree, options, session, trusted, told, supervision }
                    .show(plan.shown_with)?
            }
            MountTarget::Inherited(supervision, facts) => {
                let image = (plan.options.source.as_str(), content.told());
                takeover::resume(&supervision, &facts, (tree, image), session, plan.helper.clone())?
            }
        };
        let (registration, socket) =
            announced.map(|announced| (announced.registration, announced.listening)).unzip();
        let supervision = plan.supervision;
        let mounted = supervision.as_ref().and_then(|supervision| supervision.inherited());
        let mounted = mounted.map_or_else(SystemTime::now, |facts| at_seconds(facts.mounted));
        if let (Some(supervision), Some(registration), Some(socket), Some(helper)) =
            (&supervision, &registration, &socket, &plan.helper)
        {
            let facts = takeover::Facts {
                mountpoint: &plan.mountpoint,
                presentation: shown_with,
                mounted: seconds(mounted),
                fingerprint: content.fingerprint(),
            };
            takeover::hand_over((supervision, helper), &session, (registration, socket), facts)
                .map_err(MountedError::Takeover)?;
        }
        let registration = registration.map(|registration| with_device(registration, &plan.mountpoint));
        let listening = listen(&plan.push, &content);
        let changes = plan.spec.zip(supervision.clone());
        let changes = changes.map(|(spec, supervision)| Changes::new(*spec, supervision));
        let served = Arc::new(Served {
            mountpoint: plan.mountpoint,
            command: plan.command,
            content,
            session,
            changes,
            replayer,
            shown_with,
            looks: RevisionChecks::default(),
            listening,
            registration: Mutex::new(registration),
            mounted,
            traces: Traces::default(),
        });
        if let Content::Repository(_, view) = &served.content {
            view.set_provider(Arc::new(OfMount(Arc::downgrade(&served))));
        }
        let beside = Services::start(plan.telemetry, plan.talk.zip(plan.helper), &served);
        let (answering, tracing) = (served.clone(), served.clone());
        let answer = Arc::new(move |request| answering.answer(request));
        let trace = Arc::new(move |request: &TraceRequest, client| tracing.trace(request, client));
        let control = socket.map(|socket| socket.serve_with_traces(answer, trace)).transpose();
        let control = control.map_err(MountedError::Thread)?;
        Ok(Self { served, control, supervision, beside: Mutex::new(Some(beside)) })
    }

    /// Returns the status for `esker status`; `None` if a disk or another process does not reply.
    pub fn status(&self) -> Option<MountStatus> {
        let served = self.served.clone();
        watchdog::within(watchdog::TIMEOUT, move || served.status())
    }

    /// Unmounts; [`Mounted::wait`] returns once it is unused.
    pub fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        self.served.unmount(how)
    }

    /// Waits until it is unmounted (by any process) and unused, then closes everything. `false` if a hanging
    /// disk keeps some of it: then the process has to end without waiting for its threads.
    pub fn wait(&self) -> bool {
        let all_came_back = self.served.session.wait();
        self.abandon() && all_came_back
    }

    /// Leaves the mount to a successor; this process has to end then, without unmounting.
    pub fn retire(&self) {
        let served = self.served.clone();
        served.replayer.iter().for_each(|replayer| replayer.close());
        served.session.retire(RETIRE_TIMEOUT);
        let folder = served.content.names().2;
        if let Err(error) = watchdog::unless_disk_hangs(&folder, move || served.content.close()) {
            tracing::warn!("{error}; detaching");
        }
    }

    /// Closes everything although programs may still use the mount, which ends with this process. `false` as
    /// for [`Mounted::wait`].
    pub fn abandon(&self) -> bool {
        self.supervision.iter().for_each(|supervision| supervision.ended());
        let served = self.served.clone();
        let folder = self.served.content.names().2;
        let closed = watchdog::unless_disk_hangs(&folder, move || {
            served.replayer.iter().for_each(|replayer| replayer.close());
            served.content.close();
        });
        if let Err(error) = &closed {
            tracing::warn!("{error}; detaching");
        }
        drop(self.beside.lock().take());
        self.served.traces.close();
        // The client that asked to unmount gets its reply before the registry's lock is dropped.
        if let Some(control) = &self.control {
            control.drain(DRAIN_TIMEOUT);
        }
        drop(self.served.registration.lock().take());
        closed.is_ok()
    }
}

/// Returns the time of a number of seconds since the epoch.
fn at_seconds(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds)).unwrap_or(SystemTime::UNIX_EPOCH)
}

fn record_and_replay(starter: Arc<dyn StartReplayer>, content: &mut Content) -> Option<Arc<RecordingTree>> {
    match content {
        Content::Repository(repository, view) => replay::in_repository(repository, view, starter),
        Content::Image(image) => replay::in_image(image, starter),
    }
}

/// Failures are only logged: without it new revisions come at the end of the time to live.
fn listen(push: &Push, content: &Content) -> Option<esker_store::SseListener> {
    let (repository, view) = content.repository().ok()?;
    if view.status().pinned {
        return None;
    }
    let listen = push.listen(view.name(), &repository.servers)?;
    let started = push::start(listen, view);
    started
        .inspect_err(|error| {
            tracing::warn!("no push notifications of new revisions: {}", esker_view::chain(error));
        })
        .ok()
}

impl Served {
    fn unmount(&self, how: Unmount) -> Result<(), MountError> {
        self.replayer.iter().for_each(|replayer| replayer.pause());
        self.session.unmount(how)?;
        if how == Unmount::Lazy && (self.command.is_some() || self.give_up_place().is_err()) {
            drop(self.registration.lock().take());
        }
        Ok(())
    }

    /// Frees the place for another mount. The mount stays registered while others hold it.
    fn give_up_place(&self) -> Result<(), FileError> {
        self.registration.lock().as_mut().map_or(Ok(()), Registration::depart)
    }

    fn answer(&self, request: Request) -> Response {
        match request {
            Request::Status => Response::Status(Box::new(self.status())),
            Request::Revision { tags, patience } => match self.content.repository() {
                Ok((repository, view)) => {
                    let mut found = self.looks.look(repository, tags, Duration::from_secs(patience));
                    found.mountpoint = Some(self.mountpoint.display().to_string());
                    found.shown = Some(Shown::from(&view.status()));
                    found.limit();
                    Response::Revision(Box::new(found))
                }
                Err(response) => response,
            },
            Request::Update => match self.content.repository() {
                Ok((_, view)) => match view.refresh_within(UPDATE_TIMEOUT) {
                    Ok(Refreshed { revision, changed, offline }) => {
                        Response::Updated { revision, changed, offline }
                    }
                    Err(error) => Response::Failed { message: esker_view::chain(&error) },
                },
                Err(response) => response,
            },
            Request::Trace(_) => {
                Response::Failed { message: "a trace needs a connection of its own".to_owned() }
            }
            Request::Activity => Response::Activity(Box::new(self.activity().now(&self.session))),
            Request::Leave => match mounts::at(&self.mountpoint) {
                Ok(line) if !line.as_ref().is_some_and(mounts::MountLine::is_ours) => {
                    match self.give_up_place() {
                        Ok(()) => Response::Done,
                        Err(error) => Response::Failed { message: esker_view::chain(&error) },
                    }
                }
                _ => Response::Failed { message: "it is still mounted".to_owned() },
            },
            Request::Unmount { .. } if self.command.is_some() => {
                let pid = std::process::id();
                let message = format!("it is mounted for a command alone and ends with process {pid}");
                Response::Failed { message }
            }
            Request::Unmount { lazy } => {
                let how = if lazy { Unmount::Lazy } else { Unmount::IfUnused };
                match self.unmount(how) {
                    Ok(()) => Response::Done,
                    // fusermount3 returns no error code. If the mount is still served, it was busy.
                    Err(error)
                        if error.raw_os_error().is_none_or(|errno| errno == libc::EBUSY)
                            && !self.session.is_over() =>
                    {
                        Response::Busy { message: error.to_string() }
                    }
                    Err(error) => Response::Failed { message: error.to_string() },
                }
            }
        }
    }

    fn status(&self) -> MountStatus {
        match &self.content {
            Content::Repository(repository, view) => {
                of_repository(self.base_status(), repository, view, repository.store.status())
            }
            Content::Image(image) => {
                let status = self.base_status();
                let (image, errors) = (image.status)();
                MountStatus { fixed: true, since: status.mounted, image: Some(image), errors, ..status }
            }
        }
    }

    /// Returns the status of a repository from memory, without asking the cache's writer; `None` for an image.
    pub(crate) fn known_status(&self) -> Option<MountStatus> {
        let (repository, view) = self.content.repository().ok()?;
        Some(of_repository(self.base_status(), repository, view, repository.store.known_status()))
    }

    /// Returns what the status of every mount has.
    fn base_status(&self) -> MountStatus {
        let (repository, url, _) = self.content.names();
        let counters = self.session.counters();
        MountStatus {
            mountpoint: self.mountpoint.clone(),
            command: self.command.clone(),
            repository,
            url,
            pid: std::process::id(),
            mounted: seconds(self.mounted),
            shown_with: self.shown_with,
            confined: Confinement::get(),
            push: self.listening.as_ref().map(status::Push::from),
            requests: counters.opcodes.iter().map(status::Requests::from).collect(),
            waiting: counters.waiting,
            nodes: counters.nodes,
            notifications: counters.notifications,
            hired: counters.hired,
            process: usage::of_this_process(),
            ..MountStatus::default()
        }
    }
}
