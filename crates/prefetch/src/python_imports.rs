//! Compiled Python modules: what one imports comes ahead, and what those import.
//!
//! Each tells what it imports ([`pyc`](esker_format::pyc)), so from the first one on the modules of a program are known before it
//! asks for them, one round trip for each step, and without those beside them that it doesn't use. Where modules lie is
//! known from those that were read: below the folder that holds their package, the one that the interpreter looks through.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use esker_format::path::{join, split};
use esker_format::pyc::Import;
use esker_store::{CacheKey, ObjectRequest};

use crate::neighbours::{Folders, Leaf};

/// Where compiled modules lie beside their sources.
const COMPILED: &[u8] = b"__pycache__";
/// What a package's own module is called.
const PACKAGE: &[u8] = b"__init__";
/// The source of that.
const SOURCE: &[u8] = b"__init__.py";
/// The ending of compiled modules.
pub const ENDING: &[u8] = b".pyc";

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
pub struct PythonModule {
    /// Path of the file.
    pub path: Box<[u8]>,
    /// Request for its object.
    pub wanted: ObjectRequest,
    /// A program waited for it, and nothing had foreseen it.
    pub missed: bool,
    /// How often it was looked at, as catalogs were lacking.
    pub tries: u32,
}

/// Which modules told what they import, and where modules lie.
#[derive(Default)]
pub struct PythonModules {
    /// And what they imported.
    findings: HashSet<CacheKey>,
    /// Modules that come as guesses.
    expected: HashMap<CacheKey, PythonModule>,
    /// Folders with modules and packages, that of the last miss at the end.
    roots: Vec<Box<[u8]>>,
    /// Folders in which a module was missed.
    missed_in: HashSet<Box<[u8]>>,
}

/// Where a module lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ModuleLocation<'p> {
    /// The folder with its source.
    folder: &'p [u8],
    /// What compiled modules of its interpreter end with: `.cpython-311.pyc`.
    ending: &'p [u8],
}

impl<'p> ModuleLocation<'p> {
    fn of(path: &'p [u8]) -> Option<Self> {
        let (compiled, name) = split(path).filter(|(_, name)| name.ends_with(ENDING))?;
        let (folder, _) = split(compiled).filter(|(_, last)| *last == COMPILED)?;
        let stem = name.iter().position(|byte| *byte == b'.')?;
        Some(Self { folder, ending: &name[stem..] })
    }
}

/// Whether this is the path of a compiled module.
pub fn is_module(path: &[u8]) -> bool {
    ModuleLocation::of(path).is_some()
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

impl PythonModules {
    /// Notes that a module is to tell what it imports; whether that is new.
    pub fn is_new(&mut self, key: CacheKey) -> bool {
        if self.findings.len() >= TOLD_MAX {
            self.clear();
        }
        self.findings.insert(key)
    }

    /// Forgets what was told and what is to tell.
    pub fn clear(&mut self) {
        self.findings.clear();
        self.expected.clear();
    }

    /// Takes a module that was to tell what it imports once it has come.
    pub fn take_expected(&mut self, key: &CacheKey) -> Option<PythonModule> {
        self.expected.remove(key)
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
    pub fn is_missed_again(&mut self, path: &[u8]) -> bool {
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
    pub fn are_around(&self, path: &[u8]) -> bool {
        let is_below = |root: &[u8]| path.strip_prefix(root).is_some_and(|rest| rest.starts_with(b"/"));
        self.roots.iter().any(|root| is_below(root))
    }

    /// That what is imported is to tell what it imports in turn, if it is a module; whether it is new.
    pub fn expect(&mut self, leaf: &Leaf) -> bool {
        let is_new = self.is_new(leaf.key());
        let path = leaf.path();
        if is_new && is_module(&path) {
            let module = PythonModule { path: path.into(), wanted: leaf.wanted(), missed: false, tries: 0 };
            self.expected.insert(leaf.key(), module);
        }
        is_new
    }

    /// What a module imports, in order.
    pub fn imported(
        &mut self,
        folders: &mut dyn Folders,
        module: &PythonModule,
        imports: &[Import<'_>],
    ) -> Imported {
        let Some(place) = ModuleLocation::of(&module.path) else { return Imported::default() };
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
pub struct Imported {
    /// Modules, and small libraries.
    pub leaves: Vec<Leaf>,
    /// The paths of all libraries.
    pub libraries: Vec<Vec<u8>>,
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
    fn take(&mut self, at: &[u8], name: &[u8]) -> Option<ImportTarget> {
        self.looks = self.looks.checked_sub(1)?;
        let here = self.folders.list(at);
        if here.has_folder(name) {
            let package = join(at, name);
            let leaf = self.compiled(&package, PACKAGE);
            self.found.leaves.extend(leaf);
            return Some(ImportTarget::Package(package));
        }
        if let Some(leaf) = self.compiled(at, name) {
            self.found.leaves.push(leaf);
        } else {
            let library = here.library(&[name, b"."].concat())?;
            self.found.leaves.extend(Leaf::find(&here, library));
            self.found.libraries.push(join(at, library));
        }
        Some(ImportTarget::File)
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
enum ImportTarget {
    /// A folder with modules; its path.
    Package(Vec<u8>),
    /// A module or a library.
    File,
}

impl ImportTarget {
    fn package(self) -> Option<Vec<u8>> {
        if let Self::Package(path) = self { Some(path) } else { None }
    }
}

#[cfg(test)]
mod tests;
