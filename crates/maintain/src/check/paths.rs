//! Names the paths and revisions that objects with a fault belong to.

use std::collections::BTreeMap;

use esker_format::catalog::Catalog;
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_repository::{DATABASE_MAX, RepositoryError, parallel, signed::read_object};
use esker_store::StoredFiles;

use super::catalogs::{Catalogs, objects_of};
use super::finding::{Finding, FindingKind, Findings};
use super::options::Check;
use super::storage::BadObjects;
use crate::hash_lists::{HashLists, Record};

/// Paths that are named for one object.
const PATHS_MAX: usize = 20;

/// Adds a finding for each object and path, and the revisions of all findings.
pub(super) fn name(
    check: &Check<'_>,
    files: &dyn StoredFiles,
    lists: &HashLists<'_>,
    catalogs: &Catalogs,
    bad: &BadObjects,
    findings: &mut Findings,
) -> Result<(), RepositoryError> {
    let known: Vec<&ContentHash> = catalogs.known.keys().filter(|_| !bad.is_empty()).collect();
    let found = parallel::map(check.threads, &check.stop, &known, |hash| {
        Ok(paths_in(check, files, lists, hash, bad))
    })?;
    let mut paths: BTreeMap<Record, BTreeMap<Vec<u8>, Vec<ContentHash>>> = BTreeMap::new();
    for (hash, found) in known.iter().zip(found) {
        for (record, path) in found {
            let of_object = paths.entry(record).or_default();
            if of_object.len() < PATHS_MAX || of_object.contains_key(&path) {
                of_object.entry(path).or_default().push(**hash);
            }
        }
    }
    for (record, (kind, detail)) in bad {
        let Some(name) = record.name() else { continue };
        let is_reported = findings.list.iter().any(|finding| finding.name == Some(name));
        if let Some(of_object) = paths.remove(record) {
            for (path, named_by) in of_object {
                let mut finding = Finding::new(*kind, detail.clone()).object(name).path(&path);
                finding.catalogs = named_by;
                findings.add(finding);
            }
        } else if !is_reported && !catalogs.known.contains_key(&name.hash) {
            let detail = format!("{detail}; no checked revision names the object");
            findings.add(Finding::new(FindingKind::UnusedDamaged, detail).object(name));
        }
    }
    for finding in findings.list.iter_mut().filter(|finding| !finding.catalogs.is_empty()) {
        finding.revisions = catalogs.revisions(&finding.catalogs);
    }
    Ok(())
}

/// Returns the paths of a catalog that name one of the objects.
fn paths_in(
    check: &Check<'_>,
    files: &dyn StoredFiles,
    lists: &HashLists<'_>,
    hash: &ContentHash,
    bad: &BadObjects,
) -> Vec<(Record, Vec<u8>)> {
    let is_concerned = match lists.get(hash) {
        Ok(Some(list)) => list.objects.iter().any(|record| bad.contains_key(record)),
        _ => true,
    };
    let mut found = Vec::new();
    if !is_concerned {
        return found;
    }
    let name = ObjectName::new(*hash, ObjectKind::Catalog);
    let read = read_object(files, &name, None, DATABASE_MAX, "the catalog").ok();
    let Some(catalog) = read.and_then(|bytes| Catalog::open(bytes).ok()) else { return found };
    for row in catalog.scan().into_iter().flatten().filter_map(Result::ok) {
        let records = objects_of(&catalog, &row).into_iter().map(|object| Record::of(&object));
        for record in records.filter(|record| bad.contains_key(record)) {
            if let Ok(Some(path)) = catalog.path_of(&row)
                && check.is_within(&path)
            {
                found.push((record, path));
            }
        }
    }
    found
}
