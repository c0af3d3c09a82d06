//! Publishers that work side by side: changes of different paths are joined, changes of one path are a conflict.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::Mutex;

use esker_format::name::RepositoryName;
use esker_publish::{Ingest, Owner, Phase, Publish, PublishError, Report};
use esker_repository::{Repository, RepositoryError};
use esker_store::{LocalSink, Locking};
use esker_testkit::check::Findings;
use esker_testkit::disk::{FaultDisk, Plan};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;

use crate::workshop::{NAME, Workshop, disks, folder, now, options, publish, write};

/// A repository with two directories, each in a nested catalog.
fn prepared() -> Workshop {
    let workshop = Workshop::new();
    for directory in ["a", "b"] {
        let path = workshop.source().join(directory);
        write(&path.join(".cvmfscatalog"), "");
        write(&path.join("old"), directory);
    }
    write(&workshop.source().join("top"), "top");
    workshop.publish();
    workshop
}

fn sha256(content: &str) -> String {
    esker_testkit::object::sha256(content.as_bytes())
}

/// Asserts that files have these contents; none for a missing file.
fn assert_shows(findings: &Findings, expected: &[(&str, Option<&str>)]) {
    findings.assert_clean();
    for (path, content) in expected {
        let found = findings.tree.get(path.as_bytes()).map(|entry| entry.sha256.clone().unwrap_or_default());
        assert_eq!(found, content.map(sha256), "{path}");
    }
}

fn assert_conflict(outcome: Result<Report, PublishError>, expected: &[&str], revisions: (u64, u64)) {
    match outcome {
        Err(PublishError::Conflict { paths, count, base, head, .. }) => {
            assert_eq!(paths, expected);
            assert_eq!((count, base, head), (expected.len() as u64, revisions.0, revisions.1));
        }
        other => panic!("{other:?} is no conflict"),
    }
}

#[test]
fn publishers_of_different_directories_keep_each_others_changes() {
    let workshop = prepared();
    let repositories = [workshop.open(), workshop.open(), workshop.open()];
    let sources = [folder(&[("new", "in a")]), folder(&[("new", "in b")]), folder(&[("new", "in c")])];
    for ((repository, source), target) in repositories.iter().zip(&sources).zip(["/a", "/b", "/c"]) {
        assert!(publish(repository, source.path(), target).unwrap().published);
    }
    let findings = workshop.check();
    let expected = [
        ("/a/new", Some("in a")),
        ("/a/old", None),
        ("/b/new", Some("in b")),
        ("/c/new", Some("in c")),
        ("/top", Some("top")),
    ];
    assert_shows(&findings, &expected);
    assert_eq!(findings.revision, 4);
    let revisions: BTreeSet<u64> = findings.tags.values().copied().collect();
    assert_eq!(revisions, BTreeSet::from([1, 2, 3, 4]), "each has its tag: {:?}", findings.tags);
}

#[test]
fn a_path_that_two_publishers_change_is_a_conflict_and_the_first_one_stays() {
    let workshop = prepared();
    let (first, second) = (workshop.open(), workshop.open());
    publish(&first, folder(&[("old", "first"), ("more", "first")]).path(), "/a").unwrap();
    let other = folder(&[("old", "second"), ("more", "second")]);
    assert_conflict(publish(&second, other.path(), "/a"), &["/a/more", "/a/old"], (1, 2));
    let findings = workshop.check();
    assert_shows(&findings, &[("/a/old", Some("first")), ("/a/more", Some("first"))]);
    assert_eq!(findings.revision, 2);
    // The publisher reads the new head, and decides anew.
    assert!(publish(&workshop.open(), other.path(), "/a").unwrap().published);
    assert_shows(&workshop.check(), &[("/a/old", Some("second"))]);
}

