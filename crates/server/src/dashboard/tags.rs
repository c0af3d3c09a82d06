//! Tags of a repository.

use std::collections::HashMap;

use esker_format::hash::ContentHash;
use esker_format::history::{History, Tag};
use esker_format::manifest::Manifest;
use esker_format::object::{ObjectKind, ObjectName};
use esker_repository::RepositoryError;

use super::objects::{self, Objects};
use crate::file::Folder;

/// Number of tags that the list of repositories names.
const NAMED: usize = 3;

/// Number of tags, and the newest ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TagSummary {
    pub(crate) count: usize,
    /// Names of the newest tags.
    pub(crate) newest: Vec<String>,
}

impl TagSummary {
    /// Reads a history.
    pub(crate) fn read(folder: &Folder, history: ContentHash) -> Result<(Self, u64), String> {
        let name = ObjectName::new(history, ObjectKind::History);
        let read = || -> Result<(Self, u64), RepositoryError> {
            let bytes = objects::read(folder, &name, "the history")?;
            let history = History::parse(&bytes).map_err(RepositoryError::History)?;
            let newest = history.tags().iter().filter(|tag| !is_generated(&tag.name)).take(NAMED);
            let newest = newest.map(|tag| tag.name.clone()).collect();
            Ok((Self { count: history.tags().len(), newest }, bytes.len() as u64))
        };
        read().map_err(|error| error.to_string())
    }
}

/// Returns true for the names that every publish moves.
fn is_generated(name: &str) -> bool {
    name.starts_with("trunk")
}

/// All tags, newest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct TagList {
    pub(crate) tags: Vec<Tag>,
}

impl TagList {
    /// Returns the names of each root catalog.
    pub(crate) fn by_root(&self) -> HashMap<ContentHash, Vec<&Tag>> {
        let mut by_root: HashMap<ContentHash, Vec<&Tag>> = HashMap::new();
        for tag in &self.tags {
            by_root.entry(tag.root_catalog).or_default().push(tag);
        }
        by_root
    }
}

/// Reads the tags of a repository.
pub(crate) fn list(objects: &Objects<'_>, manifest: &Manifest) -> Result<TagList, RepositoryError> {
    let Some(history) = manifest.history else { return Ok(TagList::default()) };
    let bytes = objects.plain(&ObjectName::new(history, ObjectKind::History), "the history")?;
    let history = History::parse(&bytes).map_err(RepositoryError::History)?;
    Ok(TagList { tags: history.tags().to_vec() })
}
