//! A repository, open.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use esker_format::name::RepositoryName;
use esker_store::{HeadKeeper, Holder, ObjectStore};
use esker_vfs::{ErrorKind, Node, TreeError};
use parking_lot::Mutex;

use crate::attributes::AttributeRules;
use crate::catalogs::Catalogs;
use crate::core::Core;
use crate::follow::{Follower, Refreshed};
use crate::magic::About;
use crate::observe::Observer;
use crate::options::ViewOptions;
use crate::payload::NodeInfo;
use crate::prefetch::{self, Prefetch, PrefetchListener};
use crate::revision::{Label, Revision};
use crate::start::Start;
use crate::status::{FailureCause, HeadStatus, ViewCounters, ViewStatus};

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
        heads: HeadKeeper,
        options: ViewOptions,
    ) -> Result<Arc<Self>, TreeError> {
        let name = heads.name().clone();
        let start = Start::find(options.pin.as_ref(), &*store, &heads)?;
        let catalogs = Arc::new(Catalogs::new(Arc::clone(&store)));
        let root = catalogs.attach_soon(start.root).wait()?;
        let number = start.number.unwrap_or(root.catalog.properties().revision);
        refuse_blacklisted(number, &heads)?;
        let since = SystemTime::now();
        let label = Label { serial: 1, number, published: start.published, tag: start.tag, since };
        let attribute_rules = AttributeRules::new(&options);
        let attached_max = options.attached_max.unwrap_or(crate::ATTACHED_MAX);
        let revision = Revision::new(label, root, &attribute_rules, attached_max)?;
        let offline = start.head.as_ref().and_then(|head| head.offline.clone());
        let (prefetch, misses) = if options.prefetch {
            let (prefetch, misses) = Prefetch::new(store.status().cache.quota);
            (prefetch, Some(misses))
        } else {
            (Prefetch::off(), None)
        };
        let core = Arc::new(Core {
            name,
            attribute_rules,
            store,
            catalogs,
            current: ArcSwap::from_pointee(revision),
            directories: Default::default(),
            listings: Default::default(),
            open_files: Default::default(),
            prefetch,
            watchers: Mutex::default(),
            failures: Default::default(),
            counters: Default::default(),
            head_status: Mutex::new(HeadStatus { checked: since, offline }),
            vanished: Mutex::default(),
            attached_max,
            about: OnceLock::new(),
        });
        let holder: Arc<dyn Holder> = core.clone();
        core.store.add_holder(Arc::downgrade(&holder));
        if let Some(misses) = misses {
            prefetch::thread::start(&core, misses, options.sequences)
                .map_err(|error| TreeError::on(ErrorKind::Local, "the prefetching thread").because(error))?;
        }
        let pinned = options.pin.is_some();
        let ttl = start.head.map(|head| head.ttl).unwrap_or_default();
        let ttls = (options.ttl, options.ttl_max);
        let follower = Follower::start(Arc::clone(&core), (!pinned).then_some(heads), ttls, ttl)
            .map_err(|error| TreeError::on(ErrorKind::Local, "the follower's thread").because(error))?;
        Ok(Arc::new(Self { core, follower, pinned, observer: OnceLock::new() }))
    }

    /// Looks for a new head now, moves to it, and returns once the mounts know. A pinned view stays.
    pub fn refresh(&self) -> Result<Refreshed, TreeError> {
        self.follower.refresh(None)
    }

    /// The same, but waits no longer than this; the look goes on.
    pub fn refresh_within(&self, quiet_period: Duration) -> Result<Refreshed, TreeError> {
        self.follower.refresh(Instant::now().checked_add(quiet_period))
    }

    /// Somebody says that a revision is published, perhaps this one. Nothing is believed but when to look; returns at
    /// once. A pinned view stays.
    pub fn hint_revision(&self, revision: Option<u64>) {
        self.follower.hint_revision(revision);
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

    /// Has the view ask `about` for what it doesn't know itself. It asks one; later ones are not asked.
    pub fn tell(&self, about: Arc<dyn About>) {
        let _ = self.core.about.set(about);
    }

    /// Tells `observer` of every read from now on. A view has one observer; later ones hear nothing.
    pub fn observe(&self, observer: Arc<dyn Observer>) {
        let _ = self.observer.set(observer);
    }

    pub(crate) fn observed(&self, file: &Node, offset: u64, len: usize) {
        let Some(observer) = self.observer.get() else { return };
        if let Ok(NodeInfo { size, .. }) = NodeInfo::of(file) {
            let range = offset..offset.saturating_add(len as u64).min(size);
            if !range.is_empty() {
                observer.read(file, size, range);
            }
        }
    }

    /// Tells of everything that is foreseen from now on. A view tells one; later ones hear nothing.
    pub fn set_prefetch_listener(&self, listener: PrefetchListener) {
        let _ = self.core.prefetch.listener.set(listener);
    }

    /// How the view is doing.
    pub fn status(&self) -> ViewStatus {
        let core = &self.core;
        let revision = core.current.load();
        let label = &revision.label;
        let head_status = core.head_status.lock();
        ViewStatus {
            repository: core.name.to_string(),
            revision: label.number,
            root_hash: revision.root_hash(),
            tag: label.tag.clone(),
            pinned: self.pinned,
            published: label.published,
            since: label.since,
            checked: head_status.checked,
            offline: head_status.offline.clone(),
            failures: core.failures.all(),
            counters: ViewCounters {
                catalogs: revision.mounts().len() as u64,
                lookups: core.counters.lookups.value(),
                lists: core.counters.lists.value(),
                reads: core.counters.reads.value(),
                misses: core.counters.misses.value(),
                xattrs: core.counters.xattrs.value(),
                switches: core.counters.switches.value(),
                held: core.open_files.len() as u64,
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
fn refuse_blacklisted(number: u64, heads: &HeadKeeper) -> Result<(), TreeError> {
    let floor = heads.floor();
    if number >= floor {
        return Ok(());
    }
    let reason = format!("it is blacklisted here, as all below {floor} are");
    Err(TreeError::on(ErrorKind::Denied, format!("revision {number} of {}", heads.name())).because(reason))
}
