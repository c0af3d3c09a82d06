//! Predicts the modules that compiled Python modules import.
//!
//! Each module tells what it imports ([`pyc`](esker_format::pyc)), so from the first one on the modules of a program
//! are known before the program reads them, one round trip for each step, and without the modules beside them that it
//! does not use. The search path is inferred from the modules that were read: it has the folder that holds their
//! outermost package.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use esker_format::path::{join, split};
use esker_format::pyc::{self, Import};
use esker_store::{CacheKey, Handle, ObjectRequest};

use crate::candidate::Candidate;
use crate::event::{Around, Event, Outcome, Purpose};
use crate::folders::{Folders, Leaf, small_max};
use crate::objects;
use crate::predictor::{Context, Predictor, TRIES_MAX};

/// Name of the folder of compiled modules, beside their sources.
const COMPILED: &[u8] = b"__pycache__";
/// Name of a package's own module.
const PACKAGE: &[u8] = b"__init__";
/// Name of the source of a package's own module.
const SOURCE: &[u8] = b"__init__.py";
/// Suffix of compiled modules.
const ENDING: &[u8] = b".pyc";

/// Maximum number of folders in which modules are searched.
const ROOTS_MAX: usize = 64;
/// Maximum number of recorded modules, and of recorded folders.
const EVALUATED_MAX: usize = 1 << 16;
/// Maximum number of enclosing packages in which a module is searched.
const AROUND_MAX: usize = 16;
/// Maximum number of names that are searched for one importing module.
const LOOKUPS_MAX: usize = 1 << 14;

/// A compiled module whose imports are to be evaluated.
#[derive(Clone, Debug)]
pub struct PythonModule {
    /// Path of the file.
    pub path: Box<[u8]>,
    /// Request for the module's object.
    pub wanted: ObjectRequest,
    /// True if a program waited for it and it was not prefetched.
    pub missed: bool,
    /// Number of retries so far because catalogs were missing.
    pub tries: u32,
}

/// Tracks which modules were evaluated, and the folders in which modules are.
#[derive(Default)]
pub(crate) struct PythonModules {
    /// Modules that were evaluated, and the files that they import.
    evaluated: HashSet<CacheKey>,
    /// Modules that are being prefetched.
    expected: HashMap<CacheKey, PythonModule>,
    /// Folders with modules and packages; that of the last miss is the last one.
    roots: Vec<Box<[u8]>>,
    /// Folders in which a module was missed.
    missed_in: HashSet<Box<[u8]>>,
}

/// Location of a module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ModuleLocation<'p> {
    /// Folder with its source.
    folder: &'p [u8],
    /// Suffix of compiled modules of its interpreter: `.cpython-311.pyc`.
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

/// Returns true if this is the path of a compiled module.
fn is_module(path: &[u8]) -> bool {
    ModuleLocation::of(path).is_some()
}

