//! Everything that can be damaged, in every way: refused, with its own words, and never delivered.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use esker_testkit::fixture::{self, Repository};
use esker_testkit::mirror::{Fault, Mirror};
use esker_testkit::object;
use esker_testkit::revision_builder::RevisionBuilder;
use esker_testkit::signing::WhitelistDraft;
use esker_testkit::skip;

use crate::test_env::{TestEnv, words};
use crate::test_user::TestUser;

/// Returns the ways in which a file on a server is wrong, except well signed and still wrong.
fn faults() -> [(&'static str, Fault); 5] {
    [
        ("flipped byte", Fault::FlipByte(77)),
        ("truncated", Fault::Truncate(60)),
        ("swapped", Fault::Swap("full.test/.cvmfs_master_replica".to_owned())),
        ("missing", Fault::Missing),
        ("login page", Fault::Html),
    ]
}

/// Files that a mount needs, and the word for each that a message must have.
fn needed_for_a_mount(repository: &Repository) -> Vec<(&'static str, String)> {
    let manifest = repository.manifest();
    let object_of = |key, suffix| object::path(&manifest.get(key).expect("a key of the manifest"), suffix);
    vec![
        ("manifest", ".cvmfspublished".to_owned()),
        ("whitelist", ".cvmfswhitelist".to_owned()),
        ("certificate", object_of('X', "X")),
        ("root catalog", object_of('C', "C")),
    ]
}

/// > D3: A repository whose head cannot be verified is not mounted, and the message says which check failed.
#[test]
fn a_damaged_head_is_not_mounted() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mut messages: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (word, file) in needed_for_a_mount(&world.repository) {
        for (name, fault) in faults() {
            let path = format!("/full.test/{file}");
            // Otherwise objects of an earlier case would not be fetched again.
            world.empty_cache();
            let rule = world.mirror.fault(move |asked| asked == path, fault);
            let output = world.try_mount(&[]).err().unwrap_or_else(|| panic!("mounted with a {name} {word}"));
            rule.assert_hit();
            rule.lift();
            let message = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(message.contains(word), "a {name} {word} is called that: {message}");
            let code = output.status.code();
            assert!(matches!(code, Some(3 | 4)), "a {name} {word}: {}", words(&output));
            messages.entry(message).or_default().push(format!("{name} {word}"));
        }
    }
    let files: BTreeSet<Vec<&str>> = messages
        .values()
        .map(|cases| cases.iter().filter_map(|case| case.rsplit(' ').next()).collect())
        .collect();
    assert!(files.iter().all(|files| files.windows(2).all(|pair| pair[0] == pair[1])), "{messages:#?}");
    drop(world.mount(&[]));
}

