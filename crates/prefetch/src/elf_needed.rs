//! The libraries that one needs, as its dynamic section names them, and where the loader finds these.

use std::ops::Range;

use esker_format::elf::{self, Dynamic, Layout};
use esker_format::name::RepositoryName;
use esker_format::path::{join, split};

/// Most names, and most folders, that are taken of one file.
const TOLD_MAX: usize = 256;
/// Below this folder repositories are mounted, so that is what files in them say.
const MOUNTED_BELOW: &[u8] = b"/cvmfs/";
/// What stands for the folder of the file that names it.
const ORIGINS: [&[u8]; 2] = [b"$ORIGIN", b"${ORIGIN}"];

/// Which libraries a file needs, and in which folders they are looked for, in order.
#[derive(Debug, Default)]
pub struct NeededLibraries {
    /// Names of the libraries.
    pub libraries: Vec<Box<[u8]>>,
    folders: Vec<Box<[u8]>>,
}

/// Names that are read from a file, whose chunks come one after the other.
pub struct NeededNames {
    libraries: Vec<Range<u64>>,
    folders: Vec<Range<u64>>,
    /// The names read so far.
    pub found: NeededLibraries,
}

impl NeededNames {
    /// Those of a file; none if it needs nothing.
    pub fn of(layout: &Layout, dynamic: &Dynamic) -> Option<Self> {
        let (mut libraries, mut folders) = (layout.needed(dynamic), layout.searched(dynamic));
        libraries.truncate(TOLD_MAX);
        folders.truncate(1);
        (!libraries.is_empty()).then(|| Self { libraries, folders, found: NeededLibraries::default() })
    }

    /// The next one to be read.
    pub fn next(&self) -> Option<&Range<u64>> {
        self.folders.iter().chain(&self.libraries).next()
    }

    /// Reads those that begin in a part that is here. What doesn't end there isn't told.
    pub fn take(&mut self, is_here: impl Fn(&Range<u64>) -> bool, read: impl Fn(&Range<u64>) -> Vec<u8>) {
        let texts = |from: &mut Vec<Range<u64>>| {
            let here = from.extract_if(.., |part| is_here(part));
            here.filter_map(|part| elf::text(&read(&part)).map(Box::from)).collect::<Vec<Box<[u8]>>>()
        };
        let folders = texts(&mut self.folders);
        let libraries = texts(&mut self.libraries);
        let lists = folders.iter().flat_map(|list| list.split(|byte| *byte == b':'));
        self.found.folders.extend(lists.take(TOLD_MAX).map(Box::from));
        self.found.libraries.extend(libraries);
    }
}

/// The libraries that a file needs are to be found.
pub struct NeededSearch {
    /// The path of the file.
    pub path: Box<[u8]>,
    /// The libraries that it needs.
    pub needs: NeededLibraries,
    /// How often they were looked for, as catalogs were lacking.
    pub tries: u32,
}

impl NeededSearch {
    /// The folders that the file names, as far as they are in the repository, and its own, in which libraries often are that
    /// another file's list leads to.
    pub fn folders(&self, repository: &RepositoryName) -> Vec<Vec<u8>> {
        let Some((own, _)) = split(&self.path) else { return Vec::new() };
        let meant = |folder: &[u8]| match ORIGINS.iter().find_map(|origin| folder.strip_prefix(*origin)) {
            Some(below) => within(repository, own, below.strip_prefix(b"/").unwrap_or(below)),
            None if folder.starts_with(b"/") => within(repository, own, folder),
            // Whatever folder the program works in.
            None => None,
        };
        let mut folders: Vec<_> = self.needs.folders.iter().filter_map(|folder| meant(folder)).collect();
        if !folders.iter().any(|folder| folder == own) {
            folders.push(own.to_vec());
        }
        folders
    }
}

/// The path in a repository of what a path means in one of its folders; none if that leads out of it.
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
    fn paths_lead_to_where_they_mean() {
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
    fn libraries_are_looked_for_where_the_file_says_and_beside_it() {
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
