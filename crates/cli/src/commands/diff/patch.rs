//! Differences between text files, in the unified format.

use std::time::Duration;

use esker_format::write::catalog::Entry;
use esker_repository::{ObjectSource, PathDiff, RepositoryError, file_content};
use similar::{Algorithm, ChangeTag, TextDiff};

use crate::error::Failure;
use crate::output::{Output, lossy};

/// Largest file that is compared line by line, in bytes.
pub(crate) const TEXT_MAX: u64 = 8 << 20;
/// Lines around each difference.
const CONTEXT: usize = 3;
/// Time after which a smallest difference is no longer looked for.
const SEARCH: Duration = Duration::from_secs(2);

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
        Ok(file_content(objects, entry, TEXT_MAX, &lossy(diff.path))?.and_then(text))
    };
    let (Some(old), Some(new)) = (read(diff.old)?, read(diff.new)?) else { return Ok(None) };
    Ok(unified(diff.path, diff.old.map(|_| &*old), diff.new.map(|_| &*new)))
}

/// Returns content as text; none if it is none.
pub(crate) fn text(content: Vec<u8>) -> Option<String> {
    String::from_utf8(content).ok().filter(|text| !text.contains('\0'))
}

/// Returns the difference of two texts, of which one may be missing; none if no line differs.
pub(crate) fn unified(path: &[u8], old: Option<&str>, new: Option<&str>) -> Option<String> {
    let path = lossy(path).replace(char::is_control, "?");
    let name = |side: char, text: Option<&str>| match text {
        Some(_) => format!("{side}{path}"),
        None => "/dev/null".to_owned(),
    };
    let lines = lines(old.unwrap_or_default(), new.unwrap_or_default());
    let mut unified = lines.unified_diff();
    let unified = unified.context_radius(CONTEXT).header(&name('a', old), &name('b', new));
    Some(unified.to_string()).filter(|text| !text.is_empty())
}

/// Returns the numbers of inserted and deleted lines.
pub(crate) fn count(old: &str, new: &str) -> (u64, u64) {
    let lines = lines(old, new);
    let count = |tag: ChangeTag| lines.iter_all_changes().filter(|change| change.tag() == tag).count() as u64;
    (count(ChangeTag::Insert), count(ChangeTag::Delete))
}

fn lines<'t>(old: &'t str, new: &'t str) -> TextDiff<'t, 't, 't, str> {
    TextDiff::configure().algorithm(Algorithm::Myers).timeout(SEARCH).diff_lines(old, new)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_and_named_as_git_does() {
        let (old, new) = ("one\ntwo\nthree\n", "one\n2\nthree\nfour");
        assert_eq!(count(old, new), (2, 1));
        assert_eq!(count("", "a\nb\n"), (2, 0));
        let patch = "--- a/f\n+++ b/f\n@@ -1,3 +1,4 @@\n one\n-two\n+2\n three\n+four\n\\ No newline at end of file\n";
        assert_eq!(unified(b"/f", Some(old), Some(new)).as_deref(), Some(patch));
        let added = "--- /dev/null\n+++ b/f\n@@ -0,0 +1 @@\n+a\n";
        assert_eq!(unified(b"/f", None, Some("a\n")).as_deref(), Some(added));
        assert_eq!((unified(b"/f", Some(old), Some(old)), text(b"a\0".to_vec())), (None, None));
    }
}
