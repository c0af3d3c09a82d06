//! Tags, rollbacks and logs of published revisions.

use std::fs;
use std::sync::atomic::AtomicBool;

use esker_format::history::{History, Tag};
use esker_format::time::UnixTime;
use esker_publish::{PublishError, Report, Rollback, TagChange, TagReport};
use esker_repository::{ChangeKind, Log, LogEnd, LogEntry, RepositoryError, Settings};
use esker_testkit::object::inflate;

use crate::workshop::{Workshop, assert_same_trees, now, publish_at, revisions};

const DAY: i64 = 86_400;

fn write(workshop: &Workshop, name: &str, content: &str) -> Report {
    fs::write(workshop.source().join(name), content).unwrap();
    workshop.publish()
}

fn change(workshop: &Workshop, change: TagChange) -> Result<TagReport, PublishError> {
    change.run(&workshop.open(), now(), &AtomicBool::new(false))
}

fn add(workshop: &Workshop, name: &str, revision: Option<&str>) -> Result<TagReport, PublishError> {
    let (name, revision) = (name.to_owned(), revision.map(str::to_owned));
    let description = format!("about {name}");
    change(workshop, TagChange::Add { name, revision, description, force: false })
}

fn remove(workshop: &Workshop, names: &[&str]) -> Result<TagReport, PublishError> {
    change(workshop, TagChange::Remove { names: names.iter().map(|&name| name.to_owned()).collect() })
}

fn history(workshop: &Workshop) -> History {
    let name = workshop.open().head().history().expect("the head names a history");
    History::parse(&inflate(&fs::read(workshop.root().join(name.path())).unwrap())).unwrap()
}

fn tag(workshop: &Workshop, name: &str) -> Option<Tag> {
    history(workshop).find(name).cloned()
}

fn no_automatic_tags() -> Workshop {
    Workshop::with(|new| new.settings = Settings { automatic_tags: false, ..Settings::default() })
}

fn roll_back(workshop: &Workshop, target: Option<&str>) -> Result<u64, PublishError> {
    let rollback = Rollback { target: target.map(str::to_owned) };
    rollback.run(&workshop.open(), now(), &AtomicBool::new(false)).map(|report| report.revision)
}

/// > U3: A name that means more than one revision, such as a tag that is the number of another revision, is refused with the names `tag:NAME` and `rev:NUMBER` that mean one only.
#[test]
fn names_that_mean_several_revisions_are_refused() {
    let workshop = no_automatic_tags();
    for content in ["one", "two", "three", "four"] {
        write(&workshop, "file", content);
    }
    let root = |name: &str| revisions(&workshop).find(name).map(|found| found.root);
    let (third, fourth) = (root("3").unwrap(), root("4").unwrap());
    add(&workshop, "3", Some("4")).unwrap();
    let said = root("3").unwrap_err().to_string();
    assert!(said.contains("`3` may mean the tag 3 (`tag:3`), or revision 3 (`rev:3`)"), "{said}");
    assert_eq!((root("tag:3").unwrap(), root("rev:3").unwrap()), (fourth, third));
    assert!(matches!(
        roll_back(&workshop, Some("3")),
        Err(PublishError::Repository(RepositoryError::AmbiguousRevision { .. }))
    ));
    // A tag of the same revision, of a number without a revision, or like a hash of none is not ambiguous.
    remove(&workshop, &["3"]).unwrap();
    add(&workshop, "3", Some("3")).unwrap();
    add(&workshop, "20261129", Some("3")).unwrap();
    assert_eq!((root("3").unwrap(), root("20261129").unwrap()), (third, third));
    add(&workshop, &fourth.to_string(), Some("3")).unwrap();
    let said = root(&fourth.to_string()).unwrap_err().to_string();
    assert!(said.contains("`tag:") && said.contains("a root catalog"), "{said}");
    add(&workshop, "rev:4", Some("3")).unwrap();
    assert!(root("rev:4").is_err());
    assert_eq!((root("tag:rev:4").unwrap(), root("4").unwrap()), (third, fourth));
    for absent in ["tag:none", "rev:99", "rev:x", "tag:"] {
        assert!(matches!(root(absent), Err(RepositoryError::NoRevision { .. })), "{absent}");
    }
}