#[test]
fn a_change_that_another_publisher_made_already_is_no_new_revision() {
    let workshop = prepared();
    let (first, second) = (workshop.open(), workshop.open());
    let source = folder(&[("old", "same"), ("dir/new", "same")]);
    publish(&first, source.path(), "/a").unwrap();
    let report = publish(&second, source.path(), "/a").unwrap();
    assert!(!report.published, "{report:?}");
    assert_eq!(workshop.check().assert_clean().revision, 2);
}

#[test]
fn a_removed_directory_in_which_another_publisher_changed_a_file_is_a_conflict() {
    let workshop = prepared();
    let removes = |repository: &Repository| {
        let mut progress = |_| ();
        let empty = folder(&[]);
        tar::Builder::new(fs::File::create(empty.path().join("t")).unwrap()).finish().unwrap();
        let (archive, owner) = (empty.path().join("t"), Owner::default());
        let (target, delete) = (b"/b".to_vec(), vec![b"/a".to_vec()]);
        Ingest { archive, target, delete, owner, nested: false, options: options(&mut progress) }
            .run(repository, now())
    };
    let (first, second, third) = (workshop.open(), workshop.open(), workshop.open());
    publish(&first, folder(&[("deep/new", "new")]).path(), "/a/sub").unwrap();
    assert_conflict(removes(&second), &["/a/sub"], (1, 2));
    assert_shows(&workshop.check(), &[("/a/sub/deep/new", Some("new"))]);
    assert!(removes(&workshop.open()).unwrap().published);
    // A file below a directory that is gone has no place.
    assert_conflict(publish(&third, folder(&[("x", "x")]).path(), "/a/other"), &["/a"], (1, 3));
    // Both remove it.
    let fourth = workshop.open();
    assert_shows(&workshop.check(), &[("/a/old", None)]);
    assert!(!removes(&fourth).unwrap().published);
}

#[test]
fn a_file_and_a_directory_of_one_name_are_a_conflict() {
    let workshop = prepared();
    let (first, second) = (workshop.open(), workshop.open());
    publish(&first, folder(&[("old", "b"), ("new", "file")]).path(), "/b").unwrap();
    assert_conflict(publish(&second, folder(&[("x", "x")]).path(), "/b/new/below"), &["/b/new"], (1, 2));
}

#[test]
fn new_parents_that_two_publishers_make_are_joined() {
    let workshop = prepared();
    let (first, second) = (workshop.open(), workshop.open());
    publish(&first, folder(&[("f", "1")]).path(), "/new/parent/one").unwrap();
    publish(&second, folder(&[("f", "2")]).path(), "/new/parent/two").unwrap();
    assert_shows(&workshop.check(), &[("/new/parent/one/f", Some("1")), ("/new/parent/two/f", Some("2"))]);
}

#[test]
fn a_publish_of_the_whole_repository_keeps_entries_that_others_added() {
    let workshop = prepared();
    let whole = workshop.open();
    publish(&workshop.open(), folder(&[("f", "added")]).path(), "/added").unwrap();
    write(&workshop.source().join("a/old"), "changed");
    let report = publish(&whole, &workshop.source(), "").unwrap();
    assert_eq!(report.revision, 3);
    assert_shows(&workshop.check(), &[("/added/f", Some("added")), ("/a/old", Some("changed"))]);
}

#[test]
fn a_tag_without_a_change_names_the_revision_that_was_compared() {
    let workshop = prepared();
    let tags = workshop.open();
    publish(&workshop.open(), folder(&[("f", "f")]).path(), "/added").unwrap();
    let mut progress = |_| ();
    let mut options = options(&mut progress);
    options.tag.name = Some("v1".to_owned());
    Publish { source: workshop.source(), target: Vec::new(), options }.run(&tags, now()).unwrap();
    let findings = workshop.check();
    assert_shows(&findings, &[("/added/f", Some("f"))]);
    assert_eq!((findings.revision, findings.tags["v1"], findings.tags["trunk"]), (2, 1, 2));
}

