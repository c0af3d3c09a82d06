//! Branches: revisions beside the head, known by their tags only.

use std::cell::Cell;
use std::fs;
use std::sync::atomic::AtomicBool;

use esker_format::hash::ContentHash;
use esker_format::history::Tag;
use esker_format::time::UnixTime;
use esker_format::write::history::TagError;
use esker_maintain::{Collect, Keep};
use esker_publish::{BranchInfo, Phase, Progress, Publish, PublishError, Report, TagChange, TagInfo};
use esker_repository::{BranchRequest, ChangeKind, Repository, RepositoryError, TreeDiff};
use proptest::prelude::*;

use crate::collecting::at_once;
use crate::workshop::{Workshop, now, options, revisions};

/// Publishes the files of the workshop on a branch, below a directory of the repository.
fn publish_as(
    workshop: &Workshop,
    repository: &Repository,
    (branch, from): (&str, Option<&str>),
    tag: Option<&str>,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, PublishError> {
    let mut options = options(progress);
    options.tag.name = tag.map(str::to_owned);
    if !branch.is_empty() {
        options.tag.branch = Some(BranchRequest { name: branch.to_owned(), from: from.map(str::to_owned) });
    }
    Publish { source: workshop.source(), target: Vec::new(), options }.run(repository, now())
}

fn publish(workshop: &Workshop, branch: (&str, Option<&str>), tag: &str) -> Result<Report, PublishError> {
    publish_as(workshop, &workshop.open(), branch, Some(tag), &mut |_| ())
}

fn write(workshop: &Workshop, name: &str, content: &str) {
    fs::write(workshop.source().join(name), content).unwrap();
}

fn tag(workshop: &Workshop, name: &str) -> Tag {
    let revisions = revisions(workshop);
    revisions.tags().iter().find(|tag| tag.name == name).unwrap_or_else(|| panic!("no tag {name}")).clone()
}

fn branches(workshop: &Workshop) -> Vec<BranchInfo> {
    revisions(workshop).history().map(BranchInfo::list).unwrap_or_default()
}

/// The paths that differ between two revisions, with how they do.
fn difference(workshop: &Workshop, old: ContentHash, new: ContentHash) -> Vec<(String, ChangeKind)> {
    let revisions = revisions(workshop);
    let mut found = Vec::new();
    let within = Vec::new();
    TreeDiff { objects: &**revisions.objects(), old, new, within, ignore_times: true }
        .run(&mut |one| {
            found.push((String::from_utf8_lossy(one.path).into_owned(), one.change));
            Ok(())
        })
        .unwrap();
    found.retain(|(path, _)| path != "/" && !path.is_empty());
    found.sort_by(|a, b| a.0.cmp(&b.0));
    found
}

/// Two revisions with the tags `v1` and `v2`; the second one adds `two`.
fn prepared() -> Workshop {
    let workshop = Workshop::with(|new| new.settings.automatic_tags = false);
    write(&workshop, "file", "one");
    publish(&workshop, ("", None), "v1").unwrap();
    write(&workshop, "two", "two");
    publish(&workshop, ("", None), "v2").unwrap();
    fs::remove_file(workshop.source().join("two")).unwrap();
    workshop
}

#[test]
fn a_revision_of_a_branch_leaves_the_head_where_it_is() {
    let workshop = prepared();
    let before = workshop.open().head().clone();
    write(&workshop, "fixed", "on the branch");
    let report = publish(&workshop, ("fix", Some("v1")), "f1").unwrap();
    assert_eq!((report.published, report.revision, report.branch.as_deref()), (true, 2, Some("fix")));
    assert_eq!((report.differences.added.total(), report.differences.removed.total()), (1, 0));

    let after = workshop.open().head().clone();
    assert_eq!((after.revision(), after.root_catalog()), (before.revision(), before.root_catalog()));
    assert_ne!(after.history(), before.history());
    let (v1, f1) = (tag(&workshop, "v1"), tag(&workshop, "f1"));
    assert_eq!((f1.branch.as_str(), f1.revision), ("fix", 2));
    assert_eq!(f1.root_catalog.to_string(), report.root);
    let added = [("/fixed".to_owned(), ChangeKind::Added)];
    assert_eq!(difference(&workshop, v1.root_catalog, f1.root_catalog), added);
    assert_eq!(tag(&workshop, "trunk").root_catalog, before.root_catalog().hash);
    let stored = revisions(&workshop).at(f1.root_catalog).unwrap();
    assert_eq!((stored.number, stored.previous), (2, Some(v1.root_catalog)));
    workshop.check().assert_clean();

    // The branch goes on from its own newest revision.
    fs::remove_file(workshop.source().join("file")).unwrap();
    let report = publish(&workshop, ("fix", None), "f2").unwrap();
    assert_eq!((report.revision, report.differences.removed.total()), (3, 1));
    let gone = [("/file".to_owned(), ChangeKind::Removed)];
    assert_eq!(difference(&workshop, f1.root_catalog, tag(&workshop, "f2").root_catalog), gone);
    let found = branches(&workshop);
    let shape: Vec<_> =
        found.iter().map(|one| (one.name.as_str(), one.parent.as_deref(), one.depth, one.first)).collect();
    assert_eq!(shape, [("", None, 0, 0), ("fix", Some(""), 1, 2)]);
    assert_eq!(found[1].newest.as_ref().map(|tag: &TagInfo| tag.name.as_str()), Some("f2"));
    assert_eq!(found[1].tags, 2);
    // The trunk and the branch have a second revision; a third one only the branch has.
    let said = revisions(&workshop).find("2").unwrap_err().to_string();
    for part in ["`2` may mean", "revision 2 (`rev:2`)", "revision 2 of the branch fix (`tag:f1`)"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(revisions(&workshop).find("rev:2").unwrap().root, before.root_catalog().hash);
    assert_eq!(revisions(&workshop).find("tag:f1").unwrap().root, f1.root_catalog);
    assert!(revisions(&workshop).find("3").unwrap_err().to_string().contains("there is no revision `3`"));
    workshop.check().assert_clean();
}

#[test]
fn a_branch_starts_from_another_branch_and_its_parent_is_noted() {
    let workshop = prepared();
    write(&workshop, "a", "a");
    publish(&workshop, ("fix", Some("v1")), "f1").unwrap();
    // Without a difference the branch starts with a tag of the revision itself.
    let root = tag(&workshop, "f1").root_catalog.to_string();
    let report = publish(&workshop, ("same", Some(&root)), "s1").unwrap();
    assert_eq!((report.published, report.tag.as_deref(), &report.root), (false, Some("s1"), &root));
    write(&workshop, "b", "b");
    publish(&workshop, ("deeper", Some("f1")), "d1").unwrap();
    let shape: Vec<_> =
        branches(&workshop).into_iter().map(|one| (one.name, one.parent, one.depth)).collect();
    let row = |name: &str, parent: &str, depth| (name.to_owned(), Some(parent.to_owned()), depth);
    assert_eq!(
        shape,
        [(String::new(), None, 0), row("fix", "", 1), row("deeper", "fix", 2), row("same", "fix", 2)]
    );
    workshop.check().assert_clean();
}

#[test]
fn a_revision_of_a_branch_that_has_no_tag_or_no_start_is_refused() {
    let workshop = prepared();
    let head = fs::read(workshop.root().join(".cvmfspublished")).unwrap();
    let refused = |branch, tag| match publish_as(&workshop, &workshop.open(), branch, tag, &mut |_| ()) {
        Err(PublishError::Repository(RepositoryError::Tag(error))) => error,
        other => panic!("{other:?}"),
    };
    assert_eq!(refused(("fix", Some("v1")), None), TagError::BranchWithoutTag("fix".into()));
    assert_eq!(refused(("fix", None), Some("f1")), TagError::UnknownBranch("fix".into()));
    assert_eq!(refused(("a b", Some("v1")), Some("f1")), TagError::BranchName("a b".into()));
    assert_eq!(refused(("fix", Some("v1")), Some("v2")), TagError::Exists("v2".into()));
    assert_eq!(fs::read(workshop.root().join(".cvmfspublished")).unwrap(), head);
    publish(&workshop, ("fix", Some("v1")), "f1").unwrap();
    assert_eq!(refused(("fix", Some("v1")), Some("f2")), TagError::BranchExists("fix".into()));
}

#[test]
fn two_publishers_of_one_branch_keep_each_others_changes() {
    let workshop = prepared();
    write(&workshop, "first", "first");
    publish(&workshop, ("fix", Some("v1")), "f1").unwrap();
    write(&workshop, "ours", "ours");
    let meanwhile = Cell::new(false);
    let mut progress = |progress: Progress| {
        if progress.phase == Phase::Catalogs && !meanwhile.replace(true) {
            fs::rename(workshop.source().join("ours"), workshop.folder.path().join("ours")).unwrap();
            write(&workshop, "theirs", "theirs");
            publish(&workshop, ("fix", None), "f2").unwrap();
            // The default branch moves, too.
            fs::write(workshop.source().join("head"), "head").unwrap();
            publish(&workshop, ("", None), "v3").unwrap();
        }
    };
    let report = publish_as(&workshop, &workshop.open(), ("fix", None), Some("f3"), &mut progress).unwrap();
    assert!(meanwhile.get());
    assert_eq!(report.revision, 4);
    let (f1, f3) = (tag(&workshop, "f1").root_catalog, tag(&workshop, "f3").root_catalog);
    let added: Vec<_> = difference(&workshop, f1, f3).into_iter().map(|(path, _)| path).collect();
    assert_eq!(added, ["/ours", "/theirs"]);
    assert_eq!(workshop.open().head().revision(), 3);
    workshop.check().assert_clean();
}

#[test]
fn the_second_of_two_publishers_that_begin_one_branch_is_refused() {
    let workshop = prepared();
    write(&workshop, "ours", "ours");
    let meanwhile = Cell::new(false);
    let mut progress = |progress: Progress| {
        if progress.phase == Phase::Commit && !meanwhile.replace(true) {
            publish(&workshop, ("fix", Some("v2")), "theirs").unwrap();
        }
    };
    let second = publish_as(&workshop, &workshop.open(), ("fix", Some("v1")), Some("ours"), &mut progress);
    assert!(meanwhile.get());
    assert!(
        matches!(second, Err(PublishError::Repository(RepositoryError::Tag(TagError::BranchExists(_))))),
        "{second:?}"
    );
    assert_eq!(tag(&workshop, "theirs").branch, "fix");
    workshop.check().assert_clean();
}

#[test]
fn a_collect_keeps_a_branch_as_long_as_it_has_a_tag() {
    let workshop = prepared();
    write(&workshop, "fixed", "content of the branch");
    let report = publish(&workshop, ("fix", Some("v1")), "f1").unwrap();
    at_once(Keep::Tags).run(&workshop.open(), now()).unwrap();
    let object = workshop.object_of(b"content of the branch");
    let root = tag(&workshop, "f1").root_catalog;
    assert_eq!(root.to_string(), report.root);
    assert!(revisions(&workshop).at(root).is_ok());
    let remove = TagChange::Remove { names: vec!["f1".to_owned()] };
    let removed = remove.run(&workshop.open(), now(), &AtomicBool::new(false)).unwrap();
    assert_eq!(removed.branches_removed, ["fix"]);
    assert_eq!(branches(&workshop).len(), 1);
    at_once(Keep::Tags).run(&workshop.open(), now()).unwrap();
    assert!(revisions(&workshop).at(root).is_err());
    assert!(!object.exists());
    workshop.check().assert_clean();
}

#[test]
fn a_branch_that_starts_at_a_condemned_revision_takes_its_objects_back() {
    let workshop = Workshop::with(|new| new.settings.automatic_tags = false);
    for content in ["one", "two", "three", "four"] {
        write(&workshop, "file", content);
        workshop.publish();
    }
    let second = revisions(&workshop).find("2").unwrap().root.to_string();
    let collect = Collect { grace: 3600, ..at_once(Keep::Tags) };
    let begun = UnixTime(now().0 - 4000);
    let waiting = collect.run(&workshop.open(), begun).unwrap().waiting.unwrap();
    assert!(waiting.objects >= 4, "{waiting:?}");
    let object = workshop.object_of(b"two");
    write(&workshop, "file", "two");
    write(&workshop, "more", "more");
    let report = publish(&workshop, ("old", Some(&second)), "o1").unwrap();
    assert!(report.published);
    let done = collect.run(&workshop.open(), now()).unwrap();
    assert!(done.deleted.revived > 0 && done.deleted.objects > 0, "{:?}", done.deleted);
    assert!(object.exists());
    let (old, new) = (tag(&workshop, "o1").root_catalog, workshop.open().head().root_catalog().hash);
    assert_eq!(difference(&workshop, old, new).len(), 2, "the branch can be read whole");
    workshop.check().assert_clean();
}

/// A step of a random history.
#[derive(Clone, Debug)]
enum Step {
    /// A branch publishes; a missing one starts from the given branch.
    Publish {
        branch: usize,
        from: usize,
    },
    /// The newest tag of a branch goes.
    Untag(usize),
    Collect,
}

const NAMES: [&str; 3] = ["", "a", "b"];

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..NAMES.len(), 0..NAMES.len()).prop_map(|(branch, from)| Step::Publish { branch, from }),
        1 => (1..NAMES.len()).prop_map(Step::Untag),
        1 => Just(Step::Collect),
    ]
}

