use esker_store::{LocalSink, RealDisk};
use esker_testkit::disk::{FaultDisk, Plan, scratch};

use super::*;

fn object(number: u32) -> ObjectName {
    let kind = if number.is_multiple_of(3) { ObjectKind::Chunk } else { ObjectKind::File };
    ObjectName::new(ContentHash::of(HashAlgorithm::Sha1, &number.to_le_bytes()), kind)
}

fn sorted(numbers: impl Iterator<Item = u32>) -> Vec<ObjectName> {
    numbers.map(object).collect::<BTreeSet<_>>().into_iter().collect()
}

fn write(folder: &CondemnedFolder, objects: &[ObjectName]) -> Result<(), RepositoryError> {
    folder.write(UnixTime(7), objects.len() as u64, &mut objects.iter().map(|object| Ok(*object)))
}

fn in_folder(path: &Path) -> CondemnedFolder {
    CondemnedFolder::new(Arc::new(RealDisk::PRIVATE), path)
}

/// Deletes as a collect does, in small batches, and returns what was deleted.
fn delete(folder: &CondemnedFolder) -> Result<BTreeSet<ObjectName>, RepositoryError> {
    let mut deleted = BTreeSet::new();
    if let Some(mut list) = folder.read()? {
        list.begin_deleting()?;
    }
    while let Some(mut list) = folder.read()? {
        let Some(batch) = list.batch(7)? else {
            list.remove()?;
            break;
        };
        deleted.extend(batch.objects.iter().copied());
        list.advance(&batch)?;
    }
    Ok(deleted)
}

#[test]
fn a_list_holds_its_objects_until_they_are_deleted() {
    let place = tempfile::tempdir().unwrap();
    let folder = in_folder(place.path());
    assert!(folder.read().unwrap().is_none() && folder.collections().unwrap() == 0);
    for count in [0, 1, 5000] {
        let objects = sorted(0..count);
        write(&folder, &objects).unwrap();
        let list = folder.read().unwrap().unwrap();
        assert_eq!(
            (list.since(), list.count(), list.state()),
            (UnixTime(7), u64::from(count), State::Waiting)
        );
        assert!(objects.iter().all(|object| list.contains(object).unwrap()));
        assert!((count..count + 50).all(|other| !list.contains(&object(other)).unwrap()));
        assert_eq!(delete(&folder).unwrap().len() as u32, count);
        assert!(folder.read().unwrap().is_none());
    }
    assert_eq!(folder.collections().unwrap(), 6, "three began and ended");
}

#[test]
fn revived_objects_are_neither_listed_nor_deleted() {
    let place = tempfile::tempdir().unwrap();
    let folder = in_folder(place.path());
    write(&folder, &sorted(0..100)).unwrap();
    folder.read().unwrap().unwrap().revive(&[object(3), object(200)]).unwrap();
    let mut list = folder.read().unwrap().unwrap();
    list.revive(&[object(50), object(3)]).unwrap();
    assert!(!list.contains(&object(3)).unwrap() && !list.contains(&object(50)).unwrap());
    assert!(list.contains(&object(4)).unwrap());
    let deleted = delete(&folder).unwrap();
    assert_eq!(deleted.len(), 98);
    assert!(!deleted.contains(&object(3)) && !deleted.contains(&object(50)));
    // A later list with the same objects is another one.
    write(&folder, &sorted(0..101)).unwrap();
    assert!(folder.read().unwrap().unwrap().contains(&object(3)).unwrap());
}

#[test]
fn notes_of_an_earlier_list_do_not_count() {
    let place = tempfile::tempdir().unwrap();
    let folder = in_folder(place.path());
    write(&folder, &sorted(0..10)).unwrap();
    let mut list = folder.read().unwrap().unwrap();
    list.revive(&[object(1)]).unwrap();
    list.begin_deleting().unwrap();
    write(&folder, &sorted(0..11)).unwrap();
    let list = folder.read().unwrap().unwrap();
    assert_eq!(list.state(), State::Waiting);
    assert!(list.contains(&object(1)).unwrap());
}

