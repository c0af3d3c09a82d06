//! Catalogs of every schema version and with every kind of damage, created with SQLite.

use esker_format::catalog::{
    Catalog, CatalogError, Counters, EntryKind, Flags, PathKey, Row, Statistics, XattrList,
};
use esker_format::compress::Compression;
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::sqlite::SqliteError;
use esker_format::write::catalog::Entry;
use esker_testkit::catalog::TABLES;
use rusqlite::{Connection, params};

use crate::databases::build;

const HEAD: &str = "
    INSERT INTO properties VALUES ('revision', 12), ('last_modified', '1700000000'),
        ('previous_revision', '0000000000000000000000000000000000000000');
";

fn current(fill: impl FnOnce(&Connection)) -> Vec<u8> {
    build(1024, |connection| {
        connection.execute_batch("PRAGMA foreign_keys = OFF").unwrap();
        connection.execute_batch(TABLES).unwrap();
        connection.execute_batch(HEAD).unwrap();
        connection.execute_batch("BEGIN").unwrap();
        fill(connection);
        connection.execute_batch("COMMIT").unwrap();
    })
}

fn open(bytes: Vec<u8>) -> Catalog<Vec<u8>> {
    Catalog::open(bytes).unwrap()
}

/// Inserts an entry with the columns that every schema has.
fn insert(connection: &Connection, path: &str, mode: u32, size: i64, flags: i64, symlink: &str) {
    let (first, second) = PathKey::of(path.as_bytes()).columns();
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", ""));
    let parent = if path.is_empty() { PathKey::NONE } else { PathKey::of(parent.as_bytes()) }.columns();
    connection
        .execute(
            "INSERT INTO catalog (md5path_1, md5path_2, parent_1, parent_2, size, mode, mtime, flags, name, symlink)
             VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            params![first, second, parent.0, parent.1, size, mode, -5, flags, name, symlink],
        )
        .unwrap();
}

fn set(connection: &Connection, path: &str, column: &str, value: impl rusqlite::ToSql) {
    let (first, second) = PathKey::of(path.as_bytes()).columns();
    let sql = format!("UPDATE catalog SET {column} = ? WHERE md5path_1 = ? AND md5path_2 = ?");
    assert_eq!(connection.execute(&sql, params![value, first, second]).unwrap(), 1);
}

fn row<'c>(catalog: &'c Catalog<Vec<u8>>, path: &str) -> Row<'c> {
    catalog.find(PathKey::of(path.as_bytes())).unwrap().unwrap_or_else(|| panic!("{path} is there"))
}

const DIGEST: [u8; 20] = [7; 20];

