//! Reads at all boundaries of chunks and files.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};

use esker_store::{Callback, Handle, ObjectRequest, ObjectStore};
use esker_testkit::catalog::{Draft, Row};
use esker_testkit::fixture::{ALL, FULL};
use esker_vfs::{ErrorKind, Node, Reply, Tree};
use esker_view::{LastLink, Pin, View};

use crate::fixtures::read_all;
use crate::support::{Site, digest};
use crate::watched;

const EXTERNAL: u64 = 1 << 7;

#[test]
fn chunked_files_are_read_correctly_at_every_boundary() {
    let mut files = 0;
    for fixture in ALL {
        let site = Site::of(fixture);
        let contents = site.repository.contents("v3");
        let view = site.pinned(Pin::Tag("v3".into())).unwrap();
        for (path, file) in contents.files.iter().filter(|(_, file)| file.chunks.len() > 1) {
            files += 1;
            let found = view.find(path, LastLink::Keep).unwrap();
            let whole = read_all(&view, &found);
            let size = whole.len() as u64;
            assert_eq!(size, found.attr.size);
            let edges = file.chunks.iter().map(|(offset, _)| *offset).chain([size, u64::MAX]);
            let places: BTreeSet<u64> =
                edges.flat_map(|edge| [edge.saturating_sub(1), edge, edge.saturating_add(1)]).collect();
            for &start in places.iter().take(40) {
                for end in places.iter().rev().take(5).chain(places.iter().take(40)) {
                    let Some(len) = end.checked_sub(start).filter(|len| *len < 1 << 30) else { continue };
                    let got = view.read_at(&found.node, start, len as usize).unwrap();
                    let from = (start as usize).min(whole.len());
                    let to = (*end as usize).min(whole.len());
                    assert!(got == whole[from..to.max(from)], "{start}..{end} of {size}");
                }
            }
            assert!(view.read_at(&found.node, u64::MAX, usize::MAX).unwrap().is_empty());
        }
    }
    assert!(files > 3, "the fixtures have chunked files");
}

#[test]
fn whole_and_empty_files_end_where_the_catalog_says() {
    let site = Site::of(FULL);
    let view = site.following();
    let empty = view.find(b"/data/empty.file", LastLink::Keep).unwrap().node;
    assert!(view.read_at(&empty, 0, 100).unwrap().is_empty());
    assert_eq!(view.status().counters.misses, 0, "an empty file needs no object");
    let file = view.find(b"/perm/m0644", LastLink::Keep).unwrap();
    let whole = read_all(&view, &file);
    assert_eq!(view.read_at(&file.node, 0, usize::MAX).unwrap(), whole);
    assert_eq!(view.read_at(&file.node, 2, 2).unwrap(), whole[2..4]);
    assert!(view.read_at(&file.node, 5, 1).unwrap().is_empty());
    assert_eq!(view.status().counters.misses, 1, "once read it is in the cache");
}

#[test]
fn calls_on_the_wrong_kind_of_node_fail() {
    let site = Site::of(FULL);
    let view = site.following();
    let find = |path: &str| view.find(path.as_bytes(), LastLink::Keep).unwrap().node;
    let (dir, link, fifo, file) =
        (find("/perm"), find("/sw/current"), find("/special/fifo"), find("/perm/m0644"));
    assert_eq!(view.read_at(&dir, 0, 1).unwrap_err().kind, ErrorKind::IsADirectory);
    assert_eq!(view.read_at(&link, 0, 1).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(view.read_at(&fifo, 0, 1).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(view.target(&file).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(view.names(&file).unwrap_err().kind, ErrorKind::NotADirectory);
    let lookup = |dir, name: &[u8]| Reply::wait(|reply| view.lookup(dir, name, reply)).unwrap_err().kind;
    assert_eq!(lookup(&file, b"x"), ErrorKind::NotADirectory);
    assert_eq!(lookup(&dir, b"absent"), ErrorKind::NotFound);
    assert_eq!(lookup(&dir, &[b'x'; 256]), ErrorKind::NameTooLong);
    for odd in [&b""[..], b".", b"..", b"private/secret", b"m0644\0"] {
        assert_eq!(lookup(&dir, odd), ErrorKind::NotFound, "{odd:?}");
    }
    let xattr = Reply::wait(|reply| view.xattr(&file, b"security.capability", reply));
    assert_eq!(xattr.unwrap_err().kind, ErrorKind::NoAttribute);
}

/// Opens a file with external data and replaces its catalog by one without the file.
///
/// Then calls `work`, with the requests for external data.
fn open_over_a_change(work: impl FnOnce(&View, &Node, &Receiver<String>)) {
    let site = Site::of(FULL);
    let publish = |has_file: bool| {
        let (root, nested) = (Draft::new(""), Draft::new("/n"));
        root.add(&Row::directory(""));
        root.add(&Row { flags: 1 | 2, ..Row::directory("/n") });
        nested.add(&Row { flags: 1 | 32, ..Row::directory("/n") });
        if has_file {
            let hash = Some(digest(&site.repository.store(b"data", "")));
            nested.add(&Row { flags: 4 | EXTERNAL, ..Row::file("/n/data", 4, hash) });
        }
        site.nest(&root, "/n", nested);
        site.publish_root(root);
    };
    publish(true);
    let (reported, asked) = channel();
    let reported = Mutex::new(reported);
    let get = move |inner: &dyn ObjectStore, wanted: ObjectRequest, done: Callback<Handle>| {
        if wanted.external.is_some() {
            reported.lock().unwrap().send(wanted.what.clone()).unwrap();
        }
        inner.get(wanted, done);
    };
    let view = watched::between(&site, get, |inner, wanted, token, done| inner.warm(wanted, token, done));
    let found = view.find(b"/n/data", LastLink::Keep).unwrap();
    publish(false);
    assert!(view.refresh().unwrap().changed);
    work(&view, &found.node, &asked);
}

/// The external path is in a catalog that the present revision does not have.
#[test]
fn files_with_external_data_stay_open_over_a_change() {
    open_over_a_change(|view, node, asked| {
        let kind = view.read_at(node, 0, 4).err().map(|error| error.kind);
        assert_ne!(kind, Some(ErrorKind::Stale));
        assert_eq!(asked.try_recv(), Ok("/n/data".into()), "it is asked for where it lies");
    });
    open_over_a_change(|view, node, _| {
        let objects = view.objects(node).unwrap();
        assert!(objects.iter().all(|wanted| wanted.external.is_some()) && objects.len() == 1);
    });
}
