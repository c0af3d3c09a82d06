//! Removals of many entries and of missing ones, and the paths that a dry run lists.

use std::fs;
use std::path::Path;

use esker_publish::{Ingest, Owner, Publish, PublishError, PublishOptions, RemovePaths, Report, Shrink};
use esker_repository::ChangeKind;

use crate::workshop::{Workshop, now, options};

/// A folder of 20 files in two directories: 22 entries.
fn with_twenty_files() -> Workshop {
    let workshop = Workshop::new();
    for directory in ["a", "b"] {
        fs::create_dir(workshop.source().join(directory)).unwrap();
        for number in 0..10 {
            fs::write(workshop.source().join(format!("{directory}/{number}")), "content").unwrap();
        }
    }
    workshop.publish();
    workshop
}

/// Does something with an answer to the question whether a shrink is meant; returns what was asked, too.
fn confirmed<T>(answer: bool, act: impl FnOnce(PublishOptions<'_>) -> T) -> (T, Vec<Shrink>) {
    let (mut progress, mut asked) = (|_| (), Vec::new());
    let mut confirm = |shrink| {
        asked.push(shrink);
        answer
    };
    let mut options = options(&mut progress);
    options.confirm_shrink = &mut confirm;
    let done = act(options);
    (done, asked)
}

/// Publishes with that answer.
fn publish(
    workshop: &Workshop,
    source: &Path,
    target: &str,
    answer: bool,
) -> (Result<Report, PublishError>, Vec<Shrink>) {
    confirmed(answer, |options| {
        let mut publish = Publish { source: source.to_owned(), target: target.as_bytes().to_vec(), options };
        publish.run(&workshop.open(), now())
    })
}

fn ingest(
    workshop: &Workshop,
    archive: &[u8],
    delete: &[&str],
    answer: bool,
) -> (Result<Report, PublishError>, Vec<Shrink>) {
    let file = workshop.folder.path().join("archive.tar");
    fs::write(&file, archive).unwrap();
    confirmed(answer, |options| {
        let mut ingest = Ingest {
            archive: file,
            target: Vec::new(),
            delete: delete.iter().map(|path| path.as_bytes().to_vec()).collect(),
            owner: Owner::default(),
            nested: false,
            options,
        };
        ingest.run(&workshop.open(), now())
    })
}

fn archive(paths: &[String]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for path in paths {
        let mut header = tar::Header::new_gnu();
        header.set_size(3);
        header.set_mode(0o644);
        header.set_uid(7);
        header.set_gid(7);
        header.set_mtime(1_600_000_000);
        archive.append_data(&mut header, path, &b"new"[..]).unwrap();
    }
    archive.into_inner().unwrap()
}

#[test]
fn removing_most_of_a_repository_has_to_be_confirmed() {
    let workshop = with_twenty_files();
    let empty = workshop.folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let (refused, asked) = publish(&workshop, &empty, "", false);
    let error = refused.unwrap_err();
    let PublishError::Shrinks(shrink) = &error else { panic!("{error}") };
    assert_eq!((asked.as_slice(), *shrink), (&[*shrink][..], Shrink { removed: 22, entries: 22 }));
    assert!(error.to_string().contains("22 of the repository's 22 entries"), "{error}");
    assert_eq!(workshop.open().head().revision(), 1);
    workshop.assert_equal();

    // Half of it, or less, is not most of it.
    let (done, asked) = publish(&workshop, &empty, "/a", false);
    assert_eq!((done.unwrap().differences.removed.total(), asked), (10, vec![]));
    let (done, asked) = publish(&workshop, &empty, "", true);
    assert_eq!((done.unwrap().revision, asked), (3, vec![Shrink { removed: 12, entries: 12 }]));
}

#[test]
fn the_count_of_entries_includes_nested_catalogs() {
    let workshop = with_twenty_files();
    for directory in ["a", "b"] {
        fs::write(workshop.source().join(directory).join(".cvmfscatalog"), "").unwrap();
    }
    workshop.publish();
    workshop.assert_equal();
    let empty = workshop.folder.path().join("empty");
    fs::create_dir(&empty).unwrap();
    let (_, asked) = publish(&workshop, &empty, "", false);
    assert_eq!(asked, [Shrink { removed: 24, entries: 24 }]);
}

#[test]
fn ingest_that_deletes_most_has_to_be_confirmed() {
    let workshop = with_twenty_files();
    let (refused, asked) = ingest(&workshop, &archive(&["c".into()]), &["/a", "/b"], false);
    assert!(matches!(refused.unwrap_err(), PublishError::Shrinks(_)));
    assert_eq!(asked, [Shrink { removed: 22, entries: 22 }]);
    workshop.assert_equal();
    // What comes back with the archive is not gone.
    let all: Vec<String> =
        ["a", "b"].iter().flat_map(|dir| (0..10).map(move |n| format!("{dir}/{n}"))).collect();
    let (done, asked) = ingest(&workshop, &archive(&all), &["/a", "/b"], false);
    assert_eq!((done.unwrap().revision, asked), (2, vec![]));
    let (done, asked) = ingest(&workshop, &archive(&all[..3]), &["/a", "/b"], true);
    assert_eq!((done.unwrap().revision, asked), (3, vec![Shrink { removed: 18, entries: 22 }]));
}

#[test]
fn a_file_that_replaces_a_directory_counts_as_its_removal() {
    let workshop = Workshop::new();
    fs::create_dir(workshop.source().join("a")).unwrap();
    for number in 0..10 {
        fs::write(workshop.source().join(format!("a/{number}")), "content").unwrap();
    }
    workshop.publish();
    let (refused, asked) = ingest(&workshop, &archive(&["a".into()]), &[], false);
    assert!(matches!(refused.unwrap_err(), PublishError::Shrinks(_)));
    assert_eq!(asked, [Shrink { removed: 10, entries: 11 }]);
}

#[test]
fn deleting_a_missing_path_fails_with_its_name() {
    let workshop = with_twenty_files();
    let delete = ["/a/1", "/a/none", "/none/at/all", "/b", "/b/1", "/b/x"];
    let (report, _) = ingest(&workshop, &archive(&["c".into()]), &delete, true);
    let warnings = report.unwrap().warnings;
    assert_eq!(warnings.len(), 2, "what goes with its directory is no news: {warnings:?}");
    assert!(warnings[0].starts_with("/a/none was not deleted") && warnings[1].contains("/none/at/all"));
    let many: Vec<String> = (0..100).map(|number| format!("/none/{number}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let (report, _) = ingest(&workshop, &archive(&["c".into()]), &many, true);
    let warnings = report.unwrap().warnings;
    assert_eq!(warnings.len(), 21);
    assert!(warnings[20].starts_with("80 further paths"), "{warnings:?}");
}

#[test]
fn a_dry_run_lists_every_path() {
    use ChangeKind::{Added, Changed, Removed};
    let workshop = with_twenty_files();
    let source = workshop.source();
    fs::remove_dir_all(source.join("b")).unwrap();
    fs::write(source.join("b"), "a file now").unwrap();
    fs::remove_file(source.join("a/3")).unwrap();
    fs::write(source.join("a/4"), "longer content").unwrap();
    fs::write(source.join("a/5"), "CONTENT").unwrap();
    fs::create_dir(source.join("c")).unwrap();
    std::os::unix::fs::symlink("x", source.join("c/link")).unwrap();
    let mut progress = |_| ();
    let options = options(&mut progress);
    let mut publish = Publish { source, target: Vec::new(), options };
    let report = publish.dry_run(&workshop.open(), now()).unwrap();
    let changes = report.changes.expect("a dry run lists changes");
    let found: Vec<(String, ChangeKind, &str)> = changes
        .iter()
        .map(|change| (String::from_utf8_lossy(&change.path).into_owned(), change.change, change.kind))
        // Times of directories change, or don't, with the clock.
        .filter(|(path, change, _)| *change != Changed || (path != "/" && path != "/a"))
        .collect();
    let mut expected = vec![
        ("/a/3".to_owned(), Removed, "file"),
        ("/a/4".to_owned(), Changed, "file"),
        ("/a/5".to_owned(), Changed, "file"),
        ("/b".to_owned(), Changed, "file"),
    ];
    expected.extend((0..10).map(|number| (format!("/b/{number}"), Removed, "file")));
    expected.push(("/c".to_owned(), Added, "directory"));
    expected.push(("/c/link".to_owned(), Added, "symlink"));
    assert_eq!(found, expected);
    let stored = [report.objects_stored, report.object_bytes_stored, report.objects_present];
    assert_eq!(stored, [0; 3], "a dry run stores nothing, of whatever it compares");
    let differences = report.differences;
    let count = |kind| changes.iter().filter(|change| change.change == kind).count() as u64;
    assert_eq!(
        [count(Added), count(Changed), count(Removed)],
        [differences.added, differences.changed, differences.removed].map(|counts| counts.total())
    );
    // The rest are unchanged.
    assert_eq!(workshop.open().head().revision(), 1);
    assert!(workshop.publish().changes.is_none(), "only a dry run lists paths");
}

fn remove(workshop: &Workshop, patterns: &[&str]) -> Result<Report, PublishError> {
    let mut progress = |_| ();
    let patterns = patterns.iter().map(|pattern| pattern.as_bytes().to_vec()).collect();
    RemovePaths { patterns, options: options(&mut progress) }.run(&workshop.open(), now())
}

/// Names, patterns and what is below removed directories, in one commit; link groups have the names that are left.
#[test]
fn paths_are_removed_by_names_and_patterns() {
    let workshop = with_twenty_files();
    let at = |name: &str| workshop.source().join(name);
    fs::create_dir_all(at("c/x/doc/deep")).unwrap();
    fs::create_dir_all(at("c/y/doc")).unwrap();
    for name in ["c/x/doc/deep/1", "c/x/doc/.cvmfscatalog", "c/y/doc/2", "c/y/kept", "what?", "whatever"] {
        fs::write(at(name), name).unwrap();
    }
    for name in ["c/y/second", "c/y/third"] {
        fs::hard_link(at("c/y/kept"), at(name)).unwrap();
    }
    workshop.publish();
    let report = remove(&workshop, &["/a/[0-4]", "c/*/doc", "/what?", "/c/x/doc/deep", "/**/third"]).unwrap();
    let removed = &report.differences.removed;
    assert_eq!((removed.files, removed.directories), (10, 3), "{removed:?}");
    assert_eq!(workshop.open().head().revision(), 3);
    for name in ["c/x/doc", "c/y/doc"] {
        fs::remove_dir_all(at(name)).unwrap();
    }
    for name in ["a/0", "a/1", "a/2", "a/3", "a/4", "what?", "c/y/third"] {
        fs::remove_file(at(name)).unwrap();
    }
    // A publish of the folder finds nothing left to do but the times of its directories.
    let listed = |workshop: &Workshop| {
        let findings = workshop.check();
        findings.assert_clean();
        let entries = findings.listing().into_iter();
        entries.map(|entry| (entry.path, entry.size, entry.nlink, entry.sha256)).collect::<Vec<_>>()
    };
    let after = listed(&workshop);
    workshop.publish();
    assert_eq!(listed(&workshop), after);
}

#[test]
fn a_removal_that_matches_nothing_removes_nothing() {
    let workshop = with_twenty_files();
    for (pattern, reason) in [
        ("/typo", "nothing of this name is published"),
        ("/a/x*", "nothing of this name is published"),
        ("/typo/*", "nothing of this name is published"),
        ("/", "the root of a repository can't be removed"),
        ("/a/[z-a]", "the pattern can't be read"),
    ] {
        let error = remove(&workshop, &["/b/1", pattern]).unwrap_err().to_string();
        assert!(error.contains(reason), "{pattern}: {error}");
    }
    assert_eq!(workshop.open().head().revision(), 1);
    workshop.assert_equal();
}
