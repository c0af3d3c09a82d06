//! One catalog: all its rows, from its root down.

use std::collections::{BTreeMap, HashSet};

use esker_format::catalog::{
    Catalog, CatalogError, Counters, EntryKind, Flags, NestedCatalog, PathKey, Row, Schema, Statistics,
    XattrList,
};
use esker_format::hash::ContentHash;
use esker_repository::path;
use esker_store::LargeBytes;

use super::finding::{Finding, FindingKind};
use super::{counters, entries};

const MARKER: &[u8] = b".cvmfscatalog";

/// Facts about a catalog that the checks of its parent and children use.
#[derive(Debug)]
pub(super) struct CatalogFacts {
    pub(super) prefix: Vec<u8>,
    pub(super) revision: u64,
    pub(super) schema: Schema,
    pub(super) size: u64,
    pub(super) root: Option<EntryFacts>,
    pub(super) own: Counters,
    pub(super) stored: Statistics,
    pub(super) nested: Vec<Edge>,
    pub(super) entries: u64,
    pub(super) not_understood: NotUnderstood,
}

/// A nested catalog as its parent describes it.
#[derive(Debug)]
pub(super) struct Edge {
    pub(super) path: Vec<u8>,
    pub(super) hash: ContentHash,
    pub(super) size: Option<u64>,
    pub(super) transition: Option<EntryFacts>,
}

/// The columns of a directory that its two catalogs have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EntryFacts {
    name: Vec<u8>,
    parent: PathKey,
    hardlinks: u64,
    size: u64,
    mode: u32,
    mtime: (i64, Option<u32>),
    owner: (Option<u32>, Option<u32>),
    hash: Option<ContentHash>,
    symlink: Vec<u8>,
    flags: u64,
    xattrs: Option<Vec<u8>>,
}

/// Parts of a catalog that are no faults, but that this version doesn't understand.
#[derive(Debug, Default)]
pub(super) struct NotUnderstood {
    /// Number of lists of extended attributes that can't be decoded, and the first path with one.
    pub(super) xattrs: Option<(u64, Vec<u8>)>,
    /// Tables, columns, properties and counters.
    pub(super) parts: Vec<String>,
}

impl EntryFacts {
    fn of(row: &Row<'_>) -> Self {
        Self {
            name: row.name().to_vec(),
            parent: row.parent(),
            hardlinks: row.stored_hardlinks(),
            size: row.size(),
            mode: row.mode(),
            mtime: (row.mtime(), row.mtime_ns()),
            owner: (row.uid(), row.gid()),
            hash: row.hash(),
            symlink: row.symlink().to_vec(),
            flags: row.flags().0 & (Flags::EXTERNAL | Flags::HIDDEN),
            xattrs: row.stored_xattrs().map(<[u8]>::to_vec),
        }
    }

    /// Names the columns in which two entries differ.
    pub(super) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let columns = [
            ("name", self.name != other.name),
            ("parent", self.parent != other.parent),
            ("link count", self.hardlinks != other.hardlinks),
            ("size", self.size != other.size),
            ("mode", self.mode != other.mode),
            ("modification time", self.mtime != other.mtime),
            ("owner", self.owner != other.owner),
            ("hash", self.hash != other.hash),
            ("target", self.symlink != other.symlink),
            ("flags", self.flags != other.flags),
            ("extended attributes", !XattrList::shows_same(self.xattrs.as_deref(), other.xattrs.as_deref())),
        ];
        columns.into_iter().filter(|(_, differs)| *differs).map(|(name, _)| name).collect()
    }
}

/// Checks one catalog.
pub(super) struct CatalogCheck<'c> {
    catalog: &'c Catalog<LargeBytes>,
    hash: ContentHash,
    /// The directory that it is mounted at.
    mountpoint: &'c [u8],
    nested: BTreeMap<Vec<u8>, NestedCatalog>,
    /// Nested catalogs whose mountpoint was found.
    mounted: HashSet<Vec<u8>>,
    transitions: BTreeMap<Vec<u8>, EntryFacts>,
    own: Counters,
    reached: u64,
    not_understood: NotUnderstood,
    pub(super) findings: Vec<Finding>,
}