#[test]
fn a_rollback_to_a_revision_that_lacks_an_object_is_refused() {
    let workshop = no_automatic_tags();
    write(&workshop, "file", "one");
    write(&workshop, "file", "two");
    let object = workshop.object_of(b"one");
    fs::remove_file(&object).unwrap();
    let before = fs::read(workshop.root().join(".cvmfspublished")).unwrap();
    let rollback = Rollback { target: Some("1".to_owned()) };
    let planned = rollback.dry_run(&workshop.open(), now(), &mut |_| Ok(()));
    for refused in [planned.map(|report| report.revision), roll_back(&workshop, Some("1"))] {
        let text = refused.unwrap_err().to_string();
        assert!(text.contains("revision `1`") && text.contains("the storage lacks"), "{text}");
    }
    assert_eq!(fs::read(workshop.root().join(".cvmfspublished")).unwrap(), before);
    // What the newest revision has, too, is not looked for.
    fs::remove_file(workshop.object_of(b"two")).unwrap();
    fs::write(object, esker_testkit::object::deflate(b"one")).unwrap();
    assert_eq!(roll_back(&workshop, Some("1")).unwrap(), 3);
    workshop.check().assert_clean();
}

#[test]
fn a_tag_names_an_old_revision_by_number_hash_or_tag() {
    let workshop = no_automatic_tags();
    let roots: Vec<_> = (1..=4).map(|number| write(&workshop, "file", &number.to_string()).root).collect();
    let before = history(&workshop);
    let report = add(&workshop, "two", Some("2")).unwrap();
    assert_eq!((report.added[0].revision, &report.added[0].root), (2, &roots[1]));
    add(&workshop, "one", Some(&roots[0])).unwrap();
    add(&workshop, "three", Some("trunk-previous")).unwrap();
    add(&workshop, "four", None).unwrap();
    for (name, revision) in [("one", 1), ("two", 2), ("three", 3), ("four", 4)] {
        let tag = tag(&workshop, name).unwrap();
        assert_eq!(
            (tag.revision, tag.root_catalog.to_string()),
            (revision, roots[revision as usize - 1].clone())
        );
        assert_eq!(tag.description, format!("about {name}"));
        assert!(tag.size.is_some());
    }
    for name in ["trunk", "trunk-previous"] {
        assert_eq!(tag(&workshop, name).as_ref(), before.find(name), "{name} stays");
    }
    assert_eq!(workshop.open().head().revision(), 4, "tags make no revision");
    for bad in ["5", "nothing", "0000000000000000000000000000000000000001"] {
        let error = add(&workshop, "bad", Some(bad)).unwrap_err();
        assert!(
            matches!(error, PublishError::Repository(RepositoryError::NoRevision { .. })),
            "{bad}: {error}"
        );
    }
    workshop.assert_equal();
}

#[test]
fn a_tag_is_moved_only_on_request() {
    let workshop = no_automatic_tags();
    (1..=2).for_each(|number| drop(write(&workshop, "file", &number.to_string())));
    add(&workshop, "v", Some("1")).unwrap();
    assert!(matches!(add(&workshop, "v", None), Err(PublishError::Repository(RepositoryError::Tag(_)))));
    let moved = |revision: Option<&str>, description: &str| TagChange::Move {
        name: "v".to_owned(),
        revision: revision.map(str::to_owned),
        description: description.to_owned(),
    };
    let report = moved(None, "").dry_run(&workshop.open()).unwrap();
    assert_eq!((report.moved_from[0].revision, report.moved[0].revision), (1, 2));
    assert_eq!(tag(&workshop, "v").unwrap().revision, 1, "a dry run moves nothing");
    change(&workshop, moved(None, "")).unwrap();
    let found = tag(&workshop, "v").unwrap();
    assert_eq!((found.revision, &*found.description), (2, "about v"));
    assert!(change(&workshop, moved(None, "")).is_err(), "it is there already");
    let (name, description) = ("v".to_owned(), "new".to_owned());
    let forced = TagChange::Add { name, revision: Some("1".to_owned()), description, force: true };
    change(&workshop, forced).unwrap();
    assert_eq!(tag(&workshop, "v").unwrap().description, "new");
    for name in ["trunk", "trunk-previous"] {
        assert!(add(&workshop, name, None).is_err());
        assert!(remove(&workshop, &[name]).is_err());
    }
    workshop.assert_equal();
}

