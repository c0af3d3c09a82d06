//! Compares our SQLite reader with SQLite on random databases.

mod sys;

use esker_format::sqlite::{Database, SqliteError, Value};
use proptest::collection::vec;
use proptest::prelude::*;
use rusqlite::{Connection, params_from_iter, types::Value as Theirs};

/// Creates a database with SQLite and returns the bytes of its file.
pub(crate) fn build(page_size: u32, fill: impl FnOnce(&Connection)) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("database");
    let connection = Connection::open(&file).unwrap();
    connection.pragma_update(None, "page_size", page_size).unwrap();
    connection.pragma_update(None, "journal_mode", "OFF").unwrap();
    connection.pragma_update(None, "synchronous", "OFF").unwrap();
    fill(&connection);
    connection.close().unwrap();
    std::fs::read(&file).unwrap()
}

fn same(ours: Value<'_>, theirs: &Theirs) -> bool {
    match (ours, theirs) {
        (Value::Null, Theirs::Null) => true,
        (Value::Integer(ours), Theirs::Integer(theirs)) => ours == *theirs,
        (Value::Real(ours), Theirs::Real(theirs)) => ours.to_bits() == theirs.to_bits(),
        // SQLite stores an integral number in a real column as an integer.
        (Value::Text(ours), Theirs::Text(theirs)) => ours == theirs.as_bytes(),
        (Value::Blob(ours), Theirs::Blob(theirs)) => ours == theirs.as_slice(),
        _ => false,
    }
}

fn value() -> impl Strategy<Value = Theirs> {
    prop_oneof![
        Just(Theirs::Null),
        prop_oneof![Just(0), Just(1), Just(-1), Just(i64::MIN), Just(i64::MAX), -200i64..200, any::<i64>()]
            .prop_map(Theirs::Integer),
        (any::<i64>(), 0u32..64).prop_map(|(value, shift)| Theirs::Integer(value >> shift)),
        any::<f64>().prop_filter("SQLite has no NaN", |value| !value.is_nan()).prop_map(Theirs::Real),
        "[a-zé]{0,40}".prop_map(Theirs::Text),
        vec(any::<u8>(), 0..60).prop_map(Theirs::Blob),
        (0usize..9000, any::<u8>()).prop_map(|(len, byte)| Theirs::Blob(vec![byte; len])),
        (0usize..9000).prop_map(|len| Theirs::Text("x".repeat(len))),
    ]
}

#[derive(Debug, Clone)]
struct Plan {
    page_size: u32,
    rows: Vec<[Theirs; 3]>,
    /// Rows to delete again, by position.
    deleted: Vec<prop::sample::Index>,
    /// Rows to insert after a column was added.
    later: Vec<[Theirs; 3]>,
    rowids: bool,
    vacuum: bool,
    auto_vacuum: bool,
}

fn plan() -> impl Strategy<Value = Plan> {
    let rows = vec([value(), value(), value()], 0..120);
    let later = vec([value(), value(), value()], 0..20);
    let deleted = vec(any::<prop::sample::Index>(), 0..40);
    (9u32..=16, rows, deleted, later, any::<[bool; 3]>()).prop_map(|(log, rows, deleted, later, flags)| {
        Plan {
            page_size: 1 << log,
            rows,
            deleted,
            later,
            rowids: flags[0],
            vacuum: flags[1],
            auto_vacuum: flags[2],
        }
    })
}

fn run(plan: &Plan, connection: &Connection) {
    if plan.auto_vacuum {
        connection.pragma_update(None, "auto_vacuum", "FULL").unwrap();
    }
    connection
        .execute_batch(
            "CREATE TABLE t (a, b, c, CONSTRAINT pk UNIQUE (a, b)); CREATE INDEX by_c ON t (c); BEGIN;",
        )
        .unwrap();
    for (at, row) in plan.rows.iter().enumerate() {
        // Rowids of one to nine bytes, in random order.
        let rowid = (at as i64).wrapping_mul(0x5851_f42d_4c95_7f2d) >> (at % 60);
        if plan.rowids {
            let values = [Theirs::Integer(rowid)].into_iter().chain(row.iter().cloned());
            connection
                .execute(
                    "INSERT OR IGNORE INTO t (rowid, a, b, c) VALUES (?, ?, ?, ?)",
                    params_from_iter(values),
                )
                .unwrap();
        } else {
            connection.execute("INSERT OR IGNORE INTO t VALUES (?, ?, ?)", params_from_iter(row)).unwrap();
        }
        if at % 3 == 0 && plan.deleted.len() > at / 3 {
            let victim = plan.deleted[at / 3].index(at + 1);
            connection.execute("DELETE FROM t WHERE a IS ?", [&plan.rows[victim][0]]).unwrap();
        }
    }
    connection.execute_batch("COMMIT; ALTER TABLE t ADD d INTEGER DEFAULT -7; BEGIN").unwrap();
    for row in &plan.later {
        connection
            .execute("INSERT OR IGNORE INTO t (a, b, c) VALUES (?, ?, ?)", params_from_iter(row))
            .unwrap();
    }
    connection.execute_batch("COMMIT").unwrap();
    if plan.vacuum {
        connection.execute_batch("VACUUM").unwrap();
    }
}