#[test]
fn every_column_is_decoded() {
    let xattrs = b"\x01\x01\x08\x03user.foobar";
    let catalog = open(current(|connection| {
        insert(connection, "", 0o040_755, 4096, 1, "");
        insert(connection, "/file", 0o100_644, 10, 4 | 1 << 8 | 1 << 11 | 1 << 16 | 1 << 17 | 1 << 50, "");
        set(connection, "/file", "hash", DIGEST);
        set(connection, "/file", "hardlinks", (5i64 << 32) | 3);
        set(connection, "/file", "mtimens", 999_999_999);
        set(connection, "/file", "uid", 4_294_967_294u32);
        set(connection, "/file", "gid", -1);
        set(connection, "/file", "xattr", xattrs);
        insert(connection, "/link", 0o120_777, 0, 12, "$(HOME)/x");
        insert(connection, "/null", 0o020_666, 0x103, 20, "");
        insert(connection, "/block", 0o060_660, -1, 20, "");
        insert(connection, "/pipe", 0o010_644, 7, 20, "");
        insert(connection, "/sock", 0o140_755, 7, 20, "");
        set(connection, "/pipe", "hash", Vec::<u8>::new());
    }));
    let file = row(&catalog, "/file");
    assert_eq!((file.name(), file.kind(), file.mode()), (&b"file"[..], EntryKind::File, 0o100_644));
    assert_eq!((file.size(), file.mtime(), file.mtime_ns()), (10, -5, Some(999_999_999)));
    assert_eq!((file.hardlink_group(), file.link_count()), (5, 3));
    assert_eq!((file.uid(), file.gid()), (Some(u32::MAX - 1), Some(u32::MAX)));
    assert_eq!(file.hash(), Some(ContentHash::new(HashAlgorithm::Rmd160, DIGEST)));
    assert_eq!(file.compression(), Some(Compression::Stored));
    for flag in [Flags::FILE, Flags::DIRECT_IO, Flags::BUNDLE_TRIGGER, 1 << 50] {
        assert!(file.flags().has(flag));
    }
    assert_eq!(file.xattrs().get(b"user.foo"), Some(&b"bar"[..]));
    assert_eq!(file.device(), None);

    let link = row(&catalog, "/link");
    assert_eq!((link.kind(), link.symlink(), link.size()), (EntryKind::Symlink, &b"$(HOME)/x"[..], 9));
    assert_eq!((link.uid(), link.mtime_ns(), link.has_xattrs()), (None, None, false));
    assert_eq!(link.xattrs(), XattrList::default());
    assert_eq!((link.hardlink_group(), link.link_count()), (0, 1));

    let null = row(&catalog, "/null");
    assert_eq!((null.kind(), null.device(), null.size()), (EntryKind::CharDevice, Some(0x103), 0));
    assert_eq!(row(&catalog, "/block").device(), Some(u64::MAX));
    assert_eq!((row(&catalog, "/pipe").size(), row(&catalog, "/pipe").hash()), (0, None));
    assert_eq!(row(&catalog, "/sock").kind(), EntryKind::Socket);
    let root = row(&catalog, "");
    assert_eq!((root.parent(), root.name(), root.size()), (PathKey::NONE, &b""[..], 4096));

    let names: Vec<_> =
        catalog.children(PathKey::of(b"")).unwrap().map(|row| row.unwrap().name().to_vec()).collect();
    assert_eq!(names.len(), 6);
    assert!(catalog.find(PathKey::of(b"/missing")).unwrap().is_none());
    assert_eq!(catalog.children(PathKey::of(b"/file")).unwrap().count(), 0);
    let owned = row(&catalog, "/file").into_owned();
    drop(catalog);
    assert_eq!(owned.name(), b"file");
}

#[test]
fn properties_and_placement_are_read() {
    let catalog = open(current(|connection| {
        connection
            .execute_batch(
                "INSERT INTO properties VALUES ('root_prefix', '/pkg/sub'), ('TTL', '900'), ('volatile', '1'),
                 ('voms_authz', 'cms:/cms'), ('branch', 'devel'), ('future', 'x')",
            )
            .unwrap();
    }));
    let properties = catalog.properties();
    assert_eq!(properties.schema.to_string(), "2.5 revision 7");
    assert_eq!((properties.revision, properties.ttl, properties.volatile), (12, Some(900), true));
    assert_eq!(properties.last_modified.map(|time| time.0), Some(1_700_000_000));
    assert_eq!(properties.previous_revision, None);
    assert_eq!(properties.root_prefix, b"/pkg/sub");
    assert_eq!(properties.authorization.as_deref(), Some("cms:/cms"));
    assert_eq!(properties.branch.as_deref(), Some("devel"));
}

fn with_schema(version: Option<&str>) -> Result<Catalog<Vec<u8>>, CatalogError> {
    Catalog::open(current(|connection| {
        connection.execute_batch("DELETE FROM properties").unwrap();
        if let Some(version) = version {
            connection.execute("INSERT INTO properties VALUES ('schema', ?)", [version]).unwrap();
        }
    }))
}

#[test]
fn schemas_are_accepted_by_version() {
    for readable in [None, Some("0.9"), Some("1.0"), Some("1.9"), Some("2.4"), Some("2.5"), Some("2.5002")] {
        assert!(with_schema(readable).is_ok(), "{readable:?}");
    }
    for other in ["2.0", "2.1", "2.3", "2.6", "3.0", "-1", "NaN", "inf", "new"] {
        assert!(
            matches!(with_schema(Some(other)), Err(CatalogError::Schema(text)) if text == other),
            "{other}"
        );
    }
}