#[test]
fn several_tags_are_removed_or_none() {
    let workshop = no_automatic_tags();
    write(&workshop, "file", "1");
    ["a", "b", "c"].iter().for_each(|name| drop(add(&workshop, name, None).unwrap()));
    let before = workshop.open().head().history();
    assert!(remove(&workshop, &["a", "d"]).is_err());
    assert_eq!(workshop.open().head().history(), before, "nothing changed");
    let removed = remove(&workshop, &["a", "c"]).unwrap().removed;
    assert_eq!(removed.len(), 2);
    assert_eq!(workshop.assert_equal().tags.len(), 2, "b and trunk");
    assert_eq!(history(&workshop).previous(), before, "histories form a chain");
}

#[test]
fn a_rollback_publishes_the_target_as_a_new_revision() {
    let workshop = no_automatic_tags();
    fs::create_dir(workshop.source().join("nested")).unwrap();
    fs::write(workshop.source().join("nested/.cvmfscatalog"), b"").unwrap();
    write(&workshop, "nested/file", "1");
    let first = workshop.check().listing();
    add(&workshop, "v1", None).unwrap();
    write(&workshop, "nested/file", "22");
    add(&workshop, "v2", None).unwrap();
    fs::remove_file(workshop.source().join("nested/file")).unwrap();
    let last = write(&workshop, "added", "3");

    let rollback = Rollback { target: Some("v1".to_owned()) };
    let mut paths = Vec::new();
    let plan = rollback
        .dry_run(&workshop.open(), now(), &mut |found| {
            paths.push(String::from_utf8_lossy(found.path).into_owned());
            Ok(())
        })
        .unwrap();
    assert!(paths.contains(&"/added".to_owned()) && paths.contains(&"/nested/file".to_owned()), "{paths:?}");
    assert_eq!((plan.revision, plan.target.number, plan.root.as_deref()), (4, 1, None));
    assert_eq!(plan.tags_removed, ["v2"]);
    assert_eq!(workshop.open().head().revision(), 3, "a dry run changes nothing");

    let report = rollback.run(&workshop.open(), now(), &AtomicBool::new(false)).unwrap();
    assert_eq!((report.revision, report.tags_removed), (4, vec!["v2".to_owned()]));
    let findings = workshop.check();
    findings.assert_clean();
    assert_same_trees(&first, &findings.listing());
    let names: Vec<_> = findings.tags.iter().map(|(name, revision)| (name.as_str(), *revision)).collect();
    assert_eq!(names, [("trunk", 4), ("v1", 4)]);
    assert_eq!(tag(&workshop, "v1").unwrap().description, "about v1");
    let head = revisions(&workshop).head().unwrap();
    assert_eq!(head.previous.unwrap().to_string(), last.root, "it follows the old head");
    assert_eq!((head.number, head.root.to_string()), (4, report.root.unwrap()));

    // The source has what was rolled back: the next publish brings it, as a difference like any other.
    let next = workshop.publish();
    assert_eq!((next.revision, next.published), (5, true));
    workshop.assert_equal();
}

#[test]
fn an_undo_is_undone_by_its_revision() {
    let workshop = no_automatic_tags();
    write(&workshop, "file", "1");
    let first = workshop.check().listing();
    write(&workshop, "file", "22");
    let second = workshop.check().listing();
    assert_eq!(roll_back(&workshop, None).unwrap(), 3);
    assert_same_trees(&first, &workshop.check().assert_clean().listing());
    let error = roll_back(&workshop, None).unwrap_err();
    assert!(matches!(error, PublishError::NothingToUndo { before: Some(2) }), "{error}");
    assert_eq!(roll_back(&workshop, Some("2")).unwrap(), 4);
    assert_same_trees(&second, &workshop.check().assert_clean().listing());
    let refused = roll_back(&workshop, Some("4")).unwrap_err();
    assert!(matches!(refused, PublishError::Repository(RepositoryError::NoRevision { .. })), "{refused}");
    write(&workshop, "file", "333");
    assert_eq!(roll_back(&workshop, None).unwrap(), 6, "after a publish there is something to undo");
    assert_same_trees(&second, &workshop.check().assert_clean().listing());
}

#[test]
fn a_rollback_to_a_collected_revision_changes_nothing() {
    let workshop = no_automatic_tags();
    fs::create_dir(workshop.source().join("nested")).unwrap();
    fs::write(workshop.source().join("nested/.cvmfscatalog"), b"").unwrap();
    write(&workshop, "nested/file", "1");
    let catalogs = |workshop: &Workshop| -> Vec<String> {
        let objects = workshop.check().objects;
        objects.into_iter().filter(|path| path.ends_with('C')).collect()
    };
    let old = catalogs(&workshop);
    write(&workshop, "nested/file", "2");
    let new = catalogs(&workshop);
    let root = revisions(&workshop).find("1").unwrap().root.to_string();
    let is_root = |path: &String| path.replace('/', "").contains(&root);
    let nested = old.iter().find(|path| !new.contains(path) && !is_root(path)).unwrap();
    fs::remove_file(workshop.root().join(nested)).unwrap();
    let error = roll_back(&workshop, Some("1")).unwrap_err();
    assert!(matches!(error, PublishError::Repository(RepositoryError::Missing { .. })), "{error}");
    assert_eq!(workshop.open().head().revision(), 2);
    workshop.assert_equal();
}