type TheirRow = (i64, [Theirs; 4]);

fn their_rows(connection: &Connection, order: &str) -> Vec<TheirRow> {
    let mut statement =
        connection.prepare(&format!("SELECT rowid, a, b, c, d FROM t ORDER BY {order}")).unwrap();
    let rows = statement
        .query_map([], |row| Ok((row.get(0)?, [row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?])))
        .unwrap();
    rows.map(Result::unwrap).collect()
}

fn ours<'a>(value: &'a Theirs) -> Value<'a> {
    match value {
        Theirs::Null => Value::Null,
        Theirs::Integer(value) => Value::Integer(*value),
        Theirs::Real(value) => Value::Real(*value),
        Theirs::Text(text) => Value::Text(text.as_bytes()),
        Theirs::Blob(bytes) => Value::Blob(bytes),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Compares rows by iteration, by rowid and through both indexes, in the same orders.
    #[test]
    fn our_reader_and_sqlite_return_the_same_rows(plan in plan()) {
        let (mut by_rowid, mut by_pair, mut by_c) = (Vec::new(), Vec::new(), Vec::new());
        let bytes = build(plan.page_size, |connection| {
            run(&plan, connection);
            by_rowid = their_rows(connection, "rowid");
            by_pair = their_rows(connection, "a, b, rowid");
            by_c = their_rows(connection, "c, rowid");
        });
        let database = Database::open(bytes).unwrap();
        let table = database.table("t").unwrap();
        let columns: Vec<usize> = ["a", "b", "c", "d"].iter().map(|name| table.column(name).unwrap()).collect();
        let mut walked = 0;
        for (row, (rowid, expected)) in table.rows().zip(&by_rowid) {
            let row = row.unwrap();
            prop_assert_eq!(row.rowid(), *rowid);
            let found = table.row(*rowid).unwrap().expect("a row is found by its rowid");
            for (column, value) in columns.iter().zip(expected) {
                prop_assert!(same(row.get(*column), value), "{:?} is not {:?}", row.get(*column), value);
                prop_assert!(same(found.get(*column), value));
            }
            walked += 1;
        }
        prop_assert_eq!(walked, by_rowid.len());
        prop_assert_eq!(table.rows().count(), by_rowid.len());

        let pair = table.index(&columns[..2]).expect("the index of the constraint");
        let in_order: Vec<i64> = pair.rowids().map(Result::unwrap).collect();
        prop_assert_eq!(in_order, by_pair.iter().map(|(rowid, _)| *rowid).collect::<Vec<_>>());
        for (rowid, [a, b, _, _]) in &by_pair {
            let found = pair.find(&[ours(a), ours(b)]).unwrap();
            // NULL is not equal to NULL, so several rows may have it.
            let unique = *a != Theirs::Null && *b != Theirs::Null;
            prop_assert!(found == Some(*rowid) || (!unique && found.is_some()));
        }
        prop_assert_eq!(pair.find(&[Value::Text(b"not there"), Value::Null]).unwrap(), None);

        let third = table.index(&columns[2..3]).expect("the created index");
        let in_order: Vec<i64> = third.rowids().map(Result::unwrap).collect();
        prop_assert_eq!(in_order, by_c.iter().map(|(rowid, _)| *rowid).collect::<Vec<_>>());
        for wanted in [-1, 0, 1, i64::MAX] {
            let of: Vec<i64> = third.rowids_of(&[wanted]).unwrap().map(Result::unwrap).collect();
            let expected = by_c.iter().filter(|(_, row)| {
                matches!(&row[2], Theirs::Integer(value) if *value == wanted)
                    || matches!(&row[2], Theirs::Real(value) if *value == wanted as f64)
            });
            prop_assert_eq!(of, expected.map(|(rowid, _)| *rowid).collect::<Vec<_>>());
        }
        for absent in [i64::MIN, 0x1234_5678_9abc] {
            if !by_rowid.iter().any(|(rowid, _)| *rowid == absent) {
                prop_assert!(table.row(absent).unwrap().is_none());
            }
        }
    }

    /// Reading a changed database always ends.
    #[test]
    fn reading_a_damaged_database_ends(plan in plan(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..12)) {
        let mut bytes = build(plan.page_size, |connection| run(&plan, connection));
        for (at, byte) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        let cut = changes[0].0.index(bytes.len());
        for bytes in [&bytes[..], &bytes[..cut]] {
            let Ok(database) = Database::open(bytes) else { continue };
            let Ok(table) = database.table("t") else { continue };
            let pages = bytes.len() / 512 + 1;
            let walked = table.rows().count();
            prop_assert!(walked <= pages * 512);
            for index in [&[0usize, 1][..], &[2]] {
                let Some(index) = table.index(index) else { continue };
                prop_assert!(index.rowids().count() <= pages * 512);
                let _ = index.find(&[Value::Integer(1), Value::Integer(2)]);
            }
            let _ = table.row(7);
        }
    }
}

