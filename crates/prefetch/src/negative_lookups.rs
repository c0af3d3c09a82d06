//! Prefetches lookups of names that programs look up without success in every folder.
//!
//! An interpreter looks for every kind of module in each package, and most packages have only one; a compiler looks
//! for each header in all include folders. So a name that was absent in several folders will be looked up in the next
//! one, too. This predicts which names programs look up, not where.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::{HashMap, HashSet};
use xxhash_rust::xxh3::xxh3_64;

use crate::node_paths::{join, split};
use crate::{NAME, NAMES, NamedStep};

/// Number of folders in which a name was absent before it counts as common.
const FOLDERS: usize = 8;
/// Number of different folder names in which a name must be absent before it counts as common in all folders.
const SORTS: usize = 4;
/// Number of folders visited without a lookup after which a common name is no longer looked up in folders of
/// that name.
const MISSES_PER_SORT: u32 = 4;
/// Maximum number of common names, which every lookup is compared with, and of folder names recorded for each.
const COMMON_MAX: usize = 64;
const SORTS_MAX: usize = 1024;
/// Maximum number of other absent names, and of remembered folders.
const ABSENT_MAX: usize = 1 << 12;
const VISITED_MAX: usize = 1 << 16;
/// Maximum number of recent folders in which a new common name is looked up.
const RECENT_MAX: usize = 1 << 10;

/// Tracks unsuccessful lookups of programs, and the lookups that were prefetched.
#[derive(Default)]
pub(crate) struct NegativeLookups {
    common: Vec<CommonName>,
    /// Number of unsuccessful lookups so far, which serves as the clock for the age of common names.
    lookups: u64,
    absent: HashMap<Box<[u8]>, AbsentName>,
    /// Hashes of visited folders, and the number of visited folders by folder name.
    visited: HashSet<u64>,
    sorts: HashMap<u64, u32>,
    /// The folders visited last.
    recent: VecDeque<Arc<[u8]>>,
    /// Hashes of paths requested from the replayer, whose lookups are not those of a program.
    requested: HashSet<u64>,
}

/// A name that programs look up without success in every folder.
struct CommonName {
    name: Box<[u8]>,
    /// Time of the last lookup by a program.
    last: u64,
    /// Hashes of the names of folders in which the name was looked up.
    sorts: HashSet<u64>,
}

/// Folders in which a name was absent.
#[derive(Default)]
struct AbsentName {
    folders: Vec<u64>,
    sorts: HashSet<u64>,
}

impl NegativeLookups {
    /// Records an unsuccessful lookup.
    ///
    /// If the name became common, returns lookups of it in the folders that were visited before.
    pub(crate) fn record_negative(&mut self, path: &[u8]) -> Vec<NamedStep> {
        let Some((folder, name)) = split(path) else { return Vec::new() };
        if self.requested.remove(&xxh3_64(path)) {
            return Vec::new();
        }
        self.lookups += 1;
        let (sort, folder) = (sort_of(folder), xxh3_64(folder));
        if let Some(common) = self.common.iter_mut().find(|common| *common.name == *name) {
            common.last = self.lookups;
            if common.sorts.len() < SORTS_MAX {
                common.sorts.insert(sort);
            }
            return Vec::new();
        }
        if self.absent.len() >= ABSENT_MAX {
            self.absent.clear();
        }
        let absent = self.absent.entry(name.into()).or_default();
        absent.sorts.insert(sort);
        if !absent.folders.contains(&folder) {
            absent.folders.push(folder);
        }
        if absent.folders.len() < FOLDERS {
            return Vec::new();
        }
        let Some((name, AbsentName { sorts, .. })) = self.absent.remove_entry(name) else {
            return Vec::new();
        };
        let common = CommonName { name, last: self.lookups, sorts };
        let steps = self.recent.iter().filter(|folder| {
            let sort = sort_of(folder);
            common.is_looked_for_in(sort, self.is_common(sort))
        });
        let steps = steps.map(|folder| (join(folder, &common.name), NAME)).collect();
        self.add(common);
        self.remember(steps)
    }

    /// Adds a common name, and removes the least recently looked up one if there are too many.
    fn add(&mut self, common: CommonName) {
        if self.common.len() < COMMON_MAX {
            self.common.push(common);
        } else if let Some(oldest) = self.common.iter_mut().min_by_key(|common| common.last) {
            *oldest = common;
        }
    }

