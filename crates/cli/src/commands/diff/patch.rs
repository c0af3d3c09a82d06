//! Differences between text files, in the unified format.

use esker_format::write::catalog::Entry;
use esker_repository::{ObjectSource, PathDiff, RepositoryError, file_content};
use similar::TextDiff;

use crate::error::Failure;
use crate::output::{Output, lossy};

/// Largest file that is compared line by line, in bytes.
const TEXT_MAX: u64 = 8 << 20;
/// Lines around each difference.
const CONTEXT: usize = 3;

/// Prints how the content of a path differs. The outer error is one of the repository, the inner one of the output.
pub(super) fn print(
    out: &mut Output,
    objects: &dyn ObjectSource,
    diff: &PathDiff<'_>,
) -> Result<Result<(), Failure>, RepositoryError> {
    let text = text_of(objects, diff)?;
    Ok(match text {
        Some(text) => out.text(text),
        None => out.line(super::line(out, diff)),
    })
}

/// Returns the difference of two texts; none if there is no text to compare.
fn text_of(objects: &dyn ObjectSource, diff: &PathDiff<'_>) -> Result<Option<String>, RepositoryError> {
    let is_file = |entry: Option<&Entry>| entry.is_none_or(Entry::is_file);
    let is_changed = diff.attributes.is_empty() || diff.attributes.has(esker_repository::Attributes::CONTENT);
    if !(is_file(diff.old) && is_file(diff.new) && is_changed) {
        return Ok(None);
    }
    let read = |entry: Option<&Entry>| -> Result<Option<String>, RepositoryError> {
        let Some(entry) = entry else { return Ok(Some(String::new())) };
        let content = file_content(objects, entry, TEXT_MAX, &lossy(diff.path))?;
        Ok(content.and_then(|bytes| String::from_utf8(bytes).ok()).filter(|text| !text.contains('\0')))
    };
    let (Some(old), Some(new)) = (read(diff.old)?, read(diff.new)?) else { return Ok(None) };
    let path = lossy(diff.path).replace(char::is_control, "?");
    let name = |side: char, entry: Option<&Entry>| match entry {
        Some(_) => format!("{side}{path}"),
        None => "/dev/null".to_owned(),
    };
    let lines = TextDiff::from_lines(&old, &new);
    let mut unified = lines.unified_diff();
    let unified = unified.context_radius(CONTEXT).header(&name('a', diff.old), &name('b', diff.new));
    // Files without any line have no difference of lines.
    Ok(Some(unified.to_string()).filter(|text| !text.is_empty()))
}
