use std::collections::BTreeMap;
use std::fs;

use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::ObjectKind;
use esker_testkit::skip;

use super::*;

fn name_of(bytes: &[u8], kind: ObjectKind) -> ObjectName {
    ObjectName::new(ContentHash::of(HashAlgorithm::Rmd160, bytes), kind)
}

fn sink() -> (tempfile::TempDir, LocalSink) {
    let folder = tempfile::tempdir().unwrap();
    let sink = LocalSink::open(folder.path().join("repository"));
    sink.make_folders().unwrap();
    (folder, sink)
}

fn listed(sink: &dyn Sink) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    sink.list(&mut |name, len| {
        found.insert(name.to_string(), len);
    })
    .unwrap();
    found
}

/// The promises of every sink.
fn keeps_its_promises(sink: &dyn Sink) {
    let objects: Vec<(ObjectName, Vec<u8>)> = (0..100u8)
        .map(|number| {
            let kind = if number % 2 == 0 { ObjectKind::File } else { ObjectKind::Chunk };
            let bytes = vec![number; usize::from(number)];
            (name_of(&bytes, kind), bytes)
        })
        .collect();
    for (name, bytes) in &objects {
        assert!(!sink.has(name, bytes.len() as u64).unwrap());
        assert_eq!(sink.put(name, bytes).unwrap(), Put::Stored);
        assert_eq!(sink.put(name, bytes).unwrap(), Put::Present, "while it is on its way");
        assert!(sink.has(name, bytes.len() as u64).unwrap());
    }
    sink.flush().unwrap();
    sink.flush().unwrap();
    for (name, bytes) in &objects {
        assert_eq!(sink.put(name, bytes).unwrap(), Put::Present);
        assert_eq!(sink.read(&name.path(), 1000).unwrap().as_deref(), Some(&bytes[..]));
    }
    let expected: BTreeMap<_, _> =
        objects.iter().map(|(name, bytes)| (name.to_string(), bytes.len() as u64)).collect();
    assert_eq!(listed(sink), expected);

    assert_eq!(sink.read(".cvmfspublished", 10).unwrap(), None);
    for content in [&b"first"[..], b"second head"] {
        sink.put_root(".cvmfspublished", content).unwrap();
        assert_eq!(sink.read(".cvmfspublished", 11).unwrap().as_deref(), Some(content));
    }
    let error = sink.read(".cvmfspublished", 10).unwrap_err();
    assert!(matches!(error.cause(), Cause::TooLarge { limit: 10 }), "{error}");
}

#[test]
fn a_folder_keeps_the_promises_of_a_sink() {
    let (_folder, sink) = sink();
    keeps_its_promises(&sink);
    let name = name_of(b"\x05\x05\x05\x05\x05", ObjectKind::Chunk);
    sink.put_alternative(&name).unwrap();
    sink.put_alternative(&name).unwrap();
    assert_eq!(fs::read(sink.root().join(name.alternative_path())).unwrap(), [5; 5]);
}

#[test]
fn objects_are_invisible_before_a_flush() {
    let (_folder, sink) = sink();
    let name = name_of(b"object", ObjectKind::Catalog);
    sink.put(&name, b"object").unwrap();
    assert!(!sink.root().join(name.path()).exists() && listed(&sink).is_empty());
    sink.flush().unwrap();
    assert_eq!(fs::read(sink.root().join(name.path())).unwrap(), b"object");
}

#[test]
fn a_lock_admits_one_publisher_and_removes_leftovers() {
    let (_folder, sink) = sink();
    sink.put(&name_of(b"lost", ObjectKind::File), b"lost").unwrap();
    let other = LocalSink::open(sink.root());
    let held = other.lock().unwrap();
    let left: Vec<_> =
        fs::read_dir(sink.root().join("data/txn")).unwrap().map(|file| file.unwrap().file_name()).collect();
    assert_eq!(left, [LOCK], "what an interrupted publisher left is gone");
    let me = std::process::id();
    assert!(matches!(sink.lock().unwrap(), Locking::Held(holder) if holder.pid == Some(me)));
    drop(held);
    assert!(matches!(sink.lock().unwrap(), Locking::Taken(_)));
}

#[test]
fn objects_of_a_wrong_length_are_replaced() {
    let (_folder, sink) = sink();
    let name = name_of(b"whole", ObjectKind::File);
    fs::write(sink.root().join(name.path()), b"who").unwrap();
    assert!(!sink.has(&name, 5).unwrap());
    assert_eq!(sink.put(&name, b"whole").unwrap(), Put::Stored);
    assert!(sink.has(&name, 5).unwrap(), "it is on its way");
    sink.flush().unwrap();
    assert_eq!(sink.read(&name.path(), 10).unwrap().as_deref(), Some(&b"whole"[..]));
    assert!(sink.has(&name, 5).unwrap());
}

/// An owner of a repository could otherwise make root write to any folder.
#[test]
fn root_writes_through_no_link_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        skip!("only root can make links of other users");
    }
    for place in ["data/txn", "data/7f", ".esker"] {
        let (folder, sink) = sink();
        let path = sink.root().join(place);
        let _ = fs::remove_dir(&path);
        std::os::unix::fs::symlink(folder.path(), &path).unwrap();
        assert!(sink.lock().is_ok(), "a link of root's");
        std::os::unix::fs::lchown(&path, Some(61_004), None).unwrap();
        let error = sink.lock().unwrap_err();
        assert!(error.full_text().contains("another user"), "{}", error.full_text());
    }
}

/// An object of the right length may have wrong bytes.
#[test]
fn objects_with_wrong_bytes_are_replaced() {
    let (_folder, sink) = sink();
    let name = name_of(b"whole", ObjectKind::File);
    let path = sink.root().join(name.path());
    fs::write(&path, b"other").unwrap();
    assert!(!sink.has(&name, 5).unwrap());
    assert_eq!(sink.put(&name, b"whole").unwrap(), Put::Stored);
    sink.flush().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"whole");
    // Objects that this process wrote are not read again; another process reads them once.
    assert!(sink.has(&name, 5).unwrap());
    let other = LocalSink::open(sink.root());
    assert!(other.has(&name, 5).unwrap());
    assert_eq!(other.put(&name, b"whole").unwrap(), Put::Present);
}

/// After objects were lost in transit, a later publish must not rely on them.
#[test]
fn no_write_succeeds_after_a_lost_batch() {
    let (_folder, sink) = sink();
    let (lost, later) = (name_of(b"lost", ObjectKind::File), name_of(b"later", ObjectKind::File));
    sink.put(&lost, b"lost").unwrap();
    fs::remove_file(sink.root().join("data/txn/esker-1")).unwrap();
    assert!(sink.flush().is_err());
    assert!(sink.flush().is_err());
    assert!(sink.put(&later, b"later").is_err());
    assert!(!sink.has(&lost, 4).unwrap());
}
