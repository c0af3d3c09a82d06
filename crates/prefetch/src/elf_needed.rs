//! Finds the libraries that a library needs: their names in the dynamic section, and the loader's search path.

use std::ops::Range;

use esker_format::elf::{self, Dynamic, Layout};
use esker_format::name::RepositoryName;
use esker_format::path::{join, split};

/// Maximum number of names, and of folders, taken from one file.
const NAMES_MAX: usize = 256;
/// Prefix of paths to repositories in files of a repository: the folder in which repositories are mounted.
const MOUNTED_BELOW: &[u8] = b"/cvmfs/";
/// Placeholders for the folder of the file that names a path.
const ORIGINS: [&[u8]; 2] = [b"$ORIGIN", b"${ORIGIN}"];

/// Libraries that a file needs, and the folders in which the loader looks for them, in order.
#[derive(Debug, Default)]
pub struct NeededLibraries {
    /// Names of the libraries.
    pub libraries: Vec<Box<[u8]>>,
    folders: Vec<Box<[u8]>>,
}

/// Reads the names from a file, whose chunks arrive one after the other.
pub(crate) struct NeededNames {
    libraries: Vec<Range<u64>>,
    folders: Vec<Range<u64>>,
    /// The names read so far.
    pub found: NeededLibraries,
}

impl NeededNames {
    /// Returns the names of a file; `None` if it needs no library.
    pub(crate) fn of(layout: &Layout, dynamic: &Dynamic) -> Option<Self> {
        let (mut libraries, mut folders) = (layout.needed(dynamic), layout.searched(dynamic));
        libraries.truncate(NAMES_MAX);
        folders.truncate(1);
        (!libraries.is_empty()).then(|| Self { libraries, folders, found: NeededLibraries::default() })
    }

    /// Returns the range of the next name to read.
    pub(crate) fn next(&self) -> Option<&Range<u64>> {
        self.folders.iter().chain(&self.libraries).next()
    }

    /// Reads the names that begin in an available range. A name that does not end there is dropped.
    pub(crate) fn take(
        &mut self,
        is_here: impl Fn(&Range<u64>) -> bool,
        read: impl Fn(&Range<u64>) -> Vec<u8>,
    ) {
        let texts = |from: &mut Vec<Range<u64>>| {
            let here = from.extract_if(.., |part| is_here(part));
            here.filter_map(|part| elf::text(&read(&part)).map(Box::from)).collect::<Vec<Box<[u8]>>>()
        };
        let folders = texts(&mut self.folders);
        let libraries = texts(&mut self.libraries);
        let lists = folders.iter().flat_map(|list| list.split(|byte| *byte == b':'));
        self.found.folders.extend(lists.take(NAMES_MAX).map(Box::from));
        self.found.libraries.extend(libraries);
    }
}

/// Search for the libraries that a file needs.
pub struct NeededSearch {
    /// The path of the file.
    pub path: Box<[u8]>,
    /// The libraries that it needs.
    pub needs: NeededLibraries,
    /// Number of retries so far because catalogs were missing.
    pub tries: u32,
}

impl NeededSearch {
    /// Returns the folders that the file names and that are in the repository, and the file's own folder.
    ///
    /// Its own folder often has libraries that the search path of another file leads to.
    pub fn folders(&self, repository: &RepositoryName) -> Vec<Vec<u8>> {
        let Some((own, _)) = split(&self.path) else { return Vec::new() };
        let meant = |folder: &[u8]| match ORIGINS.iter().find_map(|origin| folder.strip_prefix(*origin)) {
            Some(below) => within(repository, own, below.strip_prefix(b"/").unwrap_or(below)),
            None if folder.starts_with(b"/") => within(repository, own, folder),
            // A relative path depends on the working directory of the program.
            None => None,
        };
        let mut folders: Vec<_> = self.needs.folders.iter().filter_map(|folder| meant(folder)).collect();
        if !folders.iter().any(|folder| folder == own) {
            folders.push(own.to_vec());
        }
        folders
    }
}

/// Resolves a path found in a file of `folder`; `None` if it leads out of the repository.
pub fn within(repository: &RepositoryName, folder: &[u8], path: &[u8]) -> Option<Vec<u8>> {
    let (mut meant, rest) = if path.starts_with(b"/") {
        let inside = path.strip_prefix(MOUNTED_BELOW)?.strip_prefix(repository.as_str().as_bytes())?;
        (Vec::new(), inside.strip_prefix(b"/").or_else(|| inside.is_empty().then_some(inside))?)
    } else {
        (folder.to_vec(), path)
    };
    for part in rest.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => meant.truncate(split(&meant)?.0.len()),
            part => meant = join(&meant, part),
        }
    }
    Some(meant)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name() -> RepositoryName {
        "sw.example.org".parse().unwrap()
    }

    fn meant(path: &str) -> Option<String> {
        let meant = within(&name(), b"/lib/x", path.as_bytes())?;
        Some(String::from_utf8(meant).unwrap())
    }

    #[test]
    fn paths_in_libraries_resolve_within_the_repository() {
        for (path, expected) in [
            ("a.so", "/lib/x/a.so"),
            ("./y//a.so", "/lib/x/y/a.so"),
            ("../a.so", "/lib/a.so"),
            ("../../b/a.so", "/b/a.so"),
            ("../..", ""),
            ("/cvmfs/sw.example.org/b/../c", "/c"),
            ("/cvmfs/sw.example.org", ""),
        ] {
            assert_eq!(meant(path).as_deref(), Some(expected), "{path}");
        }
        for path in ["../../..", "/usr/lib", "/cvmfs/sw.example.orga/b", "/cvmfs/other.example.org/b"] {
            assert_eq!(meant(path), None, "{path}");
        }
    }

    #[test]
    fn libraries_are_searched_in_the_named_folders_and_beside_the_file() {
        let need = |folders: &[&str]| {
            let folders = folders.iter().map(|folder| folder.as_bytes().into()).collect();
            let needs = NeededLibraries { libraries: Vec::new(), folders };
            let need = NeededSearch { path: b"/lib/x/a.so"[..].into(), needs, tries: 0 };
            need.folders(&name()).into_iter().map(|it| String::from_utf8(it).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(need(&[]), ["/lib/x"]);
        let said = ["$ORIGIN/../y.libs", "${ORIGIN}", "lib", "", "/usr/lib", "/cvmfs/sw.example.org/z/lib"];
        assert_eq!(need(&said), ["/lib/y.libs", "/lib/x", "/z/lib"]);
    }
}
