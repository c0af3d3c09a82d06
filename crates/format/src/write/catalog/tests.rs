use super::*;
use crate::catalog::Catalog;
use crate::compress::Compression;
use crate::hash::HashAlgorithm;

fn entry(name: &str, mode: u32) -> Entry {
    Entry {
        name: name.as_bytes().to_vec(),
        mtime: 1_700_000_000,
        mtime_ns: Some(5),
        uid: 1000,
        gid: 4_000_000_000,
        ..Entry::of_mode(mode)
    }
}

fn hash(text: &str) -> ContentHash {
    ContentHash::of(HashAlgorithm::Shake128, text.as_bytes())
}

fn storage(compression: Compression) -> Flags {
    Flags(Flags::storage(HashAlgorithm::Shake128, compression))
}

fn every_kind() -> Vec<Entry> {
    let chunk = |offset, size| Chunk { offset, size, hash: hash(&offset.to_string()) };
    vec![
        Entry { size: 4096, link_count: 2, ..entry("dir", 0o040_755) },
        Entry { flags: Flags(Flags::NESTED_MOUNTPOINT), link_count: 7, ..entry("nested", 0o041_777) },
        Entry {
            size: 11,
            hash: Some(hash("file")),
            flags: storage(Compression::Zstd),
            hardlink_group: 3,
            link_count: 2,
            xattrs: Some(b"\x01\x01\x06\x01user.ax".to_vec()),
            ..entry("file", 0o104_755)
        },
        Entry {
            size: 30,
            chunks: vec![chunk(0, 10), chunk(10, 20)],
            flags: storage(Compression::Stored),
            mtime: -1,
            mtime_ns: None,
            ..entry("ch\u{fc}nked", 0o100_400)
        },
        Entry { symlink: b"../$(ARCH)/x".to_vec(), ..entry("link", 0o120_777) },
        Entry { size: 0x501, ..entry("tty", 0o020_600) },
        entry("pipe", 0o010_644),
        Entry { flags: Flags(Flags::HIDDEN | 1 << 40), ..entry(&"n".repeat(255), 0o140_644) },
    ]
}

#[test]
fn a_written_catalog_is_read_back() {
    let mut writer = CatalogWriter::new();
    let root = PathKey::of(b"/top");
    let top = Entry { flags: Flags(Flags::NESTED_ROOT), ..entry("top", 0o040_755) };
    writer.push(root, PathKey::of(b""), top);
    for entry in every_kind() {
        writer.push(PathKey::child(b"/top", &entry.name), root, entry);
    }
    let nested =
        NestedCatalog { path: b"/top/nested".to_vec(), hash: Some(hash("n")), size: Some(77), bind: false };
    writer.push_nested(nested.clone());
    let header = CatalogHeader {
        revision: 12,
        last_modified: UnixTime(1_700_000_001),
        previous: Some(hash("before")),
        root_prefix: b"/top".to_vec(),
        ..CatalogHeader::default()
    };
    let below = Counters { regular: 5, file_size: 1 << 40, ..Counters::default() };
    let written = writer.finish(&header, below);

    let catalog = Catalog::open(written.bytes.as_slice()).unwrap();
    assert_eq!(catalog.schema().to_string(), "2.5 revision 7");
    assert_eq!(catalog.properties().revision, 12);
    assert_eq!(catalog.properties().root_prefix, b"/top");
    assert_eq!(catalog.properties().previous_revision, header.previous);
    assert_eq!(catalog.nested().unwrap(), [nested]);
    assert_eq!(catalog.statistics().unwrap(), written.statistics);
    let own = written.statistics.own;
    assert_eq!((own.regular, own.dir, own.symlink, own.special), (2, 3, 1, 3));
    assert_eq!((own.chunked, own.chunks, own.file_size, own.chunked_size), (1, 2, 41, 30));
    assert_eq!((own.nested, own.xattr, own.entries()), (1, 1, 9));

    for (entry, bits) in
        every_kind().into_iter().zip([1, 3, 4 | 2 << 8 | 2 << 11, 68 | 2 << 8 | 1 << 11, 12, 20, 20])
    {
        let row = catalog.find(PathKey::child(b"/top", &entry.name)).unwrap().unwrap();
        assert_eq!(row.flags().0, bits, "{row:?}");
        let chunks = if entry.chunks.is_empty() { Vec::new() } else { catalog.chunks(&row).unwrap() };
        let mut expected = entry;
        expected.flags = row.flags();
        assert_eq!(Entry::from_row(&row, chunks), expected);
    }
    assert_eq!(catalog.children(root).unwrap().count(), 8);
    let socket = catalog.find(PathKey::child(b"/top", "n".repeat(255).as_bytes())).unwrap().unwrap();
    assert_eq!(socket.flags().0, 20 | Flags::HIDDEN | 1 << 40);
}

