//! Names for which programs look in vain wherever they go.
//!
//! An interpreter looks for every sort of module in each package, and most packages have one; a compiler looks for each
//! header in all of its folders. So what was not there in several folders will be asked for in the next one, too. That is
//! no guess at where a program goes, but at what it does there.

use foldhash::{HashMap, HashSet};
use xxhash_rust::xxh3::xxh3_64;

use crate::paths::{ROOT, join};
use crate::{NAME, NAMES, NamedStep};

/// A name was in vain in so many folders before it is a custom…
const FOLDERS: usize = 8;
/// … and one of all folders, not only of those called alike, if these were called so many different things.
const SORTS: usize = 4;
/// After so many folders of a sort that nobody looked in for a name it isn't looked for in others of that sort.
const OF_A_SORT: u32 = 4;
/// Most names that are asked for in one folder.
const NAMES_MAX: usize = 16;
/// Most names that are noted, and most folders that are remembered.
const NOTED_MAX: usize = 1 << 12;
const GONE_MAX: usize = 1 << 16;

/// What programs look for in vain, and where somebody went ahead of them.
#[derive(Default)]
pub(crate) struct Customs {
    absent: HashMap<Box<[u8]>, Absent>,
    /// Those of them that are customs, in the order in which they became so.
    usual: Vec<Box<[u8]>>,
    /// Folders that were gone to, and how many of each sort.
    gone: HashSet<u64>,
    sorts: HashMap<u64, u32>,
}

/// Where a name was not.
#[derive(Default)]
struct Absent {
    folders: Vec<u64>,
    sorts: HashSet<u64>,
}

impl Customs {
    /// A program looked for a name in a folder in vain.
    pub(crate) fn in_vain(&mut self, folder: &[u8], name: &[u8]) {
        if self.absent.len() >= NOTED_MAX {
            self.absent.retain(|_, absent| absent.is_usual());
        }
        if !self.absent.contains_key(name) {
            if self.absent.len() >= NOTED_MAX {
                return;
            }
            self.absent.insert(name.into(), Absent::default());
        }
        let Some(absent) = self.absent.get_mut(name) else { return };
        if absent.sorts.len() < NOTED_MAX {
            absent.sorts.insert(sort(folder));
        }
        let (was_usual, folder) = (absent.is_usual(), xxh3_64(folder));
        if !was_usual && !absent.folders.contains(&folder) {
            absent.folders.push(folder);
            if absent.is_usual() {
                self.usual.push(name.into());
            }
        }
    }

    /// What to ask ahead of a program that will go to this folder: the names in it and around it, and what is looked for
    /// there in vain. Nothing if that was told before.
    pub(crate) fn ahead(&mut self, folder: &[u8]) -> Vec<NamedStep> {
        let mut steps = Vec::new();
        for folder in [around(folder), folder] {
            if self.gone.len() >= GONE_MAX {
                self.gone.clear();
            }
            if folder.is_empty() || !self.gone.insert(xxh3_64(folder)) {
                continue;
            }
            let sort = sort(folder);
            let of_it = self.sorts.entry(sort).or_default();
            *of_it = of_it.saturating_add(1);
            let is_common = *of_it > OF_A_SORT;
            steps.push((folder.into(), NAMES));
            let usual = self.usual.iter().filter(|name| {
                self.absent.get(&***name).is_some_and(|absent| absent.is_looked_for_in(sort, is_common))
            });
            steps.extend(usual.take(NAMES_MAX).map(|name| (join(folder, name), NAME)));
        }
        steps
    }

    /// Forgets where somebody has gone: the kernel may have forgotten what it was told.
    pub(crate) fn begin_anew(&mut self) {
        self.gone.clear();
    }
}

impl Absent {
    fn is_usual(&self) -> bool {
        self.folders.len() >= FOLDERS
    }

    fn is_looked_for_in(&self, sort: u64, is_common: bool) -> bool {
        self.sorts.contains(&sort) || (!is_common && self.sorts.len() >= SORTS)
    }
}

