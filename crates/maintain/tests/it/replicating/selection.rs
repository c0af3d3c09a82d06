//! Which revisions and paths a replica has.

use super::*;

/// Publishes revisions whose file `b/f0` differs.
fn revisions(scene: &Scene, count: u32) {
    for number in 0..count {
        fs::write(scene.workshop.source().join("b/f0"), format!("revision {number}")).unwrap();
        scene.workshop.publish();
    }
}

#[test]
fn the_newest_tagged_revisions_are_copied_if_a_number_is_given() {
    let scene = Scene::new();
    revisions(&scene, 5);
    let done = scene.with(|replicate| replicate.revisions = RevisionLimit::Newest(2)).unwrap();
    assert_eq!(done.revisions, 2, "{done:?}");
    let report = scene.check("two tagged revisions");
    assert_eq!((report.revisions, report.notes.len()), (3, 1), "{:?}", report.notes);
    // All of them, when asked for.
    let done = scene.replicate();
    assert!(done.revisions >= 3 && !done.changed, "{done:?}");
    scene.assert_equal();
}

#[test]
fn a_tagged_revision_that_no_server_has_any_more_is_left_out() {
    let scene = Scene::new();
    revisions(&scene, 3);
    // The first content is in no later revision.
    let object = scene.workshop.object_of(b"revision 0");
    let lost = object.file_name().unwrap().to_str().unwrap().to_owned();
    let rule = scene.mirror.fault(move |path| path.ends_with(&lost), Fault::Missing);
    let done = scene.replicate();
    rule.assert_hit();
    assert_eq!(done.skipped.len(), 1, "{done:?}");
    assert!(done.skipped[0].reason.contains("no server has object"), "{done:?}");
    let told = || {
        let mut info = esker_maintain::RepositoryInfo::default();
        info.add_replica(&scene.root());
        info.replica.expect("a replica").left_out
    };
    assert_eq!(told(), done.skipped, "the description of the replica tells it");
    let findings = findings(&scene.workshop, &scene.root());
    assert_same_trees(&scene.workshop.check().listing(), &findings.listing());
    // Its catalogs are not here, so a collect and the next run know that it is not.
    scene.check("without a revision");
    rule.lift();
    // The next run looks for it again, although the head is up to date.
    let done = scene.replicate();
    assert!(done.skipped.is_empty() && done.objects == 1 && !done.changed, "{done:?}");
    assert!(told().is_empty());
    scene.assert_equal();
}

#[test]
fn a_missing_catalog_of_a_tagged_revision_leaves_it_out() {
    let scene = Scene::new();
    let old = head(&scene.workshop.root()).root_catalog.to_string();
    revisions(&scene, 2);
    let rule = scene.mirror.fault(move |path| path.contains(&old[2..]), Fault::Missing);
    let done = scene.replicate();
    rule.assert_hit();
    assert_eq!(done.skipped.len(), 1, "{done:?}");
    assert_eq!(head(&scene.root()).revision, 3);
}

#[test]
fn a_partial_replica_has_the_catalogs_of_its_paths_and_says_so() {
    let scene = Scene::new();
    let done = scene.with(|replicate| replicate.paths = vec![b"/a/deep".to_vec()]).unwrap();
    // The root catalog and that of a/deep.
    assert_eq!(done.catalogs - done.revisions, 2, "{done:?}");
    let listed = fs::read_to_string(scene.root().join(".cvmfs_partial_replica")).unwrap();
    assert_eq!(listed, "/a/deep\n");
    let object = |content: &str| {
        let object = scene.workshop.object_of(content.as_bytes());
        scene.root().join(object.strip_prefix(scene.workshop.root()).unwrap())
    };
    assert!(object("a/deep 1").exists() && !object("b 1").exists());
    let mut check = esker_maintain::Check::new(&|_| ());
    check.selected = vec![b"/a/deep".to_vec()];
    let report = check.run(&scene.place(), now()).unwrap();
    assert!(report.findings.is_empty(), "{:#?}", report.findings);
    // The others come with a wider selection, although the root catalog is here already.
    let done = scene.replicate();
    assert!(done.objects == 16, "{done:?}");
    assert!(!scene.root().join(".cvmfs_partial_replica").exists());
    scene.assert_equal();
}

#[test]
fn a_path_that_the_head_lacks_is_refused_when_it_is_named_and_not_later() {
    let scene = Scene::new();
    let run = |paths: &[&[u8]]| {
        scene.with(|replicate| replicate.paths = paths.iter().map(|path| path.to_vec()).collect())
    };
    for paths in [&[&b"/a/typo"[..]][..], &[b"/b", b"/a/deep/typo"]] {
        // A run that is repeated is refused again.
        for _ in 0..2 {
            let refused = run(paths).unwrap_err().to_string();
            assert!(refused.contains("typo"), "{refused}");
            assert!(!scene.root().join(".cvmfspublished").exists());
        }
    }
    run(&[b"/b"]).unwrap();
    run(&[b"/b", b"/typo"]).unwrap_err();
    fs::remove_dir_all(scene.workshop.source().join("b")).unwrap();
    scene.workshop.publish();
    run(&[b"/b"]).unwrap();
    assert_eq!(head(&scene.root()), head(&scene.workshop.root()), "the replica follows");
}

#[test]
fn revisions_without_tags_are_copied_if_the_repository_keeps_all() {
    for collectable in [false, true] {
        let scene = Scene::of(|new| {
            new.settings.automatic_tags = false;
            new.garbage_collectable = collectable;
        });
        scene.replicate();
        let mut roots = Vec::new();
        for number in 0..5 {
            revisions_from(&scene, number);
            roots.push(head(&scene.workshop.root()).root_catalog.to_string());
        }
        scene.replicate();
        let is_here =
            |root: &&String| scene.root().join(format!("data/{}/{}C", &root[..2], &root[2..])).exists();
        // The head, and the one before with the tag `trunk-previous`.
        let expected = if collectable { 2 } else { 5 };
        assert_eq!(roots.iter().filter(is_here).count(), expected, "{collectable}");
        scene.assert_equal();
    }
}

fn revisions_from(scene: &Scene, number: u32) {
    fs::write(scene.workshop.source().join("b/f0"), format!("one more {number}")).unwrap();
    scene.workshop.publish();
}