#[test]
fn a_publisher_prepares_while_another_one_holds_the_lock_and_waits_only_to_commit() {
    let workshop = prepared();
    let sink = LocalSink::open(workshop.root());
    let Locking::Taken(lock) = sink.lock().unwrap() else { panic!("the lock is free") };
    let lock = Mutex::new(Some(lock));
    let mut progress = |progress: esker_publish::Progress| {
        if progress.phase == Phase::Commit {
            drop(lock.lock().unwrap().take());
        }
    };
    let source = folder(&[("f", "f")]);
    let mut publish = Publish {
        source: source.path().to_owned(),
        target: b"/added".to_vec(),
        options: options(&mut progress),
    };
    assert!(publish.run(&workshop.open(), now()).unwrap().published);
    assert!(lock.lock().unwrap().is_none(), "the publisher came to the commit while the lock was held");
    workshop.check().assert_clean();
}

#[test]
fn an_interrupt_ends_the_wait_for_the_lock() {
    let workshop = prepared();
    let sink = LocalSink::open(workshop.root());
    let _lock = sink.lock().unwrap();
    let mut progress = |_| ();
    let mut options = options(&mut progress);
    let stop = options.stop.clone();
    let mut on_commit = |progress: esker_publish::Progress| {
        if progress.phase == Phase::Commit {
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        }
    };
    options.progress = &mut on_commit;
    let source = folder(&[("f", "f")]);
    let outcome = Publish { source: source.path().to_owned(), target: b"/x".to_vec(), options }
        .run(&workshop.open(), now());
    assert!(matches!(outcome, Err(PublishError::Repository(RepositoryError::Interrupted))), "{outcome:?}");
    assert_eq!(workshop.check().assert_clean().revision, 1);
}

#[test]
fn publishers_in_threads_all_come_through() {
    let workshop = prepared();
    let work = |number: usize| {
        for round in 0..4 {
            let source = folder(&[("f", &format!("{number} {round}"))]);
            publish(&workshop.open(), source.path(), &format!("/a/{number}/{round}")).unwrap();
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|number| drop(scope.spawn(move || work(number)))));
    let findings = workshop.check();
    assert_eq!(findings.assert_clean().revision, 17);
    for number in 0..4 {
        for round in 0..4 {
            let (path, content) = (format!("/a/{number}/{round}/f"), format!("{number} {round}"));
            assert_shows(&findings, &[(&path, Some(&content))]);
        }
    }
}

/// A tree in memory: a file with its content, or a directory.
pub(crate) type Tree = BTreeMap<String, Option<u8>>;

/// One edit; it does nothing where it doesn't fit.
#[derive(Clone, Debug)]
pub(crate) enum Edit {
    Write(u8, u8),
    MakeDirectory(u8),
    Remove(u8),
}

pub(crate) fn edits() -> impl Strategy<Value = Vec<Edit>> {
    let edit = prop_oneof![
        4 => (0u8..8, 0u8..3).prop_map(|(path, content)| Edit::Write(path, content)),
        2 => (0u8..8).prop_map(Edit::MakeDirectory),
        2 => (0u8..8).prop_map(Edit::Remove),
    ];
    proptest::collection::vec(edit, 2..8)
}

/// One of eight paths in three levels.
fn path_of(number: u8) -> String {
    let name = |bits: u8| if bits & 1 == 0 { "/x" } else { "/y" };
    match number {
        0 | 1 => name(number).to_owned(),
        2..=5 => format!("{}{}", name(number), name(number >> 1)),
        _ => format!("{}{}{}", name(number), name(number >> 1), name(number >> 2)),
    }
}

