//! Predicts reads from the folder of a missed file, without knowledge of the program.
//!
//! Programs read small files folder by folder: the modules of a package, the headers of a library, the extensions of
//! an interpreter. So once a small file was missed, the small files of its kind (by the suffix of their names) in its
//! folder are likely next. So are those in the folders beside it: as far up as there are few files of that kind below,
//! they are prefetched at once, and further up once a second branch below was missed. A tree in which programs read
//! only here and there (a folder of packages) is too large for either.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use esker_format::path::{join, split};
use xxhash_rust::xxh3::xxh3_64;

use crate::candidate::Candidate;
use crate::event::{Around, Event};
use crate::folders::{Folder, Folders, Leaf, kind};
use crate::predictor::{Context, Predictor, TRIES_MAX};

/// Plain bytes that are prefetched below a folder after misses in one branch.
const NARROW: u64 = 5 << 19;
/// Plain bytes that are prefetched below a folder after misses in two branches.
///
/// Found by replaying the reads of `import tensorflow` and `import numpy` over the catalogs of their trees: half as
/// much misses twice as often, twice as much saves no more misses.
const WIDE: u64 = 40 << 20;
/// Plain bytes that are prefetched from one place in many folders.
const BESIDE: u64 = 32 << 20;
/// Number of folders with a miss at the same place before that place is prefetched in all: with fewer, a similarity of two packages would count.
const BESIDE_BRANCHES: usize = 3;
/// Number of levels above a file at which the places in sibling folders are compared.
const BESIDE_LEVELS: usize = 3;

/// Maximum number of files prefetched at once.
const FILES_MAX: usize = 8192;
/// Number of files prefetched after the missed one in a folder with too many files.
const WINDOW: usize = 64;
/// Maximum number of folders with a history.
const KNOWN_MAX: usize = 1 << 16;
/// Number of misses in a prefetched folder after which its objects count as evicted.
const STALE: u8 = 8;

/// Tracks the misses and prefetches of files of one kind below one folder.
#[derive(Clone, Copy, Debug, Default)]
struct FolderHistory {
    /// Hash of the first branch in which a file was missed.
    branch: Option<u64>,
    /// True if a file was missed in another branch, too.
    branched: bool,
    /// True if all files of the kind in the folder were prefetched.
    own: bool,
    /// True if all files of the kind below the folder were prefetched.
    taken: bool,
    /// Number of misses since such a prefetch.
    missed: u8,
    /// Limit in plain bytes that the files exceeded.
    refused: u64,
}

/// Tracks the misses at one place in the folders of a folder.
#[derive(Debug, Default)]
struct SiblingMisses {
    /// Hashes of folders in which a file was missed at this place.
    branches: Vec<u64>,
    /// True if the place was prefetched from all folders, or has too many bytes.
    done: bool,
}

/// Tracks the folders in which files were missed.
pub(crate) struct Neighbours {
    known: HashMap<u64, FolderHistory>,
    beside: HashMap<u64, SiblingMisses>,
    /// Number of misses in a prefetched folder after which it is prefetched again; `None` for never.
    stale: Option<u8>,
}

/// Files of one kind below a folder.
enum FoundFiles {
    All(Vec<Leaf>),
    /// More files than can be prefetched at once: those listed so far.
    TooMany(Vec<Leaf>),
}

impl Default for Neighbours {
    fn default() -> Self {
        Self { known: HashMap::new(), beside: HashMap::new(), stale: Some(STALE) }
    }
}

impl Neighbours {
    /// Returns a predictor for events that are no misses: each folder is prefetched once.
    pub(crate) fn once() -> Self {
        Self { stale: None, ..Self::default() }
    }

    /// Returns the files to prefetch after a miss of a small file, most likely first.
    pub(crate) fn missed(&mut self, folders: &mut dyn Folders, path: &[u8]) -> Vec<Leaf> {
        self.around(folders, path, self.stale)
    }

    /// Returns the files to prefetch after the read of a prefetched file; does not count as a sign of eviction.
    pub(crate) fn read_prefetched(&mut self, folders: &mut dyn Folders, path: &[u8]) -> Vec<Leaf> {
        self.around(folders, path, None)
    }

    /// Returns only the files of the same folder, after a miss of a file whose content predicts other reads.
    pub(crate) fn beside(&mut self, folders: &mut dyn Folders, path: &[u8]) -> Vec<Leaf> {
        split(path).map(|(own, name)| self.own(folders, own, name, self.stale).0).unwrap_or_default()
    }

