//! Replicas by the reference implementation: each object that it stores must have the hash of its name.
//!
//! `cvmfs_swissknife pull` decompresses the certificate and the metainfo, compresses them with zlib, and stores them
//! under the names that they had. Clients refuse the replica if the bytes differ, since the hash is another one then.
//! The rule is applied here with zlib itself.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use esker_format::compress::{Compression, decompress};
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::manifest::Manifest;
use esker_format::name::RepositoryName;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::write::encode::FastZlib;
use esker_format::write::head::sign_manifest;
use esker_format::write::keys::{PrivateKey, Publisher};
use esker_format::write::reflog::ReflogDraft;
use esker_repository::{Deflate, KeyFolder, NewRepository, Repository};
use esker_store::StockZlib;
use esker_testkit::check::check;
use esker_testkit::fixture;

use crate::workshop::{NAME, Workshop, now, publish};

fn manifest(root: &Path) -> Manifest {
    Manifest::parse(&fs::read(root.join(".cvmfspublished")).unwrap()).unwrap()
}

fn objects(root: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for folder in fs::read_dir(root.join("data")).unwrap() {
        let folder = folder.unwrap().path();
        if folder.file_name().unwrap().len() == 2 {
            found.extend(fs::read_dir(folder).unwrap().map(|file| file.unwrap().path()));
        }
    }
    found
}

/// Asserts that zlib makes the same object of the content of one.
fn assert_stock(root: &Path, name: &ObjectName) {
    let stored = fs::read(root.join(name.path())).unwrap();
    let plain = decompress(&stored, Compression::Zlib, None, 1 << 30).unwrap();
    let mut again = Vec::new();
    StockZlib::new().unwrap().encode(&plain, &mut again).unwrap();
    let made = ContentHash::of(name.hash.algorithm(), &again);
    assert_eq!(made, name.hash, "{name} is not as zlib writes it");
}

/// Asserts that what the head names is as zlib writes it.
fn assert_replicable(root: &Path) {
    let manifest = manifest(root);
    let mut checked = 0;
    for (hash, kind) in [
        (Some(manifest.root_catalog), ObjectKind::Catalog),
        (manifest.certificate, ObjectKind::Certificate),
        (manifest.history, ObjectKind::History),
        (manifest.metainfo, ObjectKind::Metainfo),
    ] {
        if let Some(hash) = hash {
            assert_stock(root, &ObjectName::new(hash, kind));
            checked += 1;
        }
    }
    assert!(checked >= 3, "{checked}");
}

/// Asserts that every object has zlib's bytes, or is stored uncompressed.
fn assert_all_stock(root: &Path, algorithm: HashAlgorithm) {
    let mut checked = 0;
    for path in objects(root) {
        let stored = fs::read(&path).unwrap();
        let plain = decompress(&stored, Compression::Zlib, None, 1 << 30).unwrap();
        let mut again = Vec::new();
        StockZlib::new().unwrap().encode(&plain, &mut again).unwrap();
        let (is, made) = (ContentHash::of(algorithm, &stored), ContentHash::of(algorithm, &again));
        assert_eq!(made, is, "{} is not as zlib writes it", path.display());
        checked += 1;
    }
    assert!(checked > 5, "{checked}");
}

/// Properties of a file that differ after it was written again.
fn identity(path: &Path) -> (u64, i64, i64) {
    let facts = fs::metadata(path).unwrap();
    (facts.ino(), facts.mtime(), facts.mtime_nsec())
}

fn of_kind(root: &Path, suffix: char) -> usize {
    objects(root).iter().filter(|path| path.to_string_lossy().ends_with(suffix)).count()
}

fn fill(folder: &Path) {
    fs::create_dir_all(folder.join("sub/.hidden")).unwrap();
    fs::write(folder.join("sub/.cvmfscatalog"), "").unwrap();
    for number in 0..40 {
        let text = format!("{number} of many lines, {}\n", number * number).repeat(number * 50);
        fs::write(folder.join(format!("sub/{number}")), text).unwrap();
    }
    fs::write(folder.join("large"), "some content that repeats itself ".repeat(400_000)).unwrap();
}

#[test]
fn a_fixture_can_be_replicated_after_esker_published_to_it() {
    for fixture in fixture::ALL {
        let unpacked = fixture.unpack();
        let root = unpacked.path();
        let before = manifest(&root);
        let kept = [
            ObjectName::new(before.certificate.unwrap(), ObjectKind::Certificate),
            ObjectName::new(before.metainfo.unwrap(), ObjectKind::Metainfo),
        ];
        let identities = kept.map(|object| identity(&root.join(object.path())));
        let added = tempfile::tempdir().unwrap();
        fill(added.path());
        let name = RepositoryName::parse(fixture.name()).unwrap();
        for (turn, target) in ["/added", "/again"].into_iter().enumerate() {
            let keys = KeyFolder::new(fixture.folder(), &name);
            let repository = Repository::open(&root, &name, keys, now()).unwrap();
            assert!(publish(&repository, added.path(), target).unwrap().published, "{turn}");
            assert_replicable(&root);
        }
        let after = manifest(&root);
        assert_eq!((after.certificate, after.metainfo), (before.certificate, before.metainfo));
        assert_eq!(kept.map(|object| identity(&root.join(object.path()))), identities);
        assert_eq!((of_kind(&root, 'X'), of_kind(&root, 'M')), (1, 1));
    }
}

