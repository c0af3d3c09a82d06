//! A publisher decides the conflicts of a transaction, leaves changes out, and goes on above a newer revision.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use esker_publish::{
    BaseRevision, Choices, PublishError, PublishUpper, Report, Resolved, Side, Staged, Upper,
};
use esker_testkit::check::Findings;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustix::fs::XattrFlags;

use crate::side_by_side::{Tree, edited, edits, on_disk, published};
use crate::workshop::{Workshop, folder, now, options, publish, write};

/// A transaction whose upper folder is made by hand.
struct Transaction<'w> {
    workshop: &'w Workshop,
    folder: tempfile::TempDir,
    upper: Upper,
    choices: Choices,
}

impl<'w> Transaction<'w> {
    fn begin(workshop: &'w Workshop) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let upper = Upper {
            folder: folder.path().join("upper"),
            base: BaseRevision::published(&workshop.open()),
            origin: None,
            claimed: None,
            within: Vec::new(),
            filter: Default::default(),
        };
        fs::create_dir(&upper.folder).unwrap();
        upper.prepare(&workshop.root()).unwrap();
        Self { workshop, folder, upper, choices: Choices::default() }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.upper.folder.join(path)
    }

    fn write(&self, path: &str, content: &str) {
        write(&self.at(path), content);
    }

    /// Hides a published entry, as an overlay in a user namespace does.
    fn remove(&self, path: &str) {
        write(&self.at(path), "");
        rustix::fs::setxattr(self.at(path), c"user.overlay.whiteout", b"y", XattrFlags::empty()).unwrap();
    }

    fn choose(&mut self, path: &str, side: Side) {
        self.choices.choose(path.as_bytes(), side).unwrap();
    }

    fn publish(&self) -> Result<Report, PublishError> {
        let mut progress = |_| ();
        let (upper, choices) = (self.upper.clone(), self.choices.clone());
        PublishUpper { upper, choices, options: options(&mut progress) }.run(&self.workshop.open(), now())
    }

    /// Moves the transaction to the newest revision.
    fn rebase(&mut self) -> Staged {
        let mut progress = |_| ();
        let choices = self.choices.clone().otherwise(Side::Ours);
        let mut publish =
            PublishUpper { upper: self.upper.clone(), choices, options: options(&mut progress) };
        let staged = publish.stage(&self.workshop.open(), now()).unwrap();
        self.upper.folder = self.folder.path().join("next");
        fs::create_dir(&self.upper.folder).unwrap();
        self.upper.base = staged.base.clone();
        self.upper.origin = Some(staged.origin.clone());
        self.upper.prepare(&self.workshop.root()).unwrap();
        staged
    }
}

fn prepared() -> Workshop {
    let workshop = Workshop::new();
    for (path, content) in [("a/old", "old"), ("a/sub/f", "f"), ("a/sub/g", "g"), ("top", "top")] {
        write(&workshop.source().join(path), content);
    }
    workshop.publish();
    workshop
}

/// Publishes other changes meanwhile: the whole tree as `change` leaves it.
fn meanwhile(workshop: &Workshop, change: impl FnOnce(&Path)) {
    change(&workshop.source());
    workshop.publish();
}

#[track_caller]
fn assert_shows(findings: &Findings, expected: &[(&str, Option<&str>)]) {
    findings.assert_clean();
    for (path, content) in expected {
        let found = findings.tree.get(path.as_bytes()).and_then(|entry| entry.sha256.clone());
        let content = content.map(|content| esker_testkit::object::sha256(content.as_bytes()));
        assert_eq!(found, content, "{path}");
    }
}

fn resolved(paths: &[(&str, Side)]) -> Vec<Resolved> {
    paths.iter().map(|(path, side)| Resolved { path: (*path).to_owned(), side: *side }).collect()
}

