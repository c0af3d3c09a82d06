//! The disk of the cache is full.

use esker_format::manifest::Manifest;
use esker_testkit::disk::Tmpfs;
use esker_testkit::revision_builder::RevisionBuilder;
use esker_testkit::skip;

use super::site::{MANIFEST, Origin, Proxy, noise, options};

fn revision(manifest: &[u8]) -> u64 {
    Manifest::parse(manifest).expect("a manifest").revision
}

#[test]
fn heads_and_objects_that_can_not_be_stored_are_handed_on_and_readiness_tells() {
    let (origin, place) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let Some(disk) = Tmpfs::mount(&place.path().join("disk"), 4 << 20) else {
        skip!("only root can have a small disk")
    };
    let cache = place.path().join("disk/cache");
    let proxy = Proxy::start(options(&cache, &[&origin]));
    assert_eq!(proxy.get("/readyz").status, 200);
    // Before the first head, whose objects the proxy fetches ahead and could evict.
    disk.fill();
    let first = revision(&proxy.get(MANIFEST).body);
    let builder = RevisionBuilder::of(&origin.repository);
    builder.add_directory("new");
    builder.publish(&origin.repository);
    for _ in 0..2 {
        assert_eq!(revision(&proxy.get(MANIFEST).body), first + 1);
    }
    let told = proxy.get("/readyz");
    assert!(told.status == 503 && told.text().contains("No space left"), "{}", told.text());
    // The second is larger than what is kept in memory while it is fetched.
    for len in [100_000, 34 << 20] {
        let path = origin.add(&noise(7, len));
        let answer = proxy.get(&path);
        assert_eq!(answer.status, 200);
        assert!(answer.body == origin.stored(&path), "{len}");
    }
    assert_eq!(proxy.get("/readyz").status, 503);
    assert_eq!(proxy.get("/healthz").status, 200);
    disk.empty();
    assert_eq!(proxy.get("/readyz").status, 200, "no client has to request an object first");
    assert_eq!(revision(&proxy.get(MANIFEST).body), first + 1);
    proxy.stop();
    origin.mirror.leave();
    let proxy = Proxy::start(options(&cache, &[&origin]));
    assert_eq!(revision(&proxy.get(MANIFEST).body), first + 1, "it was saved at its next confirmation");
}

#[test]
fn own_objects_make_room_on_a_full_disk() {
    let (origin, place) = (Origin::start(), tempfile::tempdir().expect("a folder"));
    let Some(_disk) = Tmpfs::mount(&place.path().join("disk"), 6 << 20) else {
        skip!("only root can have a small disk")
    };
    let proxy = Proxy::start(options(&place.path().join("disk/cache"), &[&origin]));
    for seed in 0..150 {
        let path = origin.add(&noise(seed, 100_000));
        let answer = proxy.get(&path);
        assert!(answer.status == 200 && answer.body == origin.stored(&path), "{seed}");
        // The answer comes before the object is stored.
        let is_kept = || proxy.get(&path).field("x-cache") == Some("HIT");
        assert!(esker_testkit::waiting::until(crate::client::PATIENCE, is_kept), "{seed}");
    }
    let status = proxy.status();
    let evicted = status["cache"]["evicted"].as_u64().expect("a number");
    assert!((90..150).contains(&evicted), "{status:#}");
    assert_eq!(proxy.get("/readyz").status, 200);
}
