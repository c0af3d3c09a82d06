//! Lists the served repositories, for the page and for the info API.

use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_format::catalog::Catalog;
use esker_format::compress::{Compression, decompress};
use esker_format::hash::ContentHash;
use esker_format::manifest::Manifest;
use esker_format::metainfo::ServerStatus;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::time::UnixTime;

use crate::file::Folder;
use crate::repositories::{Repositories, Unread, manifest_of};

/// Time for which a listing is cached.
const FRESH: Duration = Duration::from_secs(1);
/// Maximum size of a root catalog, stored and plain, that is read for its counters.
const CATALOG_MAX: u64 = 256 << 20;
/// Maximum size of a status file in bytes.
const STATUS_MAX: u64 = 64 * 1024;
/// File with the time of a replica's last update.
const LAST_SNAPSHOT: &str = ".cvmfs_last_snapshot";

/// A repository, from its unverified manifest and root catalog.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Name of the repository in its URL.
    pub(crate) folder: String,
    /// True if the repository is copied from another server.
    pub(crate) replica: bool,
    pub(crate) state: Result<State, String>,
}

#[derive(Clone, Debug)]
pub(crate) struct State {
    /// Name in its manifest.
    pub(crate) name: String,
    pub(crate) revision: u64,
    pub(crate) published: UnixTime,
    pub(crate) root: ContentHash,
    /// Totals; `None` in a listing of names.
    pub(crate) totals: Option<Result<Totals, String>>,
}

/// Counters of the root catalog, nested catalogs included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Totals {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
}

/// The cached listing. Creating one reads the disk.
#[derive(Debug)]
pub(crate) struct Listing {
    made: Option<(Instant, Arc<[Entry]>)>,
    counts: Option<Counts>,
}

/// Totals by root catalog, which can't change.
type Counts = HashMap<ContentHash, Totals>;

impl Listing {
    /// Creates a listing of names, which reads only manifests.
    pub(crate) fn of_names() -> Self {
        Self { made: None, counts: None }
    }

    /// Makes a listing with totals: the first one reads all root catalogs, which may take minutes.
    pub(crate) fn with_totals() -> Self {
        Self { made: None, counts: Some(Counts::new()) }
    }

    /// Returns the listing, and renews it if it is too old.
    pub(crate) fn now(&mut self, repositories: &Repositories) -> Arc<[Entry]> {
        if let Some((when, entries)) = &self.made
            && when.elapsed() < FRESH
        {
            return entries.clone();
        }
        let mut kept = Counts::new();
        let entries: Arc<[Entry]> = repositories
            .all()
            .into_iter()
            .map(|(name, folder)| Entry {
                folder: name.as_str().to_owned(),
                replica: is_replica(&folder),
                state: look(&folder, self.counts.as_ref(), &mut kept),
            })
            .collect();
        self.made = Some((Instant::now(), entries.clone()));
        self.counts = self.counts.is_some().then_some(kept);
        entries
    }
}

fn look(folder: &Folder, known: Option<&Counts>, kept: &mut Counts) -> Result<State, String> {
    let manifest = manifest_of(folder).map_err(|error| match error {
        Unread::Io(error) => format!("its manifest can't be read: {error}"),
        Unread::Malformed(reason) => reason,
    })?;
    let root = manifest.root_catalog;
    let totals =
        known.map(|known| known.get(&root).map_or_else(|| totals(folder, &manifest), |totals| Ok(*totals)));
    if let Some(Ok(totals)) = &totals {
        kept.insert(root, *totals);
    }
    Ok(State {
        name: manifest.name.unwrap_or_default(),
        revision: manifest.revision,
        published: manifest.timestamp,
        root,
        totals,
    })
}

fn totals(folder: &Folder, manifest: &Manifest) -> Result<Totals, String> {
    let name = ObjectName::new(manifest.root_catalog, ObjectKind::Catalog);
    let read = || -> Result<Totals, Box<dyn std::error::Error>> {
        let stored = bytes(folder, &name.path(), CATALOG_MAX)?;
        if ContentHash::of(name.hash.algorithm(), &stored) != name.hash {
            return Err("its bytes don't have the hash it is named by".into());
        }
        let compression = Compression::recognise(&stored).unwrap_or(Compression::Stored);
        let size = Some(manifest.root_catalog_size).filter(|size| *size > 0);
        let catalog = Catalog::open(decompress(&stored, compression, size, CATALOG_MAX)?)?;
        let statistics = catalog.statistics()?;
        let (own, below) = (&statistics.own, &statistics.subtree);
        // The directory at the top of a nested catalog is counted there and in the catalog above.
        let twice = own.nested.saturating_add(below.nested);
        Ok(Totals {
            entries: own.entries().saturating_add(below.entries()).saturating_sub(twice),
            bytes: own.file_size.saturating_add(below.file_size),
        })
    };
    read().map_err(|error| format!("its root catalog can't be read: {error}"))
}

/// Reads a file of at most `limit` bytes.
pub(crate) fn bytes(folder: &Folder, path: &str, limit: u64) -> std::io::Result<Vec<u8>> {
    let opened = folder.open(path)?;
    let mut bytes = Vec::new();
    opened.file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(std::io::Error::other(format!("it has more than {limit} bytes")));
    }
    Ok(bytes)
}

/// Returns whether the repository is a replica: only replication writes these marks.
fn is_replica(folder: &Folder) -> bool {
    folder.has(LAST_SNAPSHOT)
        || bytes(folder, ServerStatus::PATH, STATUS_MAX)
            .ok()
            .and_then(|bytes| ServerStatus::parse(&bytes).ok())
            .is_some_and(|status| status.last_snapshot.is_some())
}