/// Schema before 2.1: no owners, an unused column instead of hardlinks, no chunks, no statistics.
const LEGACY: &str = "
    CREATE TABLE catalog (md5path_1 INTEGER, md5path_2 INTEGER, parent_1 INTEGER, parent_2 INTEGER,
        inode INTEGER, hash BLOB, size INTEGER, mode INTEGER, mtime INTEGER, flags INTEGER, name TEXT,
        symlink TEXT, CONSTRAINT pk_catalog PRIMARY KEY (md5path_1, md5path_2));
    CREATE INDEX idx_catalog_parent ON catalog (parent_1, parent_2);
    CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key));
";

#[test]
fn the_oldest_catalogs_are_read() {
    let hash = "1537bc934a79e999ee0d9e719240fe0ff2150b34";
    for (columns, expected) in [("path TEXT, sha1 TEXT", Some(hash)), ("path TEXT", None)] {
        let catalog = open(build(1024, |connection| {
            connection.execute_batch(LEGACY).unwrap();
            let nested =
                format!("CREATE TABLE nested_catalogs ({columns}, CONSTRAINT pk PRIMARY KEY (path))");
            connection.execute_batch(&nested).unwrap();
            insert(connection, "", 0o040_755, 4096, 1, "");
            insert(connection, "/nested", 0o040_755, 4096, 3, "");
            insert(connection, "/file", 0o100_644, 10, 4, "");
            set(connection, "/file", "hash", DIGEST);
            set(connection, "/file", "inode", 99i64 << 32);
            connection.execute("INSERT INTO nested_catalogs (path) VALUES ('/nested')", []).unwrap();
            if expected.is_some() {
                connection.execute("UPDATE nested_catalogs SET sha1 = ?", [hash]).unwrap();
            }
        }));
        assert_eq!(catalog.schema().version, 1.0);
        let file = row(&catalog, "/file");
        assert_eq!((file.uid(), file.gid(), file.has_xattrs()), (None, None, false));
        assert_eq!((file.link_count(), file.hardlink_group(), file.mtime_ns()), (1, 0, None));
        assert_eq!(file.hash(), Some(ContentHash::new(HashAlgorithm::Sha1, DIGEST)));
        let nested = catalog.nested_at(b"/nested").unwrap().unwrap();
        assert_eq!(nested.hash.map(|hash| hash.to_string()).as_deref(), expected);
        assert_eq!((nested.size, nested.bind), (None, false));
        assert_eq!(catalog.nested().unwrap(), [nested]);
        assert_eq!(catalog.statistics().unwrap(), Statistics::default());
        assert_eq!(catalog.children(PathKey::of(b"")).unwrap().count(), 2);
    }
}

/// A catalog upgraded in place has its newer columns last, and rows that are older than these.
#[test]
fn catalogs_upgraded_in_place_are_read() {
    let catalog = open(build(512, |connection| {
        connection
            .execute_batch(
                "CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key));
                 CREATE TABLE catalog (md5path_1 INTEGER, md5path_2 INTEGER, parent_1 INTEGER,
                    parent_2 INTEGER, hardlinks INTEGER, hash BLOB, size INTEGER, mode INTEGER, mtime INTEGER,
                    flags INTEGER, name TEXT, symlink TEXT, uid INTEGER, gid INTEGER,
                    CONSTRAINT pk_catalog PRIMARY KEY (md5path_1, md5path_2));
                 CREATE INDEX idx_catalog_parent ON catalog (parent_1, parent_2);
                 CREATE TABLE nested_catalogs (path TEXT, sha1 TEXT,
                    CONSTRAINT pk_nested_catalogs PRIMARY KEY (path));
                 INSERT INTO nested_catalogs VALUES ('/old', '');",
            )
            .unwrap();
        insert(connection, "", 0o040_755, 4096, 1, "");
        insert(connection, "/before", 0o100_644, 1, 4, "");
        set(connection, "/before", "hardlinks", 1);
        connection
            .execute_batch(
                "ALTER TABLE nested_catalogs ADD size INTEGER;
                 ALTER TABLE catalog ADD xattr BLOB;
                 ALTER TABLE catalog ADD mtimens INTEGER;
                 INSERT INTO properties VALUES ('schema', '2.5'), ('schema_revision', '7');
                 INSERT INTO nested_catalogs VALUES
                    ('/new', '1537bc934a79e999ee0d9e719240fe0ff2150b34-shake128', 16384);",
            )
            .unwrap();
        insert(connection, "/after", 0o100_644, 1, 4, "");
        // A blob that does not fit on a page of this size.
        let blob = [
            &b"\x01\x03"[..],
            b"\x01\xff",
            b"a",
            &[1; 255],
            b"\x01\xff",
            b"b",
            &[2; 255],
            b"\x01\xff",
            b"c",
            &[3; 255],
        ]
        .concat();
        set(connection, "/after", "xattr", blob);
        set(connection, "/after", "mtimens", 5);
    }));
    let before = row(&catalog, "/before");
    assert_eq!((before.has_xattrs(), before.mtime_ns(), before.size()), (false, None, 1));
    let after = row(&catalog, "/after");
    assert_eq!((after.mtime_ns(), after.uid()), (Some(5), None));
    let xattrs = after.xattrs();
    assert_eq!((xattrs.len(), xattrs.get(b"c")), (3, Some(&[3; 255][..])));
    let old = catalog.nested_at(b"/old").unwrap().unwrap();
    assert_eq!((old.hash, old.size), (None, None));
    let new = catalog.nested_at(b"/new").unwrap().unwrap();
    assert_eq!((new.hash.unwrap().algorithm(), new.size), (HashAlgorithm::Shake128, Some(16384)));
    assert!(catalog.nested_at(b"/ne").unwrap().is_none());
}

