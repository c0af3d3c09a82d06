//! Symlinks in the paths of archive entries: followed within the repository, or refused.
//!
//! GNU tar follows symlinks that exist in the folder that it extracts to. Of the symlinks that the archive itself
//! contains, it follows those that point below their own directory.

use esker_format::catalog::EntryKind;
use esker_format::write::catalog::Entry;
use esker_repository::{RepositoryError, path};

use super::collect::Collector;
use crate::error::PublishError;

/// Maximum number of links followed, as in Linux.
const LINKS_MAX: u32 = 40;
const LEADS_OUT: &str = "the archive has an entry below it, and it is a symlink that leads out of the repository: \
                         ingest into the directory that it should go to";

/// Returns the path of a directory after following symlinks.
///
/// A component that does not exist yet is kept as named. A published file in the path is replaced by a directory.
pub(super) fn followed(collector: &Collector<'_>, named: &[u8]) -> Result<Vec<u8>, PublishError> {
    let mut at = Vec::new();
    let mut left = named.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let mut links = 0;
    while let Some(name) = left.next() {
        let below = path::join(&at, name);
        match collector.tree().entry(&below)? {
            Some(entry) if entry.is_directory() => at = below,
            Some(entry) if is_symlink(&entry) => at = target(collector, &at, &below, &entry, &mut links)?,
            Some(_) if collector.has_brought(&below) => {
                let reason = "the archive has a file there, and another entry below it";
                return Err(RepositoryError::Target { path: path::shown(&below), reason }.into());
            }
            _ => return Ok(left.fold(below, |path, name| path::join(&path, name))),
        }
    }
    Ok(at)
}

fn is_symlink(entry: &Entry) -> bool {
    entry.kind() == Some(EntryKind::Symlink)
}

/// Returns the target directory of a link.
fn target(
    collector: &Collector<'_>,
    directory: &[u8],
    link: &[u8],
    entry: &Entry,
    links: &mut u32,
) -> Result<Vec<u8>, PublishError> {
    let refused = |reason| Err(RepositoryError::Target { path: path::shown(link), reason }.into());
    *links += 1;
    if *links > LINKS_MAX {
        return refused("the archive has an entry below it, and it leads to a link, and so on");
    }
    let to = &entry.symlink;
    if to.starts_with(b"/") {
        return refused(LEADS_OUT);
    }
    let is_own = collector.has_brought(link);
    let mut at = directory.to_vec();
    for name in to.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".") {
        if name == b".." {
            if is_own {
                return refused("the archive has it as a symlink that leads up, and an entry below it");
            }
            let Some((above, _)) = path::split(&at) else {
                return refused(LEADS_OUT);
            };
            at = above.to_vec();
            continue;
        }
        let below = path::join(&at, name);
        at = match collector.tree().entry(&below)? {
            Some(found) if found.is_directory() => below,
            Some(found) if is_symlink(&found) => target(collector, &at, &below, &found, links)?,
            _ => return refused("the archive has an entry below it, and it is a symlink to no directory"),
        };
    }
    Ok(at)
}

/// Refuses a directory of an archive that would replace a published symlink to a directory and so hide its entries.
pub(super) fn check_replaced(collector: &Collector<'_>, place: &[u8]) -> Result<(), PublishError> {
    let is_link = collector.tree().entry(place)?.is_some_and(|entry| is_symlink(&entry));
    if !is_link || followed(collector, place).is_err() {
        return Ok(());
    }
    let reason = "it is published as a symlink to a directory, and the archive has a directory in its place: \
                  delete the link with --delete, or leave the directory out of the archive";
    Err(RepositoryError::Target { path: path::shown(place), reason }.into())
}
