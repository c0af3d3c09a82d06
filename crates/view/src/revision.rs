//! One revision of the repository: the catalogs that are mounted in it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use esker_format::catalog::PathKey;
use esker_format::hash::ContentHash;
use esker_journal::Journal;
use esker_vfs::{ErrorKind, Kind, NodeKey, NodeWithAttr, TreeError};

use crate::attributes::{AttributeRules, RowRef};
use crate::catalogs::{Attached, Catalogs};
use crate::failure::Blocked;
use crate::nested::{CatalogMount, NestedRef};
use crate::records::{self, ShownRevision};

/// Minimum number of mounts; with fewer, the mounts on one deep path would unmount each other.
const ATTACHED_MIN: usize = 64;

type Mounts = papaya::HashMap<PathKey, Arc<CatalogMount>>;
/// The mounts of a revision, and the guard of references into it.
pub(crate) type MountsRef<'a> =
    papaya::HashMapRef<'a, PathKey, Arc<CatalogMount>, std::hash::RandomState, papaya::LocalGuard<'a>>;

/// Description of a revision, apart from its catalogs.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    /// Serial number of the revisions that this view has shown: never the same twice.
    pub(crate) serial: u64,
    pub(crate) number: u64,
    /// Time of the signature, if a signed head or tag has one.
    pub(crate) published: Option<u64>,
    pub(crate) tag: Option<String>,
    pub(crate) since: SystemTime,
}

/// A revision.
///
/// A call that answers from it holds a reference until the answer is sent, so once the last reference is dropped
/// ([`Revision::when_gone`]) no answer from it is outstanding.
pub(crate) struct Revision {
    pub(crate) label: Label,
    pub(crate) root: Arc<CatalogMount>,
    /// The root directory, which must be available without waiting.
    pub(crate) root_found: NodeWithAttr,
    /// Number of files and directories of the whole repository.
    pub(crate) entries: u64,
    /// Number of entries with extended attributes, by the counters of the catalogs.
    pub(crate) attributed: u64,
    mounts: Mounts,
    /// Catalogs that were mounted in this revision, or used in an earlier one that it shares content with: those of
    /// which the kernel may have cached entries, attached or not.
    seen: Arc<SeenCatalogs>,
    /// Counter of mounts, which orders their uses.
    clock: AtomicU64,
    attached_max: usize,
    /// Sender that is dropped with the revision, which signals its end.
    gone: parking_lot::Mutex<Option<Sender<()>>>,
}

/// A catalog that was used for answers.
#[derive(Clone, Debug)]
pub(crate) struct SeenCatalog {
    pub(crate) path: Arc<[u8]>,
    pub(crate) hash: ContentHash,
    pub(crate) size: Option<u64>,
}

/// Rejects a repository that requires VOMS membership, which can't be checked.
fn refuse_unless_for_all(root: &Attached) -> Result<(), TreeError> {
    match &root.catalog.properties().authorization {
        Some(members) if !members.is_empty() => {
            let reason =
                format!("it is for members of {members} only, and Esker supports no authorization helper");
            Err(TreeError::on(ErrorKind::Denied, "the repository").because(reason))
        }
        _ => Ok(()),
    }
}

impl Revision {
    /// Opens a revision on its root catalog. One without a root directory is damaged.
    pub(crate) fn new(
        label: Label,
        root: Arc<Attached>,
        attribute_rules: &AttributeRules,
        attached_max: usize,
    ) -> Result<Self, TreeError> {
        refuse_unless_for_all(&root)?;
        let root = Arc::new(CatalogMount::new(root, b"")?);
        let row = root.find(root.key_of(b""))?.ok_or_else(|| root.damaged("it has no root entry"))?;
        let root_found = attribute_rules.found(RowRef { mount: &root, path: b"", row: &row })?;
        if root_found.node.kind != Kind::Directory {
            return Err(root.damaged("its root entry is not a directory"));
        }
        drop(row);
        let statistics = root.attached.catalog.statistics().map_err(|error| root.damaged(error))?;
        let revision = Self {
            label,
            root: Arc::clone(&root),
            root_found,
            entries: statistics.own.entries().saturating_add(statistics.subtree.entries()),
            attributed: statistics.own.xattr.saturating_add(statistics.subtree.xattr),
            mounts: Mounts::new(),
            seen: Arc::default(),
            clock: AtomicU64::new(1),
            attached_max: attached_max.max(ATTACHED_MIN),
            gone: parking_lot::Mutex::default(),
        };
        revision.remember(&root, None);
        revision.mounts.pin().insert(root.key, root);
        Ok(revision)
    }

    pub(crate) fn root_hash(&self) -> ContentHash {
        self.root.attached.hash
    }

