//! Opens a repository as a view.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwap;
use esker_format::catalog::PathKey;
use esker_format::name::RepositoryName;
use esker_store::{HeadKeeper, Holder, ObjectStore};
use esker_vfs::{Change, ErrorKind, Node, TreeError};
use parking_lot::Mutex;

use crate::attributes::AttributeRules;
use crate::catalogs::Catalogs;
use crate::core::Core;
use crate::diff::VanishedDirectories;
use crate::follow::{Follower, Refreshed};
use crate::magic::About;
use crate::memory::Remembered;
use crate::observe::Observer;
use crate::options::ViewOptions;
use crate::payload::NodeInfo;
use crate::prefetch::{self, Prefetch, PrefetchListener};
use crate::records;
use crate::revision::{Label, Revision};
use crate::start::Start;
use crate::status::{FailureCause, HeadStatus, ViewCounters, ViewStatus};

/// A repository as a tree, which shows one revision at a time and moves to new ones.
pub struct View {
    pub(crate) core: Arc<Core>,
    follower: Arc<Follower>,
    pinned: bool,
    pub(crate) observer: OnceLock<Arc<dyn Observer>>,
}

impl View {
    /// Returns the number of reads that had to wait for an object.
    pub fn misses(&self) -> u64 {
        self.core.counters.misses.value()
    }

