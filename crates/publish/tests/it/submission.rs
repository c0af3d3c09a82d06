//! What publishers without keys have built is published as the changes of others are, and nowhere but in their directory.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::sync::Mutex;

use esker_format::hash::ContentHash;
use esker_format::name::RepositoryName;
use esker_publish::{
    Publish, PublishError, Submission, SubmissionRules, Submissions, Submitted, is_revision,
};
use esker_repository::Repository;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::workshop::{NAME, Workshop, folder, now, options, publish, write};

/// Stores a folder as a revision on the newest head, as a publisher without keys does; returns its root catalog.
fn built(repository: &Repository, source: &Path, target: &str) -> ContentHash {
    let (source, target) = (source.to_owned(), target.as_bytes().to_vec());
    let mut quiet = |_| ();
    let mut publish = Publish { source, target, options: options(&mut quiet) };
    publish.stage(repository, now()).unwrap().base.root
}

fn submit(
    repository: &Repository,
    root: ContentHash,
    directory: &str,
    rules: SubmissionRules<'_>,
) -> Result<Submitted, PublishError> {
    submit_after(repository, root, directory, rules, &|_| false)
}

/// Submits several at once, each for its directory.
fn submit_all(
    repository: &Repository,
    all: &[(ContentHash, &str)],
    rules: SubmissionRules<'_>,
) -> Vec<Result<Submitted, PublishError>> {
    let submission = |(root, directory): &(ContentHash, &str)| Submission {
        root: *root,
        directory: directory.as_bytes().to_vec(),
        is_own: &|_| false,
    };
    let mut quiet = |_| ();
    let all = all.iter().map(submission).collect();
    Submissions { all, rules, options: options(&mut quiet) }.run(repository, now()).unwrap()
}

fn submit_after(
    repository: &Repository,
    root: ContentHash,
    directory: &str,
    rules: SubmissionRules<'_>,
    is_own: &(dyn Fn(&ContentHash) -> bool + Sync),
) -> Result<Submitted, PublishError> {
    let all = vec![Submission { root, directory: directory.as_bytes().to_vec(), is_own }];
    let mut quiet = |_| ();
    let mut submissions = Submissions { all, rules, options: options(&mut quiet) };
    submissions.run(repository, now())?.remove(0)
}

const ALLOW: SubmissionRules<'_> =
    SubmissionRules { before_head: &|_, _| Ok(()), removed_tags: &[], tags_before: None };

/// A repository with two directories, one of them in a nested catalog.
fn prepared() -> Workshop {
    let workshop = Workshop::new();
    for (path, content) in [
        ("a/.cvmfscatalog", ""),
        ("a/old", "a"),
        ("a/gone", "x"),
        ("b/old", "b"),
        ("b/keep", "k"),
        ("top", "t"),
    ] {
        write(&workshop.source().join(path), content);
    }
    workshop.publish();
    workshop
}

#[test]
fn a_submission_creates_changes_and_removes() {
    let workshop = prepared();
    let repository = workshop.open();
    let source = workshop.source();
    write(&source.join("a/old"), "changed");
    write(&source.join("a/deep/down/new"), "new");
    fs::remove_file(source.join("a/gone")).unwrap();
    let root = built(&repository, &source, "");
    assert_eq!(workshop.open().head().revision(), 1, "nothing is published yet");
    let submitted = submit(&repository, root, "", ALLOW).unwrap();
    assert!(submitted.report.published);
    assert_eq!((submitted.report.revision, submitted.left_out_count), (2, 0));
    workshop.assert_equal();
}

/// Types that change take what was below along.
#[test]
fn a_file_takes_the_place_of_a_directory_and_the_other_way_round() {
    let workshop = prepared();
    let source = workshop.source();
    fs::remove_dir_all(source.join("b")).unwrap();
    write(&source.join("b"), "a file now");
    fs::remove_file(source.join("top")).unwrap();
    write(&source.join("top/below"), "a directory now");
    let root = built(&workshop.open(), &source, "");
    submit(&workshop.open(), root, "", ALLOW).unwrap();
    workshop.assert_equal();
}

