//! Reads a published revision, catalog by catalog, on demand.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, OnceLock};

use esker_format::catalog::{
    Catalog, CatalogError, Counters, Flags, NestedCatalog, PathKey, Row, Statistics, UnknownParts,
};
use esker_format::compress::decompress;
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::trust::VerifiedHead;
use esker_format::write::catalog::Entry;
use esker_store::{LargeBytes, Sink};
use parking_lot::Mutex;

use crate::error::RepositoryError;
use crate::object_source::{ObjectSource, StoredObjects, WantedObject};
use crate::path;
use crate::repository::DATABASE_MAX;

/// A published revision; keeps every catalog that it has read.
pub struct Published {
    /// Place of the objects.
    pub objects: Arc<dyn ObjectSource>,
    root: (ContentHash, Option<u64>),
    catalogs: Arc<Catalogs>,
}

/// Catalogs that were read, by mountpoint and hash. Revisions of a repository share them.
type Catalogs = Mutex<HashMap<(Vec<u8>, ContentHash), Arc<OldCatalog>>>;

/// A catalog of the published revision.
pub struct OldCatalog {
    /// Path of its root directory.
    pub mountpoint: Vec<u8>,
    /// Hash that names it.
    pub hash: ContentHash,
    /// The catalog.
    pub catalog: Catalog<LargeBytes>,
    /// Nested catalogs by mountpoint.
    pub nested: BTreeMap<Vec<u8>, NestedCatalog>,
    /// Descriptions of rows outside of its tree, once they were looked for.
    strays: OnceLock<Vec<String>>,
}

impl OldCatalog {
    /// Reads a catalog.
    pub fn read(
        objects: &dyn ObjectSource,
        mountpoint: &[u8],
        hash: ContentHash,
        size: Option<u64>,
    ) -> Result<Self, RepositoryError> {
        let (name, what) = (ObjectName::new(hash, ObjectKind::Catalog), what(mountpoint));
        let wanted = WantedObject { name, compression: None, size, limit: DATABASE_MAX, what: &what };
        let bytes = objects.object(&wanted)?;
        let failed = |source| RepositoryError::Catalog { what: what.clone(), source };
        let catalog = Catalog::open(bytes).map_err(failed)?;
        let nested = catalog.nested().map_err(failed)?;
        let nested = nested.into_iter().map(|nested| (nested.path.clone(), nested)).collect();
        Ok(Self { mountpoint: mountpoint.to_vec(), hash, catalog, nested, strays: OnceLock::new() })
    }

    /// Reads a nested catalog.
    pub(crate) fn read_nested(
        objects: &dyn ObjectSource,
        nested: &NestedCatalog,
    ) -> Result<Self, RepositoryError> {
        Self::read(objects, &nested.path, hash_of(nested)?, nested.size)
    }

    /// Returns the entry of a path that the catalog has.
    pub fn entry(&self, path: &[u8]) -> Result<Option<Entry>, RepositoryError> {
        let row = self.catalog.find(PathKey::of(path)).map_err(self.failed())?;
        row.map(|row| self.entry_of(&row)).transpose()
    }

    fn entry_of(&self, row: &Row<'_>) -> Result<Entry, RepositoryError> {
        let chunks = match row.flags().has(Flags::CHUNKED) {
            true => self.catalog.chunks(row).map_err(self.failed())?,
            false => Vec::new(),
        };
        Ok(Entry::from_row(row, chunks))
    }

    /// Returns the entries of a directory that the catalog lists, sorted by name, with hard link groups numbered from
    /// one in that order.
    pub fn list(&self, directory: &[u8]) -> Result<Vec<Entry>, RepositoryError> {
        let mut entries = Vec::new();
        for row in self.catalog.children(PathKey::of(directory)).map_err(self.failed())? {
            entries.push(self.entry_of(&row.map_err(self.failed())?)?);
        }
        entries.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        number_groups(&mut entries);
        Ok(entries)
    }

    /// Finds what the catalog holds and this version doesn't know. Fails if it would be lost with the catalog's next version.
    pub fn carried(&self) -> Result<UnknownParts, RepositoryError> {
        let mut unknown = self.catalog.unknown_parts().map_err(self.failed())?;
        // Tables of another schema say nothing of the rows.
        if unknown.parts.is_empty() {
            unknown.parts.clone_from(self.strays()?);
        }
        if unknown.parts.is_empty() { Ok(unknown) } else { Err(self.would_lose(unknown.parts)) }
    }

