use std::collections::BTreeMap;

use esker_format::compress::Compression;
use esker_format::hash::{ContentHash, HashAlgorithm};

use esker_store::CacheKey;

use super::*;
use crate::folders::{
    FOLDERS_MAX, FOLDERS_NEARBY, SMALL_LIBRARY_MAX, SMALL_MAX, SmallFile, is_library, small_max,
};

/// A tree of paths and sizes.
#[derive(Default)]
pub(crate) struct Paths {
    pub(crate) files: BTreeMap<String, u64>,
    pub(crate) listed: usize,
    /// Folder below which no catalog is attached.
    absent: Option<&'static str>,
    met_absent: bool,
    /// The server is nearby.
    nearby: bool,
}

impl Paths {
    fn with(mut self, folder: &str, count: usize, ending: &str, size: u64) -> Self {
        self.files.extend((0..count).map(|number| (format!("{folder}/f{number:04}{ending}"), size)));
        self
    }

    /// Adds modules at the same place in many packages.
    fn with_packages(self, packages: usize, place: &str, count: usize, size: u64) -> Self {
        (0..packages).fold(self, |paths, package| {
            paths.with(&format!("/s/p{package:02}/{place}"), count, ".pyc", size)
        })
    }
}

impl Folders for Paths {
    fn list(&mut self, path: &[u8]) -> Arc<Folder> {
        self.listed += 1;
        let path = std::str::from_utf8(path).unwrap();
        if self.absent.is_some_and(|absent| path.starts_with(absent)) {
            self.met_absent = true;
            return Arc::default();
        }
        let below = format!("{path}/");
        let (mut folders, mut files, mut libraries) = (Vec::<Box<[u8]>>::new(), Vec::new(), Vec::new());
        for (file, size) in self.files.range(below.clone()..) {
            let Some(rest) = file.strip_prefix(&below) else { break };
            match rest.split_once('/') {
                Some((folder, _)) => {
                    let folder: Box<[u8]> = folder.as_bytes().into();
                    if folders.last() != Some(&folder) {
                        folders.push(folder);
                    }
                }
                None if *size <= small_max(kind(rest.as_bytes())) => {
                    let hash = ContentHash::new(HashAlgorithm::Sha1, [0; 20]);
                    let key = CacheKey { hash, compression: Compression::Zlib };
                    files.push(SmallFile { name: rest.as_bytes().into(), content: key, size: *size });
                }
                None if is_library(rest.as_bytes()) => libraries.push(rest.as_bytes().into()),
                None => {}
            }
        }
        Arc::new(Folder::new(path.as_bytes(), folders, files).with_libraries(libraries))
    }

    fn worth(&self) -> usize {
        if self.nearby { FOLDERS_NEARBY } else { FOLDERS_MAX }
    }

    fn is_complete(&self) -> bool {
        !self.met_absent
    }
}

fn taken(neighbours: &mut Neighbours, paths: &mut Paths, missed: &str) -> Vec<String> {
    paths.met_absent = false;
    neighbours.missed(paths, missed.as_bytes()).into_iter().map(|leaf| leaf.wanted().what).collect()
}

#[test]
fn small_files_of_the_same_kind_follow_in_order_of_names() {
    let mut paths = Paths::default().with("/a", 3, ".pyc", 1000).with("/a", 2, ".txt", 1000);
    paths.files.insert("/a/large.pyc".into(), SMALL_MAX + 1);
    let taken = taken(&mut Neighbours::default(), &mut paths, "/a/f0001.pyc");
    assert_eq!(taken[..2], ["/a/f0002.pyc", "/a/f0000.pyc"]);
    assert!(taken.iter().all(|path| path.ends_with(".pyc") && !path.contains("large")));
}

