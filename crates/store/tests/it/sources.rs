//! What every source does alike, wherever its bytes come from.

use std::fs;
use std::sync::Arc;

use esker_store::{Blame, Callback, Cause, Expected, Fetch, Source, StoreError, Stored, connect};
use esker_testkit::mirror::Mirror;

use crate::rig::{Made, Rig, bytes, engine, noise, zlib};

/// The same folder through each kind of source.
fn with_each(test: impl Fn(&dyn Source, &std::path::Path)) {
    let folder = tempfile::tempdir().unwrap();
    let engine = engine();
    let mirror = Mirror::serve(folder.path());
    for url in [mirror.url(""), format!("file://{}", folder.path().display())] {
        let source: Arc<dyn Source> = connect(&engine, &url).unwrap();
        test(&*source, folder.path());
    }
}

fn fetch(source: &dyn Source, fetch: Fetch) -> Result<Stored, StoreError> {
    Callback::wait(|done| source.fetch(fetch, done))
}

#[test]
fn a_source_returns_the_bytes_of_a_file() {
    with_each(|source, folder| {
        for len in [0, 1, 70_000] {
            let content = noise(1, len);
            fs::write(folder.join("file"), &content).unwrap();
            let stored = fetch(source, Fetch::new("file", "a file", 70_000)).unwrap();
            assert_eq!(stored.len(), content.len() as u64);
            assert_eq!(stored.into_bytes().unwrap(), content);
        }
    });
}

#[test]
fn a_missing_file_is_reported_with_its_location() {
    with_each(|source, _| {
        let error = fetch(source, Fetch::new("no/such", "the thing", 10)).map(|_| ()).unwrap_err();
        assert!(matches!(error.cause(), Cause::Missing { .. }), "{error}");
        assert_eq!((error.blame(), error.may_pass()), (Blame::Host, false));
        assert!(error.to_string().starts_with(&format!("the thing from {}", source.describe())), "{error}");
    });
}

#[test]
fn a_source_returns_no_more_than_the_limit() {
    with_each(|source, folder| {
        fs::write(folder.join("file"), noise(1, 1000)).unwrap();
        assert!(fetch(source, Fetch::new("file", "a file", 1000)).is_ok());
        let error = fetch(source, Fetch::new("file", "a file", 999)).map(|_| ()).unwrap_err();
        assert!(matches!(error.cause(), Cause::TooLarge { limit: 999 }), "{error}");
    });
}

#[test]
fn bytes_with_another_hash_are_rejected() {
    with_each(|source, folder| {
        let object = zlib(&noise(2, 5000));
        let mut damaged = object.stored.clone();
        damaged[100] ^= 1;
        for (content, good) in [(&object.stored, true), (&damaged, false)] {
            fs::write(folder.join("file"), content).unwrap();
            let mut request = Fetch::new("file", "a file", 10_000);
            request.expected = Expected::Hash(object.wanted.name.hash);
            let got = fetch(source, request).map(|_| ());
            match got {
                Ok(()) => assert!(good),
                Err(error) => assert!(!good && matches!(error.cause(), Cause::Corrupt { .. }), "{error}"),
            }
        }
    });
}

/// Damage in a local folder is found like damage on the way.
#[test]
fn a_damaged_local_repository_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let object: Made = zlib(&noise(2, 5000));
    let path = folder.path().join(object.wanted.name.path());
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let rig = Rig::new();
    let store = rig.open(&format!("file://{}", folder.path().display()));
    let flipped: Vec<u8> =
        object.stored.iter().enumerate().map(|(at, byte)| if at == 77 { !byte } else { *byte }).collect();
    for damaged in [flipped, object.stored[..2000].to_vec(), vec![], zlib(b"other").stored] {
        fs::write(&path, damaged).unwrap();
        let error = bytes(&store, &object.wanted).unwrap_err();
        assert!(matches!(error.cause(), Cause::Corrupt { .. }), "{error}");
        assert!(error.to_string().contains("file://"), "{error}");
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    let error = bytes(&store, &object.wanted).unwrap_err();
    assert!(error.full_text().contains("not a regular file"), "{}", error.full_text());
    fs::remove_dir(&path).unwrap();
    fs::write(&path, &object.stored).unwrap();
    assert_eq!(bytes(&store, &object.wanted).unwrap(), object.plain);
}

#[test]
fn invalid_addresses_are_refused_with_a_reason() {
    let engine = engine();
    for (url, reason) in [
        ("https://user@server/repo", "user names"),
        ("ftp://server/repo", "https:// nor file://"),
        ("file://relative/path", "absolute"),
        ("http://server:port/", "port"),
        ("http:///repo", "no server"),
    ] {
        let error = connect(&engine, url).map(|_| ()).unwrap_err();
        assert!(matches!(error.cause(), Cause::BadUrl { .. }), "{error}");
        assert!(error.to_string().contains(reason), "{error}");
        assert_eq!(error.blame(), Blame::Caller);
    }
}