#[test]
fn a_chosen_side_is_published_and_other_changes_of_both_stay() {
    for (side, content) in [(Side::Ours, "ours"), (Side::Theirs, "theirs")] {
        let workshop = prepared();
        let mut transaction = Transaction::begin(&workshop);
        transaction.write("a/old", "ours");
        transaction.write("a/our", "our");
        meanwhile(&workshop, |source| {
            write(&source.join("a/old"), "theirs");
            write(&source.join("a/their"), "their");
        });
        match transaction.publish() {
            Err(PublishError::Conflict { paths, is_transaction: true, base: 1, head: 2, .. }) => {
                assert_eq!(paths, ["/a/old"]);
            }
            other => panic!("{other:?} is no conflict of a transaction"),
        }
        transaction.choose("a", side);
        let report = transaction.publish().unwrap();
        assert_eq!((report.revision, report.resolved), (3, resolved(&[("/a/old", side)])));
        let expected = [("/a/old", Some(content)), ("/a/our", Some("our")), ("/a/their", Some("their"))];
        assert_shows(&workshop.check(), &expected);
    }
}

#[test]
fn a_choice_elsewhere_decides_nothing() {
    let workshop = prepared();
    let mut transaction = Transaction::begin(&workshop);
    transaction.write("a/old", "ours");
    meanwhile(&workshop, |source| write(&source.join("a/old"), "theirs"));
    transaction.choose("/a/olds", Side::Ours);
    assert!(matches!(transaction.publish(), Err(PublishError::Conflict { .. })));
}

#[test]
fn a_directory_that_the_other_side_removed_is_made_again_or_stays_away() {
    for side in [Side::Ours, Side::Theirs] {
        let workshop = prepared();
        let mut transaction = Transaction::begin(&workshop);
        transaction.write("a/sub/f", "ours");
        transaction.write("a/sub/deep/new", "new");
        meanwhile(&workshop, |source| fs::remove_dir_all(source.join("a")).unwrap());
        assert!(matches!(transaction.publish(), Err(PublishError::Conflict { .. })));
        transaction.choose("/a/sub", side);
        transaction.publish().unwrap();
        let is_ours = side == Side::Ours;
        let content = |content| is_ours.then_some(content);
        let expected = [
            ("/a/sub/f", content("ours")),
            ("/a/sub/deep/new", content("new")),
            ("/a/sub/g", None),
            ("/a/old", None),
            ("/top", Some("top")),
        ];
        assert_shows(&workshop.check(), &expected);
        assert_eq!(workshop.check().tree.contains_key(&b"/a/sub"[..]), is_ours);
    }
}

#[test]
fn a_removed_directory_stays_whole_for_the_other_side() {
    for (side, kept) in [(Side::Ours, None), (Side::Theirs, Some("changed"))] {
        let workshop = prepared();
        let mut transaction = Transaction::begin(&workshop);
        transaction.remove("a/sub");
        transaction.write("a/old", "ours");
        meanwhile(&workshop, |source| write(&source.join("a/sub/f"), "changed"));
        transaction.choose("/a/sub/f", side);
        transaction.publish().unwrap();
        let other = kept.map(|_| "g");
        assert_shows(&workshop.check(), &[("/a/sub/f", kept), ("/a/sub/g", other), ("/a/old", Some("ours"))]);
    }
}

#[test]
fn changes_that_are_left_out_by_name_are_not_published() {
    let workshop = prepared();
    let mut transaction = Transaction::begin(&workshop);
    transaction.upper.within = b"/a/sub".to_vec();
    transaction.write("a/sub/f", "changed");
    transaction.write("a/stray", "stray");
    transaction.remove("a/old");
    transaction.write("other/deep", "deep");
    match transaction.publish() {
        Err(PublishError::Outside { paths, .. }) => {
            assert_eq!(paths, ["/a/old", "/a/stray", "/other", "/other/deep"]);
        }
        other => panic!("{other:?} names no changes elsewhere"),
    }
    for path in [&b"/a/stray"[..], b"a/old", b"/other/"] {
        transaction.choices.leave_out(path).unwrap();
    }
    let report = transaction.publish().unwrap();
    let counts = [report.differences.added, report.differences.removed].map(|kind| kind.total());
    assert_eq!(counts, [0, 0]);
    let expected = [("/a/sub/f", Some("changed")), ("/a/stray", None), ("/a/old", Some("old"))];
    assert_shows(&workshop.check(), &expected);
    transaction.choices.leave_out(b"/a/typo").unwrap();
    assert!(matches!(transaction.publish(), Err(PublishError::Unchanged(path)) if path == "/a/typo"));
}