#[test]
fn sqlite_accepts_a_written_catalog() {
    let mut writer = CatalogWriter::new();
    for n in 0..5000u32 {
        let mut entry =
            Entry { size: 64, flags: storage(Compression::Zlib), ..entry(&format!("f{n}"), 0o100_644) };
        if n % 7 == 0 {
            let chunk = |offset| Chunk { offset, size: 32, hash: hash(&format!("{n} {offset}")) };
            entry.chunks = vec![chunk(0), chunk(32)];
        } else {
            entry.hash = Some(hash(&n.to_string()));
        }
        writer.push(PathKey::child(b"", &entry.name), PathKey::of(b""), entry);
    }
    let bytes = writer.finish(&CatalogHeader::default(), Counters::default()).bytes;
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &bytes).unwrap();
    let database = rusqlite::Connection::open(file.path()).unwrap();
    let text = |sql: &str| database.query_row(sql, [], |row| row.get::<_, String>(0)).unwrap();
    assert_eq!(text("PRAGMA integrity_check"), "ok");
    assert_eq!(
        text("SELECT count(*) || ' ' || max(rowid) FROM catalog INDEXED BY idx_catalog_parent"),
        "5000 5000"
    );
    assert_eq!(
        text(
            "SELECT count(*) || '' FROM catalog NATURAL JOIN (SELECT DISTINCT md5path_1, md5path_2 FROM chunks)"
        ),
        "715"
    );
    let plan = database
        .query_row(
            "EXPLAIN QUERY PLAN SELECT * FROM catalog WHERE md5path_1 = 1 AND md5path_2 = 2",
            [],
            |row| row.get::<_, String>(3),
        )
        .unwrap();
    assert!(plan.contains("sqlite_autoindex_catalog_1"), "{plan}");
}

#[test]
fn entries_that_readers_would_reject_or_ignore_are_detected() {
    let bad = [
        Entry { symlink: b"a\0b".to_vec(), ..entry("target", 0o120_777) },
        Entry { size: 1 << 63, ..entry("size", 0o100_644) },
        entry("a/b", 0o100_644),
        entry("..", 0o040_755),
        entry("kind", 0o644),
    ];
    for entry in bad {
        let mut writer = CatalogWriter::new();
        writer.push(PathKey::of(b"/x"), PathKey::of(b""), entry.clone());
        let catalog =
            Catalog::open(writer.finish(&CatalogHeader::default(), Counters::default()).bytes).unwrap();
        let read = catalog.scan().unwrap().map(|row| row.map(|row| Entry::from_row(&row, Vec::new())));
        let read: Result<Vec<_>, _> = read.collect();
        assert!(read.is_err() && entry.check().is_err(), "{entry:?}");
    }
    // Its digest would be lost.
    let unknown = Entry { flags: Flags(5 << 8), ..entry("algorithm", 0o100_644) };
    assert!(unknown.check().is_err());
    assert!(every_kind().iter().all(|entry| entry.check().is_ok()));
}