/// Folders called alike are of one sort.
fn sort(folder: &[u8]) -> u64 {
    xxh3_64(folder.rsplit(|byte| *byte == b'/').next().unwrap_or_default())
}

/// The folder that a folder is in; nothing around the root.
fn around(folder: &[u8]) -> &[u8] {
    match folder.iter().rposition(|byte| *byte == b'/') {
        Some(0) if folder != ROOT => ROOT,
        Some(at) => &folder[..at],
        None => b"",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(customs: &mut Customs, folder: &str) -> Vec<String> {
        let steps = customs.ahead(folder.as_bytes());
        let text = |(path, part): NamedStep| {
            format!("{}{}", String::from_utf8_lossy(&path), if part == NAMES { "/" } else { "" })
        };
        steps.into_iter().map(text).collect()
    }

    /// What an interpreter does with a package.
    fn import(customs: &mut Customs, package: &str) {
        for name in ["__init__.abi3.so", "__init__.so"] {
            customs.in_vain(package.as_bytes(), name.as_bytes());
        }
    }

    #[test]
    fn what_was_in_vain_in_several_folders_is_asked_for_in_others() {
        let mut customs = Customs::default();
        for number in 0..FOLDERS {
            assert_eq!(steps(&mut customs, &format!("/lib/p{number}")).last(), Some(&format!("/lib/p{number}/")));
            import(&mut customs, &format!("/lib/p{number}"));
        }
        customs.in_vain(b"/lib/p0", b"once");
        let all = ["/new/", "/new/__init__.abi3.so", "/new/__init__.so"];
        assert_eq!(steps(&mut customs, "/new"), [&["//"], &all[..]].concat());
        assert!(steps(&mut customs, "/new").is_empty(), "each folder once");
        customs.begin_anew();
        assert_eq!(steps(&mut customs, "/new").len(), 4);
    }

    #[test]
    fn nobody_is_sent_where_nobody_looks() {
        let mut customs = Customs::default();
        for number in 0..100 {
            import(&mut customs, &format!("/lib/p{number}"));
            customs.in_vain(format!("/lib/p{number}/cache").as_bytes(), b"lock");
        }
        for number in 0..OF_A_SORT {
            steps(&mut customs, &format!("/lib/p{number}/doc"));
        }
        let of = |folder: &str, names: &[&str]| -> Vec<String> {
            let inside = names.iter().map(|name| format!("{folder}/{name}"));
            std::iter::once(format!("{folder}/")).chain(inside).collect()
        };
        let package = of("/lib/p50", &["__init__.abi3.so", "__init__.so"]);
        // In a folder of a sort where only one of them was looked for.
        let cache = of("/lib/p50/cache", &["__init__.abi3.so", "__init__.so", "lock"]);
        assert_eq!(steps(&mut customs, "/lib/p50/cache"), [package, cache].concat());
        assert_eq!(steps(&mut customs, "/lib/p50/doc"), of("/lib/p50/doc", &[]));
    }

    #[test]
    fn the_root_has_nothing_around_it() {
        let mut customs = Customs::default();
        assert_eq!(steps(&mut customs, "/"), ["//"]);
        assert_eq!(steps(&mut customs, "/a"), ["/a/"]);
        assert_eq!(steps(&mut customs, ""), [""; 0]);
    }

    #[test]
    fn only_so_much_is_noted() {
        let mut customs = Customs::default();
        for folder in 0..FOLDERS {
            customs.in_vain(&[b'/', b'0' + folder as u8], b"custom");
        }
        for number in 0..2 * NOTED_MAX {
            customs.in_vain(b"/a", number.to_string().as_bytes());
        }
        assert!(customs.absent.len() <= NOTED_MAX);
        assert_eq!(customs.usual.len(), 1);
        (0..2 * GONE_MAX).for_each(|number| drop(customs.ahead(number.to_string().as_bytes())));
        assert!(customs.gone.len() <= GONE_MAX);
    }
}
