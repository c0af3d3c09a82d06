//! Of a large library the loader's chunks are prefetched, and the remaining mapped ones in idle time.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use esker_store::{Callback, CancelToken, Handle, ObjectRequest, ObjectStore, Warmed};
use esker_testkit::catalog::{Draft, Row};
use esker_testkit::fixture::FULL;
use esker_view::LastLink;

use crate::support::{Site, digest};
use crate::watched;

/// Plain bytes of a chunk.
const CHUNK: u64 = 4 << 20;
const COUNT: u64 = 12;
const CHUNKED: u64 = 1 << 6;
/// Time limit for an expected request.
const PATIENCE: Duration = Duration::from_secs(60);

/// Encodes numbers as in headers.
fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the program header of a part of the file, mapped at its offset.
fn header(kind: u32, flags: u32, start: u64, len: u64) -> Vec<u8> {
    let start = start * CHUNK;
    [[kind.to_le_bytes(), flags.to_le_bytes()].concat(), words(&[start, start, 0, len, len, 0])].concat()
}

/// A library: headers and tables in its chunks 0 to 4, code in 5 to 7, data in 8, and four that aren't mapped.
fn library() -> Vec<Vec<u8>> {
    library_with(&[])
}

/// Returns a library with more entries in its dynamic section.
fn library_with(more: &[u64]) -> Vec<Vec<u8>> {
    let mut chunks: Vec<Vec<u8>> = (0..COUNT).map(|at| vec![at as u8; CHUNK as usize]).collect();
    let headers = [
        header(1, 4, 0, 5 * CHUNK),
        header(1, 5, 5, 3 * CHUNK),
        header(1, 6, 8, CHUNK),
        header(2, 6, 8, 64 * 16),
    ];
    let mut head = b"\x7fELF\x02\x01".to_vec();
    head.resize(64, 0);
    head[32] = 64;
    head[54] = 56;
    head[56] = headers.len() as u8;
    head.extend(headers.concat());
    chunks[0][..head.len()].copy_from_slice(&head);
    // Symbols in chunk 1, names in 2, relocations in 4; nothing of 3.
    let tables = [6, CHUNK, 5, 2 * CHUNK, 10, 100, 7, 4 * CHUNK, 8, 24, 0x6fff_fff0, CHUNK + 99];
    let tables = [&tables, more, &[0, 0]].concat();
    chunks[8][..tables.len() * 8].copy_from_slice(&words(&tables));
    chunks
}

/// A small library, which needs these others, from these folders.
fn small_library(needed: &[&str], folders: &str) -> Vec<u8> {
    let head = 64 + 2 * 56;
    let mut names = vec![0];
    let mut entries = vec![5, 1024, 10, 1024];
    for (tag, name) in needed.iter().map(|name| (1, *name)).chain([(29, folders)]) {
        entries.extend([tag, names.len() as u64]);
        names.extend([name.as_bytes(), &[0]].concat());
    }
    let mut file = b"\x7fELF\x02\x01".to_vec();
    file.resize(64, 0);
    (file[32], file[54], file[56]) = (64, 56, 2);
    for (kind, start, len) in [(1_u32, 0_u64, 2048_u64), (2, head, 512)] {
        file.extend([kind.to_le_bytes(), 4_u32.to_le_bytes()].concat());
        file.extend(words(&[start, start, 0, len, len, 0]));
    }
    file.extend(words(&[&*entries, &[0, 0]].concat()));
    file.resize(1024, 0);
    file.extend(names);
    file.resize(2048, 0);
    file
}

/// Runs a test with the prefetches after the first read of a library: numbers of its chunks, or paths of other files.
fn first_read(chunks: &[Vec<u8>], read: impl FnOnce(&Receiver<Result<u64, String>>, &dyn Fn(&str, u64))) {
    with_library(
        chunks,
        |_, _| {},
        |asked, go| {
            go("/lib.so", 0);
            read(asked, go);
        },
    );
}

/// The same in a tree with more files, before anything is read.
fn with_library(
    chunks: &[Vec<u8>],
    more: impl FnOnce(&Site, &Draft),
    read: impl FnOnce(&Receiver<Result<u64, String>>, &dyn Fn(&str, u64)),
) {
    with_server(&Arc::default(), chunks, more, read);
}

