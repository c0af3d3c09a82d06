//! Prefetches the modules that Python modules import.

use std::sync::Arc;

use esker_format::pyc;
use esker_prefetch::candidate::Candidate;
use esker_prefetch::neighbours::small_max;
use esker_prefetch::objects as file_objects;
use esker_prefetch::python_imports::{ENDING, PythonModule};
use esker_store::{CacheKey, Handle, ObjectRequest};

use crate::core::Core;
use crate::lookup::Snapshot;

use super::listings::FolderLister;
use super::retry::{Retry, TRIES_MAX, fetch_catalogs};
use super::scheduler::Scheduler;
use super::{Event, objects};

impl Scheduler {
    /// Handles a read or an unpredicted miss of a module: opens it to evaluate its imports.
    pub(super) fn module_read(&mut self, core: &Arc<Core>, path: &[u8], wanted: ObjectRequest, missed: bool) {
        let key = wanted.key();
        // A read removes a queued candidate, so its arrival would not open the module.
        let is_left = !self.is_under_way(&key) && self.python_modules.take_expected(&key).is_some();
        // A module that is missed again was evicted, and so perhaps were those that it imports.
        if self.python_modules.is_new(key) || is_left || missed {
            open_module(core, PythonModule { path: path.into(), wanted, missed, tries: 0 });
        }
    }

    /// Opens a prefetched module to evaluate its imports.
    pub(super) fn module_prefetched(&mut self, core: &Arc<Core>, key: &CacheKey, is_here: bool) {
        if let Some(module) = self.python_modules.take_expected(key).filter(|_| is_here) {
            open_module(core, module);
        }
    }

    /// Evaluates the imports of a module.
    pub(super) fn module_fetched(&mut self, core: &Arc<Core>, module: PythonModule, handle: Option<Handle>) {
        let Some(handle) = handle else { return };
        let content = file_objects::read(&handle, 0, handle.len().min(small_max(ENDING)) as usize);
        let Some(imports) = pyc::imports(&content) else {
            self.queue_neighbours(core, &module.path, false, 0);
            return;
        };
        let revision = core.current.load();
        let snapshot = Snapshot::new(core, &revision);
        let mut lister = FolderLister::new(&snapshot, &mut self.folder_cache, self.far);
        let imported = self.python_modules.imported(&mut lister, &module, &imports);
        // A single miss may be a dynamic import; after a second one, others in the folder are likely too.
        let beside = if module.missed && self.python_modules.is_missed_again(&module.path) {
            self.neighbours.beside(&mut lister, &module.path)
        } else {
            Vec::new()
        };
        let libraries: Vec<_> = imported.libraries.iter().filter_map(|path| lister.elf_file(path)).collect();
        let missing = lister.missing;
        for leaf in beside.iter().rev() {
            self.queue_first(Candidate::of(leaf));
        }
        self.elf_expected(core, &libraries);
        for leaf in imported.leaves.iter().rev() {
            // Most modules import what others have imported.
            if self.python_modules.expect(leaf) || module.missed {
                self.queue_first(Candidate::of(leaf));
            }
        }
        if module.tries < TRIES_MAX {
            // The retry is no second miss.
            let module = PythonModule { missed: false, tries: module.tries + 1, ..module };
            fetch_catalogs(core, Retry::PythonModule { module, handle }, missing);
        }
    }
}

/// Opens a module.
fn open_module(core: &Arc<Core>, module: PythonModule) {
    let wanted = module.wanted.clone();
    objects::open(core, wanted, |handle| Event::PythonModule { module, handle, attached: Vec::new() });
}