#[test]
fn hard_links_chunks_and_catalogs_are_as_they_were_built() {
    let workshop = Workshop::with(|new| {
        new.settings.chunks = esker_format::chunker::ChunkSizes::new(4096, 8192, 16_384).unwrap();
    });
    let source = workshop.source();
    let large: String = (0..20_000).map(|number| format!("{number} ")).collect();
    write(&source.join("n/.cvmfscatalog"), "");
    write(&source.join("n/large"), &large);
    write(&source.join("n/one"), "linked");
    write(&source.join("n/third"), "other");
    workshop.publish();
    fs::hard_link(source.join("n/one"), source.join("n/two")).unwrap();
    write(&source.join("n/sub/.cvmfscatalog"), "");
    write(&source.join("n/sub/large"), &format!("{large}more"));
    let root = built(&workshop.open(), &source, "");
    submit(&workshop.open(), root, "", ALLOW).unwrap();
    workshop.assert_equal();
    // One member of the group goes, the other one changes.
    fs::remove_file(source.join("n/one")).unwrap();
    write(&source.join("n/two"), "alone");
    let root = built(&workshop.open(), &source, "");
    submit(&workshop.open(), root, "", ALLOW).unwrap();
    workshop.assert_equal();
}

#[test]
fn changes_outside_of_the_directory_are_left_out_and_named() {
    let workshop = prepared();
    let changed =
        folder(&[("a/.cvmfscatalog", ""), ("a/old", "mine"), ("b/old", "not mine"), ("other", "x")]);
    let root = built(&workshop.open(), changed.path(), "");
    let submitted = submit(&workshop.open(), root, "/a", ALLOW).unwrap();
    assert_eq!(submitted.left_out, ["/b", "/b/keep", "/b/old", "/other", "/top"]);
    assert_eq!(submitted.left_out_count, 5);
    write(&workshop.source().join("a/old"), "mine");
    fs::remove_file(workshop.source().join("a/gone")).unwrap();
    let findings = workshop.check();
    findings.assert_clean();
    let tree = |path: &str| findings.tree.get(path.as_bytes()).and_then(|entry| entry.sha256.clone());
    assert_eq!(tree("/a/old"), Some(esker_testkit::object::sha256(b"mine")));
    assert_eq!(tree("/b/old"), Some(esker_testkit::object::sha256(b"b")));
    assert_eq!((tree("/a/gone"), tree("/other")), (None, None));
}

/// In a bucket the reflog follows the head, so for a moment it lacks the revisions of several publishers.
#[test]
fn revisions_that_the_reflog_lacks_are_found_from_the_head() {
    let workshop = prepared();
    let reflog = workshop.root().join(".cvmfsreflog");
    let before = fs::read(&reflog).unwrap();
    let mut roots = vec![workshop.open().head().root_catalog().hash];
    for content in ["two", "three", "four"] {
        publish(&workshop.open(), folder(&[("old", content)]).path(), "/b").unwrap();
        roots.push(workshop.open().head().root_catalog().hash);
    }
    let staged = built(&workshop.open(), folder(&[("old", "staged")]).path(), "/b");
    fs::write(&reflog, before).unwrap();
    for root in &roots {
        assert!(is_revision(&workshop.open(), root).unwrap(), "{root}");
    }
    assert!(!is_revision(&workshop.open(), &staged).unwrap());
}