    /// Opens a repository at its head, or at the pinned revision. Blocks until its root catalog is attached.
    pub fn open(
        store: Arc<dyn ObjectStore>,
        heads: HeadKeeper,
        options: ViewOptions,
    ) -> Result<Arc<Self>, TreeError> {
        let name = heads.name().clone();
        let remembered = match &options.journal {
            Some(journal) => Remembered::read(journal)?,
            None => None,
        };
        let start = match &remembered {
            Some(remembered) => remembered.start(),
            None => Start::find(options.pin.as_ref(), &*store, &heads)?,
        };
        let catalogs = Arc::new(Catalogs::new(Arc::clone(&store)));
        let root = catalogs.attach_soon(start.root).wait()?;
        let number = start.number.unwrap_or(root.catalog.properties().revision);
        refuse_blacklisted(number, &heads)?;
        let since = SystemTime::now();
        let label = Label { serial: 1, number, published: start.published, tag: start.tag, since };
        let attribute_rules = AttributeRules::new(&options);
        let attached_max = options.attached_max.unwrap_or(crate::ATTACHED_MAX);
        let revision = Revision::new(label, root, &attribute_rules, attached_max)?;
        let was_resumed = remembered.is_some();
        let was_changing = remembered.as_ref().is_some_and(|remembered| remembered.is_changing);
        let mut vanished = VanishedDirectories::default();
        if let Some(Remembered { seen, bound, vanished: keys, .. }) = remembered {
            seen.into_iter().for_each(|seen| revision.inherit(seen, None));
            bound.iter().for_each(|path| catalogs.remember_bound(PathKey::of(path), path));
            vanished = VanishedDirectories::new(keys.into_iter());
        }
        if let Some(journal) = &options.journal {
            let _ = catalogs.journal.set(Arc::clone(journal));
            revision.record(journal, &catalogs, vanished.keys());
            if was_changing {
                records::begin_change(journal);
            }
        }
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
            without_bundles: options.without_bundles,
            watchers: Mutex::default(),
            failures: Default::default(),
            counters: Default::default(),
            head_status: Mutex::new(HeadStatus { checked: since, offline }),
            vanished: Mutex::new(vanished),
            attached_max,
            journal: options.journal,
            was_changing: AtomicBool::new(was_changing),
            about: OnceLock::new(),
        });
        let holder: Arc<dyn Holder> = core.clone();
        core.store.add_holder(Arc::downgrade(&holder));
        if let Some(misses) = misses {
            prefetch::start(&core, misses, options.sequences)
                .map_err(|error| TreeError::on(ErrorKind::Local, "the prefetching thread").because(error))?;
        }
        let pinned = options.pin.is_some();
        let ttl = start.head.map(|head| head.ttl).unwrap_or_default();
        // Changes must not be announced before there is a mount to hear of them.
        let ttl = if was_resumed { Duration::MAX } else { ttl };
        let ttls = (options.ttl, options.ttl_max);
        let first = if was_resumed { ttl } else { options.ttl.unwrap_or(ttl) };
        let follower = Follower::start(Arc::clone(&core), (!pinned).then_some(heads), ttls, first)
            .map_err(|error| TreeError::on(ErrorKind::Local, "the follower's thread").because(error))?;
        Ok(Arc::new(Self { core, follower, pinned, observer: OnceLock::new() }))
    }

    /// Resumes the mount of an earlier process.
    pub(crate) fn go_on(&self) {
        self.core.load_chunks();
        let (core, follower) = (Arc::clone(&self.core), Arc::clone(&self.follower));
        let go_on = move || {
            if core.was_changing.swap(false, Ordering::SeqCst) {
                core.tell(&[Change::Everything]);
                if let Some(journal) = &core.journal {
                    let vanished = core.vanished.lock();
                    core.current.load().record(journal, &core.catalogs, vanished.keys());
                }
            }
            follower.check_soon();
        };
        // The kernel may take its time for the changes, and the mount has to be served meanwhile. Without a thread the
        // revision stays until a check is requested.
        let _ = std::thread::Builder::new().name("resumed".into()).spawn(go_on);
    }

    /// Checks for a new head now, moves to it, and returns once the mounts are notified. A pinned view stays.
    pub fn refresh(&self) -> Result<Refreshed, TreeError> {
        self.follower.refresh(None)
    }

    /// Checks for a new head like [`Self::refresh`] with a timeout; the check continues after it.
    pub fn refresh_within(&self, timeout: Duration) -> Result<Refreshed, TreeError> {
        self.follower.refresh(Instant::now().checked_add(timeout))
    }

    /// Accepts a hint that a newer revision may exist, which triggers a verified refresh.
    ///
    /// Returns at once. A pinned view stays.
    pub fn hint_revision(&self, revision: Option<u64>) {
        self.follower.hint_revision(revision);
    }

    /// Stops following the repository and prefetching. The view goes on answering; dropping it does this too.
    pub fn close(&self) {
        self.core.prefetch.close();
        self.follower.stop();
    }

    /// Returns the name of the repository.
    pub fn name(&self) -> &RepositoryName {
        &self.core.name
    }

    /// Returns true if any entry of the present revision has stored extended attributes.
    ///
    /// This uses the catalogs' counters, which do not include the older revisions that a repository may show below its
    /// root.
    pub fn has_attributes(&self) -> bool {
        self.core.current.load().attributed > 0
    }

    /// Returns the causes of failures so far, each once.
    pub fn failure_causes(&self) -> Vec<FailureCause> {
        self.core.failures.causes()
    }

    /// Sets the source of magic attributes that the view does not know itself. Only the first call has an effect.
    pub fn set_provider(&self, about: Arc<dyn About>) {
        let _ = self.core.about.set(about);
    }

    /// Sets the observer of reads. Only the first call has an effect.
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

    /// Sets the listener for predictions. Only the first call has an effect.
    pub fn set_prefetch_listener(&self, listener: PrefetchListener) {
        let _ = self.core.prefetch.listener.set(listener);
    }

    /// Returns the number of open files.
    pub fn open_files(&self) -> u64 {
        self.core.open_files.len() as u64
    }

    /// Returns the status of the view.
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
                held: self.open_files(),
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

/// Refuses a pinned revision below the blacklist's floor; a head below it is never accepted.
fn refuse_blacklisted(number: u64, heads: &HeadKeeper) -> Result<(), TreeError> {
    let floor = heads.floor();
    if number >= floor {
        return Ok(());
    }
    let reason = format!("it is blacklisted here, as all below {floor} are");
    Err(TreeError::on(ErrorKind::Denied, format!("revision {number} of {}", heads.name())).because(reason))
}
