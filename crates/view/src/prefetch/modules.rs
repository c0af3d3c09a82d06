//! Compiled Python modules: what one imports comes ahead, and what those import.
//!
//! Each tells what it imports ([`pyc`](super::pyc)), so from the first one on the modules of a program are known before it
//! asks for them, one round trip for each step, and without those beside them that it doesn't use. Where modules lie is
//! known from those that were read: below the folder that holds their package, the one that the interpreter looks through.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use esker_format::pyc::{self, Import};
use esker_store::{CacheKey, Handle, ObjectRequest};

use crate::core::Core;
use crate::lookup::{Scene, join, split};

use super::again::{Again, TRIES_MAX, attach};
use super::guess::Guess;
use super::near::Near;
use super::neighbours::{Folders, Leaf, small_max};
use super::plan::Planner;
use super::{Event, objects};

/// Where compiled modules lie beside their sources.
const COMPILED: &[u8] = b"__pycache__";
/// What a package's own module is called.
const PACKAGE: &[u8] = b"__init__";
/// The source of that.
const SOURCE: &[u8] = b"__init__.py";
/// The ending of compiled modules.
const ENDING: &[u8] = b".pyc";

/// Most folders that are looked through for modules.
const ROOTS_MAX: usize = 64;
/// Most modules, and folders of them, of which something is remembered.
const TOLD_MAX: usize = 1 << 16;
/// A module is not looked for in more packages around its importer than this.
const AROUND_MAX: usize = 16;
/// Most names that are looked for on behalf of one importer.
const LOOKS_MAX: usize = 1 << 14;

/// A compiled module that is to tell what it imports.
#[derive(Clone, Debug)]
pub(crate) struct Module {
    path: Box<[u8]>,
    wanted: ObjectRequest,
    /// A program waited for it, and nothing had foreseen it.
    missed: bool,
    /// How often it was looked at, as catalogs were lacking.
    tries: u32,
}

/// Which modules told what they import, and where modules lie.
#[derive(Default)]
pub(super) struct Modules {
    /// And what they imported.
    told: HashSet<CacheKey>,
    /// Modules that come as guesses.
    expected: HashMap<CacheKey, Module>,
    /// Folders with modules and packages, that of the last miss at the end.
    roots: Vec<Box<[u8]>>,
    /// Folders in which a module was missed.
    missed_in: HashSet<Box<[u8]>>,
}

/// Where a module lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place<'p> {
    /// The folder with its source.
    folder: &'p [u8],
    /// What compiled modules of its interpreter end with: `.cpython-311.pyc`.
    ending: &'p [u8],
}

impl<'p> Place<'p> {
    fn of(path: &'p [u8]) -> Option<Self> {
        let (compiled, name) = split(path).filter(|(_, name)| name.ends_with(ENDING))?;
        let (folder, _) = split(compiled).filter(|(_, last)| *last == COMPILED)?;
        let stem = name.iter().position(|byte| *byte == b'.')?;
        Some(Self { folder, ending: &name[stem..] })
    }
}

/// Whether this is the path of a compiled module.
pub(super) fn is_module(path: &[u8]) -> bool {
    Place::of(path).is_some()
}

/// The packages around a folder, it first, and the folder that holds the outermost.
fn around<'p>(folders: &mut dyn Folders, folder: &'p [u8]) -> (Vec<&'p [u8]>, &'p [u8]) {
    let mut packages = Vec::new();
    let mut at = folder;
    while packages.len() < AROUND_MAX && Leaf::find(&folders.list(at), SOURCE).is_some() {
        let Some((above, _)) = split(at) else { break };
        packages.push(at);
        at = above;
    }
    (packages, at)
}

impl Modules {
    /// Notes that a module is to tell what it imports; whether that is new.
    fn is_new(&mut self, key: CacheKey) -> bool {
        if self.told.len() >= TOLD_MAX {
            self.clear();
        }
        self.told.insert(key)
    }

    /// Forgets what was told and what is to tell.
    pub(super) fn clear(&mut self) {
        self.told.clear();
        self.expected.clear();
    }