#[test]
fn a_directory_keeps_its_time_if_all_changes_in_it_are_left_out() {
    let workshop = prepared();
    let mut transaction = Transaction::begin(&workshop);
    transaction.write("top", "changed");
    transaction.write("a/sub/stray", "stray");
    transaction.choices.leave_out(b"/a/sub/stray").unwrap();
    let before = workshop.check().tree[&b"/a/sub"[..]].clone();
    assert_eq!(transaction.publish().unwrap().differences.changed.directories, 1, "the root");
    assert_eq!(workshop.check().tree[&b"/a/sub"[..]], before);
}

#[test]
fn a_transaction_goes_on_above_the_newest_revision() {
    let workshop = prepared();
    let mut transaction = Transaction::begin(&workshop);
    transaction.write("a/old", "ours");
    transaction.write("a/our", "our");
    meanwhile(&workshop, |source| {
        write(&source.join("a/old"), "theirs");
        write(&source.join("a/their"), "their");
    });
    let staged = transaction.rebase();
    assert_eq!(staged.resolved, resolved(&[("/a/old", Side::Ours)]));
    assert_eq!((staged.origin.revision, workshop.check().revision), (2, 2), "nothing is published");
    let changes = transaction.upper.changes(&workshop.root(), &Default::default()).unwrap();
    let files = changes.iter().filter(|change| change.kind == "file");
    let paths: Vec<&[u8]> = files.map(|change| &*change.path).collect();
    assert_eq!(paths, [&b"/a/old"[..], b"/a/our"]);
    transaction.write("a/more", "more");
    transaction.choices.leave_out(b"/a/our").unwrap();
    transaction.publish().unwrap();
    let expected =
        [("/a/old", Some("ours")), ("/a/our", None), ("/a/their", Some("their")), ("/a/more", Some("more"))];
    assert_shows(&workshop.check(), &expected);
}

#[test]
fn a_transaction_without_changes_goes_on_above_the_newest_revision() {
    let workshop = prepared();
    let mut transaction = Transaction::begin(&workshop);
    meanwhile(&workshop, |source| write(&source.join("a/their"), "their"));
    let staged = transaction.rebase();
    assert_eq!((staged.base.revision, staged.base.root), (2, staged.origin.root));
    transaction.write("a/our", "our");
    transaction.publish().unwrap();
    assert_shows(&workshop.check(), &[("/a/their", Some("their")), ("/a/our", Some("our"))]);
}

/// Names of hard links of `/d`, by file.
fn links(findings: &Findings) -> BTreeSet<Vec<String>> {
    let entries = findings.tree.values().filter(|entry| entry.path.starts_with(b"/d/"));
    let mut files: Vec<(String, Vec<String>)> = Vec::new();
    for entry in entries {
        let name = String::from_utf8(entry.path[3..].to_vec()).unwrap();
        let content = entry.sha256.clone().unwrap();
        match files.iter_mut().find(|(known, _)| *known == content) {
            Some((_, names)) => names.push(name),
            None => files.push((content, vec![name])),
        }
        let count = entry.nlink.unwrap();
        assert!(count == 1 || count == 2 || count == 3, "{count}");
    }
    files.into_iter().map(|(_, names)| names).collect()
}