    /// Queues candidates from the folders around a small file.
    fn queue_around<C>(&mut self, around: Around, context: &mut Context<'_, C>) {
        let Around { path, was_missed, is_among_modules, tries } = around;
        let files = if is_among_modules && !context.world.is_far() {
            // The imports of the modules around predict most reads there, and a miss takes less than the other candidates
            // would.
            self.beside(context.world, &path)
        } else if was_missed {
            self.missed(context.world, &path)
        } else {
            // A prefetched file predicts what comes next as well, but is no sign of eviction.
            self.read_prefetched(context.world, &path)
        };
        // The newest miss predicts best.
        for leaf in files.iter().rev() {
            if context.queue.is_new(&leaf.key()) {
                context.queue.push_first(Candidate::of(leaf));
            }
        }
        let again = Around { path, was_missed: false, is_among_modules, tries: tries + 1 };
        context.attach_missing(|| (tries < TRIES_MAX).then_some(Event::Around(again)));
    }

    fn around(&mut self, folders: &mut dyn Folders, path: &[u8], stale: Option<u8>) -> Vec<Leaf> {
        let Some((own, name)) = split(path) else { return Vec::new() };
        let kind = kind(name);
        let (mut files, is_all) = self.own(folders, own, name, stale);
        if !is_all {
            return files;
        }
        files.extend(self.climb(folders, own, kind));
        files.extend(self.sideways(folders, own, kind));
        if !folders.is_complete() {
            self.known(own, kind).own = false;
        }
        files
    }

    /// Returns the files of this kind in the folder, and whether these are all of them and new.
    fn own(
        &mut self,
        folders: &mut dyn Folders,
        own: &[u8],
        name: &[u8],
        stale: Option<u8>,
    ) -> (Vec<Leaf>, bool) {
        let kind = kind(name);
        if self.known.len() + self.beside.len() >= KNOWN_MAX {
            self.known.clear();
            self.beside.clear();
        }
        if self.is_taken(own, kind, stale) {
            return (Vec::new(), false);
        }
        match below(folders, own, kind, false, WIDE) {
            FoundFiles::All(mut files) => {
                self.known(own, kind).own = true;
                start_after(&mut files, name);
                (files, true)
            }
            FoundFiles::TooMany(mut files) => {
                start_after(&mut files, name);
                files.truncate(WINDOW);
                // The next miss may be beyond the window, and further up there are even more files.
                (files, false)
            }
        }
    }

    /// Returns the files of this kind in the largest folder around `own` that has few enough of them.
    fn climb(&mut self, folders: &mut dyn Folders, own: &[u8], kind: &[u8]) -> Vec<Leaf> {
        let mut widest = Vec::new();
        let mut branch = own;
        while let Some((above, _)) = split(branch) {
            let known = self.known(above, kind);
            known.count(branch);
            let limit = if known.branched { WIDE } else { NARROW };
            if known.refused >= limit {
                break;
            }
            match below(folders, above, kind, true, limit) {
                FoundFiles::All(files) => {
                    self.known(above, kind).taken = folders.is_complete();
                    widest = files;
                }
                // The folders above have even more.
                FoundFiles::TooMany(_) => {
                    self.known(above, kind).refused = limit;
                    break;
                }
            }
            branch = above;
        }
        widest
    }

    /// Returns the files of this kind at the same place in the sibling folders, at up to three levels.
    fn sideways(&mut self, folders: &mut dyn Folders, own: &[u8], kind: &[u8]) -> Vec<Leaf> {
        let mut found = Vec::new();
        let mut branch = own;
        for _ in 0..BESIDE_LEVELS {
            let Some((above, _)) = split(branch) else { break };
            let place = &own[branch.len()..];
            let beside = self.beside.entry(key(&[above, place, kind])).or_default();
            if beside.count(branch) {
                let files = in_each(folders, above, place, kind);
                beside.done = files.is_none() || folders.is_complete();
                found.extend(files.unwrap_or_default());
            }
            branch = above;
        }
        found
    }

    /// Returns true if the files of this kind were prefetched, and are not missed so often that they were evicted.
    fn is_taken(&mut self, folder: &[u8], kind: &[u8], stale: Option<u8>) -> bool {
        let mut at = folder;
        let mut taken = false;
        loop {
            if let Some(known) = self.known.get_mut(&key(&[at, kind]))
                && (known.taken || known.own && at == folder)
            {
                known.missed = known.missed.saturating_add(u8::from(stale.is_some()));
                if stale.is_none_or(|stale| known.missed < stale) {
                    taken = true;
                } else {
                    *known = FolderHistory::default();
                }
            }
            match split(at) {
                Some((above, _)) => at = above,
                None => return taken,
            }
        }
    }

