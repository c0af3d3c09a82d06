//! Writes one catalog.

use std::collections::{BTreeMap, HashMap};

use esker_format::catalog::{Counters, Flags, NestedCatalog, PathKey};
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::write::catalog::{CatalogHeader, CatalogWriter, Entry};
use esker_repository::{Encoder, RepositoryError, path, published::OldCatalog};

use super::{Built, CatalogBuilder};
use crate::error::PublishError;

/// State of one thread that writes catalogs.
pub(super) struct Writer<'b, 'r> {
    builder: &'b CatalogBuilder<'r>,
    encoder: Encoder,
    room: Vec<u8>,
}

/// Entries, statistics and nested catalogs collected in a walk over a catalog.
#[derive(Default)]
struct Walk {
    rows: Vec<(PathKey, PathKey, Entry)>,
    nested: BTreeMap<Vec<u8>, NestedCatalog>,
    groups: u32,
}

impl<'b, 'r> Writer<'b, 'r> {
    pub(super) fn new(builder: &'b CatalogBuilder<'r>) -> Self {
        Self { builder, encoder: Encoder::for_metadata(), room: Vec::new() }
    }

    pub(super) fn write(&mut self, mountpoint: &[u8]) -> Result<Built, PublishError> {
        let builder = self.builder;
        let old = builder.tree.published.at(mountpoint)?;
        let walk = self.walk(mountpoint)?;
        let subtree = self.subtree(old.as_deref(), &walk.nested)?;
        let header = self.header(mountpoint, old.as_deref())?;
        let mut writer = CatalogWriter::new();
        for (key, parent, entry) in walk.rows {
            // A row that readers refuse would cost everything in the catalog, and every revision after this one.
            entry.check().map_err(|reason| PublishError::Row {
                catalog: path::shown(mountpoint),
                name: path::shown(&entry.name),
                reason,
            })?;
            writer.push(key, parent, entry);
        }
        for nested in walk.nested.into_values() {
            writer.push_nested(nested);
        }
        let written = writer.finish(&header, subtree);
        let stored = self.encoder.encode(&written.bytes, &mut self.room)?;
        let hash = ContentHash::of(builder.algorithm, stored);
        builder.sink.put(&ObjectName::new(hash, ObjectKind::Catalog), stored)?;
        Ok(Built {
            hash,
            size: written.bytes.len() as u64,
            total: written.statistics.total(),
            stored_bytes: stored.len() as u64,
        })
    }

    /// Collects the entries directory by directory, so that the rows of a directory are adjacent.
    fn walk(&self, mountpoint: &[u8]) -> Result<Walk, PublishError> {
        let tree = self.builder.tree;
        let missing = || RepositoryError::Missing {
            what: format!("directory {}", path::shown(mountpoint)),
            object: "its entry".to_owned(),
        };
        let mut top = tree.entry(mountpoint)?.ok_or_else(missing)?;
        top.flags = Flags(top.flags.0 & !(Flags::NESTED_MOUNTPOINT | Flags::NESTED_ROOT));
        let parent = match path::split(mountpoint) {
            Some((parent, _)) => {
                top.flags.0 |= Flags::NESTED_ROOT;
                PathKey::of(parent)
            }
            None => PathKey::NONE,
        };
        let mut walk = Walk::default();
        walk.rows.push((PathKey::of(mountpoint), parent, top));
        // Directories to list, with their rows, the last one first.
        let mut waiting = vec![(mountpoint.to_vec(), 0)];
        while let Some((directory, row)) = waiting.pop() {
            let first = waiting.len();
            self.list(&directory, row, &mut walk, &mut waiting)?;
            waiting[first..].reverse();
        }
        Ok(walk)
    }