fn open_error(bytes: &[u8]) -> SqliteError {
    Database::open(bytes).map(|_| ()).unwrap_err()
}

#[test]
fn deep_trees_are_read() {
    for page_size in [512, 1024, 65_536] {
        let bytes = build(page_size, |connection| {
            connection.execute_batch("CREATE TABLE t (a TEXT PRIMARY KEY, b); BEGIN").unwrap();
            let mut insert = connection.prepare("INSERT INTO t VALUES (?, ?)").unwrap();
            for number in 0..20_000i64 {
                // Long keys leave room for few entries per page, so the index becomes deep.
                insert.execute((format!("{:0>90}", number * 7919 % 20_000), number)).unwrap();
            }
            drop(insert);
            connection.execute_batch("COMMIT").unwrap();
        });
        let database = Database::open(bytes).unwrap();
        let table = database.table("t").unwrap();
        let index = table.index(&[0]).unwrap();
        for number in (0..20_000i64).step_by(37) {
            let key = format!("{:0>90}", number * 7919 % 20_000);
            let rowid = index.find(&[Value::Text(key.as_bytes())]).unwrap().unwrap();
            assert_eq!(table.row(rowid).unwrap().unwrap().get(1), Value::Integer(number));
        }
        assert_eq!(table.rows().count(), 20_000);
        assert_eq!(index.rowids().count(), 20_000);
    }
}

#[test]
fn unsupported_databases_are_rejected_by_name() {
    let sound = build(512, |connection| connection.execute_batch("CREATE TABLE t (a)").unwrap());
    assert!(Database::open(&sound).is_ok());
    assert!(matches!(open_error(b""), SqliteError::NotADatabase(_)));
    assert!(matches!(open_error(&[0; 4096]), SqliteError::NotADatabase(_)));
    for (at, value) in [(16, 3), (20, 250), (21, 65)] {
        let mut bytes = sound.clone();
        bytes[at] = value;
        assert!(matches!(open_error(&bytes), SqliteError::NotADatabase(_)), "byte {at}");
    }
    for (at, value) in [(19, 3), (47, 5), (59, 2)] {
        let mut bytes = sound.clone();
        bytes[at] = value;
        assert!(matches!(open_error(&bytes), SqliteError::Unsupported(_)), "byte {at}");
    }
    assert_eq!(open_error(&sound[..512]), SqliteError::Truncated { present: 1, stated: 2 });

    let utf16 = build(1024, |connection| {
        connection.execute_batch("PRAGMA encoding = 'UTF-16'; CREATE TABLE t (a)").unwrap();
    });
    assert_eq!(open_error(&utf16), SqliteError::Unsupported("UTF-16 text"));
}

#[test]
fn databases_written_in_wal_mode_are_read() {
    let bytes = build(4096, |connection| {
        connection.pragma_update(None, "journal_mode", "WAL").unwrap();
        connection.execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (5)").unwrap();
    });
    assert_eq!(bytes[19], 2, "SQLite marked the file");
    let database = Database::open(bytes).unwrap();
    let row = database.table("t").unwrap().rows().next().unwrap().unwrap();
    assert_eq!(row.get(0), Value::Integer(5));
}

#[test]
fn reserved_bytes_are_not_read_as_content() {
    let plain = build(512, |connection| {
        // Long values, so that every page is full and overflow pages are used.
        connection.execute_batch("CREATE TABLE t (a); BEGIN").unwrap();
        for number in 0..200u8 {
            connection.execute("INSERT INTO t VALUES (?)", [vec![number; usize::from(number) * 9]]).unwrap();
        }
        connection.execute_batch("COMMIT").unwrap();
    });
    // SQLite takes the number of reserved bytes from the header when it rebuilds a file.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("database");
    std::fs::write(&file, &plain).unwrap();
    let connection = Connection::open(&file).unwrap();
    sys::reserve_bytes(&connection, 24);
    connection.execute_batch("VACUUM").unwrap();
    connection.close().unwrap();
    let bytes = std::fs::read(&file).unwrap();
    assert_eq!(bytes[20], 24, "SQLite reserved bytes");
    let database = Database::open(bytes).unwrap();
    for (number, row) in (0..200u8).zip(database.table("t").unwrap().rows()) {
        assert_eq!(row.unwrap().get(0), Value::Blob(&vec![number; usize::from(number) * 9]));
    }
}

