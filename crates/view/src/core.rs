//! State of a view, and completion of its calls: at once, or once a catalog is attached.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use arc_swap::ArcSwap;
use esker_format::name::RepositoryName;
use esker_journal::Journal;
use esker_store::ObjectStore;
use esker_vfs::{ErrorKind, Reply, TreeError, Watcher};
use parking_lot::Mutex;

use crate::attributes::AttributeRules;
use crate::catalogs::{Catalogs, WantedCatalog};
use crate::diff::VanishedDirectories;
use crate::directories::Directories;
use crate::failure::Blocked;
use crate::listing::Listings;
use crate::lookup::Snapshot;
use crate::magic::About;
use crate::open_files::OpenFiles;
use crate::prefetch::Prefetch;
use crate::requester;
use crate::revision::Revision;
use crate::status::{Counters, Failures, HeadStatus};

/// Maximum number of catalogs that one call waits for, one after the other.
///
/// It is more than the mountpoints on any real path, and few enough that a call ends even if the catalogs it waited
/// for are unmounted again and again.
const WAITS_MAX: u32 = 256;

/// State of a view that all calls share.
pub(crate) struct Core {
    pub(crate) name: RepositoryName,
    pub(crate) attribute_rules: AttributeRules,
    pub(crate) store: Arc<dyn ObjectStore>,
    pub(crate) catalogs: Arc<Catalogs>,
    /// Revision from which calls are answered.
    pub(crate) current: ArcSwap<Revision>,
    pub(crate) directories: Directories,
    pub(crate) listings: Listings,
    pub(crate) open_files: OpenFiles,
    pub(crate) prefetch: Prefetch,
    pub(crate) without_bundles: bool,
    pub(crate) watchers: Mutex<Vec<Arc<dyn Watcher>>>,
    pub(crate) failures: Failures,
    pub(crate) counters: Counters,
    pub(crate) head_status: Mutex<HeadStatus>,
    /// Directories that may return; used by the follower only.
    pub(crate) vanished: Mutex<VanishedDirectories>,
    pub(crate) attached_max: usize,
    /// Record of the view for a process that takes over.
    pub(crate) journal: Option<Arc<Journal>>,
    /// True if the kernel may have entries of two revisions, because an earlier process ended between them.
    pub(crate) was_changing: AtomicBool,
    /// Source of the attributes that only the mount knows.
    pub(crate) about: OnceLock<Arc<dyn About>>,
}

/// A call that waits for a catalog.
pub(crate) struct Parked<T> {
    reply: Reply<T>,
    wanted: WantedCatalog,
    /// Serial number of the revision in which the catalog was missing.
    serial: u64,
}

impl Core {
    /// Answers a call from the present revision, which is referenced until the reply is sent: see
    /// [`Revision::when_gone`]. Returns the call if it has to wait.
    pub(crate) fn answer<T>(
        &self,
        reply: Reply<T>,
        attempt: impl FnOnce(&Snapshot<'_>) -> Result<T, Blocked>,
    ) -> Option<Parked<T>> {
        let revision = self.current.load();
        let snapshot = Snapshot::new(self, &revision);
        match attempt(&snapshot) {
            Ok(value) => reply.ok(value),
            Err(Blocked::Failed(error)) => reply.err(error),
            Err(Blocked::On(wanted)) => {
                return Some(Parked { reply, wanted, serial: revision.label.serial });
            }
        }
        None
    }

    /// Answers a parked call once its catalog is attached, from the revision that is present then.
    pub(crate) fn answer_later<T: Send + 'static>(
        self: &Arc<Self>,
        parked: Parked<T>,
        attempt: impl Fn(&Snapshot<'_>) -> Result<T, Blocked> + Send + 'static,
    ) {
        self.wait(parked, WAITS_MAX, attempt);
    }

    fn wait<T: Send + 'static>(
        self: &Arc<Self>,
        parked: Parked<T>,
        waits_left: u32,
        attempt: impl Fn(&Snapshot<'_>) -> Result<T, Blocked> + Send + 'static,
    ) {
        let core = Arc::clone(self);
        let Parked { reply, wanted, serial } = parked;
        let requester = requester::of(reply.requester());
        let Some(waits_left) = waits_left.checked_sub(1) else {
            let reason = "its catalogs are detached faster than they can be used";
            return reply.err(TreeError::on(ErrorKind::Unavailable, wanted.describe()).because(reason));
        };
        let go_on = move |answer: Result<_, TreeError>| {
            match answer {
                // The view has moved to another revision, which may not need that catalog.
                Err(_) if core.current.load().label.serial != serial => {}
                Err(error) => return reply.err(error),
                Ok(_) => {}
            }
            // `answer` keeps the catalog attached until the call has mounted it.
            if let Some(parked) = core.answer(reply, &attempt) {
                core.wait(parked, waits_left, attempt);
            }
            drop(answer);
        };
        self.catalogs.attach(wanted, requester, Box::new(go_on));
    }

    /// Answers a call whose attempt owns its arguments.
    pub(crate) fn serve<T: Send + 'static>(
        self: &Arc<Self>,
        reply: Reply<T>,
        attempt: impl Fn(&Snapshot<'_>) -> Result<T, Blocked> + Send + 'static,
    ) {
        if let Some(parked) = self.answer(reply, &attempt) {
            self.answer_later(parked, attempt);
        }
    }
}
