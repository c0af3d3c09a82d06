//! Measures lookups and listings in a large catalog, with Esker's reader and with SQLite, on one and several
//! threads.
//!
//! `cargo run --release -p esker-format --example lookup [ENTRIES]`
#![allow(clippy::unwrap_used, reason = "a tool for developers: a panic is the report")]
#![allow(clippy::print_stdout, reason = "the result of a measurement")]

use std::hint::black_box;
use std::path::Path;

use esker_format::catalog::{Catalog, PathKey};
use esker_testkit::catalog::TABLES;
use rusqlite::{Connection, OpenFlags, params};

const DIRECTORY_SIZE: u32 = 100;
const LOOKUPS: u32 = 200_000;
const ROUNDS: u32 = 9;

fn main() {
    let entries: u32 = std::env::args().nth(1).map_or(200_000, |count| count.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("catalog");
    make(&file, entries);
    let bytes = std::fs::read(&file).unwrap();
    println!("{entries} entries, {} bytes", bytes.len());
    let catalog = Catalog::open(bytes).unwrap();

    // A fixed permutation: consecutive lookups are not adjacent in the file.
    let number = |step: u32| (u64::from(step) * 2_654_435_761 % u64::from(entries)) as u32;
    let keys: Vec<PathKey> = (0..LOOKUPS).map(|step| PathKey::of(path(number(step)).as_bytes())).collect();
    let ours = time("find, ours", LOOKUPS, || {
        for key in &keys {
            black_box(catalog.find(*key).unwrap().unwrap());
        }
    });
    let theirs = time("find, SQLite", LOOKUPS, || lookups_of_sqlite(&file, &keys));
    println!("ratio {:.1}", theirs / ours);
    time("miss, ours", LOOKUPS, || {
        for key in &keys {
            let (first, second) = key.columns();
            black_box(catalog.find(PathKey::from_columns(second, first)).unwrap());
        }
    });
    let children = entries / DIRECTORY_SIZE * DIRECTORY_SIZE;
    time("list, ours", children, || {
        for directory in 0..entries / DIRECTORY_SIZE {
            let key = PathKey::of(format!("/d{directory}").as_bytes());
            assert_eq!(catalog.children(key).unwrap().count(), DIRECTORY_SIZE as usize);
        }
    });
    let in_order = || assert_eq!(catalog.rows().unwrap().count(), entries as usize);
    time("in key order, ours", entries, in_order);
    time("scan, ours", entries, || assert_eq!(catalog.scan().unwrap().count(), entries as usize));
    time("find, ours, two threads", 2 * LOOKUPS, || {
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| keys.iter().for_each(|key| drop(black_box(catalog.find(*key).unwrap()))));
            }
        });
    });
}

fn path(number: u32) -> String {
    format!("/d{}/file-{number}.so", number / DIRECTORY_SIZE)
}

/// Returns the nanoseconds of processor time for each of `count` steps, in the best of several rounds. On a
/// shared machine this is more reliable than wall-clock time.
fn time(what: &str, count: u32, mut run: impl FnMut()) -> f64 {
    let now = || rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let rounds = (0..ROUNDS).map(|_| {
        let started = now();
        run();
        let taken = now() - started;
        (taken.tv_sec as f64 * 1e9 + taken.tv_nsec as f64) / f64::from(count)
    });
    let each = rounds.fold(f64::INFINITY, f64::min);
    println!("{what:>26}: {each:8.0} ns");
    each
}

fn lookups_of_sqlite(file: &Path, keys: &[PathKey]) {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(file, flags).unwrap();
    connection.execute_batch("PRAGMA mmap_size = 1000000000; PRAGMA locking_mode = EXCLUSIVE").unwrap();
    let sql = "SELECT hash, hardlinks, size, mode, mtime, flags, name, symlink, uid, gid, xattr, mtimens
        FROM catalog WHERE md5path_1 = ? AND md5path_2 = ?";
    let mut statement = connection.prepare(sql).unwrap();
    for key in keys {
        let (first, second) = key.columns();
        statement
            .query_row(params![first, second], |row| {
                for column in 0..12 {
                    black_box(row.get_ref(column)?);
                }
                Ok(())
            })
            .unwrap();
    }
}

fn make(file: &Path, entries: u32) {
    let connection = Connection::open(file).unwrap();
    connection.execute_batch("PRAGMA page_size = 1024; PRAGMA journal_mode = OFF; BEGIN").unwrap();
    connection.execute_batch(TABLES).unwrap();
    let mut insert = connection
        .prepare(
            "INSERT INTO catalog VALUES (?, ?, ?, ?, 1, ?, ?, 33188, 1700000000, NULL, 4, ?, '', 0, 0, NULL)",
        )
        .unwrap();
    for number in 0..entries {
        let path = path(number);
        let (parent, name) = path.rsplit_once('/').unwrap();
        let (key, parent) = (PathKey::of(path.as_bytes()), PathKey::of(parent.as_bytes()));
        let ((k1, k2), (p1, p2)) = (key.columns(), parent.columns());
        let digest = key.digest().repeat(2);
        insert.execute(params![k1, k2, p1, p2, &digest[..20], number, name]).unwrap();
    }
    drop(insert);
    connection.execute_batch("COMMIT").unwrap();
}