#[test]
fn a_small_package_is_prefetched_whole_and_once() {
    let mut paths = Paths::default().with("/s/p/x", 3, ".h", 1000).with("/s/p/y/z", 2, ".h", 1000);
    // Too many for the package to be prefetched along with its neighbours.
    paths = paths.with("/s/other", 100, ".h", SMALL_MAX);
    let mut neighbours = Neighbours::default();
    let first = taken(&mut neighbours, &mut paths, "/s/p/x/f0000.h");
    assert!(first.contains(&"/s/p/y/z/f0001.h".into()));
    assert!(!first.iter().any(|path| path.starts_with("/s/other")));
    assert!(taken(&mut neighbours, &mut paths, "/s/p/y/z/f0000.h").is_empty(), "it was taken already");
}

#[test]
fn a_larger_package_is_prefetched_after_misses_in_two_branches() {
    let mut paths = Paths::default();
    for branch in 0..10 {
        paths = paths.with(&format!("/s/p/b{branch}"), 10, ".pyc", 100_000);
    }
    let mut neighbours = Neighbours::default();
    let first = taken(&mut neighbours, &mut paths, "/s/p/b1/f0000.pyc");
    assert!(first.iter().all(|path| path.starts_with("/s/p/b1/")), "10 MB are too much to begin with");
    let second = taken(&mut neighbours, &mut paths, "/s/p/b7/f0000.pyc");
    assert!((0..10).all(|branch| second.iter().any(|path| path.starts_with(&format!("/s/p/b{branch}/")))));
    assert!(second[0].starts_with("/s/p/b7/"), "the nearest first");
}

#[test]
fn many_folders_are_listed_only_for_a_far_server() {
    let mut paths = (0..2 * FOLDERS_NEARBY)
        .fold(Paths::default(), |paths, folder| paths.with(&format!("/s/p/d{folder:04}"), 2, ".h", 1000));
    let far = taken(&mut Neighbours::default(), &mut paths, "/s/p/d0000/f0000.h");
    assert!(far.contains(&"/s/p/d0511/f0001.h".into()));
    (paths.nearby, paths.listed) = (true, 0);
    let nearby = taken(&mut Neighbours::default(), &mut paths, "/s/p/d0000/f0000.h");
    assert_eq!(nearby, ["/s/p/d0000/f0001.h"]);
    assert!(paths.listed < 2 * FOLDERS_NEARBY, "{}", paths.listed);
}

#[test]
fn a_folder_of_many_packages_is_never_prefetched() {
    let mut paths = Paths::default().with_packages(60, "m", 10, 100_000);
    let mut neighbours = Neighbours::default();
    for package in 0..60 {
        let taken = taken(&mut neighbours, &mut paths, &format!("/s/p{package:02}/m/f0003.pyc"));
        let own = format!("/s/p{package:02}/");
        assert!(taken.len() >= 9 && taken.iter().all(|path| path.starts_with(&own)));
    }
    let before = paths.listed;
    taken(&mut neighbours, &mut paths, "/s/p00/other.pyc");
    assert!(paths.listed <= before, "and looked at no more often than it grows");
}

#[test]
fn folders_below_a_prefetched_folder_are_still_prefetched() {
    // A library of an interpreter, and its extensions further down; more than is prefetched at once.
    let mut paths = Paths::default().with("/lib", 2, ".so", 1000).with("/lib/py/dynload", 50, ".so", 1 << 20);
    let mut neighbours = Neighbours::default();
    assert_eq!(taken(&mut neighbours, &mut paths, "/lib/f0000.so")[0], "/lib/f0001.so");
    assert!(taken(&mut neighbours, &mut paths, "/lib/py/dynload/f0000.so").len() >= 49);
}

#[test]
fn libraries_have_a_higher_limit_for_small_files() {
    let mut paths = Paths::default().with("/l", 2, ".so.1", SMALL_LIBRARY_MAX);
    paths = paths.with("/l", 2, ".pyc", SMALL_MAX + 1);
    let mut neighbours = Neighbours::default();
    assert_eq!(taken(&mut neighbours, &mut paths, "/l/f0000.so.1")[0], "/l/f0001.so.1");
    assert!(taken(&mut neighbours, &mut paths, "/l/f0000.pyc").is_empty());
}

