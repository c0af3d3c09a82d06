//! Reads the published history.

use esker_format::history::History;
use esker_format::object::ObjectName;
use esker_format::write::history::HistoryDraft;

use crate::error::RepositoryError;
use crate::repository::{HISTORY_MAX, Repository};
use crate::signed::read_object;

/// Reads a history to continue it; an empty one if there is none.
pub fn read_history(
    repository: &Repository,
    object: Option<ObjectName>,
) -> Result<HistoryDraft, RepositoryError> {
    let Some(object) = object else { return Ok(HistoryDraft::new(repository.name.clone())) };
    let bytes = read_object(repository.sink(), &object, None, HISTORY_MAX, "the history")?;
    let history = History::parse(&bytes).map_err(RepositoryError::History)?;
    Ok(HistoryDraft::continuing(&history, object.hash))
}