impl<'c> CatalogCheck<'c> {
    /// Starts the check of a catalog that is mounted at a directory.
    pub(super) fn new(catalog: &'c Catalog<LargeBytes>, hash: ContentHash, mountpoint: &'c [u8]) -> Self {
        Self {
            catalog,
            hash,
            mountpoint,
            nested: BTreeMap::new(),
            mounted: HashSet::new(),
            transitions: BTreeMap::new(),
            own: Counters::default(),
            reached: 0,
            not_understood: NotUnderstood::default(),
            findings: Vec::new(),
        }
    }

    fn fault(&mut self, kind: FindingKind, at: &[u8], detail: String) {
        self.findings.push(Finding::new(kind, detail).path(at).catalog(self.hash));
    }

    /// Checks everything that concerns this catalog alone.
    pub(super) fn run(mut self) -> (CatalogFacts, Vec<Finding>) {
        let properties = self.catalog.properties();
        let prefix = properties.root_prefix.clone();
        self.list_nested();
        let rows = self.scan();
        let root = self.walk(&prefix);
        if rows != self.reached {
            let detail = format!("{} of {rows} rows can be reached from its root", self.reached);
            self.fault(FindingKind::RowsUnreachable, &prefix, detail);
        }
        self.dangling();
        let stored = self.counters(&prefix);
        self.unknown_parts();
        let edges = self.edges();
        let facts = CatalogFacts {
            revision: properties.revision,
            schema: properties.schema,
            size: self.catalog.size(),
            prefix,
            root,
            own: self.own,
            stored,
            nested: edges,
            entries: rows,
            not_understood: self.not_understood,
        };
        (facts, self.findings)
    }

    fn list_nested(&mut self) {
        let listed = match self.catalog.nested() {
            Ok(listed) => listed,
            Err(error) => return self.database(&error),
        };
        for nested in listed {
            if !nested.bind && nested.hash.is_none() {
                self.fault(FindingKind::NestedHash, &nested.path, "its catalog has no hash".to_owned());
            }
            self.own.nested += u64::from(!nested.bind);
            if let Some(other) = self.nested.insert(nested.path.clone(), nested) {
                self.fault(
                    FindingKind::NestedTwice,
                    &other.path,
                    "it is listed as a mountpoint twice".to_owned(),
                );
            }
        }
    }

    fn database(&mut self, error: &CatalogError) {
        self.fault(FindingKind::CatalogUnreadable, self.mountpoint, error.to_string());
    }

    /// Counts the rows, and reports those that can't be read.
    fn scan(&mut self) -> u64 {
        let mut rows = 0;
        match self.catalog.scan() {
            Ok(scan) => {
                for row in scan {
                    rows += 1;
                    if let Err(error) = row {
                        self.fault(FindingKind::RowUnreadable, self.mountpoint, error.to_string());
                    }
                }
            }
            Err(error) => self.database(&error),
        }
        rows
    }

    /// Walks from the root down, and returns the facts of the root.
    fn walk(&mut self, prefix: &[u8]) -> Option<EntryFacts> {
        let catalog = self.catalog;
        let root = match catalog.find(PathKey::of(prefix)) {
            Ok(Some(root)) => root,
            Ok(None) => {
                self.fault(FindingKind::RootMissing, prefix, "the catalog has no entry for it".to_owned());
                return None;
            }
            Err(error) => {
                self.fault(FindingKind::IndexDamaged, prefix, error.to_string());
                return None;
            }
        };
        self.check_root(prefix, &root);
        let facts = EntryFacts::of(&root);
        let mut waiting = vec![(prefix.to_vec(), root)];
        // In a damaged table two directories may have one key.
        let mut visited = HashSet::new();
        while let Some((directory, row)) = waiting.pop() {
            if !visited.insert(row.key()) {
                continue;
            }
            self.reached += 1;
            self.entry(&directory, &row);
            let children = self.children(&directory, &row);
            self.directory(&directory, &row, &children);
            for child in children {
                let path = path::join(&directory, child.name());
                if child.kind() == EntryKind::Directory && !self.is_mountpoint(&path, &child) {
                    waiting.push((path, child));
                } else {
                    self.reached += 1;
                    self.entry(&path, &child);
                }
            }
        }
        Some(facts)
    }

