//! Writes seeds for the fuzz targets into a folder: `fuzz-seeds small FOLDER` writes the few that are
//! committed, `fuzz-seeds fixtures FOLDER` extracts all useful seeds from the fixtures.
#![allow(clippy::unwrap_used, reason = "a tool for developers: a panic is the report")]

use std::path::{Path, PathBuf};

use esker_format::catalog::{Catalog, PathKey};
use esker_format::compress::{Compression, decompress};
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog;
use esker_format::write::bundle::BundleDraft;
use esker_testkit::catalog::TABLES;
use esker_testkit::fixture::{self, Repository};
use rusqlite::{Connection, params};

/// Maximum size of a seed in bytes: larger ones would slow every run of a target.
const SEED_MAX: usize = 64 * 1024;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [what, folder] = arguments.as_slice() else { panic!("usage: fuzz-seeds small|fixtures FOLDER") };
    let seeds = Seeds(PathBuf::from(folder));
    match what.as_str() {
        "small" => small(&seeds),
        "fixtures" => fixture::ALL.iter().for_each(|fixture| from_fixture(&seeds, &fixture.unpack())),
        other => panic!("{other} is neither small nor fixtures"),
    }
}

struct Seeds(PathBuf);

impl Seeds {
    fn add(&self, target: &str, name: &str, bytes: &[u8]) {
        let folder = self.0.join(target);
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(name), bytes).unwrap();
    }
}

fn from_fixture(seeds: &Seeds, repository: &Repository) {
    let name = repository.fixture().name();
    seeds.add("manifest", name, &repository.read(".cvmfspublished"));
    seeds.add("whitelist", name, &repository.read(".cvmfswhitelist"));
    seeds.add("history", &format!("{name}.reflog"), &repository.read(reflog::PATH));
    for extension in ["pub", "crt"] {
        let file = repository.fixture().folder().join(format!("{name}.{extension}"));
        seeds.add("certificate", &format!("{name}.{extension}"), &std::fs::read(file).unwrap());
    }
    for file in objects(&repository.path().join("data")) {
        let stored = std::fs::read(&file).unwrap();
        let name = object_name(&file);
        if stored.len() < 2048 {
            seeds.add("compress", &name.to_string(), &stored);
        }
        if !matches!(name.kind, ObjectKind::Catalog | ObjectKind::History) {
            continue;
        }
        let plain = decompress(&stored, Compression::Zlib, None, 1 << 30).unwrap();
        if name.kind == ObjectKind::Catalog {
            xattrs(seeds, &name, &plain);
        }
        if plain.len() <= SEED_MAX {
            let target = if name.kind == ObjectKind::Catalog { "catalog" } else { "history" };
            seeds.add(target, &name.to_string(), &plain);
        }
    }
}

fn objects(data: &Path) -> Vec<PathBuf> {
    let folders = std::fs::read_dir(data).unwrap().map(|entry| entry.unwrap().path());
    let hashed = folders.filter(|folder| folder.file_name().is_some_and(|name| name.len() == 2));
    hashed.flat_map(|folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path())).collect()
}

fn object_name(file: &Path) -> ObjectName {
    let part = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    ObjectName::parse(&(part(file.parent().unwrap()) + &part(file))).unwrap()
}

fn xattrs(seeds: &Seeds, name: &ObjectName, plain: &[u8]) {
    let catalog = Catalog::open(plain).unwrap();
    for row in catalog.scan().unwrap() {
        let row = row.unwrap();
        if let Some(blob) = row.xattrs().to_blob() {
            seeds.add("xattr", &format!("{name}-{}", row.rowid()), &blob);
        }
    }
}

fn small(seeds: &Seeds) {
    let repository = fixture::FULL.unpack();
    let folder = fixture::FULL.folder();
    seeds.add("manifest", "published", &repository.read(".cvmfspublished"));
    seeds.add("whitelist", "published", &repository.read(".cvmfswhitelist"));
    for extension in ["pub", "crt"] {
        let bytes = std::fs::read(folder.join(format!("full.test.{extension}"))).unwrap();
        seeds.add("certificate", extension, &bytes);
    }
    seeds.add("catalog", "two-levels", &database(small_catalog));
    seeds.add("history", "tags", &database(small_history));
    seeds.add("history", "reflog", &database(small_reflog));
    seeds.add("xattr", "two", b"\x01\x02\x08\x03user.foobar\x06\x00user.a");
    seeds.add("xattr", "empty", b"\x01\x00");
    let plain: Vec<u8> = (0..200u8).flat_map(|byte| [byte, 7, 7, byte / 2]).collect();
    seeds.add("compress", "zlib", &esker_format::compress::compress_zlib(&plain));
    seeds.add("compress", "zstd", &zstd::bulk::compress(&plain, 3).unwrap());
    for (name, text) in [
        ("hash", "e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78-rmd160C"),
        ("fingerprint", "58:C3:41:E0:97:9A:5C:C9:AB:02:80:AC:AC:CE:9B:36:4B:29:83:50-SHAKE128 # x\n"),
        ("blacklist", "<full.test 7\n"),
        ("time", "20241018080107"),
        ("symlink", "/sw/$(ARCH:-x86_64)/$(NAME)/lib$(OPEN"),
        ("metainfo", r#"{"administrator":"A","recommended-stratum1s":["s"],"check_status":"failed"}"#),
        ("letter", "C\n--\ne8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78\nsignature"),
    ] {
        seeds.add("text", name, text.as_bytes());
    }
    bundles(seeds);
}

fn bundles(seeds: &Seeds) {
    let spec = r##"#%CVMFS_BUNDLE version=1 encoding=UTF-8
{"name":"CVMFS_BUNDLE","version":"1.0.0","encoding":"UTF-8","dependencies":["/lib/a.so","./b","c/../d"]}"##;
    seeds.add("bundle", "relative", spec.as_bytes());
    let mut draft = BundleDraft::new();
    assert!(draft.push(b"/bin/tool", Some(0..4096)) && draft.push("/lib/ü\"".as_bytes(), None));
    seeds.add("bundle", "order", &draft.finish());
    let profile = r#"{"format":"esker-profile","version":1,"repository":"full.test","revision":3,"command":"tool",
"recorded":1700000000,"triggers":["/bin/tool"],"files":[{"path":"/bin/tool","size":8192,"program":true}],
"reads":[{"file":0,"ms":1},{"file":0,"ms":2,"range":[0,4096]}]}"#;
    seeds.add("bundle", "profile", profile.as_bytes());
}

