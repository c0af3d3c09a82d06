//! A repository, open.

use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use esker_format::compress::Compression;
use esker_format::history::{History, Tag};
use esker_format::name::RepositoryName;
use esker_store::{Done, HeadKeeper, Holder, ObjectStore, Wanted};
use esker_vfs::{ErrorKind, TreeError};
use parking_lot::Mutex;

use crate::catalogs::{Catalogs, WantedCatalog};
use crate::core::Core;
use crate::failure;
use crate::follow::{Follower, Refreshed, Sightings};
use crate::head::Head;
use crate::observe::Observer;
use crate::options::{Pin, ViewOptions};
use crate::prefetch::{self, Prefetch};
use crate::revision::{Label, Revision};
use crate::show::Show;
use crate::status::{ViewCounters, ViewStatus};

/// The largest history we read: some 100 bytes for each tag, so room for millions.
const HISTORY_BYTES_MAX: u64 = 1 << 30;

/// A repository as a tree: one revision at a time, and new ones as they come.
pub struct View {
    pub(crate) core: Arc<Core>,
    follower: Arc<Follower>,
    pinned: bool,
    pub(crate) observer: OnceLock<Arc<dyn Observer>>,
}

/// Where a view begins.
struct Start {
    root: WantedCatalog,
    /// `None` if only the catalog itself tells.
    number: Option<u64>,
    published: Option<u64>,
    tag: Option<String>,
    head: Option<Head>,
}

impl View {
    /// Opens a repository at its head, or at the revision that the options pin. Waits until its root catalog
    /// is there, so not for a thread that answers others.
    pub fn open(
        store: Arc<dyn ObjectStore>,
        keeper: HeadKeeper,
        options: ViewOptions,
    ) -> Result<Arc<Self>, TreeError> {
        let name = keeper.name().clone();
        let start = match &options.pin {
            None | Some(Pin::Head) => Start::at_head(Head::look(&keeper)?),
            Some(Pin::Tag(tag)) => Start::at_tag(&name, &*store, &Head::look(&keeper)?, tag)?,
            Some(Pin::Root(hash)) => Start::at_root(WantedCatalog::new(*hash, None, b"")),
        };
        let catalogs = Arc::new(Catalogs::new(Arc::clone(&store)));
        let root = catalogs.attach_soon(start.root).wait()?;
        let number = start.number.unwrap_or(root.catalog.properties().revision);
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
            attached_max,
        });
        let holder: Arc<dyn Holder> = core.clone();
        core.store.add_holder(Arc::downgrade(&holder));
        if let Some(misses) = misses {
            prefetch::start(&core, misses, options.trails)
                .map_err(|error| TreeError::on(ErrorKind::Local, "the prefetching thread").because(error))?;
        }
        let pinned = options.pin.is_some();
        let ttl = start.head.map(|head| head.ttl).unwrap_or_default();
        let follower = Follower::start(Arc::clone(&core), (!pinned).then_some(keeper), options.ttl, ttl)
            .map_err(|error| TreeError::on(ErrorKind::Local, "the follower's thread").because(error))?;
        Ok(Arc::new(Self { core, follower, pinned, observer: OnceLock::new() }))
    }

    /// Looks for a new head now, moves to it, and returns once the mounts know. A pinned view stays.
    pub fn refresh(&self) -> Result<Refreshed, TreeError> {
        self.follower.refresh()
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
            },
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.close();
    }
}

impl Start {
    fn at_head(head: Head) -> Self {
        Self {
            root: head.root_catalog(),
            number: Some(head.revision),
            published: head.published,
            tag: None,
            head: Some(head),
        }
    }

    /// The hash is the word of whoever typed it; the catalog itself tells the rest.
    fn at_root(root: WantedCatalog) -> Self {
        Self { root, number: None, published: None, tag: None, head: None }
    }

    /// A name counts if the history that the signed head names knows it.
    fn at_tag(
        name: &RepositoryName,
        store: &dyn ObjectStore,
        head: &Head,
        tag: &str,
    ) -> Result<Self, TreeError> {
        let history = history(name, store, head)?;
        let Some(found) = history.find(tag) else {
            let known: Vec<&str> = history.tags().iter().take(8).map(|tag| &*tag.name).collect();
            let reason =
                format!("the history of {name} has no such tag; its newest are {}", known.join(", "));
            return Err(TreeError::on(ErrorKind::NotFound, format!("tag `{tag}`")).because(reason));
        };
        let Tag { root_catalog, size, revision, timestamp, .. } = found;
        Ok(Self {
            root: WantedCatalog::new(*root_catalog, *size, b""),
            number: Some(*revision),
            published: u64::try_from(timestamp.0).ok(),
            tag: Some(tag.to_owned()),
            head: Some(head.clone()),
        })
    }
}

/// Fetches the history that a head names.
fn history(name: &RepositoryName, store: &dyn ObjectStore, head: &Head) -> Result<History, TreeError> {
    let what = || format!("the history of {name}");
    let object = head.history.ok_or_else(|| {
        TreeError::on(ErrorKind::NotFound, what()).because("the repository has none, so it has no tags")
    })?;
    let mut wanted = Wanted::new(object, Compression::Zlib, what()).limit(HISTORY_BYTES_MAX);
    wanted.alternative_path = head.alternative_path;
    let handle =
        Done::wait(|done| store.get(wanted, done)).map_err(|error| failure::of_store(error, what()))?;
    let bytes = handle.read_all().map_err(|error| TreeError::on(ErrorKind::Local, what()).because(error))?;
    let damaged = |reason| TreeError::on(ErrorKind::Damaged, what()).because(reason);
    let history = History::parse(&bytes).map_err(|error| damaged(error.to_string()))?;
    if history.name() != name {
        return Err(damaged(format!("it is that of {}", history.name())));
    }
    Ok(history)
}