    fn strays(&self) -> Result<&Vec<String>, RepositoryError> {
        if let Some(known) = self.strays.get() {
            return Ok(known);
        }
        let found = self.catalog.strays().map_err(self.failed())?;
        Ok(self.strays.get_or_init(|| found))
    }

    /// Fails if the catalog can't go, with its entries moving to that of its parent, without a loss.
    pub fn check_dissolving(&self) -> Result<(), RepositoryError> {
        let lost: Vec<String> = self.carried()?.pairs_of_its_own().collect();
        if lost.is_empty() { Ok(()) } else { Err(self.would_lose(lost)) }
    }

    fn would_lose(&self, parts: Vec<String>) -> RepositoryError {
        RepositoryError::UnknownParts { catalog: path::shown(&self.mountpoint), parts }
    }

    /// Returns the function that converts an error of the catalog.
    pub fn failed(&self) -> impl FnOnce(CatalogError) -> RepositoryError {
        let what = what(&self.mountpoint);
        move |source| RepositoryError::Catalog { what, source }
    }
}

fn hash_of(nested: &NestedCatalog) -> Result<ContentHash, RepositoryError> {
    nested.hash.ok_or_else(|| RepositoryError::Missing {
        what: what(&nested.path),
        object: "without a hash".to_owned(),
    })
}

fn what(mountpoint: &[u8]) -> String {
    format!("the catalog of {}", path::shown(mountpoint))
}

impl Published {
    /// Returns the revision of a head.
    pub fn new(sink: Arc<dyn Sink>, head: &VerifiedHead) -> Self {
        Self::with_root(sink, head.root_catalog().hash, head.root_catalog_size())
    }

    /// Returns the revision with a given root catalog.
    pub fn with_root(sink: Arc<dyn Sink>, root: ContentHash, size: Option<u64>) -> Self {
        Self::of_root(Arc::new(StoredObjects(sink)), (root, size))
    }

    /// Returns the revision with a given root catalog from any source of objects.
    pub fn of_root(objects: Arc<dyn ObjectSource>, root: (ContentHash, Option<u64>)) -> Self {
        Self { objects, root, catalogs: Arc::default() }
    }

    /// Returns another revision of the repository, which shares the catalogs that were read.
    pub fn other(&self, root: (ContentHash, Option<u64>)) -> Self {
        Self { objects: self.objects.clone(), root, catalogs: self.catalogs.clone() }
    }

    /// Returns the hash of the root catalog.
    pub fn root_hash(&self) -> ContentHash {
        self.root.0
    }

    /// Returns the hash algorithm of the root catalog's name.
    pub fn algorithm(&self) -> HashAlgorithm {
        self.root.0.algorithm()
    }

    /// Returns the root catalog.
    pub fn root(&self) -> Result<Arc<OldCatalog>, RepositoryError> {
        self.load(b"", self.root.0, self.root.1)
    }

    fn load(
        &self,
        mountpoint: &[u8],
        hash: ContentHash,
        size: Option<u64>,
    ) -> Result<Arc<OldCatalog>, RepositoryError> {
        let key = (mountpoint.to_vec(), hash);
        if let Some(known) = self.catalogs.lock().get(&key) {
            return Ok(known.clone());
        }
        // Two threads may load the same catalog at once; that costs time, never correctness.
        let loaded = Arc::new(OldCatalog::read(&*self.objects, mountpoint, hash, size)?);
        Ok(self.catalogs.lock().entry(key).or_insert(loaded).clone())
    }

    fn load_nested(&self, nested: &NestedCatalog) -> Result<Arc<OldCatalog>, RepositoryError> {
        self.load(&nested.path, hash_of(nested)?, nested.size)
    }

    /// Returns the catalog that lists a directory, or that would list a missing one.
    pub fn owner(&self, directory: &[u8]) -> Result<Arc<OldCatalog>, RepositoryError> {
        let mut owner = self.root()?;
        for ancestor in path::ancestry(directory).skip(1) {
            let nested = owner.nested.get(ancestor).filter(|nested| !nested.bind).cloned();
            if let Some(nested) = nested {
                owner = self.load_nested(&nested)?;
            }
        }
        Ok(owner)
    }

    /// Returns the catalog mounted at exactly this path.
    pub fn at(&self, mountpoint: &[u8]) -> Result<Option<Arc<OldCatalog>>, RepositoryError> {
        let owner = self.owner(mountpoint)?;
        Ok((owner.mountpoint == mountpoint).then_some(owner))
    }