    fn check_root(&mut self, prefix: &[u8], root: &Row<'_>) {
        let is_root = prefix.is_empty();
        if root.kind() != EntryKind::Directory {
            self.fault(FindingKind::RootKind, prefix, format!("it has the mode {:o}", root.mode()));
        }
        if root.flags().has(Flags::NESTED_ROOT) == is_root || root.flags().has(Flags::NESTED_MOUNTPOINT) {
            self.fault(FindingKind::RootFlags, prefix, format!("its flags are {:#x}", root.flags().0));
        }
        if is_root && (!root.name().is_empty() || root.parent() != PathKey::NONE) {
            self.fault(FindingKind::RootFlags, prefix, "it has a name or a parent".to_owned());
        }
    }

    fn children(&mut self, directory: &[u8], row: &Row<'_>) -> Vec<Row<'c>> {
        let mut children = Vec::new();
        match self.catalog.children(row.key()) {
            Ok(rows) => {
                for child in rows {
                    match child {
                        Ok(child) => children.push(child),
                        Err(CatalogError::Row { what, .. }) if what.contains("has no name") => {
                            self.fault(FindingKind::NameEmpty, directory, "an entry has no name".to_owned());
                        }
                        // A row that can't be read is reported by the scan.
                        Err(CatalogError::Row { what, rowid }) if what.contains("index") => {
                            let detail = format!("row {rowid}: {what}");
                            self.fault(FindingKind::IndexDamaged, directory, detail);
                        }
                        Err(CatalogError::Row { .. }) => self.reached += 1,
                        Err(error) => self.fault(FindingKind::IndexDamaged, directory, error.to_string()),
                    }
                }
            }
            Err(error) => self.fault(FindingKind::IndexDamaged, directory, error.to_string()),
        }
        children
    }

    /// Checks a directory together with its entries.
    fn directory(&mut self, directory: &[u8], row: &Row<'_>, children: &[Row<'_>]) {
        let mut names = HashSet::new();
        let mut subdirectories = 0;
        for child in children {
            let at = path::join(directory, child.name());
            if !names.insert(child.name()) {
                self.fault(
                    FindingKind::NameTwice,
                    &at,
                    "the directory has two entries of this name".to_owned(),
                );
            }
            if child.key() != PathKey::of(&at) {
                self.fault(FindingKind::Key, &at, "it has the key of another path".to_owned());
            }
            subdirectories += u64::from(child.kind() == EntryKind::Directory);
        }
        if u64::from(row.link_count()) != subdirectories + 2 && row.stored_hardlinks() != 0 {
            let detail = format!("its link count is {}, not {}", row.link_count(), subdirectories + 2);
            self.fault(FindingKind::DirectoryLinks, directory, detail);
        }
        let is_top = directory == self.catalog.properties().root_prefix;
        let has_marker = names.contains(MARKER);
        // Older catalogs don't list markers.
        let lists_markers = self.catalog.schema().version > 2.05;
        if is_top && !directory.is_empty() && !has_marker && lists_markers {
            let detail = "the root of a nested catalog has no .cvmfscatalog".to_owned();
            self.fault(FindingKind::MarkerMissing, directory, detail);
        }
        if has_marker && !is_top {
            let detail = "it has a .cvmfscatalog, but is not the root of a catalog".to_owned();
            self.fault(FindingKind::MarkerAbandoned, directory, detail);
        }
        let mut found = Vec::new();
        entries::check_groups(children, |child, kind, detail| {
            found.push((kind, path::join(directory, child.name()), detail));
        });
        for (kind, at, detail) in found {
            self.fault(kind, &at, detail);
        }
    }

    /// Checks one entry, and counts it.
    fn entry(&mut self, at: &[u8], row: &Row<'_>) {
        if row.stored_xattrs().is_some_and(|blob| !blob.is_empty() && XattrList::parse(blob).is_err()) {
            self.not_understood.xattrs.get_or_insert((0, at.to_vec())).0 += 1;
        }
        let mut found = Vec::new();
        let revision = self.catalog.schema().revision;
        entries::check(row, revision, &mut |kind, detail| found.push((kind, detail)));
        if row.kind() == EntryKind::Directory && row.hardlink_group() != 0 {
            found.push((FindingKind::DirectoryGroup, "it is in a group of hard links".to_owned()));
        }
        let mut chunks = 0;
        if row.flags().has(Flags::CHUNKED) && row.kind() == EntryKind::File {
            match self.catalog.chunks(row) {
                Ok(read) if read.is_empty() => {
                    found.push((FindingKind::Chunks, "it is stored in chunks and has none".to_owned()));
                }
                Ok(read) => chunks = read.len() as u64,
                Err(CatalogError::Row { what, .. }) => found.push((FindingKind::Chunks, what.to_owned())),
                Err(error) => found.push((FindingKind::Chunks, error.to_string())),
            }
        }
        for (kind, detail) in found {
            self.fault(kind, at, detail);
        }
        counters::count(&mut self.own, row, chunks);
    }