    /// Notes where a module lies that a program reads.
    fn root(&mut self, root: &[u8]) {
        self.roots.retain(|known| **known != *root);
        if self.roots.len() >= ROOTS_MAX {
            self.roots.remove(0);
        }
        self.roots.push(root.into());
    }

    /// A module was missed that nothing foresaw; whether another one in its folder was before.
    fn is_missed_again(&mut self, path: &[u8]) -> bool {
        let Some((folder, _)) = split(path) else { return false };
        if self.missed_in.len() >= TOLD_MAX {
            self.missed_in.clear();
        }
        !self.missed_in.insert(folder.into())
    }

    /// The folders that modules of no package around are looked for in: the nearest first, and of those as near the one of
    /// the last miss.
    fn roots_for(&self, path: &[u8]) -> Vec<Box<[u8]>> {
        let is_slash = |byte: &u8| *byte == b'/';
        let common =
            |root: &[u8]| root.split(is_slash).zip(path.split(is_slash)).take_while(|(a, b)| a == b).count();
        let mut roots: Vec<_> = self.roots.iter().rev().cloned().collect();
        roots.sort_by_key(|root| Reverse(common(root)));
        roots
    }

    /// Whether modules that tell what they import lie around a file.
    pub(super) fn lie_around(&self, path: &[u8]) -> bool {
        let is_below = |root: &[u8]| path.strip_prefix(root).is_some_and(|rest| rest.starts_with(b"/"));
        self.roots.iter().any(|root| is_below(root))
    }

    /// That what is imported is to tell what it imports in turn, if it is a module; whether it is new.
    fn expect(&mut self, leaf: &Leaf) -> bool {
        let is_new = self.is_new(leaf.key());
        let path = leaf.path();
        if is_new && is_module(&path) {
            let module = Module { path: path.into(), wanted: leaf.wanted(), missed: false, tries: 0 };
            self.expected.insert(leaf.key(), module);
        }
        is_new
    }

    /// What a module imports, in order.
    fn imported(&mut self, folders: &mut dyn Folders, module: &Module, imports: &[Import<'_>]) -> Imported {
        let Some(place) = Place::of(&module.path) else { return Imported::default() };
        let (packages, root) = around(folders, place.folder);
        if module.missed || !self.roots.iter().any(|known| **known == *root) {
            self.root(root);
        }
        let roots = self.roots_for(root);
        let found = Imported::default();
        let mut search = Search { ending: place.ending, folders, found, looks: LOOKS_MAX };
        for import in imports {
            let inner = match import.level {
                // Whatever the packages around have may be meant.
                None => &packages[..],
                Some(0) => &[],
                Some(level) => packages.get(level as usize - 1..level as usize).unwrap_or_default(),
            };
            for package in inner {
                search.import(package, import);
            }
            if import.level.is_none_or(|level| level == 0) && !import.module.is_empty() {
                let _ = roots.iter().any(|root| search.import(root, import));
            }
        }
        search.found
    }
}

/// What a module imports.
#[derive(Default)]
struct Imported {
    /// Modules, and small libraries.
    leaves: Vec<Leaf>,
    /// The paths of all libraries.
    libraries: Vec<Vec<u8>>,
}

/// Looks for what one module imports.
struct Search<'s> {
    /// What compiled modules of its interpreter end with.
    ending: &'s [u8],
    folders: &'s mut dyn Folders,
    found: Imported,
    /// How many names may still be looked for.
    looks: usize,
}