    /// Returns the row of a nested catalog in its parent.
    pub fn nested_at(&self, mountpoint: &[u8]) -> Result<Option<NestedCatalog>, RepositoryError> {
        match path::split(mountpoint) {
            Some((parent, _)) => Ok(self.owner(parent)?.nested.get(mountpoint).cloned()),
            None => Ok(None),
        }
    }

    /// Returns the entry of a path from the catalog of its directory.
    pub fn entry(&self, path: &[u8]) -> Result<Option<Entry>, RepositoryError> {
        let owner = match path::split(path) {
            Some((parent, _)) => self.owner(parent)?,
            None => self.root()?,
        };
        owner.entry(path)
    }

    /// Returns the entries of a directory sorted by name, with hard link groups numbered from one in that order.
    pub fn list(&self, directory: &[u8]) -> Result<Vec<Entry>, RepositoryError> {
        self.owner(directory)?.list(directory)
    }

    /// Returns the counters of a catalog; counts the rows if the schema is too old to have counters, or if one of them is
    /// no count.
    pub fn statistics(&self, catalog: &OldCatalog) -> Result<Statistics, RepositoryError> {
        let stored = catalog.catalog.statistics().map_err(catalog.failed())?;
        // Every catalog has its root directory.
        if stored.own.dir > 0 && !stored.faulty {
            return Ok(stored);
        }
        let mut counted = Statistics::default();
        let mut entries = Vec::new();
        for row in catalog.catalog.scan().map_err(catalog.failed())? {
            let row = row.map_err(catalog.failed())?;
            entries.push(catalog.entry_of(&row)?);
        }
        counted.own = Counters::of(entries.iter(), catalog.nested.values());
        for nested in catalog.nested.values().filter(|nested| !nested.bind && nested.hash.is_some()) {
            counted.subtree.add(&self.total(nested)?);
        }
        Ok(counted)
    }

    /// Returns the number of entries of the whole revision, without its root directory.
    pub fn entries(&self) -> Result<u64, RepositoryError> {
        let total = self.statistics(&*self.root()?)?.total();
        let listed = [total.regular, total.symlink, total.special, total.dir];
        let sum = listed.into_iter().fold(0, u64::saturating_add);
        // The root directory of a nested catalog is in its parent, too.
        Ok(sum.saturating_sub(total.nested).saturating_sub(1))
    }

    /// Returns the counters of a nested catalog and all catalogs below it.
    pub fn total(&self, nested: &NestedCatalog) -> Result<Counters, RepositoryError> {
        let catalog = self.load_nested(nested)?;
        Ok(self.statistics(&catalog)?.total())
    }
}

/// Numbers the groups of hardlinks of a directory from one, in the order of its entries.
pub fn number_groups(entries: &mut [Entry]) {
    let mut numbers: HashMap<u32, u32> = HashMap::new();
    for entry in entries.iter_mut().filter(|entry| entry.hardlink_group != 0) {
        let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX - 1) + 1;
        entry.hardlink_group = *numbers.entry(entry.hardlink_group).or_insert(next);
    }
}

/// Finds entries and caches the listing of the current directory.
#[derive(Default)]
pub struct Listed {
    directory: Option<Vec<u8>>,
    entries: HashMap<Vec<u8>, Entry>,
}

impl Listed {
    /// Returns the published entry of a name in a directory.
    pub fn find(
        &mut self,
        published: &Published,
        directory: &[u8],
        name: &[u8],
    ) -> Result<Option<&Entry>, RepositoryError> {
        if self.directory.as_deref() != Some(directory) {
            let entries = published.list(directory)?;
            self.entries = entries.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
            self.directory = Some(directory.to_vec());
        }
        Ok(self.entries.get(name))
    }
}

/// Returns the content of a small published file that controls publishing, such as `.cvmfsdirtab`.
pub fn read_small_file(sink: &dyn Sink, entry: &Entry, what: &str) -> Result<Vec<u8>, RepositoryError> {
    const LIMIT: u64 = 16 << 20;
    let missing = || RepositoryError::Missing { what: what.to_owned(), object: "as one object".to_owned() };
    let hash = entry.hash.ok_or_else(missing)?;
    let name = ObjectName::new(hash, ObjectKind::File);
    let stored = sink.read(&name.path(), LIMIT)?.ok_or_else(missing)?;
    if ContentHash::of(hash.algorithm(), &stored) != hash {
        return Err(RepositoryError::Corrupt { what: what.to_owned(), object: name.to_string() });
    }
    let compression = entry.flags.compression().ok_or_else(missing)?;
    decompress(&stored, compression, Some(entry.size), LIMIT)
        .map_err(|source| RepositoryError::Compressed { what: what.to_owned(), source })
}
