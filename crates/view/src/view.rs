//! A repository, open.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use esker_format::name::RepositoryName;
use esker_store::{HeadKeeper, Holder, ObjectStore};
use esker_vfs::{ErrorKind, TreeError};
use parking_lot::Mutex;

use crate::catalogs::Catalogs;
use crate::core::Core;
use crate::follow::{Follower, Refreshed, Sightings};
use crate::observe::Observer;
use crate::options::ViewOptions;
use crate::prefetch::{self, Prefetch};
use crate::revision::{Label, Revision};
use crate::show::Show;
use crate::start::Start;
use crate::status::{FailureCause, ViewCounters, ViewStatus};

/// A repository as a tree: one revision at a time, and new ones as they come.
pub struct View {
    pub(crate) core: Arc<Core>,
    follower: Arc<Follower>,
    pinned: bool,
    pub(crate) observer: OnceLock<Arc<dyn Observer>>,
}

impl View {
    /// How many reads had to wait for an object so far.
    pub fn misses(&self) -> u64 {
        self.core.counters.misses.value()
    }

    /// Opens a repository at its head, or at the revision that the options pin. Waits until its root catalog
    /// is there, so not for a thread that answers others.
    pub fn open(
        store: Arc<dyn ObjectStore>,
        keeper: HeadKeeper,
        options: ViewOptions,
    ) -> Result<Arc<Self>, TreeError> {
        let name = keeper.name().clone();
        let start = Start::find(options.pin.as_ref(), &*store, &keeper)?;
        let catalogs = Arc::new(Catalogs::new(Arc::clone(&store)));
        let root = catalogs.attach_soon(start.root).wait()?;
        let number = start.number.unwrap_or(root.catalog.properties().revision);
        refuse_blacklisted(number, &keeper)?;
        let since = SystemTime::now();
        let label = Label { serial: 1, number, published: start.published, tag: start.tag, since };
        let show = Show::new(&options);
        let attached_max = options.attached_max.unwrap_or(crate::ATTACHED_MAX);
        let revision = Revision::new(label, root, &show, attached_max)?;
        let offline = start.head.as_ref().and_then(|head| head.offline.clone());
        let (prefetch, misses) = if options.prefetch {
            let (prefetch, misses) = Prefetch::new(store.status().cache.quota);
            (prefetch, Some(misses))
        } else {
            (Prefetch::off(), None)
        };
        let core = Arc::new(Core {
            name,
            show,
            store,
            catalogs,
            current: ArcSwap::from_pointee(revision),
            directories: Default::default(),
            listings: Default::default(),
            held: Default::default(),
            prefetch,
            watchers: Mutex::default(),
            failures: Default::default(),
            counters: Default::default(),
            sightings: Mutex::new(Sightings { checked: since, offline }),
            vanished: Mutex::default(),
            attached_max,
            about: OnceLock::new(),
        });
        let holder: Arc<dyn Holder> = core.clone();
        core.store.add_holder(Arc::downgrade(&holder));
        if let Some(misses) = misses {
            prefetch::start(&core, misses, options.trails)
                .map_err(|error| TreeError::on(ErrorKind::Local, "the prefetching thread").because(error))?;
        }
        let pinned = options.pin.is_some();
        let ttl = start.head.map(|head| head.ttl).unwrap_or_default();
        let ttls = (options.ttl, options.ttl_max);
        let follower = Follower::start(Arc::clone(&core), (!pinned).then_some(keeper), ttls, ttl)
            .map_err(|error| TreeError::on(ErrorKind::Local, "the follower's thread").because(error))?;
        Ok(Arc::new(Self { core, follower, pinned, observer: OnceLock::new() }))
    }

    /// Looks for a new head now, moves to it, and returns once the mounts know. A pinned view stays.
    pub fn refresh(&self) -> Result<Refreshed, TreeError> {
        self.follower.refresh(None)
    }

    /// The same, but waits no longer than this; the look goes on.
    pub fn refresh_within(&self, patience: Duration) -> Result<Refreshed, TreeError> {
        self.follower.refresh(Instant::now().checked_add(patience))
    }

    /// Somebody says that a revision is published, perhaps this one. Nothing is believed but when to look; returns at
    /// once. A pinned view stays.
    pub fn announced(&self, revision: Option<u64>) {
        self.follower.announced(revision);
    }

    /// Stops following the repository and fetching ahead. The view goes on answering; dropping it does this too.
    pub fn close(&self) {
        self.core.prefetch.close();
        self.follower.stop();
    }

    /// The name of the repository.
    pub fn name(&self) -> &RepositoryName {
        &self.core.name
    }

    /// Whether anything in the present revision has extended attributes, beside the ones that tell of the mount. By the
    /// catalogs' counters, which leave out the older revisions that a repository may show below its root.
    pub fn has_attributes(&self) -> bool {
        self.core.current.load().attributed > 0
    }

    /// Returns the causes of failures so far, each once.
    pub fn failure_causes(&self) -> Vec<FailureCause> {
        self.core.failures.causes()
    }

    /// How the view is doing.
    pub fn status(&self) -> ViewStatus {
        let core = &self.core;
        let revision = core.current.load();
        let label = &revision.label;
        let sightings = core.sightings.lock();
        ViewStatus {
            repository: core.name.to_string(),
            revision: label.number,
            root_hash: revision.root_hash(),
            tag: label.tag.clone(),
            pinned: self.pinned,
            published: label.published,
            since: label.since,
            checked: sightings.checked,
            offline: sightings.offline.clone(),
            failures: core.failures.all(),
            counters: ViewCounters {
                catalogs: revision.mounts().len() as u64,
                lookups: core.counters.lookups.value(),
                lists: core.counters.lists.value(),
                reads: core.counters.reads.value(),
                misses: core.counters.misses.value(),
                xattrs: core.counters.xattrs.value(),
                switches: core.counters.switches.value(),
                held: core.held.len() as u64,
                failures: core.failures.count(),
            },
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.close();
    }
}

/// A head below the blacklist's floor is never accepted; a revision that is pinned must not be either.
fn refuse_blacklisted(number: u64, keeper: &HeadKeeper) -> Result<(), TreeError> {
    let floor = keeper.floor();
    if number >= floor {
        return Ok(());
    }
    let reason = format!("it is blacklisted here, as all below {floor} are");
    Err(TreeError::on(ErrorKind::Denied, format!("revision {number} of {}", keeper.name())).because(reason))
}