/// What a branch should have: for each of its tags the number of the revision and the steps that made its files.
type Model = [Vec<(String, u64, Vec<usize>)>; 3];

fn follow(steps: &[Step]) {
    let workshop = Workshop::with(|new| new.settings.automatic_tags = false);
    let mut model = Model::default();
    write(&workshop, "file 1000", "1000");
    publish(&workshop, ("", None), "first").unwrap();
    model[0].push(("first".to_owned(), 1, vec![1000]));
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Publish { branch, from } => {
                let start = model[branch].last().or(model[from].last()).or(model[0].last()).unwrap().clone();
                let is_new = model[branch].is_empty();
                let mut files = start.2.clone();
                files.push(number);
                for entry in fs::read_dir(workshop.source()).unwrap() {
                    fs::remove_file(entry.unwrap().path()).unwrap();
                }
                files.iter().for_each(|file| write(&workshop, &format!("file {file}"), &format!("{file}")));
                let name = format!("tag-{number}");
                let from = Some(start.0.as_str()).filter(|_| is_new);
                let report = publish(&workshop, (NAMES[branch], from), &name).unwrap();
                assert_eq!(report.revision, start.1 + 1);
                model[branch].push((name, report.revision, files));
            }
            Step::Untag(branch) => {
                let Some((name, ..)) = model[branch].pop() else { continue };
                let remove = TagChange::Remove { names: vec![name] };
                remove.run(&workshop.open(), now(), &AtomicBool::new(false)).unwrap();
            }
            Step::Collect => {
                at_once(Keep::Tags).run(&workshop.open(), now()).unwrap();
            }
        }
    }
    let revisions = revisions(&workshop);
    let empty = model[0][0].clone();
    for (branch, tags) in NAMES.iter().zip(&model) {
        for (name, revision, files) in tags {
            let found = tag(&workshop, name);
            assert_eq!((found.branch.as_str(), found.revision), (*branch, *revision), "{name}");
            let first = tag(&workshop, &empty.0).root_catalog;
            let mut expected: Vec<String> =
                files.iter().filter(|file| **file != 1000).map(|file| format!("/file {file}")).collect();
            expected.sort();
            let added = difference(&workshop, first, found.root_catalog);
            assert_eq!(added.into_iter().map(|(path, _)| path).collect::<Vec<_>>(), expected, "{name}");
        }
        let is_listed = BranchInfo::list(revisions.history().unwrap()).iter().any(|one| one.name == *branch);
        assert_eq!(is_listed, branch.is_empty() || !tags.is_empty(), "{branch:?}");
    }
    assert_eq!(workshop.check().assert_clean().revision, model[0].last().unwrap().1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn branches_are_as_a_simple_model_of_them(steps in prop::collection::vec(step(), 1..14)) {
        follow(&steps);
    }
}
