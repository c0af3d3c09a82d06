//! Collects of objects in object storage that no revision names.

use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::{ObjectKind, ObjectName};

use super::*;

/// Stores objects as a publisher that is killed before its commit.
fn store_orphans(site: &Site) -> Vec<ObjectName> {
    let place = site.place("killed");
    let names: Vec<ObjectName> = (0..5)
        .map(|number| {
            let bytes = format!("left over {number}").into_bytes();
            let name = ObjectName::new(ContentHash::of(HashAlgorithm::Sha1, &bytes), ObjectKind::File);
            place.sink().put(&name, &bytes).unwrap();
            name
        })
        .collect();
    place.sink().flush().unwrap();
    names
}

/// Collects objects that were last written this many seconds ago or earlier.
fn collect_orphans(site: &Site, age: i64) -> Collected {
    let progress = |_| ();
    let mut collect = Collect::new(&progress);
    (collect.keep, collect.grace, collect.automatic_tags) = (Keep::Age(i64::MAX / 2), 0, None);
    collect.orphans = Some(age);
    collect.run(&site.open("collector"), now()).unwrap()
}

#[test]
fn objects_without_a_revision_are_collected_once_they_are_old_enough() {
    orphans(&Site::new());
    orphans(&Site::on_s3());
}

fn orphans(site: &Site) {
    publish(&site.open("first"), folder(&[("file", "content"), ("a/b", "more")]).path(), "").unwrap();
    // A publish stores the object of an empty file, whether a file is empty or not.
    collect_orphans(site, -60);
    let names = store_orphans(site);
    let left = || {
        let place = site.place("lister");
        names.iter().filter(|name| place.sink().len_of(name).unwrap().is_some()).count()
    };
    // By the clock of the storage, which a test can't turn.
    let mut written = std::time::UNIX_EPOCH;
    site.place("lister").sink().list(&mut |listed| written = written.max(listed.modified)).unwrap();
    let written = written.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs().cast_signed();
    let young = collect_orphans(site, now().0 - written + 60);
    assert_eq!((young.plan.orphans, left()), (0, names.len()), "{young:?}");
    let old = collect_orphans(site, -60);
    assert_eq!((old.plan.orphans, old.deleted.objects, left()), (5, 5, 0), "{old:?}");
    site.assert_shows(&[("/a/b", "more"), ("/file", "content")]);
    site.check_all();
}