/// Creates a database with pages of the minimum size.
fn database(fill: fn(&Connection)) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("database");
    let connection = Connection::open(&file).unwrap();
    connection.pragma_update(None, "page_size", 512).unwrap();
    connection.execute_batch("PRAGMA foreign_keys = OFF; BEGIN").unwrap();
    fill(&connection);
    connection.execute_batch("COMMIT").unwrap();
    connection.close().unwrap();
    std::fs::read(file).unwrap()
}

fn small_catalog(connection: &Connection) {
    connection.execute_batch(TABLES).unwrap();
    connection
        .execute_batch(
            "INSERT INTO nested_catalogs VALUES
                ('/nested', 'e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78', 4096);
             INSERT INTO statistics VALUES ('self_regular', 24), ('self_dir', 1);",
        )
        .unwrap();
    entry(connection, "", 0o040_755, 1, 4096, None);
    for number in 0..24u8 {
        // The first attribute does not fit on its page; the second entry is chunked.
        let xattr = (number == 0)
            .then(|| [&b"\x01\x02\x06\xffuser.a"[..], &[1; 255], b"\x01\xffb", &[2; 255]].concat());
        let (flags, size) = if number == 1 { (68, 100) } else { (4, i64::from(number)) };
        entry(connection, &format!("/{number}"), 0o100_644, flags, size, xattr);
    }
    let (first, second) = PathKey::of(b"/1").columns();
    for offset in [0, 50] {
        let chunk = params![first, second, offset, 50, [7u8; 20]];
        connection.execute("INSERT INTO chunks VALUES (?, ?, ?, ?, ?)", chunk).unwrap();
    }
}

fn entry(connection: &Connection, path: &str, mode: u32, flags: i64, size: i64, xattr: Option<Vec<u8>>) {
    let key = PathKey::of(path.as_bytes()).columns();
    let parent = if path.is_empty() { PathKey::NONE } else { PathKey::of(b"") }.columns();
    let name = path.trim_start_matches('/');
    connection
        .execute(
            "INSERT INTO catalog VALUES (?, ?, ?, ?, 1, ?, ?, ?, 1700000000, NULL, ?, ?, '', 0, 0, ?)",
            params![key.0, key.1, parent.0, parent.1, [7u8; 20], size, mode, flags, name, xattr],
        )
        .unwrap();
}

const PROPERTIES: &str =
    "CREATE TABLE properties (key TEXT, value TEXT, CONSTRAINT pk_properties PRIMARY KEY (key));
     INSERT INTO properties VALUES ('schema', '1.0'), ('schema_revision', '3'), ('fqrn', 'full.test');";

fn small_history(connection: &Connection) {
    connection.execute_batch(PROPERTIES).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE branches (branch TEXT, parent TEXT, initial_revision INTEGER,
                CONSTRAINT pk_branch PRIMARY KEY (branch));
             CREATE TABLE tags (name TEXT, hash TEXT, revision INTEGER, timestamp INTEGER, channel INTEGER,
                description TEXT, size INTEGER, branch TEXT, CONSTRAINT pk_tags PRIMARY KEY (name));
             INSERT INTO branches VALUES ('', NULL, 0), ('devel', '', 1);",
        )
        .unwrap();
    for number in 0..8 {
        connection
            .execute(
                "INSERT INTO tags VALUES (?, 'e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78', ?, ?, 0, 'text', 4096, ?)",
                params![format!("tag {number}"), number, 1000 - number, if number == 3 { "devel" } else { "" }],
            )
            .unwrap();
    }
}

fn small_reflog(connection: &Connection) {
    connection.execute_batch(PROPERTIES).unwrap();
    connection
        .execute_batch(
            "CREATE TABLE refs (hash TEXT, type INTEGER, timestamp INTEGER,
                CONSTRAINT pk_refs PRIMARY KEY (hash));
             INSERT INTO refs VALUES ('e8ec3d88b62ebf526e4e5a4ff6162a3aa48a6b78', 0, 1000),
                ('28d94b83b7229b331fc601362b8e272e02665122-shake128', 1, 2000);",
        )
        .unwrap();
}
