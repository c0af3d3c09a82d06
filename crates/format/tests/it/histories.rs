//! Histories of every schema revision, and reflogs, created with SQLite.

use esker_format::history::{History, HistoryError};
use esker_format::object::ObjectKind;
use esker_format::reflog::{Reflog, ReflogError};
use esker_format::sqlite::SqliteError;
use esker_format::time::UnixTime;

use crate::databases::build;

const PROPERTIES: &str =
    "CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key));
     INSERT INTO properties VALUES ('schema', '1.0'), ('fqrn', 'full.test'),
        ('previous_revision', '58c341e0979a5cc9ab0280acacce9b364b298350');";

/// Additions of each schema revision.
const REVISIONS: [&str; 4] = [
    "CREATE TABLE tags (name TEXT, hash TEXT, revision INTEGER, timestamp INTEGER, channel INTEGER,
        description TEXT, CONSTRAINT pk_tags PRIMARY KEY (name));
     INSERT INTO tags VALUES ('first', '1537bc934a79e999ee0d9e719240fe0ff2150b34', 1, 1000, 0, 'the first');",
    "ALTER TABLE tags ADD size INTEGER DEFAULT 0;
     INSERT INTO tags VALUES ('second', '1537bc934a79e999ee0d9e719240fe0ff2150b34', 2, 2000, 16, '', 4096);",
    "CREATE TABLE recycle_bin (hash TEXT, flags INTEGER, CONSTRAINT pk_hash PRIMARY KEY (hash));",
    "CREATE TABLE branches (branch TEXT, parent TEXT, initial_revision INTEGER,
        CONSTRAINT pk_branch PRIMARY KEY (branch), FOREIGN KEY (parent) REFERENCES branches (branch),
        CHECK ((branch <> '') OR (parent IS NULL)), CHECK ((branch = '') OR (parent IS NOT NULL)));
     INSERT INTO branches VALUES ('', NULL, 0), ('devel', '', 3);
     ALTER TABLE tags ADD branch TEXT DEFAULT '' REFERENCES branches (branch);
     INSERT INTO tags VALUES
        ('side', '1537bc934a79e999ee0d9e719240fe0ff2150b34-rmd160', 9, 1500, 0, 'x', 8192, 'devel');",
];

fn history_of(revision: usize, also: &str) -> Vec<u8> {
    build(1024, |connection| {
        connection.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
        connection.execute_batch(PROPERTIES).unwrap();
        for step in &REVISIONS[..=revision] {
            connection.execute_batch(step).unwrap();
        }
        connection.execute("INSERT INTO properties VALUES ('schema_revision', ?)", [revision]).unwrap();
        connection.execute_batch(also).unwrap();
    })
}

#[test]
fn histories_of_every_schema_revision_are_read() {
    for revision in 0..REVISIONS.len() {
        let history = History::parse(&history_of(revision, "")).unwrap();
        assert_eq!(history.schema_revision() as usize, revision);
        assert_eq!(history.name().as_str(), "full.test");
        assert_eq!(history.previous().unwrap().kind, ObjectKind::History);
        let first = history.find("first").unwrap();
        assert_eq!((first.revision, first.timestamp, first.size), (1, UnixTime(1000), None));
        assert_eq!((first.description.as_str(), first.branch.as_str()), ("the first", ""));
        let names: Vec<_> = history.tags().iter().map(|tag| tag.name.as_str()).collect();
        let expected: &[&str] = match revision {
            0 => &["first"],
            1 | 2 => &["second", "first"],
            _ => &["second", "side", "first"],
        };
        assert_eq!(names, expected);
        assert_eq!(history.branches().len(), if revision == 3 { 2 } else { 0 });
    }
}