impl Search<'_> {
    /// Takes what is imported from a folder, and all modules on the way; whether there is anything of that name.
    fn import(&mut self, from: &[u8], import: &Import<'_>) -> bool {
        let mut package = Some(from.to_vec());
        for (depth, part) in import.module.split(|byte| *byte == b'.').filter(|it| !it.is_empty()).enumerate()
        {
            let Some(found) = package.and_then(|at| self.take(&at, part)) else { return depth > 0 };
            package = found.package();
        }
        if let Some(at) = package {
            for name in import.names.iter() {
                self.take(&at, name);
            }
        }
        true
    }

    /// Takes what is imported by this name from a folder, if there is anything.
    fn take(&mut self, at: &[u8], name: &[u8]) -> Option<Found> {
        self.looks = self.looks.checked_sub(1)?;
        let here = self.folders.list(at);
        if here.has_folder(name) {
            let package = join(at, name);
            let leaf = self.compiled(&package, PACKAGE);
            self.found.leaves.extend(leaf);
            return Some(Found::Package(package));
        }
        if let Some(leaf) = self.compiled(at, name) {
            self.found.leaves.push(leaf);
        } else {
            let library = here.library(&[name, b"."].concat())?;
            self.found.leaves.extend(Leaf::find(&here, library));
            self.found.libraries.push(join(at, library));
        }
        Some(Found::File)
    }

    /// The compiled module of this name in a folder.
    fn compiled(&mut self, at: &[u8], name: &[u8]) -> Option<Leaf> {
        if !self.folders.list(at).has_folder(COMPILED) {
            return None;
        }
        Leaf::find(&self.folders.list(&join(at, COMPILED)), &[name, self.ending].concat())
    }
}

/// What has a name that is imported.
enum Found {
    /// A folder with modules; its path.
    Package(Vec<u8>),
    /// A module or a library.
    File,
}

impl Found {
    fn package(self) -> Option<Vec<u8>> {
        if let Self::Package(path) = self { Some(path) } else { None }
    }
}

impl Planner {
    /// A program reads a module, or waits for one that nothing foresaw: has it tell what it imports.
    pub(super) fn module_read(&mut self, core: &Arc<Core>, path: &[u8], wanted: ObjectRequest, missed: bool) {
        let key = wanted.key();
        // A guess that is still queued is none any more once a program asks for it, so nothing else has it tell.
        let is_left = !self.is_under_way(&key) && self.modules.expected.remove(&key).is_some();
        // One that is missed again was evicted, and so perhaps were those that it imports.
        if self.modules.is_new(key) || is_left || missed {
            ask(core, Module { path: path.into(), wanted, missed, tries: 0 });
        }
    }

    /// An object has come; if it is a module that was guessed, it tells what it imports.
    pub(super) fn module_arrived(&mut self, core: &Arc<Core>, key: &CacheKey, is_here: bool) {
        if let Some(module) = self.modules.expected.remove(key).filter(|_| is_here) {
            ask(core, module);
        }
    }

    /// The content of a module is there, or is not to be had now.
    pub(super) fn module_came(&mut self, core: &Arc<Core>, module: Module, handle: Option<Handle>) {
        let Some(handle) = handle else { return };
        let content = objects::read(&handle, 0, handle.len().min(small_max(ENDING)) as usize);
        let Some(imports) = pyc::imports(&content) else {
            self.near(core, &module.path, false, 0);
            return;
        };
        let revision = core.current.load();
        let scene = Scene::new(core, &revision);
        let mut near = Near::new(&scene, &mut self.listings, self.far);
        let imported = self.modules.imported(&mut near, &module, &imports);
        // One alone is imported in a way that isn't told; with a second one, others will be, too.
        let beside = if module.missed && self.modules.is_missed_again(&module.path) {
            self.neighbours.beside(&mut near, &module.path)
        } else {
            Vec::new()
        };
        let libraries: Vec<_> = imported.libraries.iter().filter_map(|path| near.program(path)).collect();
        let missing = near.missing;
        for leaf in beside.iter().rev() {
            self.queue_first(Guess::of(leaf));
        }
        self.programs_expected(core, &libraries);
        for leaf in imported.leaves.iter().rev() {
            // Most modules import what others have imported.
            if self.modules.expect(leaf) || module.missed {
                self.queue_first(Guess::of(leaf));
            }
        }
        if module.tries < TRIES_MAX {
            // The same look again is no second miss.
            let module = Module { missed: false, tries: module.tries + 1, ..module };
            attach(core, Again::Module { module, handle }, missing);
        }
    }
}

/// Has a module opened.
fn ask(core: &Arc<Core>, module: Module) {
    let wanted = module.wanted.clone();
    objects::open(core, wanted, |handle| Event::Module { module, handle, attached: Vec::new() });
}

#[cfg(test)]
mod tests;