#[test]
fn a_list_out_of_order_is_refused_and_a_damaged_one_is_noticed() {
    let place = tempfile::tempdir().unwrap();
    let folder = in_folder(place.path());
    let mut objects = sorted(0..10);
    write(&folder, &objects).unwrap();
    objects.swap(3, 4);
    assert!(write(&folder, &objects).is_err());
    objects.swap(3, 4);
    let items = || objects.iter().map(|object| Ok(*object));
    assert!(folder.write(UnixTime(0), 9, &mut items()).is_err(), "too many");
    assert!(folder.write(UnixTime(0), 11, &mut items()).is_err(), "too few");
    assert_eq!(folder.read().unwrap().unwrap().count(), 10, "the list before is still there");
    let path = place.path().join("condemned/list");
    let bytes = std::fs::read(&path).unwrap();
    for damaged in [&bytes[..bytes.len() - 1], &bytes[..10], &bytes[1..]] {
        std::fs::write(&path, damaged).unwrap();
        assert!(folder.read().is_err());
    }
}

/// Folders of two machines that share a storage.
fn on_two_machines(storage: &Path, states: [&Path; 2]) -> [CondemnedFolder; 2] {
    states.map(|state| {
        let sink = LocalSink::on(storage, Arc::new(RealDisk::PRIVATE));
        in_folder(state).shared(Some(Arc::new(sink)))
    })
}

/// Collects that a timer starts on two machines find the same objects in the same second.
#[test]
fn lists_with_the_same_content_are_told_apart() {
    let places = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [storage, one, two] = places.each_ref().map(tempfile::TempDir::path);
    let [one, two] = on_two_machines(storage, [one, two]);
    let objects = sorted(0..30);
    write(&one, &objects).unwrap();
    let mut replaced = one.read().unwrap().unwrap();
    write(&two, &objects).unwrap();
    let mut current = two.read().unwrap().unwrap();
    assert!(matches!(replaced.begin_deleting(), Err(RepositoryError::Moving)), "it was replaced");
    replaced.remove().unwrap();
    assert!(one.read().unwrap().is_some(), "the end of a list that was replaced ends no other");
    current.begin_deleting().unwrap();
    assert!(
        matches!(write(&one, &objects), Err(RepositoryError::Locked { .. })),
        "its objects are being deleted"
    );
    assert_eq!(two.read().unwrap().unwrap().state(), State::Deleting);
    assert_eq!(delete(&two).unwrap().len(), 30);
    write(&one, &objects).unwrap();
    assert!(two.read().unwrap().is_some());
    let names = LocalSink::on(storage, Arc::new(RealDisk::PRIVATE)).list_root().unwrap();
    let lists = names.iter().filter(|name| name.starts_with(".esker_condemned_")).count();
    assert_eq!(lists, 1, "only that of the record is left: {names:?}");
}

/// A collect and a publisher that revives, with one operation of the disk that fails: nothing revived is deleted, and
/// once the disk is well, everything else is.
#[test]
fn any_operation_may_fail() {
    let objects = sorted(0..30);
    let mut hits = 0;
    for ever in [false, true] {
        for at in 1.. {
            let place = scratch();
            let disk = FaultDisk::new(place.path(), Plan::Fail { at, ever, errno: 5 });
            let folder = CondemnedFolder::new(Arc::new(disk.clone()), place.path());
            let mut deleted = BTreeSet::new();
            let mut revived = None;
            let outcome = (|| -> Result<(), RepositoryError> {
                write(&folder, &objects)?;
                if let Some(mut list) = folder.read()? {
                    list.revive(&objects[4..6])?;
                    revived = Some(&objects[4..6]);
                }
                deleted.extend(delete(&folder)?);
                Ok(())
            })();
            disk.heal();
            let struck = disk.struck() > 0;
            hits += u64::from(struck);
            assert!(struck || outcome.is_ok());
            let begun = folder.read().unwrap().is_some();
            deleted.extend(delete(&folder).unwrap());
            for object in revived.into_iter().flatten() {
                assert!(!deleted.contains(object), "operation {at}: a revived object is deleted");
            }
            if begun {
                let kept = if revived.is_some() { 2 } else { 0 };
                assert!(deleted.len() + kept <= 30, "operation {at}");
            }
            assert!(folder.read().unwrap().is_none());
            let lists = folder.collections().unwrap();
            assert!(lists >= 2 || !begun, "operation {at}: {lists}");
            if !struck {
                break;
            }
        }
    }
    assert!(hits > 60, "{hits}");
}