    fn known(&mut self, folder: &[u8], kind: &[u8]) -> &mut FolderHistory {
        self.known.entry(key(&[folder, kind])).or_default()
    }
}

impl FolderHistory {
    fn count(&mut self, branch: &[u8]) {
        let branch = xxh3_64(branch);
        self.branched |= *self.branch.get_or_insert(branch) != branch;
    }
}

impl SiblingMisses {
    /// Records a folder with a miss; returns true if the sibling folders should be prefetched now.
    fn count(&mut self, branch: &[u8]) -> bool {
        let branch = xxh3_64(branch);
        if self.branches.len() < BESIDE_BRANCHES && !self.branches.contains(&branch) {
            self.branches.push(branch);
        }
        !self.done && self.branches.len() == BESIDE_BRANCHES
    }
}

fn key(parts: &[&[u8]]) -> u64 {
    // No path contains a NUL.
    xxh3_64(&parts.join(&0))
}

/// Collects files breadth first: those nearest to the folder come first.
fn below(folders: &mut dyn Folders, top: &[u8], kind: &[u8], deep: bool, limit: u64) -> FoundFiles {
    let mut files = Vec::new();
    let mut bytes = 0_u64;
    let mut looked = 0;
    let mut next: VecDeque<Vec<u8>> = VecDeque::from([top.to_vec()]);
    while let Some(path) = next.pop_front() {
        let folder = folders.list(&path);
        bytes = take(&mut files, &folder, kind, bytes);
        looked += 1;
        if bytes > limit || files.len() > FILES_MAX || looked > folders.worth() {
            return FoundFiles::TooMany(files);
        }
        if deep {
            next.extend(folder.folders.iter().map(|name| join(&path, name)));
        }
    }
    FoundFiles::All(files)
}

/// Collects the files at one relative path in each subfolder; `None` if they are too many.
fn in_each(folders: &mut dyn Folders, above: &[u8], place: &[u8], kind: &[u8]) -> Option<Vec<Leaf>> {
    let around = folders.list(above);
    let branches = &around.folders;
    let worth = folders.worth();
    let mut files = Vec::new();
    let mut bytes = 0_u64;
    for name in branches.iter().take(worth) {
        let folder = folders.list(&[&*join(above, name), place].concat());
        bytes = take(&mut files, &folder, kind, bytes);
        if bytes > BESIDE || files.len() > FILES_MAX {
            return None;
        }
    }
    (branches.len() <= worth).then_some(files)
}

/// Adds the files of this kind in a folder; returns the plain bytes of all files collected so far.
fn take(taken: &mut Vec<Leaf>, folder: &Arc<Folder>, of: &[u8], bytes: u64) -> u64 {
    let before = taken.len();
    let files = folder.files.iter().enumerate().filter(|(_, file)| kind(&file.name) == of);
    taken.extend(files.map(|(number, _)| Leaf { folder: Arc::clone(folder), number }));
    taken[before..].iter().fold(bytes, |sum, leaf| sum.saturating_add(leaf.size()))
}

/// Sorts by name, from the one after `name` around to the one before it: sequential readers need those first.
fn start_after(files: &mut Vec<Leaf>, name: &[u8]) {
    files.sort_unstable_by(|a, b| a.name().cmp(b.name()));
    let after = files.partition_point(|leaf| leaf.name() <= name);
    files.rotate_left(after);
    if files.last().is_some_and(|leaf| leaf.name() == name) {
        files.pop();
    }
}

impl<C> Predictor<C> for Neighbours {
    fn on(&mut self, event: Event<C>, context: &mut Context<'_, C>) -> Option<Event<C>> {
        match event {
            Event::Read(read) => {
                let path = read.small_file()?.to_vec();
                let (was_missed, is_among_modules) = (read.is_surprise(), read.is_among_modules);
                self.queue_around(Around { path, was_missed, is_among_modules, tries: 0 }, context);
            }
            Event::Around(around) => self.queue_around(around, context),
            Event::BesideModule(path) => {
                for leaf in self.beside(context.world, &path).iter().rev() {
                    context.queue.push_first(Candidate::of(leaf));
                }
            }
            other => return Some(other),
        }
        None
    }
}

#[cfg(test)]
pub(crate) mod tests;
