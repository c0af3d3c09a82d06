//! Every entry of every revision of every fixture, through the tree.

use std::collections::BTreeMap;

use esker_testkit::fixture::{ALL, Fixture, TAGS};
use esker_testkit::listing::Entry;
use esker_testkit::object::sha256;
use esker_vfs::{Kind, NodeWithAttr, Tree};
use esker_view::{LastLink, Pin, View};

use crate::support::Site;

/// Returns all entries by path, from listings and their attributes.
pub(crate) fn walk(view: &View) -> BTreeMap<Vec<u8>, NodeWithAttr> {
    let mut found = BTreeMap::from([(b"/".to_vec(), view.root())]);
    let mut waiting = vec![(Vec::new(), view.root())];
    while let Some((path, dir)) = waiting.pop() {
        for entry in view.names(&dir.node).unwrap().iter() {
            let child = [&path[..], b"/", &entry.name].concat();
            let entry = NodeWithAttr { node: entry.node, attr: entry.attr };
            if entry.node.kind == Kind::Directory {
                waiting.push((child.clone(), entry));
            }
            assert!(found.insert(child, entry).is_none());
        }
    }
    found
}

pub(crate) fn read_all(view: &View, found: &NodeWithAttr) -> Vec<u8> {
    let mut content = Vec::new();
    loop {
        // A prime size, so that reads straddle chunks.
        let part = view.read_at(&found.node, content.len() as u64, 100_003).unwrap();
        if part.is_empty() {
            return content;
        }
        content.extend_from_slice(&part);
    }
}

fn compare(view: &View, found: &NodeWithAttr, expected: &Entry) {
    let path = String::from_utf8_lossy(&expected.path).into_owned();
    let attr = &found.attr;
    let mtime = attr.mtime.secs * 1_000_000_000 + i64::from(attr.mtime.nanos);
    assert_eq!(attr.mode(), expected.mode, "mode of {path}");
    assert_eq!(mtime, expected.mtime_ns, "mtime of {path}");
    assert_eq!((attr.uid, attr.gid), (expected.uid, expected.gid), "owner of {path}");
    if let Some(size) = expected.size {
        assert_eq!(attr.size, size, "size of {path}");
    }
    if let Some(nlink) = expected.nlink {
        assert_eq!(u64::from(attr.nlink), nlink, "links of {path}");
    }
    let device = makedev(attr.rdev.major, attr.rdev.minor);
    assert_eq!(device, expected.rdev.unwrap_or(0), "device of {path}");
    assert_eq!(attr.ino, found.node.ino, "number of {path}");
    assert_eq!(attr.kind, found.node.kind, "kind of {path}");
    if let Some(target) = &expected.target {
        assert_eq!(&view.target(&found.node).unwrap(), target, "target of {path}");
    }
    if let Some(sum) = &expected.sha256 {
        assert_eq!(&sha256(&read_all(view, found)), sum, "content of {path}");
    }
    if expected.path != b"/" {
        assert_eq!(view.xattrs(&found.node).unwrap(), expected.xattrs, "extended attributes of {path}");
    }
}

/// The encoding of Linux, by its own definition rather than the product's.
fn makedev(major: u32, minor: u32) -> u64 {
    let (major, minor) = (u64::from(major), u64::from(minor));
    (minor & 0xff) | (major & 0xfff) << 8 | (minor & !0xff) << 12 | (major & !0xfff) << 32
}

/// Compares all of a view with a listing.
pub(crate) fn check_all(view: &View, listing: &[Entry]) {
    let found = walk(view);
    let expected: Vec<&Vec<u8>> = listing.iter().map(|entry| &entry.path).collect();
    assert_eq!(found.keys().collect::<Vec<_>>(), expected, "names");
    for entry in listing {
        let listed = &found[&entry.path];
        compare(view, listed, entry);
        let looked_up = view.find(&entry.path, LastLink::Keep).unwrap();
        assert_eq!(looked_up.attr, listed.attr);
        assert_eq!(looked_up.node, listed.node);
        assert_eq!(looked_up.node.payload, listed.node.payload);
    }
}

fn check(fixture: Fixture) {
    let site = Site::of(fixture);
    for tag in TAGS {
        let view = site.pinned(Pin::Tag(tag.to_owned())).unwrap();
        check_all(&view, &fixture.listing(tag));
    }
}

#[test]
fn full_reads_as_the_reference_client_read_it() {
    check(ALL[0]);
}

#[test]
fn rmd_reads_as_the_reference_client_read_it() {
    check(ALL[1]);
}

#[test]
fn shake_reads_as_the_reference_client_read_it() {
    check(ALL[2]);
}