    /// Returns the steps to replay before a program reads in this folder.
    ///
    /// These are the listings of the folder and of the one around it, and lookups of the common names. Empty if they
    /// were requested before.
    pub(crate) fn ahead(&mut self, folder: &[u8]) -> Vec<NamedStep> {
        let mut steps = Vec::new();
        // The root has no parent.
        let around = split(folder).map(|(around, _)| around);
        for folder in around.into_iter().chain([folder]) {
            if self.visited.len() >= VISITED_MAX {
                (self.visited, self.sorts) = Default::default();
            }
            if folder.is_empty() || !self.visited.insert(xxh3_64(folder)) {
                continue;
            }
            let sort = sort_of(folder);
            *self.sorts.entry(sort).or_default() += 1;
            let is_common = self.is_common(sort);
            let path: Arc<[u8]> = folder.into();
            self.recent.push_back(Arc::clone(&path));
            if self.recent.len() > RECENT_MAX {
                self.recent.pop_front();
            }
            steps.push((path, NAMES));
            let common = self.common.iter().filter(|common| common.is_looked_for_in(sort, is_common));
            steps.extend(common.map(|common| (join(folder, &common.name), NAME)));
        }
        self.remember(steps)
    }

    /// Returns true if the replayer was asked to replay this step.
    pub(crate) fn was_requested(&self, path: &[u8], part: u32) -> bool {
        let requested = if part == NAMES { &self.visited } else { &self.requested };
        part >= NAMES && requested.contains(&xxh3_64(path))
    }

    /// Records the steps requested from the replayer.
    fn remember(&mut self, steps: Vec<NamedStep>) -> Vec<NamedStep> {
        if self.requested.len() + steps.len() > VISITED_MAX {
            self.requested.clear();
        }
        self.requested.extend(steps.iter().filter(|(_, part)| *part == NAME).map(|(path, _)| xxh3_64(path)));
        steps
    }

    /// Returns true if several folders of this name were visited.
    fn is_common(&self, sort: u64) -> bool {
        self.sorts.get(&sort).is_some_and(|folders| *folders > MISSES_PER_SORT)
    }

    /// Clears the visited folders, since the kernel may have dropped its cached entries.
    pub(crate) fn reset(&mut self) {
        (self.visited, self.sorts, self.recent, self.requested) = Default::default();
    }
}

impl CommonName {
    fn is_looked_for_in(&self, sort: u64, is_common: bool) -> bool {
        self.sorts.contains(&sort) || (!is_common && self.sorts.len() >= SORTS)
    }
}