    pub(crate) fn mounts(&self) -> MountsRef<'_> {
        self.mounts.pin()
    }

    /// Returns the number of entries in the attached catalogs.
    pub(crate) fn entries_attached(&self) -> u64 {
        let of = |mount: &Arc<CatalogMount>| {
            mount.attached.catalog.statistics().map_or(0, |counted| counted.own.entries())
        };
        self.mounts().values().map(of).fold(0, u64::saturating_add)
    }

    /// Registers a sender that is dropped with the last reference to the revision.
    pub(crate) fn when_gone(&self, sender: Sender<()>) {
        *self.gone.lock() = Some(sender);
    }

    /// Records a use of the mount.
    ///
    /// The mounts on the way to it are used too, so that a deep mount never causes those on its path to be unmounted.
    pub(crate) fn touch(&self, mount: &CatalogMount) {
        mount.touch(self.clock.load(Ordering::Relaxed));
    }

    /// Returns the mount with the contents of the directory `path`.
    pub(crate) fn resolve<'m>(
        &self,
        mounts: &'m MountsRef<'_>,
        catalogs: &Catalogs,
        path: &[u8],
    ) -> Result<&'m CatalogMount, Blocked> {
        let mut mount: &CatalogMount = match mounts.get(&self.root.key) {
            Some(root) => root,
            None => mounts.get_or_insert(self.root.key, Arc::clone(&self.root)),
        };
        // Each step leads to a longer mountpoint on the same path, so there are fewer than bytes in it.
        while let Some((mountpoint, nested)) = mount.next_mount(path) {
            self.touch(mount);
            let key = PathKey::of(mountpoint);
            mount = match mounts.get(&key) {
                Some(known) => known,
                None => {
                    let wanted = nested.wanted(mountpoint)?;
                    let Some(attached) = catalogs.get(&wanted.hash) else {
                        return Err(Blocked::On(wanted));
                    };
                    self.mount(mounts, catalogs, attached, (mountpoint, nested))?
                }
            };
        }
        self.touch(mount);
        Ok(mount)
    }

    /// Mounts an attached catalog.
    pub(crate) fn mount<'m>(
        &self,
        mounts: &'m MountsRef<'_>,
        catalogs: &Catalogs,
        attached: Arc<Attached>,
        nested: (&[u8], &NestedRef),
    ) -> Result<&'m CatalogMount, TreeError> {
        let (path, NestedRef { size, .. }) = nested;
        let mounted = Arc::new(CatalogMount::new(attached, path)?);
        if mounted.is_bound() {
            catalogs.remember_bound(mounted.key, &mounted.path);
        }
        self.clock.fetch_add(1, Ordering::Relaxed);
        self.touch(&mounted);
        self.remember(&mounted, *size);
        if mounts.len() >= self.attached_max {
            self.unmount_unused(mounts);
        }
        Ok(mounts.get_or_insert(mounted.key, mounted))
    }

    fn remember(&self, mounted: &CatalogMount, size: Option<u64>) {
        let seen = SeenCatalog { path: Arc::clone(&mounted.path), hash: mounted.attached.hash, size };
        self.seen.insert(seen);
    }

    /// Unmounts the least recently used eighth of the catalogs.
    ///
    /// Running calls keep their references; later ones mount it again, from the cache.
    fn unmount_unused(&self, mounts: &MountsRef<'_>) {
        let mut by_use: Vec<(u64, PathKey)> = mounts
            .iter()
            .filter(|(key, _)| **key != self.root.key)
            .map(|(key, mount)| (mount.used.load(Ordering::Relaxed), *key))
            .collect();
        by_use.sort_unstable();
        for (_, key) in by_use.iter().take((self.attached_max / 8).max(1)) {
            mounts.remove(key);
        }
    }

    /// Carries over a used catalog of an earlier revision, mounted if it was.
    pub(crate) fn inherit(&self, seen: SeenCatalog, mount: Option<&Arc<CatalogMount>>) {
        let key = PathKey::of(&seen.path);
        self.seen.insert(seen);
        if let Some(mount) = mount {
            // Its last use was on another clock.
            self.touch(mount);
            self.mounts.pin().get_or_insert_with(key, || Arc::clone(mount));
        }
    }

    /// Records this revision as the one that is shown, and from now on the catalogs used in it.
    pub(crate) fn record(
        &self,
        journal: &Arc<Journal>,
        catalogs: &Catalogs,
        vanished: impl Iterator<Item = NodeKey>,
    ) {
        // Catalogs that are used while the others are collected wait for their record.
        let _ = self.seen.journal.set((Arc::clone(journal), self.label.serial));
        let Label { serial, number, published, ref tag, .. } = self.label;
        let shown = ShownRevision { serial, number, published, tag: tag.as_deref(), root: self.root_hash() };
        let (seen, bound) = (|| self.seen.records(serial), || catalogs.all_bound());
        records::begin(journal, &shown, seen, bound, vanished);
    }

    /// Returns the catalogs that were used for answers; stays valid when the revision is dropped.
    pub(crate) fn seen(&self) -> Arc<SeenCatalogs> {
        Arc::clone(&self.seen)
    }
}

/// Catalogs that were used for answers, by mountpoint.
#[derive(Default)]
pub(crate) struct SeenCatalogs {
    known: papaya::HashMap<PathKey, SeenCatalog>,
    /// Record for a process that takes over, and the serial number of the revision in it.
    journal: OnceLock<(Arc<Journal>, u64)>,
}

impl SeenCatalogs {
    fn insert(&self, seen: SeenCatalog) {
        self.known.pin().insert(PathKey::of(&seen.path), seen.clone());
        if let Some((journal, serial)) = self.journal.get() {
            // A failure makes the journal invalid, and then no other process takes over.
            let _ = journal.append(&records::of_seen(&seen.path, seen.hash, seen.size, *serial));
        }
    }

    fn records(&self, serial: u64) -> Vec<Vec<u8>> {
        let known = self.known.pin();
        known.values().map(|seen| records::of_seen(&seen.path, seen.hash, seen.size, serial)).collect()
    }

    pub(crate) fn by_path(&self) -> SeenByPath {
        self.known.pin().values().map(|seen| (Arc::clone(&seen.path), seen.clone())).collect()
    }
}

/// Catalogs that were used for answers, in the order of their mountpoints.
pub(crate) type SeenByPath = BTreeMap<Arc<[u8]>, SeenCatalog>;
