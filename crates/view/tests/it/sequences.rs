//! Recorded sequences are prefetched the next time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use esker_testkit::catalog::{Draft, Row};
use esker_testkit::fixture::FULL;
use esker_view::{LastLink, View, ViewOptions};
use tempfile::TempDir;

use crate::support::Site;
use crate::watched;

/// Size of a file of two chunks, each larger than the recorded parts.
const LARGE: usize = 4 << 20;
/// Files in the order a program reads them. No suffix occurs twice in a folder, so that none is a candidate from its
/// folder.
const READ: [&str; 10] = [
    "/z/one.a",
    "/n/two.b",
    "/z/three.c",
    "/four.d",
    "/n/five.e",
    "/large",
    "/six.f",
    "/z/seven.g",
    "/n/eight.h",
    "/nine.i",
];

/// Publishes all files but one with some content; those in `/n` have their own catalog.
fn publish(site: &Site, content: &str, without: &str) {
    let (root, nested) = (Draft::new(""), Draft::new("/n"));
    for path in ["", "/z"] {
        root.add(&Row::directory(path));
    }
    root.add(&Row { flags: 1 | 2, ..Row::directory("/n") });
    nested.add(&Row { flags: 1 | 32, ..Row::directory("/n") });
    let store = |bytes: &[u8], kind: &str| {
        let hex = site.repository.store(bytes, kind);
        let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
        std::array::from_fn::<u8, 20, _>(byte)
    };
    for path in READ.into_iter().filter(|path| *path != without) {
        let catalog = if path.starts_with("/n/") { &nested } else { &root };
        let text = format!("{content} of {path}");
        let row = Row::file(path, text.len() as u64, Some(store(text.as_bytes(), "")));
        if path == "/large" {
            let part = LARGE / 2;
            let chunk = |at: usize| {
                let bytes: Vec<u8> = text.bytes().cycle().skip(at).take(part).collect();
                ((at * part) as u64, part as u64, store(&bytes, "P"))
            };
            catalog.add(&Row {
                flags: 4 | 64,
                size: LARGE as u64,
                digest: None,
                chunks: vec![chunk(0), chunk(1)],
                ..row
            });
        } else {
            catalog.add(&row);
        }
    }
    let repository = &site.repository;
    let bytes = nested.finish();
    root.nest("/n", &repository.store(&bytes, "C"), bytes.len());
    let bytes = root.finish();
    let mut head = repository.manifest();
    let revision: u64 = head.get('S').unwrap().parse().unwrap();
    head.set('C', repository.store(&bytes, "C")).set('B', bytes.len()).set('S', revision + 1);
    repository.publish(&head.sign(&repository.fixture().keys()));
}

fn site() -> (Site, TempDir, PathBuf) {
    let site = Site::of(FULL);
    publish(&site, "first content", "");
    let folder = tempfile::tempdir().unwrap();
    let sequences = folder.path().join("sequences/full.test");
    (site, folder, sequences)
}

fn open(site: &Site, sequences: &Path, prefetch: bool) -> (Arc<View>, Receiver<String>) {
    let (reported, ahead) = channel();
    let ttl = Some(std::time::Duration::MAX);
    let options =
        ViewOptions { ttl, prefetch, sequences: Some(sequences.to_owned()), ..ViewOptions::default() };
    (watched::view_reporting_to(site, options, &reported), ahead)
}

fn read(view: &View, path: &str) {
    let found = view.find(path.as_bytes(), LastLink::Keep).unwrap();
    assert!(!view.read_at(&found.node, 0, 10).unwrap().is_empty());
}

/// Returns the prefetched files, without catalogs.
fn files(ahead: &Receiver<String>) -> impl Iterator<Item = String> {
    ahead.iter().filter(|what| !what.contains(" catalog "))
}

/// Reads all files in order with another view, which records the sequence.
fn learn(site: &Site, sequences: &Path) {
    let (view, _) = open(site, sequences, true);
    READ.iter().for_each(|path| read(&view, path));
    view.close();
    assert!(sequences.exists(), "it is saved when the view is closed");
}

