//! Reads of whole repositories through the store, byte for byte.

use std::collections::BTreeSet;

use esker_format::compress::Compression;
use esker_format::object::{ObjectKind, ObjectName};
use esker_store::{ObjectRequest, ObjectStore};
use esker_testkit::fixture::{self, Repository};
use esker_testkit::mirror::Mirror;
use esker_testkit::object::inflate;

use crate::rig::{Rig, Shelf, as_is, bytes, get, noise, zlib};

/// Returns every object of a repository, with its expected content.
fn all_objects(repository: &Repository) -> Vec<(ObjectRequest, Vec<u8>)> {
    let mut objects = Vec::new();
    for folder in std::fs::read_dir(repository.path().join("data")).unwrap() {
        let folder = folder.unwrap();
        if folder.file_name().len() != 2 {
            continue;
        }
        for file in std::fs::read_dir(folder.path()).unwrap() {
            let file = file.unwrap();
            let name =
                format!("{}{}", folder.file_name().to_str().unwrap(), file.file_name().to_str().unwrap());
            let stored = std::fs::read(file.path()).unwrap();
            let name = ObjectName::parse(&name).unwrap();
            // The third fixture stores files as they are; databases are always compressed.
            let plain_kind = matches!(name.kind, ObjectKind::File | ObjectKind::Chunk);
            let plain_stored = plain_kind && repository.fixture().name() == "shake.test";
            let compression = if plain_stored { Compression::Stored } else { Compression::Zlib };
            let plain = if plain_stored { stored } else { inflate(&stored) };
            let mut wanted = ObjectRequest::new(name, compression, "a fixture's object");
            if plain_kind {
                wanted = wanted.size(plain.len() as u64);
            }
            objects.push((wanted, plain));
        }
    }
    assert!(objects.len() > 20, "a fixture has objects");
    objects
}

#[test]
fn every_object_of_every_fixture_reads_exactly_over_http_and_from_a_folder() {
    for fixture in fixture::ALL {
        let repository = fixture.unpack();
        let mirror = Mirror::serve(repository.document_root());
        for url in [mirror.url(fixture.name()), repository.file_url()] {
            let rig = Rig::new();
            let store = rig.open(&url);
            let objects = all_objects(&repository);
            for (wanted, plain) in &objects {
                assert_eq!(&bytes(&store, wanted).unwrap(), plain, "{}", wanted.label());
                // It is in the cache now: what is fetched is counted below.
                let again = get(&store, wanted).unwrap();
                assert_eq!(&again.read_all().unwrap(), plain);
                assert_eq!(again.map().unwrap().as_ref(), plain.as_slice());
            }
            // A file and a chunk of the same content are one object.
            let keys: BTreeSet<_> = objects.iter().map(|(wanted, _)| wanted.key()).collect();
            let status = store.status();
            assert_eq!(status.traffic.fetched, keys.len() as u64);
            assert_eq!(status.cache.objects, keys.len() as u64);
        }
        assert!(mirror.connections() < 5, "connections are reused");
    }
}

#[test]
fn reads_at_any_offset_return_the_content() {
    let object = zlib(&noise(1, 100_000));
    let rig = Rig::new();
    let store = rig.store(Shelf::new(&[&object]));
    let handle = get(&store, &object.wanted).unwrap();
    for (offset, len) in [(0, 10), (99_990, 100), (100_000, 5), (1 << 40, 5), (50_000, 50_000)] {
        let mut buffer = vec![0xEE; len];
        let got = handle.read_at(&mut buffer, offset as u64).unwrap();
        let expected = &object.plain[offset.min(100_000)..(offset + len).min(100_000)];
        assert_eq!(&buffer[..got], expected);
    }
}

#[test]
fn an_empty_object_is_served() {
    for object in [zlib(b""), as_is(b"")] {
        let rig = Rig::new();
        let store = rig.store(Shelf::new(&[&object]));
        let handle = get(&store, &object.wanted).unwrap();
        assert!(handle.is_empty());
        assert_eq!(handle.map().unwrap().as_ref(), b"");
        assert_eq!(handle.read_all().unwrap(), b"");
    }
}

/// Too large for memory: spooled, verified, inflated piece by piece, on both ways.
#[test]
fn large_objects_go_through_the_disk() {
    let len = usize::try_from(esker_store::MEMORY_MAX).unwrap() + 12_345;
    let folder = tempfile::tempdir().unwrap();
    let mirror = Mirror::serve(folder.path());
    for object in [as_is(&noise(5, len)), zlib(&noise(6, len)), zlib(&vec![7; 3 * len])] {
        mirror.put(&format!("repo/{}", object.wanted.name.path()), object.stored.clone());
        let local = folder.path().join(object.wanted.name.path());
        std::fs::create_dir_all(local.parent().unwrap()).unwrap();
        std::fs::write(&local, &object.stored).unwrap();
        for url in [mirror.url("repo"), format!("file://{}", folder.path().display())] {
            let rig = Rig::new();
            let store = rig.open(&url);
            let handle = get(&store, &object.wanted).unwrap();
            assert!(handle.map().unwrap().as_ref() == object.plain);
            assert_eq!(std::fs::read_dir(rig.cache.folder().join("txn")).unwrap().count(), 0);
        }
    }
}

/// Objects beyond the memory budget go through the disk, even small ones.
#[test]
fn without_memory_everything_is_spooled() {
    let engine = crate::rig::engine_with(|options| options.memory = 100_000);
    let rig = Rig::with(engine, crate::rig::roomy());
    let folder = tempfile::tempdir().unwrap();
    let mirror = Mirror::serve(folder.path());
    let store = rig.open(&mirror.url("repo"));
    for len in [10, 99_000, 300_000, 2_000_000] {
        let object = zlib(&noise(len as u64, len));
        mirror.put(&format!("repo/{}", object.wanted.name.path()), object.stored.clone());
        assert!(bytes(&store, &object.wanted).unwrap() == object.plain);
    }
}