/// The base is the one that the catalogs were built on, so what others published in between stays.
#[test]
fn a_submission_on_an_older_revision_is_rebased_or_named_as_a_conflict() {
    let workshop = prepared();
    let builder = workshop.open();
    let mine = folder(&[(".cvmfscatalog", ""), ("old", "mine")]);
    let root = built(&builder, mine.path(), "/a");
    let late = built(&builder, folder(&[("old", "late")]).path(), "/b");
    let theirs = folder(&[("old", "theirs"), ("new", "theirs")]);
    publish(&workshop.open(), theirs.path(), "/b").unwrap();
    assert!(submit(&workshop.open(), root, "/a", ALLOW).unwrap().report.published);
    let findings = workshop.check();
    let tree = |path: &str| findings.tree.get(path.as_bytes()).and_then(|entry| entry.sha256.clone());
    let content = |text: &str| Some(esker_testkit::object::sha256(text.as_bytes()));
    assert_eq!((tree("/a/old"), tree("/b/new"), tree("/a/gone")), (content("mine"), content("theirs"), None));

    match submit(&workshop.open(), late, "/b", ALLOW) {
        Err(PublishError::Conflict { paths, base: 1, head: 3, .. }) => {
            assert!(paths.contains(&"/b/old".to_owned()), "{paths:?}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(workshop.open().head().revision(), 3);
}

#[test]
fn a_revision_of_another_repository_is_no_base() {
    let (workshop, other) = (prepared(), prepared());
    write(&other.source().join("a/new"), "new");
    other.publish();
    write(&other.source().join("a/newer"), "newer");
    let root = built(&other.open(), &other.source(), "");
    // Its catalogs and files are there, as after an upload.
    copy(&other.root().join("data/."), &workshop.root().join("data"));
    match submit(&workshop.open(), root, "", ALLOW) {
        Err(PublishError::UnknownBase { base: Some(_) }) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(workshop.open().head().revision(), 1);
}

/// A publisher may build on what it has built itself, which is no revision of the repository.
#[test]
fn a_second_submission_goes_on_from_the_first() {
    let workshop = prepared();
    // The publisher's view: there its first result is the newest revision.
    let view = tempfile::tempdir().unwrap();
    copy(&workshop.root(), view.path());
    let open = || {
        let name = RepositoryName::parse(NAME).unwrap();
        Repository::open(&view.path().join(NAME), &name, workshop.keys(), now()).unwrap()
    };
    write(&workshop.source().join("a/first"), "1");
    publish(&open(), &workshop.source(), "").unwrap();
    let first = open().head().root_catalog().hash;
    write(&workshop.source().join("a/second"), "2");
    let second = built(&open(), &workshop.source(), "");
    copy(&view.path().join(NAME).join("data/."), &workshop.root().join("data"));
    match submit(&workshop.open(), second, "", ALLOW) {
        Err(PublishError::UnknownBase { base }) => assert_eq!(base, Some(first)),
        other => panic!("{other:?}"),
    }
    submit_after(&workshop.open(), second, "", ALLOW, &|root| *root == first).unwrap();
    workshop.assert_equal();
}

/// Copies files that are not there, as an upload stores objects.
fn copy(from: &Path, to: &Path) {
    let copied = std::process::Command::new("cp").arg("-an").args([from, to]).status();
    assert!(copied.unwrap().success());
}

#[test]
fn a_rule_that_refuses_publishes_nothing() {
    let workshop = prepared();
    write(&workshop.source().join("a/new"), "new");
    let root = built(&workshop.open(), &workshop.source(), "");
    let asked = Mutex::new(Vec::new());
    let refuse = |_: &[usize], next: Option<(&ContentHash, u64)>| {
        asked.lock().unwrap().push(next.map(|(root, revision)| (*root, revision)));
        Err(PublishError::Withdrawn("the lease has expired".into()))
    };
    let rules = SubmissionRules { before_head: &refuse, ..ALLOW };
    let refused = submit(&workshop.open(), root, "", rules).unwrap_err();
    assert_eq!(refused.to_string(), "the lease has expired");
    assert_eq!(workshop.open().head().revision(), 1);
    // The same submission is published once it may be, and the rule knew what the head was to name.
    let submitted = submit(&workshop.open(), root, "", ALLOW).unwrap();
    let asked = asked.into_inner().unwrap();
    assert_eq!(asked.iter().map(|next| next.map(|(_, revision)| revision)).collect::<Vec<_>>(), [Some(2)]);
    assert_eq!(submitted.report.revision, 2);
    workshop.assert_equal();
}

/// A lease may also end before tags of the published revision change.
#[test]
fn a_rule_that_refuses_changes_no_tags() {
    let workshop = prepared();
    write(&workshop.source().join("a/old"), "changed");
    let root = built(&workshop.open(), &workshop.source(), "");
    // The changes are published, so nothing is left of the same submission but its tags.
    submit(&workshop.open(), root, "", ALLOW).unwrap();
    let submit = |name: Option<&str>, rules: SubmissionRules<'_>| {
        let mut quiet = |_| ();
        let mut options = options(&mut quiet);
        options.tag.name = name.map(str::to_owned);
        let all = vec![Submission { root, directory: Vec::new(), is_own: &|_| false }];
        Submissions { all, rules, options }.run(&workshop.open(), now()).unwrap().remove(0)
    };
    let refuse = |_: &[usize], next: Option<(&ContentHash, u64)>| {
        assert!(next.is_none(), "there is no new revision");
        Err(PublishError::Withdrawn("the lease has expired".into()))
    };
    let removed = ["kept".to_owned()];
    submit(Some("kept"), ALLOW).unwrap();
    let head = || fs::read(workshop.root().join(".cvmfspublished")).unwrap();
    for (name, removed_tags) in [(Some("new"), &[][..]), (None, &removed[..])] {
        let rules = SubmissionRules { before_head: &refuse, removed_tags, ..ALLOW };
        let before = head();
        let refused = submit(name, rules).unwrap_err();
        assert_eq!(refused.to_string(), "the lease has expired");
        assert!(head() == before, "the head has changed");
        submit(name, SubmissionRules { removed_tags, ..ALLOW }).unwrap();
        assert!(head() != before, "the tags have not changed");
    }
}

#[test]
fn an_object_that_was_collected_meanwhile_is_noticed() {
    let workshop = prepared();
    write(&workshop.source().join("a/new"), "will be gone");
    let root = built(&workshop.open(), &workshop.source(), "");
    fs::remove_file(workshop.object_of(b"will be gone")).unwrap();
    let refused = submit(&workshop.open(), root, "", ALLOW).unwrap_err();
    assert!(refused.to_string().contains("collected"), "{refused}");
    assert_eq!(workshop.open().head().revision(), 1);
}

#[test]
fn submissions_of_several_directories_are_one_revision() {
    let workshop = prepared();
    let mine = folder(&[(".cvmfscatalog", ""), ("old", "mine"), ("deep/new", "mine")]);
    let a = built(&workshop.open(), mine.path(), "/a");
    let conflicting = built(&workshop.open(), folder(&[("old", "late")]).path(), "/b");
    let theirs = folder(&[("old", "theirs")]);
    publish(&workshop.open(), theirs.path(), "/b").unwrap();
    let new = built(&workshop.open(), folder(&[("file", "new")]).path(), "/new");
    let same = built(&workshop.open(), theirs.path(), "/b");
    let asked = Mutex::new(Vec::new());
    let ask = |places: &[usize], next: Option<(&ContentHash, u64)>| {
        asked.lock().unwrap().push((places.to_vec(), next.unwrap().1));
        Ok(())
    };
    let rules = SubmissionRules { before_head: &ask, ..ALLOW };
    let all = [(a, "/a"), (conflicting, "/b"), (new, "/new"), (same, "/b")];
    let results = submit_all(&workshop.open(), &all, rules);
    let revision = |place: usize| results[place].as_ref().unwrap().report.revision;
    assert_eq!((revision(0), revision(2)), (3, 3));
    assert!(matches!(&results[1], Err(PublishError::Conflict { base: 1, head: 2, .. })), "{:?}", results[1]);
    assert!(!results[3].as_ref().unwrap().report.published, "nothing has changed there");
    assert_eq!(asked.into_inner().unwrap(), [(vec![0, 2], 3)]);
    let counted = |place: usize| results[place].as_ref().unwrap().report.differences.added.files;
    assert_eq!((counted(0), counted(2)), (1, 1));
    let tree = workshop.check().tree;
    let content = |path: &str| tree.get(path.as_bytes()).and_then(|entry| entry.sha256.clone());
    let of = |text: &str| Some(esker_testkit::object::sha256(text.as_bytes()));
    assert_eq!(
        (content("/a/deep/new"), content("/new/file"), content("/b/old")),
        (of("mine"), of("new"), of("theirs"))
    );
    assert_eq!(content("/a/gone"), None);
}

/// One below the other: the second one is a change of what the first one made.
#[test]
fn submissions_of_directories_that_overlap_are_not_joined() {
    let workshop = prepared();
    let whole = built(&workshop.open(), folder(&[("old", "whole")]).path(), "/b");
    let part = built(&workshop.open(), folder(&[("file", "part")]).path(), "/b/part");
    let results = submit_all(&workshop.open(), &[(whole, "/b"), (part, "/b/part")], ALLOW);
    let revisions: Vec<_> = results.iter().map(|result| result.as_ref().unwrap().report.revision).collect();
    assert_eq!(revisions, [2, 3]);
    let findings = workshop.check();
    findings.assert_clean();
    assert!(
        findings.tree.contains_key(b"/b/part/file".as_slice())
            && !findings.tree.contains_key(b"/b/keep".as_slice())
    );
}

#[test]
fn a_submission_that_is_refused_holds_up_no_other_one() {
    let workshop = prepared();
    let roots =
        ["/a", "/b", "/c"].map(|at| (built(&workshop.open(), folder(&[("file", at)]).path(), at), at));
    let refuse = |places: &[usize], _: Option<(&ContentHash, u64)>| match places.contains(&1) {
        true => Err(PublishError::Withdrawn("the lease has expired".into())),
        false => Ok(()),
    };
    let rules = SubmissionRules { before_head: &refuse, ..ALLOW };
    let results = submit_all(&workshop.open(), &roots, rules);
    let revision = |place: usize| results[place].as_ref().unwrap().report.revision;
    assert_eq!((revision(0), revision(2)), (2, 3));
    assert_eq!(results[1].as_ref().unwrap_err().to_string(), "the lease has expired");
    let tree = workshop.check().tree;
    let has = |path: &str| tree.contains_key(path.as_bytes());
    assert_eq!((has("/a/file"), has("/b/file"), has("/c/file")), (true, false, true));
}

/// Publishers on disjoint and overlapping directories, in any order of building and submitting: the tree is that of the accepted
/// submissions one after the other.
#[test]
fn submissions_in_any_order_equal_their_serial_order() {
    const FILES: [&str; 4] = ["x", "y", "z/x", "z/y"];
    let step = (0..3_usize, prop::collection::vec((0..FILES.len(), 0..3_u8), 1..4));
    let steps = (prop::collection::vec((step, any::<bool>()), 2..6), any::<bool>());
    let mut runner = TestRunner::new(Config { cases: 24, ..Config::default() });
    let outcome = runner.run(&steps, |(steps, together)| {
        let workshop = prepared();
        let model = RefCell::new(model_of(&workshop));
        let mut waiting: Vec<Waiting> = Vec::new();
        for ((directory, edits), submits) in steps {
            let name = ["a", "b", "c"][directory];
            let repository = workshop.open();
            let before = directory_of(&model.borrow(), name);
            let mut tree = before.clone();
            for (file, edit) in edits {
                match edit {
                    0 => drop(tree.remove(FILES[file])),
                    edit => drop(tree.insert(FILES[file].to_owned(), edit.to_string())),
                }
            }
            let differs = |path: &&&str| before.get(**path) != tree.get(**path);
            let changed = FILES.iter().filter(differs);
            let changed = changed.map(|path| (format!("{name}/{path}"), tree.get(*path).cloned())).collect();
            let source = tempfile::tempdir().unwrap();
            for (path, content) in &tree {
                write(&source.path().join(path), content);
            }
            waiting.push((directory, built(&repository, source.path(), name), changed));
            if submits {
                accept_all(&workshop, &mut waiting, &model, together);
            }
        }
        accept_all(&workshop, &mut waiting, &model, together);
        prop_assert_eq!(model_of(&workshop), model.into_inner());
        Ok(())
    });
    outcome.unwrap();
}

type Tree = std::collections::BTreeMap<String, String>;

/// Number of its directory, root catalog, and the files that it changes; none for a removed one.
type Waiting = (usize, ContentHash, Vec<(String, Option<String>)>);

/// Submits what is waiting, together or one after the other; the model takes over what was accepted.
fn accept_all(workshop: &Workshop, waiting: &mut Vec<Waiting>, model: &RefCell<Tree>, together: bool) {
    let all: Vec<_> = waiting.iter().map(|(number, root, _)| (*root, ["/a", "/b", "/c"][*number])).collect();
    let results = match together {
        true => submit_all(&workshop.open(), &all, ALLOW),
        false => all.iter().map(|(root, at)| submit(&workshop.open(), *root, at, ALLOW)).collect(),
    };
    for ((_, _, changed), result) in waiting.drain(..).zip(results) {
        match result {
            Ok(_) => {
                for (path, content) in changed {
                    match content {
                        Some(content) => drop(model.borrow_mut().insert(path, content)),
                        None => drop(model.borrow_mut().remove(&path)),
                    }
                }
            }
            Err(PublishError::Conflict { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

/// Files of a directory by their paths below it.
fn directory_of(model: &Tree, name: &str) -> Tree {
    let below = |path: &str| path.strip_prefix(name)?.strip_prefix('/').map(ToOwned::to_owned);
    model.iter().filter_map(|(path, content)| Some((below(path)?, content.clone()))).collect()
}

/// Files of the newest revision by their paths, with their contents.
fn model_of(workshop: &Workshop) -> Tree {
    let findings = workshop.check();
    findings.assert_clean();
    let contents = ["", "a", "b", "x", "k", "t", "1", "2"];
    let content = |digest: &str| {
        let found = contents.iter().find(|text| esker_testkit::object::sha256(text.as_bytes()) == digest);
        (*found.expect("a known content")).to_owned()
    };
    let files = findings.tree.iter().filter_map(|(path, entry)| {
        let path = String::from_utf8(path.strip_prefix(b"/")?.to_vec()).ok()?;
        Some((path, content(entry.sha256.as_deref()?)))
    });
    files.collect()
}