/// The same from a server that may be down: reads and prefetches fail then.
fn with_server(
    away: &Arc<AtomicBool>,
    chunks: &[Vec<u8>],
    more: impl FnOnce(&Site, &Draft),
    read: impl FnOnce(&Receiver<Result<u64, String>>, &dyn Fn(&str, u64)),
) {
    let site = Site::of(FULL);
    let root = Draft::new("");
    for path in ["", "/probe"] {
        root.add(&Row::directory(path));
    }
    for path in ["/probe/a.probe", "/probe/b.probe"] {
        site.add_file(&root, path, &path.as_bytes()[..4]);
    }
    more(&site, &root);
    let stored: Vec<[u8; 20]> =
        chunks.iter().map(|chunk| digest(&site.repository.store(chunk, "P"))).collect();
    let rows = stored.iter().zip(0..).map(|(hash, at)| (at * CHUNK, CHUNK, *hash)).collect();
    root.add(&Row { flags: 4 | CHUNKED, chunks: rows, ..Row::file("/lib.so", COUNT * CHUNK, None) });
    site.publish_root(root);
    let (reported, asked) = channel();
    let is_away = Arc::clone(away);
    let get = move |inner: &dyn ObjectStore, wanted: ObjectRequest, done: Callback<Handle>| {
        if is_away.load(Ordering::SeqCst) { drop(done) } else { inner.get(wanted, done) }
    };
    let is_away = Arc::clone(away);
    let warm =
        move |inner: &dyn ObjectStore, wanted: ObjectRequest, token: &CancelToken, done: Callback<Warmed>| {
            let number = stored.iter().position(|hash| hash == wanted.name.hash.digest());
            let asked = number.map(|at| at as u64).ok_or_else(|| wanted.what.clone());
            if is_away.load(Ordering::SeqCst) {
                drop(done)
            } else {
                inner.warm(wanted, token, done)
            }
            // The test may have dropped the receiver.
            let _ = reported.send(asked);
        };
    let view = watched::between(&site, get, warm);
    let go = |path: &str, offset: u64| {
        let found = view.find(path.as_bytes(), LastLink::Keep).unwrap();
        assert_ne!(view.read_at(&found.node, offset, 4).is_ok(), away.load(Ordering::SeqCst));
    };
    read(&asked, &go);
}

/// Receives requests until all of these chunks were requested; returns all requested ones.
fn until(asked: &Receiver<Result<u64, String>>, wanted: &[u64]) -> BTreeSet<u64> {
    let wanted = BTreeSet::from_iter(wanted.iter().copied());
    let mut seen = BTreeSet::new();
    while !seen.is_superset(&wanted) {
        seen.extend(asked.recv_timeout(PATIENCE).expect("they are asked for"));
    }
    seen
}

/// > A5: Of a large library or executable in use, what its loader reads is brought into the cache, then all else that it maps and that no bundle tells about; what it never maps is not, unless a program reads it.
#[test]
fn loader_chunks_are_fetched_first_then_mapped_ones_and_no_others() {
    first_read(&library(), |asked, go| {
        assert_eq!(until(asked, &[8, 1, 2, 4]), BTreeSet::from([0, 1, 2, 4, 8]));
        let rest = until(asked, &[3, 5, 6, 7]);
        assert!(rest.iter().all(|chunk| *chunk <= 8), "what isn't mapped stays away: {rest:?}");
        // The neighbour of another file is requested after everything queued before.
        go("/probe/a.probe", 0);
        let others: Vec<_> = asked.iter().take_while(|it| *it != Err("/probe/b.probe".into())).collect();
        assert!(others.iter().all(|it| it.as_ref().is_ok_and(|chunk| *chunk <= 8)), "{others:?}");
    });
}

/// Nothing else requests their chunks before idle time.
#[test]
fn constructors_of_a_library_are_fetched_at_once() {
    let array = 8 * CHUNK + 4096;
    let mut chunks = library_with(&[25, array, 27, 8]);
    chunks[8][4096..4104].fill(0);
    chunks[4][..24].copy_from_slice(&words(&[array, 8, 6 * CHUNK + 5]));
    first_read(&chunks, |asked, _| {
        let seen = until(asked, &[8, 1, 2, 4, 6]);
        assert_eq!(seen, BTreeSet::from([0, 1, 2, 4, 6, 8]));
    });
    // The array itself may name them, too.
    chunks[8][4096..4104].copy_from_slice(&words(&[7 * CHUNK]));
    first_read(&chunks, |asked, _| {
        let seen = until(asked, &[8, 1, 2, 4, 7]);
        assert_eq!(seen, BTreeSet::from([0, 1, 2, 4, 7, 8]));
    });
}

#[test]
fn chunks_around_several_misses_are_fetched_too() {
    first_read(&library(), |asked, go| {
        // These are not mapped, so nothing else requests their neighbours.
        go("/lib.so", 9 * CHUNK);
        go("/lib.so", 10 * CHUNK);
        assert!(until(asked, &[11]).contains(&11));
    });
}

#[test]
fn a_file_with_only_the_name_of_a_library_is_fetched_whole() {
    let chunks: Vec<Vec<u8>> = (0..COUNT).map(|at| vec![at as u8 + 1; CHUNK as usize]).collect();
    first_read(&chunks, |asked, _| {
        let all: Vec<u64> = (0..COUNT).collect();
        assert_eq!(until(asked, &all), BTreeSet::from_iter(all));
    });
}

