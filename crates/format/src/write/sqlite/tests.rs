use proptest::prelude::*;

use super::*;

fn open(bytes: &[u8]) -> (tempfile::NamedTempFile, rusqlite::Connection) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    let connection = rusqlite::Connection::open(file.path()).unwrap();
    let verdict: String =
        connection.query_row("PRAGMA integrity_check", [], |row| row.get(0)).expect("a readable database");
    assert_eq!(verdict, "ok");
    (file, connection)
}

type Sample = (Vec<u8>, i64, Option<Vec<u8>>);

fn sample(rows: &[Sample]) -> Vec<u8> {
    let mut builder = DatabaseBuilder::new();
    let rows: Vec<Vec<Value<'_>>> = rows
        .iter()
        .map(|(key, number, blob)| {
            vec![
                Value::text(key.as_slice()),
                Value::Integer(*number),
                blob.as_ref().map_or(Value::Null, |blob| Value::blob(blob.as_slice())),
            ]
        })
        .collect();
    builder.keyed_table(
        "t",
        "CREATE TABLE t (key TEXT, number INTEGER, bytes BLOB, CONSTRAINT pk_t PRIMARY KEY (key))",
        "sqlite_autoindex_t_1",
        &rows,
    );
    builder.finish()
}

fn read_back(connection: &rusqlite::Connection) -> Vec<Sample> {
    let mut statement =
        connection.prepare("SELECT CAST(key AS BLOB), number, bytes FROM t ORDER BY rowid").unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

#[test]
fn row_counts_around_the_page_limits_are_read_back() {
    let rows: Vec<_> = (0..1200i64)
        .map(|n| {
            (format!("key-{:08x}", n.wrapping_mul(0x9e37_79b9) & 0xffff_ffff).into_bytes(), n * 7919, None)
        })
        .collect();
    for count in (0..400).chain((400..1200).step_by(37)) {
        let (_file, connection) = open(&sample(&rows[..count]));
        assert_eq!(read_back(&connection), rows[..count], "{count} rows");
    }
}

#[test]
fn trees_with_many_levels_are_read_back() {
    let rows: Vec<_> = (0..60_000i64)
        .map(|n| {
            (
                format!("{:08x}{}", n.wrapping_mul(0x9e37_79b9) & 0xffff_ffff, "x".repeat(90)).into_bytes(),
                n,
                None,
            )
        })
        .collect();
    let bytes = sample(&rows);
    assert_eq!(bytes, sample(&rows), "equal rows give equal bytes");
    let (_file, connection) = open(&bytes);
    for (key, number, _) in rows.iter().step_by(101) {
        let key = std::str::from_utf8(key).unwrap();
        let found: i64 =
            connection.query_row("SELECT number FROM t WHERE key = ?1", [key], |row| row.get(0)).unwrap();
        assert_eq!(found, *number);
    }
}

#[test]
fn a_written_database_can_be_changed_by_sqlite() {
    let rows: Vec<_> = (0..3000i64).map(|n| (format!("{n:09}").into_bytes(), n, None)).collect();
    let (file, connection) = open(&sample(&rows));
    connection.execute("UPDATE t SET bytes = zeroblob(300) WHERE number % 3 = 0", []).unwrap();
    connection.execute("DELETE FROM t WHERE number % 5 = 0", []).unwrap();
    connection.execute("INSERT INTO t VALUES ('new', 1, NULL)", []).unwrap();
    connection.execute("ALTER TABLE t ADD COLUMN more INTEGER", []).unwrap();
    drop(connection);
    let (_copy, connection) = open(&std::fs::read(file.path()).unwrap());
    assert_eq!(read_back(&connection).len(), 2401);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_rows_are_read_back(
        rows in proptest::collection::btree_map(
            proptest::collection::vec(1u8..=255, 0..2500),
            (any::<i64>(), any::<u8>(), proptest::option::of(proptest::collection::vec(any::<u8>(), 0..9000))),
            0..40,
        ),
    ) {
        // Shifts cover all encoded lengths of integers.
        let rows: Vec<_> = rows
            .into_iter()
            .map(|(key, (number, shift, bytes))| (key, number >> (shift & 63), bytes))
            .collect();
        let (_file, connection) = open(&sample(&rows));
        prop_assert_eq!(read_back(&connection), rows);
    }
}