/// Heads that are well formed and signed by some key, and must still be refused. Each has its own error.
#[test]
fn a_forged_head_is_not_mounted() {
    let repository = fixture::FULL.unpack();
    let (keys, stranger) = (fixture::FULL.keys(), fixture::RMD.keys());
    let manifest = repository.manifest();
    let algorithm = manifest.algorithm();
    let whitelist = WhitelistDraft::listing(&keys, "full.test", algorithm);
    let strange_certificate = repository.store(stranger.certificate_pem(), "X");

    let head = |change: &dyn Fn(&mut esker_testkit::signing::ManifestDraft)| {
        let mut draft = manifest.clone();
        change(&mut draft);
        draft
    };
    let white = |change: &dyn Fn(&mut WhitelistDraft)| {
        let mut draft = whitelist.clone();
        change(&mut draft);
        draft.sign(&keys)
    };
    let good_head = manifest.sign(&keys);
    let good_white = whitelist.sign(&keys);
    let renamed = head(&|draft| _ = draft.set('N', "other.test")).sign(&keys);
    let elsewhere = head(&|draft| _ = draft.set('R', "0123456789abcdef0123456789abcdef")).sign(&keys);
    let by_stranger = manifest.sign(&stranger);
    let strange_publisher = head(&|draft| _ = draft.set('X', &strange_certificate)).sign(&stranger);
    let expired = white(&|draft| draft.expires = "20200101000000".to_owned());
    let other_name = white(&|draft| draft.name = "other.test".to_owned());
    let unlisted = white(&|draft| draft.lines = vec![stranger.fingerprint(algorithm)]);
    let other_master = whitelist.sign(&stranger);

    let cases: [(&str, &[u8], &[u8]); 8] = [
        ("renamed repository", &renamed, &good_white),
        ("root elsewhere", &elsewhere, &good_white),
        ("signed by a stranger", &by_stranger, &good_white),
        ("a stranger's certificate", &strange_publisher, &good_white),
        ("expired whitelist", &good_head, &expired),
        ("whitelist of another repository", &good_head, &other_name),
        ("whitelist without the certificate", &good_head, &unlisted),
        ("whitelist by another master key", &good_head, &other_master),
    ];
    let mirror = Mirror::serve(repository.document_root());
    let world = TestEnv::at(TestUser::ordinary(), repository, mirror);
    let mut messages: BTreeMap<String, &str> = BTreeMap::new();
    for (case, head, white) in cases {
        world.mirror.put("full.test/.cvmfspublished", head);
        world.mirror.put("full.test/.cvmfswhitelist", white);
        let output = world.try_mount(&[]).err().unwrap_or_else(|| panic!("mounted with a {case}"));
        assert_eq!(output.status.code(), Some(4), "{case}: {}", words(&output));
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        if let Some(other) = messages.insert(message.clone(), case) {
            // Both certificates that are not listed are refused for the one reason.
            let both = [case, other];
            let listed = ["a stranger's certificate", "whitelist without the certificate"];
            assert!(listed.iter().all(|case| both.contains(case)), "{both:?} are told alike: {message}");
        }
    }
    world.mirror.put("full.test/.cvmfspublished", good_head);
    world.mirror.put("full.test/.cvmfswhitelist", good_white);
    drop(world.mount(&[]));
}

/// Reads a file from start to end in pieces and returns the pieces before the first error.
fn delivered(file: &File, size: usize) -> (Vec<(usize, Vec<u8>)>, Vec<io::Error>) {
    let (mut pieces, mut errors) = (Vec::new(), Vec::new());
    let mut piece = vec![0; 16 * 1024];
    for offset in (0..size).step_by(piece.len()) {
        match file.read_at(&mut piece, offset as u64) {
            Ok(length) => pieces.push((offset, piece[..length].to_vec())),
            Err(error) => errors.push(error),
        }
    }
    (pieces, errors)
}

/// Returns objects of a mounted tree: their readers, and a file whose read needs them.
fn needed_for_reading(repository: &Repository) -> Vec<(&'static str, String, &'static str)> {
    let contents = repository.contents("v3");
    let chunks = contents.chunks("/data/random.bin");
    vec![
        ("object", contents.whole("/data/exactly64k").to_owned(), "data/exactly64k"),
        ("chunk", chunks[chunks.len() / 2].1.clone(), "data/random.bin"),
        ("nested catalog", contents.catalogs["/nested"].clone(), "nested/f0"),
    ]
}

/// > D1: Bytes that do not match what the signed head leads to never reach a reader: the read fails with EIO, and `esker status` names object and cause.
///
/// > D2: A failed read is not remembered: the next one tries again and succeeds once the server is well.
#[test]
fn damaged_objects_are_never_delivered() {
    damaged_objects_are_refused(TestUser::ordinary(), &[]);
}

/// EROFS reads from the same tree.
#[test]
fn damaged_objects_are_never_delivered_through_erofs() {
    let Some(root) = TestUser::root() else { skip!("only root mounts EROFS") };
    damaged_objects_are_refused(root, &["--fixed", "--show-with", "erofs"]);
}

