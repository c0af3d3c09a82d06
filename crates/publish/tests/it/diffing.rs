//! Differences of two revisions, compared with those of two plain listings.

use std::collections::BTreeMap;
use std::fs;

use esker_format::chunker::ChunkSizes;
use esker_format::hash::ContentHash;
use esker_repository::{Attributes, ChangeKind, DiffCounts, Revisions, TreeDiff};
use esker_testkit::listing::Entry;
use proptest::prelude::*;

use crate::model::{apply, edit};
use crate::workshop::{Workshop, revisions};

pub(crate) type Found = BTreeMap<(Vec<u8>, &'static str), Attributes>;

fn word(change: ChangeKind) -> &'static str {
    match change {
        ChangeKind::Added => "added",
        ChangeKind::Changed => "changed",
        ChangeKind::Removed => "removed",
    }
}

/// The differences of two revisions, each path once for a kind of change.
fn diff(
    revisions: &Revisions,
    (old, new): (ContentHash, ContentHash),
    within: &str,
    ignore_times: bool,
) -> (Found, DiffCounts) {
    let mut found = Found::new();
    let within = within.as_bytes().to_vec();
    let diff = TreeDiff { objects: &**revisions.objects(), old, new, within, ignore_times };
    let counts = diff.run(&mut |one| {
        let path = if one.path.is_empty() { b"/".to_vec() } else { one.path.to_vec() };
        let twice = found.insert((path, word(one.change)), one.attributes);
        assert!(twice.is_none(), "{} comes twice", String::from_utf8_lossy(one.path));
        Ok(())
    });
    (found, counts.unwrap())
}

/// What two listings say. Only attributes that a listing has are in it.
fn expected(old: &BTreeMap<Vec<u8>, Entry>, new: &BTreeMap<Vec<u8>, Entry>) -> Vec<(Vec<u8>, &'static str)> {
    let mut expected = Vec::new();
    for (path, before) in old {
        match new.get(path) {
            None => expected.push((path.clone(), "removed")),
            Some(after) if after.kind() != before.kind() => {
                expected.extend([(path.clone(), "added"), (path.clone(), "removed")]);
            }
            Some(after) if after != before => expected.push((path.clone(), "changed")),
            Some(_) => {}
        }
    }
    expected.extend(new.keys().filter(|path| !old.contains_key(*path)).map(|path| (path.clone(), "added")));
    expected.sort();
    expected
}

/// Markers that the publisher makes are in no listing, and may be replaced by markers of the source.
fn is_marker(path: &[u8]) -> bool {
    path.ends_with(b"/.cvmfscatalog") || path.ends_with(b"/.cvmfsautocatalog")
}

/// Attributes that are seen in no listing.
fn is_unlisted(attributes: Attributes) -> bool {
    let listed = [Attributes::NESTED, Attributes::CHUNKS, Attributes::FLAGS, Attributes::LINKS];
    !attributes.is_empty() && listed.into_iter().fold(attributes, Attributes::without).is_empty()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 16, max_shrink_iters: 60, ..ProptestConfig::default() })]
    #[test]
    fn a_diff_equals_the_difference_of_listings(
        first in proptest::collection::vec(edit(), 1..30),
        second in proptest::collection::vec(edit(), 1..12),
    ) {
        let workshop = Workshop::with(|new| {
            new.settings.chunks = ChunkSizes::new(4096, 8192, 16_384).unwrap();
        });
        first.iter().for_each(|edit| apply(&workshop.source(), edit));
        workshop.publish();
        let old = workshop.check();
        second.iter().for_each(|edit| apply(&workshop.source(), edit));
        workshop.publish();
        let new = workshop.check();
        let revisions = revisions(&workshop);
        let root = |number: u64| revisions.find(&number.to_string()).unwrap().root;
        let pair = (root(old.revision), root(new.revision));
        let (found, counts) = diff(&revisions, pair, "", false);
        let expected = expected(&old.tree, &new.tree);
        let is_expected = |key: &(Vec<u8>, &'static str)| expected.binary_search(key).is_ok();
        for (key, attributes) in &found {
            prop_assert!(
                is_expected(key) || is_unlisted(*attributes) || is_marker(&key.0),
                "{:?} {attributes:?}", (String::from_utf8_lossy(&key.0), key.1)
            );
        }
        for key in expected.iter().filter(|(path, _)| !is_marker(path)) {
            let attributes = found.get(key);
            prop_assert!(attributes.is_some(), "{:?}", (String::from_utf8_lossy(&key.0), key.1));
            if key.1 == "changed" {
                let (before, after) = (&old.tree[&key.0], &new.tree[&key.0]);
                let has = |attribute| attributes.is_some_and(|found| found.has(attribute));
                prop_assert_eq!(has(Attributes::CONTENT), before.sha256 != after.sha256);
                prop_assert_eq!(has(Attributes::MODE), before.mode != after.mode);
                prop_assert_eq!(has(Attributes::TIME), before.mtime_ns != after.mtime_ns);
                prop_assert_eq!(has(Attributes::SIZE), before.size != after.size);
                prop_assert_eq!(has(Attributes::TARGET), before.target != after.target);
            }
        }
        let of = |change| found.keys().filter(|(_, found)| *found == change).count() as u64;
        prop_assert_eq!(counts.added.total(), of("added"));
        prop_assert_eq!(counts.changed.total(), of("changed"));
        prop_assert_eq!(counts.removed.total(), of("removed"));
        // The way back is the mirror image.
        let (back, _) = diff(&revisions, (pair.1, pair.0), "", false);
        prop_assert_eq!(back.len(), found.len());
        let (timeless, _) = diff(&revisions, pair, "", true);
        prop_assert!(timeless.values().all(|attributes| !attributes.has(Attributes::TIME)));
        prop_assert!(timeless.keys().all(|key| found.contains_key(key)));
    }
}

#[test]
fn a_difference_reads_no_catalog_that_both_revisions_have() {
    let workshop = Workshop::new();
    for name in ["a", "b"] {
        fs::create_dir(workshop.source().join(name)).unwrap();
        fs::write(workshop.source().join(name).join(".cvmfscatalog"), b"").unwrap();
        fs::write(workshop.source().join(name).join("file"), name).unwrap();
    }
    let old = workshop.publish().root;
    fs::write(workshop.source().join("a/file"), "other").unwrap();
    let new = workshop.publish().root;
    let revisions = revisions(&workshop);
    let pair = (ContentHash::parse(&old).unwrap(), ContentHash::parse(&new).unwrap());
    let (found, counts) = diff(&revisions, pair, "", false);
    let paths: Vec<_> = found.keys().map(|(path, word)| (String::from_utf8_lossy(path), *word)).collect();
    assert_eq!(paths, [("/a/file".into(), "changed")]);
    assert_eq!(counts.catalogs_read, 4, "both root catalogs, and both of /a");
    assert_eq!((counts.bytes_added, counts.bytes_removed), (5, 1));
    assert_eq!(diff(&revisions, pair, "/b", false).1.catalogs_read, 2);
    assert_eq!(diff(&revisions, pair, "/a/file", false).0, found);
    assert_eq!(diff(&revisions, (pair.0, pair.0), "", false).1, DiffCounts::default());
}
