//! Lists the paths that a publish changes, for dry runs.

use std::collections::BTreeMap;

use esker_format::catalog::EntryKind;
use esker_format::write::catalog::Entry;
use esker_repository::{ChangeKind, RepositoryError, entry, path, published::Published};
use serde::{Serialize, Serializer};

use crate::changes::Changes;

/// A path that a publish changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PathChange {
    /// The path in the repository.
    #[serde(serialize_with = "as_text")]
    pub path: Vec<u8>,
    /// Kind of change.
    pub change: ChangeKind,
    /// Kind of entry: `file`, `directory`, `symlink` or `special`; for a removed path, its old kind.
    pub kind: &'static str,
}

fn as_text<S: Serializer>(path: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(path))
}

/// Lists the changed paths, sorted.
pub(crate) fn list(published: &Published, changes: &Changes) -> Result<Vec<PathChange>, RepositoryError> {
    let mut lister = Lister { published, found: Vec::new() };
    if let Some(root) = &changes.root {
        lister.add(b"", ChangeKind::Changed, root);
    }
    for directory in changes.paths() {
        lister.list_directory(&directory, changes)?;
    }
    lister.found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(lister.found)
}

struct Lister<'r> {
    published: &'r Published,
    found: Vec<PathChange>,
}

impl Lister<'_> {
    fn add(&mut self, path: &[u8], change: ChangeKind, entry: &Entry) {
        if entry::is_profile_bundle(entry) {
            return;
        }
        let kind = match entry.kind() {
            Some(EntryKind::File) => "file",
            Some(EntryKind::Directory) => "directory",
            Some(EntryKind::Symlink) => "symlink",
            _ => "special",
        };
        let path = if path.is_empty() { b"/".to_vec() } else { path.to_vec() };
        self.found.push(PathChange { path, change, kind });
    }

    fn list_directory(&mut self, directory: &[u8], changes: &Changes) -> Result<(), RepositoryError> {
        let Some(change) = changes.get(directory) else { return Ok(()) };
        let mut old: BTreeMap<Vec<u8>, Entry> = BTreeMap::new();
        if self.published.entry(directory)?.is_some_and(|entry| entry.is_directory()) {
            let entries = self.published.list(directory)?;
            old.extend(entries.into_iter().map(|entry| (entry.name.clone(), entry)));
        }
        for (name, new) in &change.entries {
            let path = path::join(directory, name);
            match (old.remove(name), new) {
                (None, Some(new)) => self.add(&path, ChangeKind::Added, new),
                (None, None) => {}
                (Some(old), None) => self.remove(&path, &old)?,
                (Some(old), Some(new)) => {
                    if old.is_directory() && !new.is_directory() {
                        self.remove_below(&path)?;
                    }
                    if !entry::is_same(&old, new) {
                        self.add(&path, ChangeKind::Changed, new);
                    }
                }
            }
        }
        if change.fresh {
            for (name, old) in old {
                self.remove(&path::join(directory, &name), &old)?;
            }
        }
        Ok(())
    }

    fn remove(&mut self, path: &[u8], old: &Entry) -> Result<(), RepositoryError> {
        self.add(path, ChangeKind::Removed, old);
        if old.is_directory() { self.remove_below(path) } else { Ok(()) }
    }

    fn remove_below(&mut self, directory: &[u8]) -> Result<(), RepositoryError> {
        let mut waiting = vec![directory.to_vec()];
        while let Some(directory) = waiting.pop() {
            for entry in self.published.list(&directory)? {
                let path = path::join(&directory, &entry.name);
                self.add(&path, ChangeKind::Removed, &entry);
                if entry.is_directory() {
                    waiting.push(path);
                }
            }
        }
        Ok(())
    }
}
