//! The fixtures match their description, and the kit reads and signs them correctly.

use esker_testkit::contents::Contents;
use esker_testkit::fixture::{self, TAGS};
use esker_testkit::object;
use esker_testkit::revision_builder::RevisionBuilder;
use esker_testkit::signing::{ManifestDraft, WhitelistDraft};

/// Every file of every listed revision is in the repository, byte for byte, at the place in the catalogs.
#[test]
fn objects_hold_what_the_listings_say() {
    for fixture in fixture::ALL {
        let repository = fixture.unpack();
        for tag in TAGS {
            let contents = repository.contents(tag);
            let listing = fixture.listing(tag);
            assert!(
                listing.is_sorted_by(|a, b| a.path < b.path),
                "{} {tag} is in path order",
                fixture.name()
            );
            for entry in listing.iter().filter(|entry| entry.is_file()) {
                let path = String::from_utf8_lossy(&entry.path);
                let objects = contents.files.get(&entry.path).unwrap_or_else(|| panic!("{path} has objects"));
                let parts: Vec<&str> = match &objects.whole {
                    Some(whole) => vec![whole],
                    None => objects.chunks.iter().map(|(_, chunk)| chunk.as_str()).collect(),
                };
                let mut plain = Vec::new();
                for part in parts {
                    let stored = repository.read(part);
                    let is_plain = fixture == fixture::SHAKE;
                    plain.extend(if is_plain { stored } else { object::inflate(&stored) });
                }
                assert_eq!(Some(object::sha256(&plain)), entry.sha256, "{} {tag} {path}", fixture.name());
            }
            assert_eq!(contents.files.len(), listing.iter().filter(|entry| entry.is_file()).count());
        }
    }
}

/// RSA with this padding is deterministic, so a draft signed again must equal the manifest and whitelist of the
/// reference implementation.
#[test]
fn signatures_equal_the_reference_implementations() {
    for fixture in fixture::ALL {
        let repository = fixture.unpack();
        let manifest = repository.read(".cvmfspublished");
        assert!(ManifestDraft::parse(&manifest).sign(&fixture.keys()) == manifest, "{}", fixture.name());

        let whitelist = repository.read(".cvmfswhitelist");
        let text = String::from_utf8_lossy(&whitelist);
        let mut lines = text.lines();
        let algorithm = repository.manifest().algorithm();
        let mut draft = WhitelistDraft::listing(&fixture.keys(), fixture.name(), algorithm);
        draft.created = lines.next().expect("a first line").to_owned();
        draft.expires = lines.next().expect("a second line")[1..].to_owned();
        assert_eq!(lines.nth(1), Some(draft.lines[0].as_str()), "the fingerprint of {}", fixture.name());
        draft.lines = text.lines().skip(3).take_while(|line| *line != "--").map(str::to_owned).collect();
        assert!(draft.sign(&fixture.keys()) == whitelist, "{}", fixture.name());
    }
}

/// A head made for an old tag names that revision's root.
#[test]
fn heads_of_tags_name_their_roots() {
    let repository = fixture::FULL.unpack();
    for (tag, revision) in TAGS.iter().zip(1..) {
        let head = ManifestDraft::parse(&repository.head_at(tag));
        assert_eq!(head.get('S'), Some(format!("{revision}")));
        let root = head.get('C').expect("a root");
        assert!(repository.path().join(object::path(&root, "C")).exists());
    }
}

/// A built revision is the fixture's plus the added entries.
#[test]
fn crafted_revisions_hold_what_was_added() {
    let repository = fixture::FULL.unpack();
    let before = repository.contents("v3");
    let craft = RevisionBuilder::of(&repository);
    craft.add_directory("crafted");
    craft.add_file("/crafted", "file", 5, [7; 20]);
    craft.hide("/crafted");
    craft.publish(&repository);
    let manifest = repository.manifest();
    assert_eq!(manifest.get('S').as_deref(), Some("4"));
    let after = Contents::read(&repository, &manifest.get('C').expect("a root"));
    assert_eq!(after.files.len(), before.files.len() + 1);
    assert_eq!(after.whole("/crafted/file"), object::path(&object::hex(&[7; 20]), ""));
}