/// The first read fails, and so does the fetch of the headers.
#[test]
fn a_library_is_fetched_after_an_outage() {
    let away = Arc::new(AtomicBool::new(false));
    with_server(
        &away,
        &library(),
        |_, _| {},
        |asked, go| {
            away.store(true, Ordering::SeqCst);
            go("/lib.so", 0);
            assert_eq!(asked.recv_timeout(PATIENCE), Ok(Ok(0)));
            away.store(false, Ordering::SeqCst);
            go("/lib.so", 4096);
            assert_eq!(until(asked, &[8, 1, 2, 4]), BTreeSet::from([0, 1, 2, 4, 8]));
            let rest = until(asked, &[3, 5, 6, 7]);
            assert!(rest.iter().all(|chunk| *chunk <= 8), "what isn't mapped stays away: {rest:?}");
        },
    );
}

/// The store reports prefetched objects as fetched, and has evicted them already.
#[test]
fn an_evicted_library_is_fetched_again() {
    let site = Site::of(FULL);
    let root = Draft::new("");
    root.add(&Row::directory(""));
    let chunks = (0..8).map(|at| (at * 3, 3, digest(&site.repository.store(&[at as u8 + 1; 3], "P"))));
    root.add(&Row { flags: 4 | CHUNKED, chunks: chunks.collect(), ..Row::file("/lib.so", 24, None) });
    site.publish_root(root);
    let (reported, asked) = channel();
    let view = watched::open(&site, true, move |_, _, _, done| {
        done.ok(Warmed::Fetched(1));
        let _ = reported.send(());
    });
    let found = view.find(b"/lib.so", LastLink::Keep).unwrap();
    let read = |chunk: u64| drop(view.read_at(&found.node, chunk * 3, 1).unwrap());
    let until_asked =
        |count| (0..count).for_each(|_| asked.recv_timeout(PATIENCE).expect("they are asked for"));
    read(0);
    // Its headers, and all but the first chunk.
    until_asked(8);
    (1..4).for_each(read);
    until_asked(8);
}

/// A library that needs `libdep.so`, and names the folder where that is.
fn in_need() -> Vec<Vec<u8>> {
    let mut chunks = library_with(&[1, 1, 29, 20]);
    chunks[2][..100].fill(0);
    chunks[2][1..10].copy_from_slice(b"libdep.so");
    chunks[2][20..32].copy_from_slice(b"$ORIGIN/deps");
    chunks
}

/// `/deps`, in its own catalog: a link to a library that needs another one, and a library that no other needs.
fn add_needed(site: &Site, root: &Draft) {
    let deps = Draft::new("/deps");
    root.add(&Row { flags: 1 | 2, ..Row::directory("/deps") });
    deps.add(&Row { flags: 1 | 32, ..Row::directory("/deps") });
    deps.add(&Row::symlink("/deps/libdep.so", "../deps/libdep.so.1"));
    site.add_file(&deps, "/deps/libdep.so.1", &small_library(&["libc.so.6", "libthird.so.2"], "/usr/lib"));
    site.add_file(&deps, "/deps/libthird.so.2", &small_library(&["libdep.so"], ""));
    // Too large to be a candidate from its folder.
    site.add_file(&deps, "/deps/libunused.so.3", &vec![0; 5 << 20]);
    site.nest(root, "/deps", deps);
}

/// Returns the paths of other requested files, up to this one.
fn others_until(asked: &Receiver<Result<u64, String>>, last: &str) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    while !seen.contains(last) {
        seen.extend(asked.recv_timeout(PATIENCE).expect("it is asked for").err());
    }
    seen
}

/// The second of them is in a catalog that has to be fetched first, behind a link, and needs the third.
#[test]
fn needed_libraries_are_fetched_before_they_are_opened() {
    with_library(&in_need(), add_needed, |asked, go| {
        go("/lib.so", 0);
        let seen = others_until(asked, "/deps/libthird.so.2");
        assert!(seen.contains("/deps/libdep.so.1"), "{seen:?}");
        assert!(!seen.contains("/deps/libunused.so.3"), "{seen:?}");
    });
}

/// `first` imports `a.b`, which is a large library.
#[test]
fn an_imported_library_is_fetched_in_part_and_wholly_once_it_is_read() {
    let module = include_bytes!("../../../format/src/pyc/compiled/python3.11.pyc");
    let more = |site: &Site, root: &Draft| {
        for path in ["/__pycache__", "/a", "/a/__pycache__"] {
            root.add(&Row::directory(path));
        }
        site.add_file(root, "/__pycache__/first.cpython-311.pyc", module);
        root.add(&Row::symlink("/a/b.so", "../lib.so"));
        add_needed(site, root);
    };
    with_library(&in_need(), more, |asked, go| {
        go("/__pycache__/first.cpython-311.pyc", 0);
        // The names of needed libraries are in its last chunk.
        let mut parts = BTreeSet::new();
        let mut others = BTreeSet::new();
        while !others.contains("/deps/libthird.so.2") {
            match asked.recv_timeout(PATIENCE).expect("it is asked for") {
                Ok(chunk) => _ = parts.insert(chunk),
                Err(other) => _ = others.insert(other),
            }
        }
        assert_eq!(parts, BTreeSet::from([0, 2, 8]), "headers, names, and where these are");
        go("/lib.so", 0);
        assert!(until(asked, &[1, 4]).iter().all(|chunk| *chunk <= 8));
    });
}
