//! Nodes that a view serves without having returned them: those of the previous process, and of revisions that it
//! never showed.

use std::collections::BTreeMap;
use std::sync::Arc;

use esker_testkit::fixture::{FULL, Fixture, SHAKE};
use esker_vfs::{Cookie, ErrorKind, Kind, NodeWithAttr, PAYLOAD_LEN, Payload, Reply, Tree};
use esker_view::{LastLink, Pin, View};

use crate::fixtures::{read_all, walk};
use crate::support::Site;

type Entries = BTreeMap<Vec<u8>, NodeWithAttr>;

fn pinned(site: &Site, tag: &str) -> Arc<View> {
    site.pinned(Pin::Tag(tag.to_owned())).unwrap()
}

fn parent(path: &[u8]) -> &[u8] {
    match path.iter().rposition(|byte| *byte == b'/').unwrap() {
        0 => b"/",
        at => &path[..at],
    }
}

/// Checks each kind of call on a node of `entries`, on a view opened for this one node.
fn check_alone(site: &Site, tag: &str, path: &[u8], entries: &Entries) {
    let found = &entries[path];
    let name = String::from_utf8_lossy(path);
    assert_eq!(
        Reply::wait(|reply| pinned(site, tag).attributes(&found.node, reply)).unwrap(),
        found.attr,
        "{name}"
    );
    pinned(site, tag).xattrs(&found.node).unwrap();
    match found.node.kind {
        Kind::Directory => {
            let listing = Reply::wait(|reply| pinned(site, tag).list(&found.node, Cookie(0), reply)).unwrap();
            let children = entries.keys().filter(|child| *child != b"/" && parent(child) == path).count();
            assert_eq!(listing.entries.len(), children, "{name}");
        }
        Kind::Symlink => {
            pinned(site, tag).target(&found.node).unwrap();
        }
        Kind::File => assert_eq!(read_all(&pinned(site, tag), found).len() as u64, found.attr.size),
        _ => {}
    }
    if path != b"/" {
        let dir = &entries[parent(path)].node;
        let own = path.rsplit(|byte| *byte == b'/').next().unwrap();
        let again = Reply::wait(|reply| pinned(site, tag).lookup(dir, own, reply)).unwrap();
        assert_eq!((again.node, again.attr), (found.node, found.attr), "{name}");
    }
}

fn check_some(fixture: Fixture) {
    let site = Site::of(fixture);
    let entries = walk(&pinned(&site, "v3"));
    // Some of the many files with made-up names, and everything else.
    for (at, path) in entries.keys().enumerate() {
        if at % 90 == 0 || path.iter().filter(|byte| **byte == b'/').count() > 2 && at % 11 == 0 {
            check_alone(&site, "v3", path, &entries);
        }
    }
}

#[test]
fn a_new_process_serves_the_nodes_of_its_predecessor() {
    check_some(FULL);
    check_some(SHAKE);
}

#[test]
fn nodes_of_older_revisions_are_served_or_stale() {
    let site = Site::of(FULL);
    let (old, present) = (walk(&pinned(&site, "v1")), walk(&pinned(&site, "v3")));
    let view = pinned(&site, "v3");
    let mut stale = 0;
    for (path, found) in &old {
        let name = String::from_utf8_lossy(path);
        let same = present.get(path).filter(|now| now.node == found.node);
        match (Reply::wait(|reply| view.attributes(&found.node, reply)), same) {
            (Ok(attr), Some(now)) => assert_eq!(attr, now.attr, "{name}"),
            (Err(error), None) => {
                assert_eq!(error.kind, ErrorKind::Stale, "{name}");
                stale += 1;
            }
            (other, _) => panic!("{name}: {other:?}"),
        }
        match found.node.kind {
            Kind::File => assert_eq!(read_all(&view, found).len() as u64, found.attr.size, "{name}"),
            Kind::Symlink => assert_eq!(view.target(&found.node).unwrap().len() as u64, found.attr.size),
            Kind::Directory => {
                let listing = Reply::wait(|reply| view.list(&found.node, Cookie(0), reply));
                assert_eq!(listing.is_ok(), same.is_some(), "{name}");
            }
            _ => {}
        }
        view.xattrs(&found.node).unwrap();
    }
    assert!(stale > 10, "v3 changed some files of v1");
}

#[test]
fn a_payload_of_another_program_is_stale_everywhere() {
    let site = Site::of(FULL);
    let view = site.following();
    for byte in [0, 2, 0xff] {
        let mut file = view.find(b"/perm/m0644", LastLink::Keep).unwrap().node;
        file.payload = Payload([byte; PAYLOAD_LEN]);
        let mut dir = view.find(b"/perm", LastLink::Keep).unwrap().node;
        dir.payload = Payload([byte; PAYLOAD_LEN]);
        view.hold(&file);
        let kinds = [
            Reply::wait(|reply| view.attributes(&file, reply)).unwrap_err().kind,
            Reply::wait(|reply| view.lookup(&dir, b"m0644", reply)).unwrap_err().kind,
            Reply::wait(|reply| view.xattr_names(&file, reply)).unwrap_err().kind,
            view.names(&dir).unwrap_err().kind,
            view.read_at(&file, 0, 1).unwrap_err().kind,
        ];
        assert_eq!(kinds, [ErrorKind::Stale; 5]);
        view.release(&file);
    }
}