#[test]
fn tags_are_found_by_name_time_and_branch() {
    let history = History::parse(&history_of(3, "")).unwrap();
    assert_eq!(history.find("second").unwrap().size, Some(4096));
    // The side branch is ignored, although its revision is higher.
    assert_eq!(history.at(UnixTime(1999)).unwrap().name, "first");
    assert_eq!(history.at(UnixTime(2000)).unwrap().name, "second");
    assert_eq!(history.at(UnixTime(999)), None);
    assert_eq!(history.branch_head("").unwrap().name, "second");
    assert_eq!(history.branch_head("devel").unwrap().name, "side");
    assert_eq!(history.branch_head("none"), None);
    let devel = &history.branches()[1];
    assert_eq!((devel.parent.as_deref(), devel.initial_revision), (Some(""), 3));
    assert_eq!(history.branches()[0].parent, None);
}

#[test]
fn invalid_histories_are_rejected() {
    let error = |also: &str| History::parse(&history_of(3, also)).unwrap_err();
    assert_eq!(error("DELETE FROM properties WHERE key = 'fqrn'"), HistoryError::NoName);
    assert!(matches!(error("UPDATE properties SET value = '/' WHERE key = 'fqrn'"), HistoryError::Name(_)));
    assert_eq!(error("UPDATE properties SET value = '2.0' WHERE key = 'schema'"), HistoryError::Schema);
    assert_eq!(error("UPDATE properties SET value = 'x' WHERE key = 'schema'"), HistoryError::Schema);
    assert_eq!(error("DROP TABLE tags"), SqliteError::NoTable("tags").into());
    for damage in ["hash = 'x'", "revision = -1", "timestamp = NULL"] {
        let error = error(&format!("UPDATE tags SET {damage} WHERE name = 'first'"));
        assert!(matches!(&error, HistoryError::Tag { name, .. } if name == "first"), "{damage}: {error}");
    }
}

fn reflog(also: &str) -> Vec<u8> {
    build(1024, |connection| {
        connection.execute_batch(PROPERTIES).unwrap();
        connection
            .execute_batch(
                "CREATE TABLE refs (hash TEXT, type INTEGER, timestamp INTEGER,
                    CONSTRAINT pk_refs PRIMARY KEY (hash));
                 INSERT INTO refs VALUES ('1537bc934a79e999ee0d9e719240fe0ff2150b34', 0, 5),
                    ('58c341e0979a5cc9ab0280acacce9b364b298350', 1, 7),
                    ('910a36c79b028f8f214ec62636946235f0d74ce1-shake128', 2, 6),
                    ('910a36c79b028f8f214ec62636946235f0d74ce1', 3, 8);",
            )
            .unwrap();
        connection.execute_batch(also).unwrap();
    })
}

#[test]
fn references_of_a_reflog_are_read() {
    let log = Reflog::parse(&reflog("")).unwrap();
    let kinds: Vec<_> = log.references().iter().map(|reference| reference.object.kind).collect();
    let newest_first =
        [ObjectKind::Metainfo, ObjectKind::Certificate, ObjectKind::History, ObjectKind::Catalog];
    assert_eq!(kinds, newest_first);
    assert_eq!(log.before(UnixTime(7)).count(), 2);
    assert_eq!(log.name().as_str(), "full.test");
}

#[test]
fn invalid_reflogs_are_rejected() {
    let error = |also: &str| Reflog::parse(&reflog(also)).unwrap_err();
    assert_eq!(error("DELETE FROM properties WHERE key = 'fqrn'"), ReflogError::NoName);
    assert!(matches!(error("UPDATE properties SET value = '/' WHERE key = 'fqrn'"), ReflogError::Name(_)));
    assert_eq!(error("UPDATE properties SET value = '0.5' WHERE key = 'schema'"), ReflogError::Schema);
    for damage in ["hash = 'x'", "type = 4", "timestamp = 'soon'"] {
        let error = error(&format!("UPDATE refs SET {damage} WHERE type = 1"));
        assert!(matches!(error, ReflogError::Reference { .. }), "{damage}: {error}");
    }
}
