//! Recognises a path that follows a repository without the colon between them.

use std::path::Path;

use super::address::is_name;
use crate::error::Failure;

/// File that identifies the folder of a repository.
const PUBLISHED: &str = ".cvmfspublished";

/// Adds a hint about the syntax of paths in repositories, if the user probably omitted the colon.
pub(crate) fn hint_at_colon(place: &str, failure: Failure) -> Failure {
    match with_colon(place) {
        Some(meant) => failure.hint_first(format!("a path in a repository follows a colon: {meant}")),
        None => failure,
    }
}

/// Returns the place with the colon where it likely belongs.
fn with_colon(place: &str) -> Option<String> {
    let joined = |repository: &str, path: &str| {
        let path = path.trim_start_matches('/');
        (!path.is_empty()).then(|| format!("{repository}:/{path}"))
    };
    let folder = place.strip_prefix("file://").or(Some(place).filter(|place| place.starts_with('/')));
    if let Some(folder) = folder {
        let above = Path::new(folder).ancestors().skip(1);
        let repository =
            above.map_while(Path::to_str).find(|above| Path::new(above).join(PUBLISHED).exists())?;
        let (repository, path) = place.split_at(place.len() - folder.len() + repository.len());
        return joined(repository, path);
    }
    let start = place.find("://").map(|at| at + 3);
    let rest = &place[start.unwrap_or(0)..];
    // Of a URL the host comes first.
    let mut at = place.len() - rest.len();
    let mut after_cvmfs = None;
    let mut first_named = None;
    for (number, segment) in rest.split('/').enumerate() {
        let end = at + segment.len();
        let is_host = number == 0 && start.is_some();
        if !is_host && is_name(segment) && segment.contains('.') {
            first_named = first_named.or(Some(end));
            let is_after = place[..at].ends_with("/cvmfs/");
            after_cvmfs = after_cvmfs.or(is_after.then_some(end));
        }
        // A name without a URL comes first.
        if number == 0 && start.is_none() && first_named.is_none() {
            return None;
        }
        at = end + 1;
    }
    let (repository, path) = place.split_at(after_cvmfs.or(first_named)?);
    joined(repository, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_puts_the_colon_after_the_repository() {
        let meant = |place: &str| with_colon(place);
        for (place, expected) in [
            ("http://h:80/cvmfs/a.test/dir/f", "http://h:80/cvmfs/a.test:/dir/f"),
            ("http://h/cvmfs/a.test/README.md", "http://h/cvmfs/a.test:/README.md"),
            ("https://h.org/a.b/cvmfs/sw.example.org/x", "https://h.org/a.b/cvmfs/sw.example.org:/x"),
            ("http://h/repos/sw.example.org/x/", "http://h/repos/sw.example.org:/x/"),
            ("sw.example.org/dir", "sw.example.org:/dir"),
        ] {
            assert_eq!(meant(place).as_deref(), Some(expected), "{place}");
        }
        for place in [
            "http://h/cvmfs/a.test",
            "http://h/cvmfs/a.test/",
            "a.test",
            "x/a.test",
            "./a.test/b",
            "/no/such",
        ] {
            assert_eq!(meant(place), None, "{place}");
        }
    }

    #[test]
    fn a_folder_is_a_repository_if_it_is_published() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir_all(folder.path().join("a.test/dir")).expect("a folder");
        let place = folder.path().join("a.test/dir/f").display().to_string();
        assert_eq!(with_colon(&place), None);
        std::fs::write(folder.path().join("a.test/.cvmfspublished"), "").expect("a file");
        let expected = format!("{}:/dir/f", folder.path().join("a.test").display());
        assert_eq!(with_colon(&place), Some(expected.clone()));
        assert_eq!(with_colon(&format!("file://{place}")), Some(format!("file://{expected}")));
    }
}
