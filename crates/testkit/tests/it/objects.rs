//! Every kind of object, damaged in every way, through the store: each refusal has words of its own, names the
//! object, and is forgotten once the server is well.

use std::collections::BTreeSet;
use std::time::Duration;

use esker_format::compress::Compression;
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_store::{
    Blame, Cache, CacheOptions, Callback, Engine, EngineOptions, ObjectRequest, ObjectStore, Objects,
    RetryPolicy, connect,
};
use esker_testkit::fixture::{self, Repository};
use esker_testkit::mirror::{Fault, Mirror};
use esker_testkit::object;

/// Returns one object of each kind: its kind, its path, its plain bytes.
fn one_of_each(repository: &Repository) -> Vec<(ObjectKind, String, Vec<u8>)> {
    let manifest = repository.manifest();
    let contents = repository.contents("v3");
    let of_key = |key, suffix| object::path(&manifest.get(key).expect("a key of the manifest"), suffix);
    [
        (ObjectKind::File, contents.whole("/data/exactly64k").to_owned()),
        (ObjectKind::Chunk, contents.chunks("/data/random.bin")[1].1.clone()),
        (ObjectKind::Catalog, of_key('C', "C")),
        (ObjectKind::Catalog, contents.catalogs["/nested"].clone()),
        (ObjectKind::History, of_key('H', "H")),
        (ObjectKind::Metainfo, of_key('M', "M")),
        (ObjectKind::Certificate, of_key('X', "X")),
    ]
    .into_iter()
    .map(|(kind, path)| {
        let plain = object::inflate(&repository.read(&path));
        (kind, path, plain)
    })
    .collect()
}

fn hash_of(path: &str) -> ContentHash {
    let text = path.trim_start_matches("data/").replace('/', "");
    ContentHash::parse(text.trim_end_matches(|letter: char| letter.is_ascii_uppercase())).expect("a hash")
}

#[test]
fn damaged_objects_of_every_kind_are_refused_with_their_own_error() {
    let repository = fixture::FULL.unpack();
    let mirror = Mirror::serve(repository.document_root());
    let folder = tempfile::tempdir().expect("a folder");
    let pause = Duration::from_millis(1);
    let retry =
        RetryPolicy { attempts: 2, first_pause: pause, longest_pause: pause, ..RetryPolicy::default() };
    let engine = Engine::start(EngineOptions { retry, ..EngineOptions::default() }).expect("an engine");
    let cache = Cache::open(&engine, folder.path(), CacheOptions::with_quota(1 << 30)).expect("a cache");
    let source = connect(&engine, &mirror.url("full.test")).expect("a source");
    let store = Objects::new(&cache, source);
    for (kind, path, plain) in one_of_each(&repository) {
        let hash = hash_of(&path);
        let wanted =
            ObjectRequest::new(ObjectName { hash, kind }, Compression::Zlib, format!("the test's {path}"));
        // A fetch of its own name, or of another object of the repository, well formed and wrong.
        let faults = [
            Fault::FlipByte(40),
            Fault::Truncate(40),
            Fault::Swap("full.test/.cvmfs_master_replica".to_owned()),
            Fault::Missing,
            Fault::Html,
            Fault::CloseAfter(40),
            Fault::Status(503),
        ];
        let mut messages = BTreeSet::new();
        for fault in &faults {
            let asked = format!("/full.test/{path}");
            let rule = mirror.fault(move |path| path == asked, fault.clone());
            let error = Callback::wait(|done| store.get(wanted.clone(), done)).err();
            let error = error.unwrap_or_else(|| panic!("{fault:?} of {path} was accepted"));
            rule.assert_hit();
            rule.lift();
            let text = error.full_text();
            assert!(text.contains(&path) && text.contains(&hash.to_string()), "{fault:?}: {text}");
            assert!(matches!(error.blame(), Blame::Object | Blame::Host), "{fault:?}: {:?}", error.blame());
            assert!(store.cached(&wanted).is_none(), "{fault:?} of {path} is in the cache");
            messages.insert(text);
        }
        assert_eq!(messages.len(), faults.len(), "every fault has words of its own: {messages:#?}");
        let handle = Callback::wait(|done| store.get(wanted.clone(), done)).expect("well again");
        assert!(handle.read_all().expect("reading") == plain, "{path} has its bytes");
    }
}

#[test]
fn a_decompression_bomb_is_a_complete_stream_of_zeros() {
    let stored = object::bomb(3);
    let plain = object::inflate(&stored);
    assert_eq!(plain.len() as u64, 3 * object::BOMB_UNIT);
    assert!(plain.iter().all(|byte| *byte == 0) && stored.len() < plain.len() / 500);
}