    /// Returns true for the root of another catalog, and checks that this one lists it.
    fn is_mountpoint(&mut self, at: &[u8], row: &Row<'_>) -> bool {
        let flags = row.flags();
        let (is_nested, is_bind) = (flags.has(Flags::NESTED_MOUNTPOINT), flags.has(Flags::BIND_MOUNTPOINT));
        if !is_nested && !is_bind {
            return false;
        }
        match self.nested.get(at).map(|nested| nested.bind) {
            Some(bind) if bind == is_bind => {}
            Some(_) => {
                let detail = "it is listed as another kind of mountpoint".to_owned();
                self.fault(FindingKind::NestedTwice, at, detail);
            }
            None => {
                let kind = if is_bind { FindingKind::Bind } else { FindingKind::NestedUnlisted };
                self.fault(kind, at, "it is a mountpoint, but no catalog is listed for it".to_owned());
            }
        }
        self.mounted.insert(at.to_vec());
        self.transitions.insert(at.to_vec(), EntryFacts::of(row));
        if self.catalog.children(row.key()).is_ok_and(|mut children| children.next().is_some()) {
            let detail = "it is the mountpoint of a catalog, and has entries in the parent's".to_owned();
            self.fault(FindingKind::NestedChildren, at, detail);
        }
        true
    }

    /// Reports listed catalogs without a mountpoint.
    fn dangling(&mut self) {
        let dangling: Vec<(Vec<u8>, bool)> = self
            .nested
            .values()
            .filter(|nested| !self.mounted.contains(&nested.path))
            .map(|nested| (nested.path.clone(), nested.bind))
            .collect();
        for (at, bind) in dangling {
            let kind = if bind { FindingKind::Bind } else { FindingKind::NestedDangling };
            self.fault(kind, &at, "a catalog is listed for it, but it is no mountpoint".to_owned());
        }
        match self.catalog.count_chunks() {
            Ok(chunks) if chunks > self.own.chunks => {
                let detail = format!("{} of {chunks} chunks belong to no file", chunks - self.own.chunks);
                self.fault(FindingKind::ChunksUnowned, self.mountpoint, detail);
            }
            Ok(_) => {}
            Err(error) => self.database(&error),
        }
    }

    fn counters(&mut self, prefix: &[u8]) -> Statistics {
        let stored = match self.catalog.statistics() {
            Ok(stored) => stored,
            Err(error) => {
                self.database(&error);
                return Statistics::default();
            }
        };
        let faulty = self.catalog.faulty_counters().unwrap_or_default();
        for (name, value) in &faulty {
            let kind = match name.strip_prefix("self_") {
                Some(_) => FindingKind::CountersOwn,
                None => FindingKind::CountersSubtree,
            };
            self.fault(kind, prefix, format!("counter {name} is {value}"));
        }
        let schema = self.catalog.schema();
        if schema.version > 2.05 && !stored.faulty {
            for detail in counters::differences(&stored.own, &self.own, schema.revision) {
                self.fault(FindingKind::CountersOwn, prefix, format!("counter self_{detail}"));
            }
        }
        stored
    }

    fn unknown_parts(&mut self) {
        match self.catalog.unknown_parts() {
            Ok(unknown) => {
                let pairs: Vec<String> = unknown.pairs_of_its_own().collect();
                self.not_understood.parts = unknown.parts.into_iter().chain(pairs).collect();
            }
            Err(error) => self.database(&error),
        }
    }

    fn edges(&mut self) -> Vec<Edge> {
        let nested = std::mem::take(&mut self.nested).into_values().filter(|nested| !nested.bind);
        let mut transitions = std::mem::take(&mut self.transitions);
        nested
            .filter_map(|nested| {
                let transition = transitions.remove(&nested.path);
                Some(Edge { hash: nested.hash?, size: nested.size, transition, path: nested.path })
            })
            .collect()
    }
}