#[test]
fn new_repositories_with_any_settings_can_be_replicated() {
    use HashAlgorithm::{Rmd160, Sha1, Shake128};
    for (algorithm, compression, deflate) in [
        (Sha1, Compression::Zlib, Deflate::Stock),
        (Rmd160, Compression::Zlib, Deflate::Fast),
        (Shake128, Compression::Stored, Deflate::Stock),
        (Sha1, Compression::Zstd, Deflate::Fast),
    ] {
        let workshop = Workshop::with(|new: &mut NewRepository| {
            new.algorithm = algorithm;
            (new.settings.compression, new.settings.deflate) = (compression, deflate);
        });
        assert_replicable(&workshop.root());
        fill(&workshop.source());
        workshop.publish();
        assert_replicable(&workshop.root());
        workshop.assert_equal();
        assert_eq!((of_kind(&workshop.root(), 'X'), of_kind(&workshop.root(), 'M')), (1, 1));
    }
}

/// `cvmfs_fsck` compresses every object in a cache again and compares names.
#[test]
fn by_default_every_object_is_as_zlib_writes_it() {
    for algorithm in [HashAlgorithm::Sha1, HashAlgorithm::Rmd160, HashAlgorithm::Shake128] {
        let workshop = Workshop::with(|new| new.algorithm = algorithm);
        fill(&workshop.source());
        workshop.publish();
        fs::write(workshop.source().join("sub/3"), "another content").unwrap();
        workshop.publish();
        assert_all_stock(&workshop.root(), algorithm);
    }
}

/// Versions before wrote certificate and metainfo with the fast encoder, so no replica of such a repository works.
#[test]
fn publishing_replaces_objects_of_the_fast_encoder() {
    let workshop = Workshop::new();
    let root = workshop.root();
    let before = manifest(&root);
    let certificate = ObjectName::new(before.certificate.unwrap(), ObjectKind::Certificate);
    let stored = fs::read(root.join(certificate.path())).unwrap();
    let pem = decompress(&stored, Compression::Zlib, None, 1 << 20).unwrap();
    fs::remove_file(root.join(certificate.path())).unwrap();
    let described =
        format!("{{\n  \"description\": \"{}\"\n}}\n", "of this and that, ".repeat(100)).into_bytes();
    let name = |plain: &[u8], kind, encode: &mut dyn FnMut(&[u8], &mut Vec<u8>)| {
        let mut stored = Vec::new();
        encode(plain, &mut stored);
        (ObjectName::new(ContentHash::of(HashAlgorithm::Sha1, &stored), kind), stored)
    };
    let mut stock =
        |plain: &[u8], stored: &mut Vec<u8>| StockZlib::new().unwrap().encode(plain, stored).unwrap();
    let (metainfo, _) = name(&described, ObjectKind::Metainfo, &mut stock);
    let [old_certificate, old_metainfo] =
        [(&pem, ObjectKind::Certificate), (&described, ObjectKind::Metainfo)].map(|(plain, kind)| {
            let (object, stored) =
                name(plain, kind, &mut |plain, stored| FastZlib::new().encode(plain, stored));
            fs::write(root.join(object.path()), stored).unwrap();
            object
        });
    assert_ne!(old_certificate, certificate, "the two encoders differ");
    assert_ne!(old_metainfo, metainfo, "the two encoders differ");
    let catalog = ObjectName::new(before.root_catalog, ObjectKind::Catalog);
    let mut reflog = ReflogDraft::new(RepositoryName::parse(NAME).unwrap());
    [catalog, old_certificate, old_metainfo]
        .into_iter()
        .for_each(|object| reflog.add(object, before.timestamp));
    let reflog = reflog.finish();
    fs::write(root.join(".cvmfsreflog"), &reflog).unwrap();
    let old = Manifest {
        certificate: Some(old_certificate.hash),
        metainfo: Some(old_metainfo.hash),
        reflog: Some(ContentHash::of(HashAlgorithm::Sha1, &reflog)),
        ..before
    };
    let keys = workshop.keys();
    let read = |path: PathBuf| fs::read_to_string(path).unwrap();
    let key_file = keys.certificate_file().with_extension("key");
    let key = PrivateKey::from_pem(&read(key_file)).unwrap();
    let publisher = Publisher::new(key, &read(keys.certificate_file())).unwrap();
    fs::write(root.join(".cvmfspublished"), sign_manifest(&old, publisher.key()).unwrap()).unwrap();
    let public = fs::read_to_string(keys.public_key_file()).unwrap();
    check(&root, NAME, &public).assert_clean();

    fill(&workshop.source());
    workshop.publish();
    assert_replicable(&root);
    let after = manifest(&root);
    assert_eq!((after.certificate, after.metainfo), (Some(certificate.hash), Some(metainfo.hash)));
    workshop.assert_equal();
}