#[test]
fn publishers_that_change_different_groups_of_hard_links_are_joined() {
    let workshop = Workshop::new();
    let link =
        |folder: &Path, from: &str, to: &str| fs::hard_link(folder.join(from), folder.join(to)).unwrap();
    let source = workshop.source().join("d");
    for (first, second) in [("b1", "b2"), ("c1", "c2"), ("d1", "d2")] {
        write(&source.join(first), first);
        link(&source, first, second);
    }
    workshop.publish();
    let ours = folder(&[]);
    let copied = std::process::Command::new("cp").arg("-a").arg(&source).arg(ours.path()).status();
    assert!(copied.unwrap().success());
    let ours = ours.path().join("d");
    let repository = workshop.open();
    // The other publisher adds a group before all others, changes one and removes one: all groups have other numbers.
    meanwhile(&workshop, |_| {
        write(&source.join("a1"), "a1");
        link(&source, "a1", "a2");
        write(&source.join("b1"), "changed");
        fs::remove_file(source.join("c1")).unwrap();
    });
    // This one changes the last group, and adds names and a group.
    write(&ours.join("d1"), "ours");
    link(&ours, "d1", "d3");
    write(&ours.join("e1"), "e1");
    link(&ours, "e1", "e2");
    let report = publish(&repository, &ours, "/d").unwrap();
    assert_eq!(report.revision, 3);
    let findings = workshop.check();
    findings.assert_clean();
    let expected = [&["a1", "a2"][..], &["b1", "b2"], &["c2"], &["d1", "d2", "d3"], &["e1", "e2"]];
    let expected = expected.map(|names| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>());
    assert_eq!(links(&findings), BTreeSet::from(expected));
    for (name, count) in [("a1", 2), ("b2", 2), ("c2", 1), ("d2", 3), ("e2", 2)] {
        assert_eq!(findings.tree[format!("/d/{name}").as_bytes()].nlink, Some(count), "{name}");
    }
    // Both change one group.
    let late = workshop.open();
    fs::remove_dir_all(&source).unwrap();
    let copied = std::process::Command::new("cp").arg("-a").arg(&ours).arg(workshop.source()).status();
    assert!(copied.unwrap().success());
    assert_eq!(fs::metadata(source.join("e1")).unwrap().nlink(), 2);
    meanwhile(&workshop, |_| write(&source.join("e1"), "theirs"));
    link(&ours, "e1", "e3");
    let refused = publish(&late, &ours, "/d");
    assert!(matches!(refused, Err(PublishError::Conflict { .. })), "{refused:?}");
}

/// Makes the upper folder of a transaction that changes one tree to another.
fn upper_of(transaction: &Transaction<'_>, base: &Tree, mine: &Tree) {
    let is_directory = |tree: &Tree, path: &str| path.is_empty() || tree.get(path) == Some(&None);
    for (path, node) in mine.iter().filter(|(path, node)| base.get(*path) != Some(node)) {
        match node {
            Some(content) => transaction.write(&path[1..], &content.to_string()),
            None => fs::create_dir_all(transaction.at(&path[1..])).unwrap(),
        }
    }
    for path in base.keys().filter(|path| !mine.contains_key(*path)) {
        let above = path.rsplit_once('/').unwrap().0;
        if is_directory(mine, above) && is_directory(base, above) {
            transaction.remove(&path[1..]);
        }
    }
}

#[test]
fn every_conflict_can_be_decided_for_either_side() {
    let workshop = Workshop::new();
    let counts = std::cell::RefCell::new([0, 0]);
    let mut runner = TestRunner::new(ProptestConfig {
        cases: 100,
        failure_persistence: None,
        ..ProptestConfig::default()
    });
    let strategy = (edits(), edits(), edits(), edits(), any::<bool>());
    let outcome = runner.run(&strategy, |(base, more, first, second, is_ours)| {
        let base = edited(edited(Tree::new(), &base), &more);
        publish(&workshop.open(), on_disk(&base).path(), "").unwrap();
        let (theirs, ours) = (edited(base.clone(), &first), edited(base.clone(), &second));
        let mut transaction = Transaction::begin(&workshop);
        upper_of(&transaction, &base, &ours);
        publish(&workshop.open(), on_disk(&theirs).path(), "").unwrap();
        let side = if is_ours { Side::Ours } else { Side::Theirs };
        transaction.choices = Choices::default().otherwise(side);
        let report = transaction.publish().unwrap();
        counts.borrow_mut()[usize::from(report.resolved.is_empty())] += 1;
        let findings = workshop.check();
        findings.assert_clean();
        let found = published(&findings);
        let chosen = if is_ours { &ours } else { &theirs };
        let paths: BTreeSet<&String> = base.keys().chain(chosen.keys()).collect();
        for path in paths.into_iter().filter(|path| base.get(*path) != chosen.get(*path)) {
            prop_assert_eq!(found.get(path), chosen.get(path), "{}", path);
        }
        if report.resolved.is_empty() {
            for path in ours.keys().filter(|path| ours.get(*path) != base.get(*path)) {
                prop_assert_eq!(found.get(path), ours.get(path), "{}", path);
            }
        }
        Ok(())
    });
    outcome.unwrap();
    let counts = counts.into_inner();
    assert!(counts[0] > 5 && counts[1] > 5, "{counts:?}");
}