    fn list(
        &self,
        directory: &[u8],
        row: usize,
        walk: &mut Walk,
        waiting: &mut Vec<(Vec<u8>, usize)>,
    ) -> Result<(), PublishError> {
        let tree = self.builder.tree;
        let parent = PathKey::of(directory);
        let entries = tree.list(directory)?;
        walk.rows[row].2.link_count = link_count(&entries);
        let mut groups: HashMap<u32, u32> = HashMap::new();
        for mut entry in entries {
            let path = path::join(directory, &entry.name);
            if entry.hardlink_group != 0 {
                let next = walk.groups + 1;
                let group = *groups.entry(entry.hardlink_group).or_insert(next);
                walk.groups = walk.groups.max(group);
                entry.hardlink_group = group;
            }
            if entry.is_directory() && !entry.flags.has(Flags::BIND_MOUNTPOINT) {
                let is_mountpoint = tree.is_mountpoint(&path, &entry)?;
                entry.flags = Flags(entry.flags.0 & !(Flags::NESTED_MOUNTPOINT | Flags::NESTED_ROOT));
                if is_mountpoint {
                    entry.flags.0 |= Flags::NESTED_MOUNTPOINT;
                    if tree.changes.get(&path).is_some() {
                        entry.link_count = link_count(&tree.list(&path)?);
                    }
                    walk.nested.insert(path.clone(), self.nested(&path)?);
                } else {
                    waiting.push((path.clone(), walk.rows.len()));
                }
            } else if entry.is_directory() {
                let bind = match tree.changes.bound(&path) {
                    Some(bound) => Some(bound.clone()),
                    None => tree.published.nested_at(&path)?,
                };
                walk.nested.extend(bind.map(|bind| (path.clone(), bind)));
            }
            walk.rows.push((PathKey::of(&path), parent, entry));
        }
        Ok(())
    }

    /// Returns the row of a nested catalog for its parent: the catalog just written, or the unchanged one.
    fn nested(&self, path: &[u8]) -> Result<NestedCatalog, PublishError> {
        if let Some(built) = self.builder.built.lock().get(path) {
            return Ok(built.nested(path));
        }
        let what = || format!("the catalog of {}", path::shown(path));
        let published = self.builder.tree.published.nested_at(path)?;
        let missing = || RepositoryError::Missing { what: what(), object: "its hash".to_owned() };
        Ok(published.ok_or_else(missing)?)
    }

    /// Returns the counters of the nested catalogs: the old ones plus the changes of this revision, so that unchanged
    /// catalogs are not read.
    fn subtree(
        &self,
        old: Option<&OldCatalog>,
        nested: &BTreeMap<Vec<u8>, NestedCatalog>,
    ) -> Result<Counters, PublishError> {
        let published = self.builder.tree.published;
        let mut subtree = Counters::default();
        let mut counted = BTreeMap::new();
        if let Some(old) = old.filter(|_| !self.builder.recount) {
            subtree = published.statistics(old)?.subtree;
            counted.extend(old.nested.iter().filter(|(_, nested)| !nested.bind && nested.hash.is_some()));
        }
        let mut added = Counters::default();
        for (path, nested) in nested.iter().filter(|(_, nested)| !nested.bind) {
            let before = counted.get(path);
            let built = self.builder.built.lock().get(path).map(|built| built.total);
            match built {
                Some(total) => added.add(&total),
                None if before.is_some_and(|before| before.hash == nested.hash) => {
                    counted.remove(path);
                }
                None => added.add(&published.total(nested)?),
            }
        }
        for before in counted.into_values() {
            subtree.subtract(&published.total(before)?);
        }
        subtree.add(&added);
        Ok(subtree)
    }

    fn header(&self, mountpoint: &[u8], old: Option<&OldCatalog>) -> Result<CatalogHeader, PublishError> {
        let builder = self.builder;
        let properties = old.map(|old| old.catalog.properties());
        let is_root = mountpoint.is_empty();
        let before = properties.map_or(0, |properties| properties.revision);
        let carried = old.map(OldCatalog::carried).transpose()?.unwrap_or_default();
        Ok(CatalogHeader {
            revision: if is_root { builder.revision } else { before.saturating_add(1) },
            last_modified: builder.now,
            previous: builder.replaces.filter(|_| is_root).or(old.map(|old| old.hash)),
            root_prefix: mountpoint.to_vec(),
            ttl: is_root.then_some(builder.ttl),
            volatile: properties.is_some_and(|properties| properties.volatile),
            authorization: properties.and_then(|properties| properties.authorization.clone()),
            branch: properties.and_then(|properties| properties.branch.clone()),
            carried_properties: carried.properties,
            carried_counters: carried.counters,
        })
    }
}

fn link_count(entries: &[Entry]) -> u32 {
    let directories = entries.iter().filter(|entry| entry.is_directory()).count();
    u32::try_from(directories).unwrap_or(u32::MAX - 2) + 2
}