#[test]
fn bind_mountpoints_and_nested_catalogs_are_listed() {
    let catalog = open(current(|connection| {
        connection
            .execute_batch(
                "INSERT INTO nested_catalogs VALUES ('/a', '1537bc934a79e999ee0d9e719240fe0ff2150b34', 1);
                 INSERT INTO bind_mountpoints VALUES ('/b', '58c341e0979a5cc9ab0280acacce9b364b298350', 2);",
            )
            .unwrap();
    }));
    let all = catalog.nested().unwrap();
    assert_eq!(all.iter().map(|nested| nested.bind).collect::<Vec<_>>(), [false, true]);
    assert_eq!(catalog.nested_at(b"/b").unwrap().as_ref(), all.get(1));
    assert_eq!(catalog.nested_at(b"/a").unwrap().as_ref(), all.first());
    assert_eq!(catalog.nested_at(b"/c").unwrap(), None);
}

#[test]
fn counters_are_read_by_name() {
    let catalog = open(current(|connection| {
        connection
            .execute_batch(
                "INSERT INTO statistics VALUES ('self_regular', 3), ('subtree_regular', 5), ('self_dir', 2),
                 ('subtree_external_file_size', 77), ('self_unheard_of', 9), ('odd', 1)",
            )
            .unwrap();
    }));
    let own = Counters { regular: 3, dir: 2, ..Counters::default() };
    let subtree = Counters { regular: 5, external_file_size: 77, ..Counters::default() };
    assert_eq!(catalog.statistics().unwrap(), Statistics { own, subtree, faulty: false });
    assert_eq!(catalog.faulty_counters().unwrap(), []);
    assert_eq!(own.entries(), 5);
}

/// Offsets and sizes.
type Pieces = &'static [(i64, i64)];

fn add_chunks(connection: &Connection, path: &str, chunks: &[(i64, i64)]) {
    let (first, second) = PathKey::of(path.as_bytes()).columns();
    for (offset, size) in chunks {
        connection
            .execute(
                "INSERT INTO chunks VALUES (?, ?, ?, ?, ?)",
                params![first, second, offset, size, DIGEST],
            )
            .unwrap();
    }
}