#[test]
fn tables_of_every_shape_are_read() {
    let bytes = build(1024, |connection| {
        connection
            .execute_batch(
                "CREATE TABLE alias (\"key\" INTEGER PRIMARY KEY, v TEXT UNIQUE);
                 INSERT INTO alias VALUES (-3, 'a'), (9000000000, 'b');
                 CREATE TABLE late (v, k INTEGER, /* , */ PRIMARY KEY (k));
                 INSERT INTO late VALUES ('x', 5);
                 CREATE TABLE [odd name] (`a b` INT DEFAULT (1 + 2), b TEXT COLLATE NOCASE UNIQUE,
                    CHECK (b <> ','), UNIQUE (b, `a b`), FOREIGN KEY (b) REFERENCES alias (v));
                 INSERT INTO [odd name] VALUES (1, 'a');
                 CREATE INDEX down ON [odd name] (`a b` DESC);
                 CREATE INDEX part ON [odd name] (`a b`) WHERE b = 'x';
                 CREATE TABLE norowid (a PRIMARY KEY, b) WITHOUT ROWID;
                 CREATE TABLE made (a, b AS (a + 1));
                 CREATE VIEW v AS SELECT 1;",
            )
            .unwrap();
    });
    let database = Database::open(bytes).unwrap();
    let alias = database.table("alias").unwrap();
    assert_eq!(alias.rowid_alias(), Some(0));
    let keys: Vec<_> = alias.rows().map(|row| row.unwrap().get(0).integer().unwrap()).collect();
    assert_eq!(keys, [-3, 9_000_000_000]);
    assert_eq!(alias.index(&[1]).unwrap().find(&[Value::Text(b"b")]).unwrap(), Some(9_000_000_000));
    assert!(alias.index(&[0]).is_none());

    let late = database.table("LATE").unwrap();
    assert_eq!((late.column("K"), late.rowid_alias()), (Some(1), Some(1)));
    assert_eq!(late.row(5).unwrap().unwrap().get(1), Value::Integer(5));

    let odd = database.table("odd name").unwrap();
    assert_eq!((odd.column("a b"), odd.column("b"), odd.width()), (Some(0), Some(1), 2));
    // None of its indexes is in the plain order of the values of all rows.
    assert!(odd.index(&[0]).is_none() && odd.index(&[1]).is_none() && odd.index(&[1, 0]).is_none());
    assert_eq!(odd.rows().count(), 1);

    for name in ["norowid", "made"] {
        assert!(matches!(database.table(name), Err(SqliteError::Schema { .. })), "{name}");
    }
    assert!(matches!(database.table("v"), Err(SqliteError::NoTable("v"))));
    assert!(database.find_table("nothing").unwrap().is_none());
}

/// Definitions are parsed when a file is opened, before it is trusted: a small object may expand to a
/// definition of gigabytes, and each pair of columns is compared with all earlier ones.
#[test]
fn very_long_definitions_are_not_parsed() {
    let columns: Vec<String> = (0..1000).map(|number| format!("c{number}")).collect();
    let pairs =
        columns.iter().flat_map(|a| columns.iter().take(300).map(move |b| format!(", UNIQUE({a},{b})")));
    let endless = format!("CREATE TABLE t ({}{})", columns.join(", "), pairs.collect::<String>());
    let bytes = build(4096, |connection| {
        connection
            .execute_batch(
                "CREATE TABLE t (a); CREATE TABLE u (a); CREATE INDEX by_a ON u (a);
                 INSERT INTO u VALUES (7); PRAGMA writable_schema = ON",
            )
            .unwrap();
        let change = "UPDATE sqlite_schema SET sql = ? WHERE name = ?";
        connection.execute(change, [&endless, "t"]).unwrap();
        let blank = format!("CREATE INDEX by_a ON u (a{})", " ".repeat(endless.len()));
        connection.execute(change, [&blank, "by_a"]).unwrap();
    });
    let database = Database::open(bytes).unwrap();
    let refused = database.table("t").err();
    let what = "it is too long";
    assert_eq!(refused, Some(SqliteError::Schema { name: "t".to_owned(), what }));
    let other = database.table("u").unwrap();
    assert!(other.index(&[0]).is_none());
    assert_eq!(other.rows().count(), 1);
}