fn damaged_objects_are_refused(person: TestUser, options: &[&str]) {
    for (fault_name, fault) in faults() {
        let world = TestEnv::new(person, fixture::FULL);
        // Nothing may come before the fault is there.
        let mounted = world.mount(&[&["--no-prefetch"], options].concat());
        for (kind, object, file) in needed_for_reading(&world.repository) {
            let case = format!("{fault_name} {kind}");
            let listing = world.fixture().listing("v3");
            let path = [b"/", file.as_bytes()].concat();
            let entry = listing.iter().find(|entry| entry.path == path).expect("a listed file");
            let size = usize::try_from(entry.size.expect("a size")).expect("fits");
            let good = content_of(&world.repository, file);
            let wrong = format!("/full.test/{object}");
            let rule = world.mirror.fault(move |asked| asked == wrong, fault.clone());
            mounted.does(|| {
                let errors = match File::open(mounted.path(file)) {
                    Err(error) => vec![error],
                    Ok(opened) => {
                        let (pieces, errors) = delivered(&opened, size);
                        for (offset, piece) in pieces {
                            assert!(
                                good[offset..].starts_with(&piece),
                                "{case}: a wrong byte after {offset}"
                            );
                        }
                        errors
                    }
                };
                assert!(!errors.is_empty(), "{case}: nothing failed");
                for error in errors {
                    assert_eq!(error.raw_os_error(), Some(libc::EIO), "{case}: {error}");
                }
            });
            rule.assert_hit();
            let errors = mounted.status()["errors"].to_string();
            let name = file.rsplit('/').next().expect("a name");
            if options.is_empty() {
                let mut value = [0; 4096];
                let told = mounted
                    .does(|| rustix::fs::getxattr(mounted.path(""), "user.esker.error", &mut value[..]));
                let told = String::from_utf8_lossy(&value[..told.expect("an attribute of every mount")]);
                assert!(told.contains(name) || told.contains("nested"), "{case} is named in {told}");
            }
            assert!(errors.contains(name) || errors.contains("nested"), "{case} is named in {errors}");
            let digest = object.trim_start_matches("data/").replace('/', "");
            let cause = errors.contains(&digest[..40.min(digest.len())]) || fault == Fault::Missing;
            assert!(cause, "{case}: the object {digest} is named in {errors}");

            rule.lift();
            let again = mounted.does(|| fs::read(mounted.path(file)));
            assert!(again.expect("reading again") == good, "{case}: well again");
        }
    }
}

/// Returns a file's content as the fixture's objects have it.
fn content_of(repository: &Repository, file: &str) -> Vec<u8> {
    let contents = repository.contents("v3");
    let objects = &contents.files[[b"/", file.as_bytes()].concat().as_slice()];
    let paths: Vec<&String> = match &objects.whole {
        Some(whole) => vec![whole],
        None => objects.chunks.iter().map(|(_, path)| path).collect(),
    };
    paths.into_iter().flat_map(|path| object::inflate(&repository.read(path))).collect()
}

/// The hash is right and the catalog's size is wrong: the size in the signed catalog is verified, too.
#[test]
fn an_object_whose_size_differs_from_the_catalog_is_an_error() {
    let repository = fixture::FULL.unpack();
    let hash = repository.store(b"twelve bytes", "");
    let digest: [u8; 20] = object::unhex(&hash).try_into().expect("a digest");
    let craft = RevisionBuilder::of(&repository);
    craft.add_directory("crafted");
    craft.add_file("/crafted", "right", 12, digest);
    craft.add_file("/crafted", "short", 11, digest);
    craft.add_file("/crafted", "long", 13, digest);
    craft.publish(&repository);
    let mirror = Mirror::serve(repository.document_root());
    let world = TestEnv::at(TestUser::ordinary(), repository, mirror);
    let mounted = world.mount(&[]);
    mounted.does(|| {
        assert_eq!(fs::read(mounted.path("crafted/right")).expect("reading"), b"twelve bytes");
        for wrong in ["short", "long"] {
            let error = fs::read(mounted.path(&format!("crafted/{wrong}"))).expect_err(wrong);
            assert_eq!(error.raw_os_error(), Some(libc::EIO), "{wrong}");
        }
    });
}