/// Returns the hash of a folder's name.
fn sort_of(folder: &[u8]) -> u64 {
    xxh3_64(split(folder).map_or(folder, |(_, name)| name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(negative: &mut NegativeLookups, folder: &str) -> Vec<String> {
        let steps = negative.ahead(folder.as_bytes());
        let text = |(path, part): NamedStep| {
            format!("{}{}", String::from_utf8_lossy(&path), if part == NAMES { "/" } else { "" })
        };
        steps.into_iter().map(text).collect()
    }

    /// Simulates the lookups of an interpreter that imports a package.
    fn import(negative: &mut NegativeLookups, package: &str) {
        for name in ["__init__.abi3.so", "__init__.so"] {
            negative.record_negative(format!("{package}/{name}").as_bytes());
        }
    }

    #[test]
    fn names_absent_in_several_folders_are_looked_up_in_others() {
        let mut negative = NegativeLookups::default();
        for number in 0..FOLDERS {
            assert_eq!(
                steps(&mut negative, &format!("/lib/p{number}")).last(),
                Some(&format!("/lib/p{number}/"))
            );
            import(&mut negative, &format!("/lib/p{number}"));
        }
        negative.record_negative(b"/lib/p0/once");
        let root = ["//", "/__init__.abi3.so", "/__init__.so"];
        let new = ["/new/", "/new/__init__.abi3.so", "/new/__init__.so"];
        assert_eq!(steps(&mut negative, "/new"), [root, new].concat());
        assert!(steps(&mut negative, "/new").is_empty(), "each folder once");
        negative.reset();
        assert_eq!(steps(&mut negative, "/new").len(), 6);
    }

    #[test]
    fn a_new_common_name_is_looked_up_in_folders_visited_before() {
        let mut negative = NegativeLookups::default();
        for number in 0..2 * RECENT_MAX {
            negative.ahead(format!("/lib/p{number}/doc").as_bytes());
        }
        let requested =
            (0..FOLDERS).map(|number| negative.record_negative(format!("/lib/p{number}/absent").as_bytes()));
        let requested: Vec<_> = requested.collect();
        let (last, before) = requested.split_last().expect("some");
        assert!(before.iter().all(Vec::is_empty));
        // Half of the recent folders are called `doc`.
        assert_eq!(last.len(), RECENT_MAX / 2);
        assert!(last.iter().all(|(path, part)| path.ends_with(b"/absent") && *part == NAME));
        negative.reset();
        (0..FOLDERS).for_each(|number| {
            assert!(negative.record_negative(format!("/{number}/other").as_bytes()).is_empty())
        });
    }

    #[test]
    fn common_names_are_not_looked_up_in_folders_where_programs_do_not() {
        let mut negative = NegativeLookups::default();
        for number in 0..100 {
            import(&mut negative, &format!("/lib/p{number}"));
            negative.record_negative(format!("/lib/p{number}/cache/lock").as_bytes());
        }
        for number in 0..MISSES_PER_SORT {
            let asked = steps(&mut negative, &format!("/lib/p{number}/doc"));
            // Lookups by the replayer say nothing of what programs do.
            asked
                .iter()
                .filter(|path| !path.ends_with('/'))
                .for_each(|path| drop(negative.record_negative(path.as_bytes())));
        }
        let of = |folder: &str, names: &[&str]| -> Vec<String> {
            let inside = names.iter().map(|name| format!("{folder}/{name}"));
            std::iter::once(format!("{folder}/")).chain(inside).collect()
        };
        let package = of("/lib/p50", &["__init__.abi3.so", "__init__.so"]);
        // In a folder whose name only one of them was looked up in.
        let cache = of("/lib/p50/cache", &["__init__.abi3.so", "__init__.so", "lock"]);
        assert_eq!(steps(&mut negative, "/lib/p50/cache"), [package, cache].concat());
        assert_eq!(steps(&mut negative, "/lib/p50/doc"), of("/lib/p50/doc", &[]));
    }

    /// A loader that looks for each library in all folders of its search path, then an interpreter.
    #[test]
    fn old_common_names_are_replaced_by_new_ones() {
        let mut negative = NegativeLookups::default();
        for library in 0..COMMON_MAX {
            for folder in 0..FOLDERS {
                negative.record_negative(format!("/sw/p{folder}/lib/libx{library}.so.1").as_bytes());
            }
        }
        for number in 0..FOLDERS {
            import(&mut negative, &format!("/lib/p{number}"));
            negative.record_negative(b"/sw/p0/lib/libx0.so.1");
        }
        let asked = steps(&mut negative, "/lib/new");
        for name in ["__init__.abi3.so", "__init__.so"] {
            assert!(asked.contains(&format!("/lib/new/{name}")), "{asked:?}");
        }
        assert_eq!(negative.common.len(), COMMON_MAX);
        assert!(
            negative.common.iter().any(|common| *common.name == *b"libx0.so.1"),
            "it was in use meanwhile"
        );
    }

    #[test]
    fn the_root_has_no_parent() {
        let mut negative = NegativeLookups::default();
        assert_eq!(steps(&mut negative, "/"), ["//"]);
        assert_eq!(steps(&mut negative, "/a"), ["/a/"]);
        assert_eq!(steps(&mut negative, ""), [""; 0]);
    }

    #[test]
    fn recorded_names_and_folders_are_bounded() {
        let mut negative = NegativeLookups::default();
        for folder in 0..FOLDERS {
            negative.record_negative(format!("/{folder}/custom").as_bytes());
        }
        for number in 0..2 * ABSENT_MAX {
            negative.record_negative(format!("/a/{number}").as_bytes());
            negative.record_negative(format!("/{number}/custom").as_bytes());
        }
        assert!(negative.absent.len() <= ABSENT_MAX);
        assert_eq!((negative.common.len(), negative.common[0].sorts.len()), (1, SORTS_MAX));
        for number in 0..2 * COMMON_MAX {
            for folder in 0..FOLDERS {
                negative.record_negative(format!("/{folder}/usual {number}").as_bytes());
            }
        }
        assert_eq!(negative.common.len(), COMMON_MAX);
        (0..2 * VISITED_MAX).for_each(|number| drop(negative.ahead(number.to_string().as_bytes())));
        assert!(negative.visited.len() <= VISITED_MAX && negative.requested.len() <= VISITED_MAX);
    }
}
