//! Collects on replicas, which have no keys.

use esker_format::time::UnixTime;
use esker_maintain::{Collect, Keep};
use esker_repository::Repository;

use super::*;
use crate::collecting::at_once;
use crate::workshop::objects;

fn open(scene: &Scene) -> Repository {
    let name = RepositoryName::parse(NAME).unwrap();
    Repository::open_replica(&scene.root(), &name, now()).unwrap()
}

fn change(scene: &Scene, content: &str) {
    fs::write(scene.workshop.source().join("b/f1"), content).unwrap();
    scene.workshop.publish();
}

fn stored(scene: &Scene, content: &str) -> PathBuf {
    let stored = esker_testkit::object::deflate(content.as_bytes());
    let name = esker_testkit::object::Algorithm::Sha1.hash(&stored);
    scene.root().join(esker_testkit::object::path(&name, ""))
}

/// A scene without automatic tags, which keep their revisions.
fn untagged() -> Scene {
    Scene::of(|new| new.settings.automatic_tags = false)
}

/// Replicas that have the head only, so that each new head drops the one before.
fn head_only(replicate: &mut Replicate<'_>) {
    replicate.revisions = RevisionLimit::Newest(0);
}

#[test]
fn a_collect_on_a_replica_keeps_the_signed_head_and_deletes_what_no_kept_revision_needs() {
    let scene = untagged();
    scene.with(head_only).unwrap();
    for content in ["one", "two", "three"] {
        change(&scene, content);
        scene.with(head_only).unwrap();
    }
    let signed = fs::read(scene.root().join(".cvmfspublished")).unwrap();
    let before = objects(&scene.root()).len();
    let done = at_once(Keep::Last(0)).run(&open(&scene), now()).unwrap();
    assert!(done.deleted.objects > 4, "{done:?}");
    assert_eq!(objects(&scene.root()).len() as u64, before as u64 - done.deleted.objects);
    assert!(!stored(&scene, "one").exists() && stored(&scene, "three").exists());
    assert_eq!(fs::read(scene.root().join(".cvmfspublished")).unwrap(), signed);
    let status = fs::read_to_string(scene.root().join(".cvmfs_status.json")).unwrap();
    assert!(status.contains("last_gc") && status.contains("last_snapshot"), "{status}");
    let findings = findings(&scene.workshop, &scene.root());
    assert_same_trees(&scene.workshop.check().listing(), &findings.listing());
    change(&scene, "four");
    scene.with(head_only).unwrap();
    assert!(stored(&scene, "four").exists());
}

#[test]
fn condemned_objects_that_a_new_head_needs_again_stay() {
    let scene = untagged();
    // The tag `trunk-previous` keeps the revision before the head.
    for content in ["returns", "between", "other"] {
        change(&scene, content);
        scene.with(head_only).unwrap();
    }
    let collect = Collect { keep: Keep::Last(0), grace: 3600, threads: 2, ..Collect::new(&|_| ()) };
    let first = collect.run(&open(&scene), now()).unwrap();
    assert!(first.waiting.is_some_and(|waiting| waiting.objects > 0), "{first:?}");
    change(&scene, "returns");
    let done = scene.with(head_only).unwrap();
    assert_eq!(done.objects, 0, "the object is still here: {done:?}");
    let later = UnixTime(now().0 + 7200);
    collect.run(&open(&scene), later).unwrap();
    assert!(stored(&scene, "returns").exists());
    let findings = findings(&scene.workshop, &scene.root());
    assert_same_trees(&scene.workshop.check().listing(), &findings.listing());
}

/// A sweep that was interrupted has deleted the objects of a condemned catalog, and not yet the catalog.
#[test]
fn a_condemned_catalog_is_not_taken_for_complete() {
    let scene = untagged();
    change(&scene, "returns");
    scene.with(head_only).unwrap();
    let returning = head(&scene.workshop.root());
    for content in ["between", "other"] {
        change(&scene, content);
        scene.with(head_only).unwrap();
    }
    let collect = Collect { keep: Keep::Last(0), grace: 3600, threads: 2, ..Collect::new(&|_| ()) };
    collect.run(&open(&scene), now()).unwrap();
    fs::remove_file(stored(&scene, "returns")).unwrap();
    // The same root catalog and subtree, in a later revision.
    let name = returning.root_catalog.to_string();
    assert!(scene.root().join(format!("data/{}/{}C", &name[..2], &name[2..])).exists());
    change(&scene, "returns");
    let done = scene.with(head_only).unwrap();
    assert_eq!(done.objects, 1, "{done:?}");
    assert!(stored(&scene, "returns").exists());
}

#[test]
fn an_expired_whitelist_does_not_hold_up_a_collect() {
    let scene = untagged();
    for content in ["one", "two", "three"] {
        change(&scene, content);
        scene.with(head_only).unwrap();
    }
    let name = RepositoryName::parse(NAME).unwrap();
    let later = UnixTime(now().0 + 400 * 86_400);
    let repository = Repository::open_replica(&scene.root(), &name, later).unwrap();
    let done = at_once(Keep::Last(0)).run(&repository, later).unwrap();
    assert!(done.deleted.objects > 0);
}