/// Returns the packages around a folder, innermost first, and the folder that holds the outermost.
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
    /// Records that a module is evaluated; returns true if it was not before.
    fn is_new(&mut self, key: CacheKey) -> bool {
        if self.evaluated.len() >= EVALUATED_MAX {
            self.evaluated.clear();
            self.expected.clear();
        }
        self.evaluated.insert(key)
    }

    /// Removes a prefetched module that has arrived.
    fn take_expected(&mut self, key: &CacheKey) -> Option<PythonModule> {
        self.expected.remove(key)
    }

    /// Records the folder that contains the package of a module that a program reads.
    fn root(&mut self, root: &[u8]) {
        self.roots.retain(|known| **known != *root);
        if self.roots.len() >= ROOTS_MAX {
            self.roots.remove(0);
        }
        self.roots.push(root.into());
    }

    /// Records a miss that was not predicted; returns true if another module in its folder was missed before.
    fn is_missed_again(&mut self, path: &[u8]) -> bool {
        let Some((folder, _)) = split(path) else { return false };
        if self.missed_in.len() >= EVALUATED_MAX {
            self.missed_in.clear();
        }
        !self.missed_in.insert(folder.into())
    }

    /// Returns the folders in which absolute imports are searched: the nearest first, and then that of the last miss.
    fn roots_for(&self, path: &[u8]) -> Vec<Box<[u8]>> {
        let is_slash = |byte: &u8| *byte == b'/';
        let common =
            |root: &[u8]| root.split(is_slash).zip(path.split(is_slash)).take_while(|(a, b)| a == b).count();
        let mut roots: Vec<_> = self.roots.iter().rev().cloned().collect();
        roots.sort_by_key(|root| Reverse(common(root)));
        roots
    }

    /// Returns true if modules whose imports are evaluated are around a file.
    fn are_around(&self, path: &[u8]) -> bool {
        let is_below = |root: &[u8]| path.strip_prefix(root).is_some_and(|rest| rest.starts_with(b"/"));
        self.roots.iter().any(|root| is_below(root))
    }

    /// Records an imported file, to be evaluated in turn if it is a module; returns true if it is new.
    fn expect(&mut self, leaf: &Leaf) -> bool {
        let is_new = self.is_new(leaf.key());
        let path = leaf.path();
        if is_new && is_module(&path) {
            let module = PythonModule { path: path.into(), wanted: leaf.wanted(), missed: false, tries: 0 };
            self.expected.insert(leaf.key(), module);
        }
        is_new
    }

    /// Returns the files that a module imports, in order.
    fn imported(
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
        let mut search = Search { ending: place.ending, folders, found, looks: LOOKUPS_MAX };
        for import in imports {
            let inner = match import.level {
                // Python 2 style: the import may be relative to any package around.
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

impl PythonModules {
    /// Opens a module that is read, or missed without a prediction, to evaluate its imports.
    fn module_read<C>(&mut self, module: PythonModule, context: &mut Context<'_, C>) {
        let key = module.wanted.key();
        // A read removes a queued candidate, so its arrival would not open the module.
        let is_left = !context.queue.is_under_way(&key) && self.take_expected(&key).is_some();
        // A module that is missed again was evicted, and so perhaps were those that it imports.
        if self.is_new(key) || is_left || module.missed {
            open(module, context);
        }
    }

    /// Evaluates the imports of a module.
    fn module_opened<C>(&mut self, module: PythonModule, handle: Handle, context: &mut Context<'_, C>) {
        let content = objects::read(&handle, 0, handle.len().min(small_max(ENDING)) as usize);
        let Some(imports) = pyc::imports(&content) else {
            let is_among_modules = self.are_around(&module.path);
            let path = module.path.into_vec();
            return context.raise(Event::Around(Around {
                path,
                was_missed: false,
                is_among_modules,
                tries: 0,
            }));
        };
        let imported = self.imported(context.world, &module, &imports);
        // A single miss may be a dynamic import; after a second one, others in the folder are likely too.
        if module.missed && self.is_missed_again(&module.path) {
            context.raise(Event::BesideModule(module.path.to_vec()));
        }
        let libraries = imported.libraries.iter().filter_map(|path| context.world.elf_file(path)).collect();
        context.raise(Event::LibrariesExpected(libraries));
        context.raise(Event::Imported { leaves: imported.leaves, module, handle });
    }

    /// Queues the files that a module imports.
    fn queue_imported<C>(
        &mut self,
        leaves: &[Leaf],
        (module, handle): (PythonModule, Handle),
        context: &mut Context<'_, C>,
    ) {
        for leaf in leaves.iter().rev() {
            // Most modules import what others have imported.
            if self.expect(leaf) || module.missed {
                context.queue.push_first(Candidate::of(leaf));
            }
        }
        let tries = module.tries + 1;
        // The retry is no second miss.
        let again = PythonModule { missed: false, tries, ..module };
        context.attach_missing(|| {
            (tries <= TRIES_MAX).then(|| Event::Opened(Purpose::Module(again), Some(handle)))
        });
    }
}

/// Requests a module, to evaluate its imports.
fn open<C>(module: PythonModule, context: &mut Context<'_, C>) {
    context.open(module.wanted.clone(), Purpose::Module(module));
}

impl<C> Predictor<C> for PythonModules {
    fn on(&mut self, event: Event<C>, context: &mut Context<'_, C>) -> Option<Event<C>> {
        match event {
            Event::Read(mut read) => {
                if let Some(path) = read.small_file() {
                    if let Some(content) = read.file.content.filter(|_| is_module(path)) {
                        let wanted = objects::file(content, read.file.size, path);
                        let (path, missed) = (path.into(), read.is_surprise());
                        self.module_read(PythonModule { path, wanted, missed, tries: 0 }, context);
                        return None;
                    }
                    read.is_among_modules = self.are_around(path);
                }
                return Some(Event::Read(read));
            }
            Event::Ended(ended) => {
                let is_here = ended.outcome != Outcome::Failed;
                if let Some(module) = self.take_expected(&ended.key).filter(|_| is_here) {
                    open(module, context);
                }
                return Some(event);
            }
            Event::Opened(Purpose::Module(module), handle) => {
                if let Some(handle) = handle {
                    self.module_opened(module, handle, context);
                }
            }
            Event::Imported { leaves, module, handle } => {
                self.queue_imported(&leaves, (module, handle), context);
            }
            other => return Some(other),
        }
        None
    }

    fn clear(&mut self) {
        self.evaluated.clear();
        self.expected.clear();
    }
}

/// Files that a module imports.
#[derive(Default)]
struct Imported {
    /// Modules, and small libraries.
    leaves: Vec<Leaf>,
    /// Paths of all libraries.
    libraries: Vec<Vec<u8>>,
}

/// Search for the imports of one module.
struct Search<'s> {
    /// Suffix of compiled modules of its interpreter.
    ending: &'s [u8],
    folders: &'s mut dyn Folders,
    found: Imported,
    /// Number of names that may still be searched.
    looks: usize,
}

impl Search<'_> {
    /// Adds an import from a folder, and all modules on the way; returns true if the folder has its first name.
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

    /// Adds the module, package or library of this name in a folder, if there is one.
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

    /// Finds the compiled module of this name in a folder.
    fn compiled(&mut self, at: &[u8], name: &[u8]) -> Option<Leaf> {
        if !self.folders.list(at).has_folder(COMPILED) {
            return None;
        }
        Leaf::find(&self.folders.list(&join(at, COMPILED)), &[name, self.ending].concat())
    }
}

/// Kind of an imported name.
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
