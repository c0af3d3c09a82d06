//! Copies of directories by catalog rows.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;

use esker_format::chunker::ChunkSizes;
use esker_publish::{CopyTree, PublishError, Report};
use esker_repository::{Balance, RepositoryError};
use esker_testkit::listing::Entry;
use proptest::prelude::*;

use crate::model::{apply, directories, edit};
use crate::workshop::{Workshop, assert_same_trees, now, objects, options};

fn copy(workshop: &Workshop, from: &str, to: &str) -> Result<Report, PublishError> {
    let mut progress = |_| ();
    let (from, to) = (from.as_bytes().to_vec(), to.as_bytes().to_vec());
    CopyTree { from, to, options: options(&mut progress) }.run(&workshop.open(), now())
}

fn workshop() -> Workshop {
    let workshop = Workshop::with(|new| new.settings.chunks = ChunkSizes::new(4096, 8192, 16_384).unwrap());
    let at = |name: &str| workshop.source().join(name);
    fs::create_dir_all(at("a/nested/deeper/still")).unwrap();
    for name in ["a/file", "a/nested/file", "a/nested/deeper/file", "a/nested/deeper/still/file"] {
        fs::write(at(name), name).unwrap();
    }
    fs::write(at("a/large"), (0..40_000_u32).map(|at| ((at * 31) >> 3) as u8).collect::<Vec<_>>()).unwrap();
    for name in ["a/nested", "a/nested/deeper"] {
        fs::write(at(name).join(".cvmfscatalog"), b"").unwrap();
    }
    for (name, link) in [("a/nested/file", "a/nested/same"), ("a/file", "a/other")] {
        fs::hard_link(at(name), at(link)).unwrap();
    }
    symlink("nested/file", at("a/link")).unwrap();
    workshop.publish();
    workshop
}

/// Entries at and below a directory, by their paths below it.
fn below(tree: &BTreeMap<Vec<u8>, Entry>, top: &str) -> Vec<Entry> {
    let within = tree.values().filter_map(|entry| {
        let path = entry.path.strip_prefix(top.as_bytes())?.to_vec();
        (path.is_empty() || path.starts_with(b"/")).then(|| Entry { path, ..entry.clone() })
    });
    within.collect()
}

#[test]
fn a_copy_has_the_same_entries_in_catalogs_of_its_own() {
    let workshop = workshop();
    let stored = |workshop: &Workshop| {
        objects(&workshop.root()).into_iter().filter(|name| !name.ends_with(['C', 'H'])).count()
    };
    let before = stored(&workshop);
    let report = copy(&workshop, "/a", "/b/c").unwrap();
    assert_eq!((report.differences.added.files, report.differences.added.directories), (9, 5));
    assert_eq!((report.files_read, report.objects_stored), (0, 0));
    assert_eq!(stored(&workshop), before, "no content was stored");
    let findings = workshop.check();
    findings.assert_clean();
    assert_same_trees(&below(&findings.tree, "/a"), &below(&findings.tree, "/b/c"));
    let catalogs: Vec<&str> = findings.catalogs.keys().map(String::as_str).collect();
    assert_eq!(catalogs, ["", "/a/nested", "/a/nested/deeper", "/b/c/nested", "/b/c/nested/deeper"]);
    for (original, copy) in [("/a/nested", "/b/c/nested"), ("/a/nested/deeper", "/b/c/nested/deeper")] {
        assert_eq!(findings.catalogs[original], findings.catalogs[copy]);
    }
    // A copy of a nested catalog itself, and of a copy.
    copy(&workshop, "/b/c/nested/deeper", "/a/nested/again").unwrap();
    let findings = workshop.check();
    findings.assert_clean();
    assert_same_trees(&below(&findings.tree, "/a/nested/deeper"), &below(&findings.tree, "/a/nested/again"));
    assert!(findings.catalogs.contains_key("/a/nested/again"));
}

#[test]
fn a_copy_that_is_not_possible_changes_nothing() {
    let workshop = workshop();
    for (from, to) in [
        ("/a", "/a"),
        ("/a", "/a/nested/inside"),
        ("/", "/whole"),
        ("/a", "/"),
        ("/a/nested", "/a/file"),
        ("/a/nested", "/a/file/below"),
        ("/a/file", "/b"),
        ("/none", "/b"),
        ("/a", "/.cvmfs/b"),
        ("/a", "/b/../c"),
    ] {
        let refused = copy(&workshop, from, to).unwrap_err();
        assert!(
            matches!(refused, PublishError::Repository(RepositoryError::Target { .. })),
            "{from} {to}: {refused}"
        );
    }
    assert_eq!(workshop.check().assert_clean().revision, 1);
    let mut progress = |_| ();
    let (from, to) = (b"/a".to_vec(), b"/b".to_vec());
    let mut copy = CopyTree { from, to, options: options(&mut progress) };
    let planned = copy.dry_run(&workshop.open(), now()).unwrap();
    assert_eq!(planned.differences.added.total(), 14);
    assert!(planned.changes.unwrap().iter().all(|change| change.path.starts_with(b"/b")));
    assert_eq!(workshop.check().assert_clean().revision, 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 60, ..ProptestConfig::default() })]
    #[test]
    fn a_copy_of_a_random_directory_equals_it(
        edits in proptest::collection::vec(edit(), 4..40),
        chosen: usize,
        balanced: bool,
    ) {
        let workshop = Workshop::with(|new| {
            new.settings.balance = balanced.then_some(Balance { max: 8, min: 3 });
        });
        let top = workshop.source();
        fs::create_dir(top.join("n0")).unwrap();
        edits.iter().for_each(|edit| apply(&top, edit));
        workshop.publish();
        let all: Vec<_> = directories(&top).into_iter().filter(|directory| *directory != top).collect();
        if !all.is_empty() {
            let from = all[chosen % all.len()].strip_prefix(&top).unwrap().display().to_string();
            copy(&workshop, &from, "/copy/of").unwrap();
            let findings = workshop.check();
            findings.assert_clean();
            let from = format!("/{from}");
            assert_same_trees(&below(&findings.tree, &from), &below(&findings.tree, "/copy/of"));
        }
        // The source lacks the copy.
        workshop.publish();
        workshop.assert_equal();
    }
}