#[test]
fn the_same_place_in_all_packages_is_prefetched_after_three_misses() {
    let mut paths = Paths::default().with_packages(60, "c", 2, 10_000);
    // Makes each package too large to be prefetched along.
    paths = paths.with_packages(60, "c/deep", 30, 100_000);
    let mut neighbours = Neighbours::default();
    let mut others = |package: &str, neighbours: &mut Neighbours| {
        let first = format!("/s/{package}/c/f0000.pyc");
        let own = format!("/s/{package}/");
        taken(neighbours, &mut paths, &first).into_iter().filter(|path| !path.starts_with(&own)).count()
    };
    assert_eq!([others("p03", &mut neighbours), others("p09", &mut neighbours)], [0, 0]);
    assert_eq!(
        others("p05", &mut neighbours),
        59 * 2,
        "its folder's place, in the others; not what is deeper"
    );
    assert_eq!(others("p07", &mut neighbours), 0, "once");
}

#[test]
fn one_place_in_too_many_or_too_large_folders_is_not_prefetched() {
    let mut paths = Paths::default().with_packages(60, "c", 10, 100_000);
    let mut neighbours = Neighbours::default();
    for package in ["p00", "p01", "p02", "p03"] {
        let taken = taken(&mut neighbours, &mut paths, &format!("/s/{package}/c/f0000.pyc"));
        assert!(taken.iter().all(|path| path.starts_with(&format!("/s/{package}/"))), "60 MB are too much");
    }
}

#[test]
fn in_a_huge_folder_only_the_following_files_are_prefetched() {
    let mut paths = Paths::default().with("/d", 5000, ".dat", 50_000);
    let mut neighbours = Neighbours::default();
    let taken_first = taken(&mut neighbours, &mut paths, "/d/f0100.dat");
    assert_eq!((taken_first.len(), &*taken_first[0]), (WINDOW, "/d/f0101.dat"));
    assert_eq!(taken(&mut neighbours, &mut paths, "/d/f0300.dat")[0], "/d/f0301.dat");
}

#[test]
fn evicted_files_are_prefetched_again() {
    let mut paths = Paths::default().with("/a", 20, ".h", 1000);
    let mut neighbours = Neighbours::default();
    assert_eq!(taken(&mut neighbours, &mut paths, "/a/f0000.h").len(), 19 + 20);
    let again = (1..).take_while(|_| taken(&mut neighbours, &mut paths, "/a/f0000.h").is_empty()).count();
    assert_eq!(again, usize::from(STALE) - 1);
    for _ in 0..=STALE {
        assert!(
            neighbours.read_prefetched(&mut paths, b"/a/f0000.h").is_empty(),
            "what comes was not evicted"
        );
    }
}

#[test]
fn folders_that_could_not_be_listed_are_listed_again() {
    let mut paths = Paths::default().with("/p/own", 2, ".h", 1000).with("/p/nested", 2, ".h", 1000);
    paths.absent = Some("/p/nested");
    let mut neighbours = Neighbours::default();
    let first = taken(&mut neighbours, &mut paths, "/p/own/f0000.h");
    assert!(!first.is_empty() && !first.iter().any(|path| path.starts_with("/p/nested")));
    paths.absent = None;
    let second = taken(&mut neighbours, &mut paths, "/p/own/f0000.h");
    assert!(second.iter().any(|path| path.starts_with("/p/nested")));
}

#[test]
fn the_kind_of_a_file_is_its_suffix() {
    let kinds =
        [("a.pyc", ".pyc"), ("a.b.h", ".h"), ("libx.so.1.2", ".so"), ("x.so", ".so"), ("Makefile", "")];
    for (name, wanted) in
        kinds.into_iter().chain([(".hidden", ""), ("lib.something", ".something"), ("a.", ".")])
    {
        assert_eq!(kind(name.as_bytes()), wanted.as_bytes(), "{name}");
    }
}
