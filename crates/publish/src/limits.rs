//! Compares the files and catalogs of a new revision with the limits in the settings.

use esker_format::write::catalog::Entry;
use esker_repository::{Limits, path, published::Published};

use crate::catalogs::Outline;
use crate::changes::Changes;
use crate::error::PublishError;
use crate::over_limit::{FILE, OverLimit};

/// Maximum number of listed files and catalogs above a limit.
const NAMED_MAX: usize = 20;

/// Files and catalogs of one revision that exceed limits.
#[derive(Clone, Debug, Default)]
pub(crate) struct OverLimits {
    /// The first ones.
    pub(crate) named: Vec<OverLimit>,
    /// Number of all.
    count: u64,
}

impl OverLimits {
    fn add(&mut self, path: &[u8], size: u64, limit: Option<u64>, setting: &'static str) {
        let Some(limit) = limit.filter(|limit| size > *limit) else { return };
        if self.named.len() < NAMED_MAX {
            self.named.push(OverLimit { path: path::shown(path), size, limit, setting });
        }
        self.count += 1;
    }

    fn more(&self) -> u64 {
        self.count - self.named.len() as u64
    }

    /// Fails if limits are enforced and one is exceeded.
    pub(crate) fn enforced(self, limits: &Limits) -> Result<Self, PublishError> {
        match self.named.first() {
            Some(first) if limits.enforced => {
                Err(PublishError::OverLimit { first: Box::new(first.clone()), more: self.count - 1 })
            }
            _ => Ok(self),
        }
    }

    /// Returns a warning for each.
    pub(crate) fn warnings(&self) -> impl Iterator<Item = String> {
        let more = (self.more() > 0).then(|| format!("{} more exceed limits", self.more()));
        self.named.iter().map(OverLimit::to_string).chain(more)
    }
}

/// Compares one new or changed file with the limit. A published file whose size stays is not compared.
fn add_file(
    found: &mut OverLimits,
    limits: &Limits,
    published: &Published,
    path: &[u8],
    entry: &Entry,
) -> Result<(), PublishError> {
    if !entry.is_file() || limits.file.is_none_or(|limit| entry.size <= limit) {
        return Ok(());
    }
    let before = published.entry(path)?;
    if !before.is_some_and(|before| before.is_file() && before.size == entry.size) {
        found.add(path, entry.size, limits.file, FILE);
    }
    Ok(())
}

/// Returns the file if it exceeds the limit.
pub(crate) fn file(
    limits: &Limits,
    published: &Published,
    path: &[u8],
    entry: &Entry,
) -> Result<OverLimits, PublishError> {
    let mut found = OverLimits::default();
    add_file(&mut found, limits, published, path, entry)?;
    Ok(found)
}

/// Returns the new and changed files, and the catalogs, that exceed limits.
pub(crate) fn all(
    limits: &Limits,
    published: &Published,
    changes: &Changes,
    outlines: &[Outline],
) -> Result<OverLimits, PublishError> {
    let mut found = OverLimits::default();
    for (directory, change) in changes.directories() {
        for entry in change.entries.values().flatten() {
            if limits.file.is_some_and(|limit| entry.size > limit) {
                add_file(&mut found, limits, published, &path::join(directory, &entry.name), entry)?;
            }
        }
    }
    for outline in outlines {
        let (limit, setting) = match outline.mountpoint.is_empty() {
            true => (limits.root_entries, "root_catalog_limit"),
            false => (limits.nested_entries, "nested_catalog_limit"),
        };
        found.add(&outline.mountpoint, outline.entries(), limit, setting);
    }
    Ok(found)
}