pub(crate) fn edited(mut tree: Tree, edits: &[Edit]) -> Tree {
    for edit in edits {
        let (Edit::Write(number, _) | Edit::MakeDirectory(number) | Edit::Remove(number)) = edit;
        let path = path_of(*number);
        let above = path.rsplit_once('/').unwrap().0;
        if !above.is_empty() && tree.get(above) != Some(&None) {
            continue;
        }
        let below = format!("{path}/");
        if !matches!(edit, Edit::MakeDirectory(_)) || tree.get(&path) != Some(&None) {
            tree.retain(|known, _| *known != path && !known.starts_with(&below));
        }
        match edit {
            Edit::Write(_, content) => _ = tree.insert(path, Some(*content)),
            Edit::MakeDirectory(_) => _ = tree.insert(path, None),
            Edit::Remove(_) => {}
        }
    }
    tree
}

pub(crate) fn on_disk(tree: &Tree) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (path, content) in tree {
        let path = folder.path().join(&path[1..]);
        match content {
            Some(content) => write(&path, &content.to_string()),
            None => fs::create_dir(path).unwrap(),
        }
    }
    folder
}

pub(crate) fn published(findings: &Findings) -> Tree {
    let entries = findings.tree.values().filter(|entry| entry.path != b"/");
    let content = |entry: &esker_testkit::listing::Entry| {
        let digest = entry.sha256.as_deref()?;
        (0..3u8).find(|content| sha256(&content.to_string()) == digest)
    };
    entries.map(|entry| (String::from_utf8(entry.path.clone()).unwrap(), content(entry))).collect()
}

/// The tree with the changes of both sides; none if they are in conflict.
fn merged(base: &Tree, first: &Tree, second: &Tree) -> Option<Tree> {
    let paths: BTreeSet<&String> = [base, first, second].into_iter().flat_map(BTreeMap::keys).collect();
    let mut tree = Tree::new();
    for path in paths {
        let (old, a, b) = (base.get(path), first.get(path), second.get(path));
        let node = match (a == old, b == old) {
            (true, _) => b,
            (_, true) => a,
            _ if a == b => a,
            _ => return None,
        };
        tree.extend(node.map(|node| (path.clone(), *node)));
    }
    let has_place = |path: &String| {
        let above = path.rsplit_once('/').unwrap().0;
        above.is_empty() || tree.get(above) == Some(&None)
    };
    tree.keys().all(has_place).then_some(tree)
}

#[test]
fn two_publishers_end_as_in_the_model() {
    let workshop = Workshop::new();
    // A disk that never waits for the hardware.
    let disk = FaultDisk::new(&workshop.root(), Plan::Nothing);
    let open = || {
        let name = RepositoryName::parse(NAME).unwrap();
        Repository::open((&disks(&disk), &*workshop.root()), &name, workshop.keys(), now()).unwrap()
    };
    let counts = std::cell::RefCell::new([0, 0]);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let strategy = (edits(), edits(), edits(), edits());
    let outcome = runner.run(&strategy, |(base, more, first, second)| {
        let base = edited(edited(Tree::new(), &base), &more);
        publish(&open(), on_disk(&base).path(), "").unwrap();
        let (first, second) = (edited(base.clone(), &first), edited(base.clone(), &second));
        let late = open();
        publish(&open(), on_disk(&first).path(), "").unwrap();
        let outcome = publish(&late, on_disk(&second).path(), "");
        let findings = workshop.check();
        findings.assert_clean();
        match (outcome, merged(&base, &first, &second)) {
            (Ok(_), Some(expected)) => {
                counts.borrow_mut()[0] += 1;
                prop_assert_eq!(published(&findings), expected);
            }
            (Err(PublishError::Conflict { .. }), None) => {
                counts.borrow_mut()[1] += 1;
                prop_assert_eq!(published(&findings), first);
            }
            (outcome, expected) => prop_assert!(false, "{:?} instead of {:?}", outcome, expected),
        }
        Ok(())
    });
    outcome.unwrap();
    let counts = counts.into_inner();
    assert!(counts[0] > 5 && counts[1] > 5, "{counts:?}");
}
