//! The tags of a head.

use esker_format::history::{History, Tag};
use esker_format::manifest::Manifest;
use esker_format::object::{ObjectKind, ObjectName};
use esker_repository::{HISTORY_MAX, RepositoryError, signed::read_object};
use esker_store::Sink;

/// Returns the tags in the history of a head, newest first.
pub(crate) fn tags(sink: &dyn Sink, head: &Manifest) -> Result<Vec<Tag>, RepositoryError> {
    let Some(hash) = head.history else { return Ok(Vec::new()) };
    let object = ObjectName::new(hash, ObjectKind::History);
    let bytes = read_object(sink, &object, None, HISTORY_MAX, "the history")?;
    Ok(History::parse(&bytes).map_err(RepositoryError::History)?.tags().to_vec())
}

/// Returns the tags whose revisions a replica has.
pub(crate) fn tags_here(sink: &dyn Sink, tags: Vec<Tag>) -> Result<Vec<Tag>, RepositoryError> {
    let mut here = Vec::new();
    for tag in tags {
        if sink.len_of(&ObjectName::new(tag.root_catalog, ObjectKind::Catalog))?.is_some() {
            here.push(tag);
        }
    }
    Ok(here)
}