#[test]
fn chunks_must_cover_the_file_without_gap() {
    let files: [(&str, i64, Pieces, bool); 7] = [
        ("/good", 60, &[(20, 20), (0, 20), (40, 20)], true),
        ("/gap", 60, &[(0, 20), (21, 39)], false),
        ("/overlap", 60, &[(0, 21), (20, 40)], false),
        ("/short", 60, &[(0, 59)], false),
        ("/long", 60, &[(0, 61)], false),
        ("/none", 60, &[], false),
        ("/negative", 60, &[(0, -1), (0, 60)], false),
    ];
    for indexed in [true, false] {
        let catalog = open(current(|connection| {
            for (path, size, chunks, _) in &files {
                insert(connection, path, 0o100_644, *size, 4 | 64 | 2 << 8, "");
                add_chunks(connection, path, chunks);
            }
            if !indexed {
                connection
                    .execute_batch(
                        "CREATE TABLE plain AS SELECT * FROM chunks; DROP TABLE chunks;
                        ALTER TABLE plain RENAME TO chunks",
                    )
                    .unwrap();
            }
        }));
        for (path, _, _, good) in &files {
            let chunks = catalog.chunks(&row(&catalog, path));
            assert_eq!(chunks.is_ok(), *good, "{path}: {chunks:?}");
        }
        let chunks = catalog.chunks(&row(&catalog, "/good")).unwrap();
        assert_eq!(chunks.iter().map(|chunk| chunk.offset).collect::<Vec<_>>(), [0, 20, 40]);
        assert_eq!(chunks[0].hash, ContentHash::new(HashAlgorithm::Shake128, DIGEST));
    }
}

/// Without an index that it should have, a catalog is slow but still correct.
#[test]
fn catalogs_without_indexes_are_read() {
    let catalog = open(current(|connection| {
        for path in ["", "/d", "/d/a", "/d/b", "/e"] {
            insert(connection, path, 0o040_755, 0, 1, "");
        }
        connection
            .execute_batch(
                "INSERT INTO nested_catalogs VALUES ('/e', '', 0);
                CREATE TABLE plain AS SELECT * FROM catalog; DROP TABLE catalog;
                ALTER TABLE plain RENAME TO catalog;
                CREATE TABLE list AS SELECT * FROM nested_catalogs; DROP TABLE nested_catalogs;
                ALTER TABLE list RENAME TO nested_catalogs",
            )
            .unwrap();
    }));
    assert_eq!(row(&catalog, "/d/b").name(), b"b");
    assert!(catalog.find(PathKey::of(b"/x")).unwrap().is_none());
    assert_eq!(catalog.children(PathKey::of(b"/d")).unwrap().map(Result::unwrap).count(), 2);
    let keys: Vec<_> = catalog.rows().unwrap().map(|row| row.unwrap().key()).collect();
    assert!(keys.len() == 5 && keys.is_sorted());
    assert!(catalog.nested_at(b"/e").unwrap().is_some());
    assert!(catalog.nested_at(b"/d").unwrap().is_none());
}

#[test]
fn invalid_rows_are_errors() {
    for (column, value) in [
        ("mode", rusqlite::types::Value::Integer(0o644)),
        ("mode", rusqlite::types::Value::Integer(-1)),
        ("mode", rusqlite::types::Value::Text("x".into())),
        ("size", rusqlite::types::Value::Integer(-1)),
        ("hash", rusqlite::types::Value::Blob(vec![1; 19])),
        ("hash", rusqlite::types::Value::Integer(5)),
        ("name", rusqlite::types::Value::Text("a/b".into())),
        ("name", rusqlite::types::Value::Text("a\0b".into())),
        ("name", rusqlite::types::Value::Text("..".into())),
        ("name", rusqlite::types::Value::Text(".".into())),
        ("symlink", rusqlite::types::Value::Text("a\0b".into())),
        ("flags", rusqlite::types::Value::Blob(vec![4])),
    ] {
        let catalog = open(current(|connection| {
            insert(connection, "/bad", 0o100_644, 1, 4, "");
            insert(connection, "/good", 0o100_644, 1, 4, "");
            set(connection, "/bad", column, &value);
        }));
        let found = catalog.find(PathKey::of(b"/bad"));
        assert!(matches!(found, Err(CatalogError::Row { .. })), "{column} {value:?}: {found:?}");
        // The other entries of the directory are still readable.
        let listed: Vec<_> = catalog.children(PathKey::of(b"")).unwrap().collect();
        assert_eq!(listed.iter().filter(|row| row.is_ok()).count(), 1);
        assert_eq!(listed.len(), 2);
    }
    // An empty name is valid only for the root, which has no parent directory.
    let catalog = open(current(|connection| {
        insert(connection, "/bad", 0o100_644, 1, 4, "");
        set(connection, "/bad", "name", "");
    }));
    assert!(catalog.children(PathKey::of(b"")).unwrap().next().unwrap().is_err());
}

