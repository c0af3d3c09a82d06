//! Finds the libraries that a library needs.

use std::sync::Arc;

use esker_format::path::join;
use esker_prefetch::elf_needed::NeededSearch;

use crate::core::Core;
use crate::lookup::{Snapshot, is_name};

use super::listings::FolderLister;
use super::retry::{Retry, TRIES_MAX, fetch_catalogs};
use super::scheduler::Scheduler;

impl Scheduler {
    /// Finds the libraries that a file needs.
    pub(super) fn find_needed(&mut self, core: &Arc<Core>, need: NeededSearch) {
        let revision = core.current.load();
        let snapshot = Snapshot::new(core, &revision);
        let mut lister = FolderLister::new(&snapshot, &mut self.folder_cache, self.far);
        let folders = need.folders(&core.name);
        let mut find =
            |library: &[u8]| folders.iter().find_map(|folder| lister.elf_file(&join(folder, library)));
        let libraries = need.needs.libraries.iter().filter(|name| is_name(name));
        let found: Vec<_> = libraries.filter_map(|name| find(name)).collect();
        let missing = lister.missing;
        self.elf_expected(core, &found);
        if need.tries < TRIES_MAX {
            fetch_catalogs(
                core,
                Retry::NeededSearch(NeededSearch { tries: need.tries + 1, ..need }),
                missing,
            );
        }
    }
}
