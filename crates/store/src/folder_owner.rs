//! Tells folders that Esker keeps from folders of others, before anything is made or removed in one.
//!
//! A cache or storage removes files: unfinished ones at its start, old ones later. In a folder of something else these would be
//! files that it needs (a bare git repository has `objects/`, too). So a folder is taken if it is empty, has an entry that marks
//! it as ours, or has nothing but entries that ours may have before they are marked.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::Path;

use crate::cache::disk::TEMPORARY_PREFIX;
use crate::cache::{Layout, is_draft};

/// Returns an entry that shows that a folder belongs to something else; `None` for one of ours, an empty one, and one that does
/// not exist. `is_mark` and `is_harmless` are called with the path of each entry.
pub fn foreign_entry(
    folder: &Path,
    is_mark: impl Fn(&Path) -> bool,
    is_harmless: impl Fn(&Path) -> bool,
) -> io::Result<Option<OsString>> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut foreign: Option<OsString> = None;
    for entry in entries {
        let path = entry?.path();
        if is_mark(&path) {
            return Ok(None);
        }
        let name = path.file_name().unwrap_or_default();
        // The first by name, so that messages don't depend on the file system.
        if !is_harmless(&path) && foreign.as_deref().is_none_or(|first| name < first) {
            foreign = Some(name.to_owned());
        }
    }
    Ok(foreign)
}

/// A kind of cache, whose one writer locks its folder. The lock is what marks the folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheKind {
    /// The cache of mounts, and of parts of images.
    Mounts,
    /// The cache of a proxy, or of a server in front of object storage.
    Proxy,
}

impl CacheKind {
    /// Returns a folder that only the other kind has, whose objects have other names.
    fn others(self) -> &'static str {
        match self {
            Self::Mounts => "tmp",
            Self::Proxy => "txn",
        }
    }

    /// True for an entry that a folder of this kind may have without its mark, which it may have lost: what a mount keeps there whose
    /// objects are a broker's, the record of `esker setup`, unfinished files, and objects with names that no other program gives.
    fn is_unmarked(self, path: &Path) -> bool {
        let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
        match (self, name) {
            (_, "lost+found") => true,
            (Self::Mounts, "heads" | "trails" | "setup.json" | "index" | "pins" | "broker") => true,
            (Self::Mounts, "objects") => is_dir_of(path, &|folder| {
                let name = folder.file_name().and_then(OsStr::to_str).unwrap_or_default();
                name.len() == 2 && is_dir_of(folder, &|file| is_object(name, file))
            }),
            (Self::Mounts, "txn") => is_dir_of(path, &|draft| draft.file_name().is_some_and(is_draft)),
            (Self::Mounts, name) if name.starts_with(TEMPORARY_PREFIX) || name.starts_with("broker.") => true,
            // Names of a proxy's objects are those of git's.
            _ => is_dir_of(path, &|_| false),
        }
    }

    /// Returns an entry that shows that a folder is no cache of this kind, as [`foreign_entry`] does.
    pub fn foreign_entry(self, folder: &Path) -> io::Result<Option<OsString>> {
        let is = |path: &Path, name: &str| path.file_name() == Some(OsStr::new(name));
        let is_other = folder.join(self.others()).is_dir();
        let is_mark = |path: &Path| {
            let is_lock = is(path, "lock") && is_file(path);
            !is_other && (is_lock || is(path, "images") && is_file(&path.join("lock")))
        };
        let is_harmless = |path: &Path| !is_other && self.is_unmarked(path);
        foreign_entry(folder, is_mark, is_harmless)
    }
}

fn is_file(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|facts| facts.is_file())
}

/// True for a folder whose entries all are `right`, as those of an empty one are.
fn is_dir_of(path: &Path, right: &dyn Fn(&Path) -> bool) -> bool {
    let is_right = |entry: io::Result<fs::DirEntry>| entry.is_ok_and(|entry| right(&entry.path()));
    !path.is_symlink() && fs::read_dir(path).is_ok_and(|mut entries| entries.all(is_right))
}

fn is_object(folder: &str, file: &Path) -> bool {
    file.file_name().and_then(OsStr::to_str).is_some_and(|name| Layout::key(folder, name).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(entries: &[&str]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        for entry in entries {
            let path = folder.path().join(entry);
            if entry.ends_with('/') {
                fs::create_dir_all(path).unwrap();
            } else {
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, "x").unwrap();
            }
        }
        folder
    }

    #[test]
    fn caches_are_told_from_folders_of_others() {
        let found = |entries: &[&str]| {
            let folder = folder(entries);
            CacheKind::Mounts.foreign_entry(folder.path()).unwrap()
        };
        for ours in [
            &[][..],
            // Made by an older program, with anything beside it.
            &["lock", "objects/ab/cd.z", "txn/", "index", "notes.txt"],
            // Ended while it was made, used through a broker, and a disk of its own.
            &["objects/", "txn/", "heads/"],
            // Its lock was lost, with the power or by a copy.
            &["objects/ab/0123456789abcdef0123456789abcdef012345.z", "txn/17", "index", ".new-1-2-index"],
            &["heads/a.head", "trails/b"],
            &["lost+found/"],
            &["images/lock", "images/ab/1"],
        ] {
            assert_eq!(found(ours), None, "{ours:?}");
        }
        for (theirs, entry) in [
            (&["objects/ab/cdef", "refs/heads/main", "HEAD"][..], "HEAD"),
            (&["objects/important"], "objects"),
            (&["objects/ab/0123456789abcdef0123456789abcdef012345"], "objects"),
            (&["txn/thesis"], "txn"),
            (&["images/holiday.jpg"], "images"),
            (&["letter.txt"], "letter.txt"),
            (&["lock/", "objects/ab/cd"], "objects"),
            // A proxy's cache.
            (&["lock", "objects/ab/cd", "tmp/"], "lock"),
        ] {
            assert_eq!(found(theirs).as_deref(), Some(OsStr::new(entry)), "{theirs:?}");
        }
        assert_eq!(CacheKind::Mounts.foreign_entry(Path::new("/no/such/folder")).unwrap(), None);
        let of_proxy = |entries: &[&str]| CacheKind::Proxy.foreign_entry(folder(entries).path()).unwrap();
        assert_eq!(of_proxy(&["lock", "objects/ab/cd", "tmp/"]), None);
        assert_eq!(of_proxy(&["lock", "objects/ab/cd.z", "txn/"]).as_deref(), Some(OsStr::new("lock")));
    }
}