fn log(workshop: &Workshop, within: &str, limit: Option<usize>) -> (Vec<LogEntry>, LogEnd) {
    let revisions = revisions(workshop);
    let mut entries = Vec::new();
    let log = Log { revisions: &revisions, within: within.as_bytes().to_vec(), limit, branch: None };
    let end = log.run(&mut |entry| {
        entries.push(entry);
        Ok(())
    });
    (entries, end.unwrap())
}

#[test]
fn a_log_lists_what_each_revision_changed() {
    let workshop = no_automatic_tags();
    write(&workshop, "a", "1");
    write(&workshop, "b", "22");
    add(&workshop, "v2", None).unwrap();
    write(&workshop, "a", "333");
    fs::remove_file(workshop.source().join("a")).unwrap();
    workshop.publish();
    let (entries, end) = log(&workshop, "", None);
    assert_eq!(end, LogEnd::First);
    let numbers: Vec<_> = entries.iter().map(|entry| entry.revision.number).collect();
    assert_eq!(numbers, [4, 3, 2, 1, 0]);
    assert_eq!(entries[2].tags, ["v2"]);
    let counts = entries[2].counts.unwrap();
    assert_eq!((counts.added.files, counts.bytes_added, counts.removed.total()), (1, 2, 0));

    let (entries, end) = log(&workshop, "/a", None);
    let found: Vec<_> = entries.iter().map(|entry| (entry.revision.number, entry.path)).collect();
    let expected =
        [(4, Some(ChangeKind::Removed)), (3, Some(ChangeKind::Changed)), (1, Some(ChangeKind::Added))];
    assert_eq!((found, end), (expected.to_vec(), LogEnd::First));
    let (entries, end) = log(&workshop, "/a", Some(2));
    assert_eq!((entries.len(), end), (2, LogEnd::Limit));
    assert!(log(&workshop, "/none", None).0.is_empty());
}

#[test]
fn a_log_continues_at_a_tag_before_collected_revisions() {
    let workshop = no_automatic_tags();
    (1..=4).for_each(|number| drop(write(&workshop, "file", &number.to_string())));
    add(&workshop, "kept", Some("2")).unwrap();
    let collected = revisions(&workshop).find("3").unwrap().root;
    let path =
        esker_format::object::ObjectName::new(collected, esker_format::object::ObjectKind::Catalog).path();
    fs::remove_file(workshop.root().join(path)).unwrap();
    let (entries, end) = log(&workshop, "", None);
    let numbers: Vec<_> = entries.iter().map(|entry| (entry.revision.number, entry.since)).collect();
    assert_eq!(numbers, [(4, Some(2)), (2, Some(1)), (1, Some(0)), (0, None)]);
    assert_eq!(end, LogEnd::Missing(collected.to_string()));
    let error = add(&workshop, "gone", Some("3")).unwrap_err();
    assert!(matches!(error, PublishError::Repository(RepositoryError::NoRevision { .. })), "{error}");
}

#[test]
fn automatic_tags_are_removed_when_they_are_old() {
    let workshop = Workshop::with(|new| {
        new.settings.automatic_tags_for = Some(10);
        new.whitelist_days = 365;
    });
    let start = now();
    let publish = |day: i64| {
        fs::write(workshop.source().join("file"), day.to_string()).unwrap();
        let time = UnixTime(start.0 + day * DAY);
        publish_at(time, &workshop.open(), &workshop.source(), "").unwrap()
    };
    publish(0);
    add(&workshop, "v1", None).unwrap();
    publish(5);
    publish(11);
    let automatic = |workshop: &Workshop| {
        history(workshop).tags().iter().filter(|tag| tag.name.starts_with("generic")).count()
    };
    assert_eq!(automatic(&workshop), 2, "that of day 0 is gone");
    publish(30);
    assert_eq!(automatic(&workshop), 1);
    assert!(tag(&workshop, "v1").is_some());
}