/// > A4: What programs read one after the other is remembered beside the cache; when the first of it is read again, what followed it is brought into the cache, or read from the cache's disk, ahead of its use.
#[test]
fn the_rest_of_a_sequence_is_fetched_when_the_cache_was_emptied() {
    let (site, _folder, sequences) = site();
    learn(&site, &sequences);
    let site = site.emptied();
    let (view, ahead) = open(&site, &sequences, true);
    read(&view, READ[0]);
    let fetched: Vec<String> = files(&ahead).take(READ.len() - 1).collect();
    // Those in the nested catalog wait for it; each group is in order.
    let expected = |nested: bool| {
        let of = READ[1..].iter().filter(move |path| path.starts_with("/n/") == nested);
        of.map(|path| format!("fetch {path}")).collect::<Vec<_>>()
    };
    let is_nested = |what: &&String| what.contains("/n/");
    assert_eq!(fetched.iter().filter(is_nested).cloned().collect::<Vec<_>>(), expected(true));
    let others = fetched.iter().filter(|what| !is_nested(what));
    assert_eq!(others.cloned().collect::<Vec<_>>(), expected(false), "and of the large file what was read");
    // The others have arrived, or are being fetched.
    READ.iter().for_each(|path| read(&view, path));
    view.close();
}

#[test]
fn the_rest_of_a_sequence_is_read_from_the_disk_of_the_cache() {
    let (site, _folder, sequences) = site();
    learn(&site, &sequences);
    let (view, ahead) = open(&site, &sequences, true);
    // The catalog is cached, too, but not attached.
    view.find(b"/n/two.b", LastLink::Keep).unwrap();
    read(&view, READ[0]);
    let order: Vec<String> = files(&ahead).take(READ.len() - 1).collect();
    let paths: Vec<&str> = order.iter().map(|what| what.split(' ').nth(1).unwrap()).collect();
    assert_eq!(paths, READ[1..]);
    assert!(order.iter().all(|what| what.starts_with("read ")), "{order:?}");
    assert!(order[4].ends_with("/large 0..1048576"), "{order:?}");
    view.close();
}

#[test]
fn after_an_update_the_new_content_is_prefetched() {
    let (site, _folder, sequences) = site();
    learn(&site, &sequences);
    publish(&site, "second content", "/six.f");
    let (view, ahead) = open(&site, &sequences, true);
    read(&view, READ[0]);
    let mut fetched: Vec<String> = files(&ahead).take(READ.len() - 2).collect();
    fetched.sort();
    let left = READ[1..].iter().filter(|path| **path != "/six.f");
    let mut expected: Vec<String> = left.map(|path| format!("fetch {path}")).collect();
    expected.sort();
    assert_eq!(fetched, expected);
    view.close();
}

#[test]
fn a_view_without_prefetch_neither_records_nor_predicts() {
    let (site, _folder, sequences) = site();
    let (view, ahead) = open(&site, &sequences, false);
    READ.iter().for_each(|path| read(&view, path));
    view.close();
    assert!(!sequences.exists());
    drop(view);
    learn(&site, &sequences);
    let before = std::fs::read(&sequences).unwrap();
    let (view, more) = open(&site, &sequences, false);
    READ.iter().for_each(|path| read(&view, path));
    view.close();
    drop(view);
    assert_eq!((ahead.iter().count(), more.iter().count()), (0, 0), "both stores are gone");
    assert_eq!(std::fs::read(&sequences).unwrap(), before);
}

#[test]
fn a_damaged_sequence_file_is_ignored_and_replaced() {
    let (site, _folder, sequences) = site();
    learn(&site, &sequences);
    let mut bytes = std::fs::read(&sequences).unwrap();
    let good = bytes.clone();
    bytes[20] ^= 1;
    std::fs::write(&sequences, &bytes).unwrap();
    let site = site.emptied();
    learn(&site, &sequences);
    assert_eq!(std::fs::read(&sequences).unwrap(), good, "the same was learned again");
}