#[test]
fn unknown_storage_is_an_error_only_when_it_is_used() {
    let catalog = open(current(|connection| {
        insert(connection, "/future", 0o100_644, 1, 4 | 5 << 8 | 6 << 11, "");
        set(connection, "/future", "hash", DIGEST);
        insert(connection, "/zstd", 0o100_644, 1, 4 | 2 << 11, "");
    }));
    let future = row(&catalog, "/future");
    assert_eq!((future.hash(), future.compression()), (None, None));
    assert_eq!(row(&catalog, "/zstd").compression(), Some(Compression::Zstd));
}

#[test]
fn missing_tables_and_columns_are_errors() {
    let without = |sql: &str| {
        Catalog::open(current(|connection| connection.execute_batch(sql).unwrap())).map(|_| ()).unwrap_err()
    };
    assert_eq!(without("DROP TABLE properties"), SqliteError::NoTable("properties").into());
    assert_eq!(without("DROP TABLE catalog"), SqliteError::NoTable("catalog").into());
    assert_eq!(
        without("ALTER TABLE catalog RENAME COLUMN flags TO banners"),
        SqliteError::NoColumn { table: "catalog", column: "flags" }.into()
    );
}

/// A directory with very many entries takes one index step per entry, and many threads may read it.
#[test]
fn large_directories_are_read_by_many_threads() {
    const ENTRIES: u32 = 50_000;
    let catalog = open(current(|connection| {
        for number in 0..ENTRIES {
            insert(connection, &format!("/many/{number}"), 0o100_644, i64::from(number), 4, "");
        }
    }));
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let catalog = &catalog;
            scope.spawn(move || {
                for number in (thread..ENTRIES).step_by(4) {
                    let found = row(catalog, &format!("/many/{number}"));
                    assert_eq!(found.size(), u64::from(number));
                }
                let sizes = catalog.children(PathKey::of(b"/many")).unwrap().map(|row| row.unwrap().size());
                assert_eq!(sizes.sum::<u64>(), u64::from(ENTRIES) * u64::from(ENTRIES - 1) / 2);
            });
        }
    });
}

/// Counters of −2 were seen in production.
#[test]
fn a_counter_that_is_no_count_is_told_from_zero() {
    let catalog = open(current(|connection| {
        connection
            .execute_batch(
                "INSERT INTO statistics VALUES ('self_regular', 3), ('subtree_xattr', -2), ('self_dir', 'x'),
                 ('self_chunks', NULL), ('subtree_dir', 1.5), ('self_unheard_of', -1)",
            )
            .unwrap();
    }));
    let statistics = catalog.statistics().unwrap();
    assert!(statistics.faulty);
    assert_eq!((statistics.own.regular, statistics.subtree.xattr), (3, 0));
    let mut faulty = catalog.faulty_counters().unwrap();
    faulty.sort();
    let expected =
        [("self_chunks", "NULL"), ("self_dir", "x"), ("subtree_dir", "1.5"), ("subtree_xattr", "-2")];
    assert_eq!(faulty, expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
}

/// As in the reference client: an error for the capabilities attribute would prevent a program from running.
#[test]
fn invalid_attribute_lists_count_as_empty_and_are_copied_as_they_are() {
    let catalog = open(current(|connection| {
        for (path, blob) in [
            ("/nameless", &b"\x01\x01\x00\x01x"[..]),
            ("/cut", b"\x01\x02\x08\x03user.foobar"),
            ("/version", b"\x03\x00"),
            ("/wrapped", b"\x02\x00\x01\x01\x00ax"),
            ("/empty", b""),
            ("/twice", b"\x01\x02\x06\x01user.a1\x06\x01user.a2"),
        ] {
            insert(connection, path, 0o100_644, 0, 4, "");
            set(connection, path, "xattr", blob);
        }
    }));
    for path in ["/nameless", "/cut", "/version", "/wrapped", "/empty"] {
        let row = row(&catalog, path);
        assert!(row.xattrs().is_empty(), "{path}");
        let entry = Entry::from_row(&row, Vec::new());
        assert_eq!((entry.xattrs.as_deref(), entry.check()), (row.stored_xattrs(), Ok(())), "{path}");
    }
    let twice = row(&catalog, "/twice").xattrs();
    assert_eq!((twice.len(), twice.get(b"user.a")), (1, Some(&b"2"[..])));
}
