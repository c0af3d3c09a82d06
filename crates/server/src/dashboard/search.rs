//! Search for names in a revision.

use std::collections::VecDeque;

use esker_format::catalog::Flags;
use esker_format::hash::ContentHash;
use esker_format::write::catalog::Entry;
use esker_repository::RepositoryError;
use esker_repository::path::is_within;
use esker_repository::published::OldCatalog;

use super::objects::{Objects, own_hash};

/// Number of results on a page.
const RESULTS: usize = 200;
/// Number of catalogs that one search reads.
const CATALOGS: usize = 500;
/// Number of rows between two checks of the budget.
const STRIDE: u64 = 4096;

/// Results of a search.
#[derive(Debug, Default)]
pub(crate) struct Search {
    /// Paths and their entries, in the order in which they were found.
    pub(crate) results: Vec<(Vec<u8>, Entry)>,
    /// Number of entries that were looked at.
    pub(crate) entries: u64,
    /// Number of catalogs that were read.
    pub(crate) catalogs: usize,
    /// True if there may be more results.
    pub(crate) is_cut: bool,
}

/// Finds the entries at and below a directory whose name contains a text, without regard to the case of ASCII letters.
pub(crate) fn run(
    objects: &Objects<'_>,
    root: ContentHash,
    below: &[u8],
    text: &str,
) -> Result<Search, RepositoryError> {
    let needle = text.as_bytes().to_ascii_lowercase();
    let mut search = Search::default();
    if needle.is_empty() {
        return Ok(search);
    }
    let mut waiting = VecDeque::from([objects.owner(root, below)?]);
    while let Some(mounted) = waiting.pop_front() {
        search.catalogs += 1;
        if search.look_into(objects, &mounted, below, &needle)? {
            search.is_cut = true;
            return Ok(search);
        }
        // Only a catalog further down is below another one, so this ends.
        for nested in mounted.nested.values().filter(|nested| nested.path.len() > mounted.mountpoint.len()) {
            let Some(hash) = own_hash(nested).filter(|_| is_within(&nested.path, below)) else { continue };
            if search.catalogs + waiting.len() >= CATALOGS {
                search.is_cut = true;
                break;
            }
            match objects.catalog(&nested.path, hash) {
                Ok(opened) => waiting.push_back(opened),
                Err(RepositoryError::Interrupted) => {
                    search.is_cut = true;
                    break;
                }
                Err(error) => return Err(error),
            }
        }
    }
    Ok(search)
}

impl Search {
    /// Searches one catalog; returns true if the search is at its end.
    fn look_into(
        &mut self,
        objects: &Objects<'_>,
        mounted: &OldCatalog,
        below: &[u8],
        needle: &[u8],
    ) -> Result<bool, RepositoryError> {
        for row in mounted.catalog.scan().map_err(mounted.failed())? {
            let row = row.map_err(mounted.failed())?;
            self.entries += 1;
            if self.entries.is_multiple_of(STRIDE) && objects.budget().is_spent() {
                return Ok(true);
            }
            // The root of a nested catalog is an entry of the catalog above, too.
            let is_root = row.flags().has(Flags::NESTED_ROOT);
            if is_root || !contains(row.name(), needle) {
                continue;
            }
            if self.results.len() >= RESULTS {
                return Ok(true);
            }
            let path = mounted
                .catalog
                .path_of(&row)
                .map_err(mounted.failed())?
                .filter(|path| is_within(path, below));
            self.results.extend(path.map(|path| (path, Entry::from_row(&row, Vec::new()))));
        }
        Ok(false)
    }
}

fn contains(name: &[u8], needle: &[u8]) -> bool {
    name.windows(needle.len()).any(|part| part.eq_ignore_ascii_case(needle))
}
