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
    sink.list(&mut |listed| {
        found.insert(listed.name.to_string(), listed.len);
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

fn in_transit(sink: &LocalSink) -> Vec<std::path::PathBuf> {
    let found = fs::read_dir(sink.root().join("data/txn")).unwrap().map(|file| file.unwrap().path());
    found.filter(|path| path.is_dir()).collect()
}

#[test]
fn a_second_publisher_does_not_get_the_lock() {
    let (_folder, sink) = sink();
    let other = LocalSink::open(sink.root());
    let held = other.lock().unwrap();
    let me = std::process::id();
    assert!(matches!(sink.lock().unwrap(), Locking::Held(holder) if holder.pid == Some(me)));
    drop(held);
    assert!(matches!(sink.lock().unwrap(), Locking::Taken(_)));
}

#[test]
fn leftovers_of_a_dead_process_are_removed_and_those_of_a_live_one_stay() {
    let (_folder, sink) = sink();
    sink.put(&name_of(b"object", ObjectKind::File), b"object").unwrap();
    let [live] = &in_transit(&sink)[..] else { panic!("one folder") };
    // A process that ended keeps no lock, and perhaps did not even make the file.
    let dead = ["esker-1-0123456789abcdef", "esker-2-0123456789abcdef"].map(|name| live.with_file_name(name));
    dead.iter().for_each(|folder| fs::create_dir(folder).unwrap());
    fs::write(dead[0].join("1"), b"lost").unwrap();
    fs::write(dead[0].join("lock"), b"1").unwrap();
    let old = live.with_file_name("esker-3");
    fs::write(&old, b"of an earlier version").unwrap();
    let other = LocalSink::open(sink.root());
    other.prepare().unwrap();
    assert_eq!(in_transit(&sink), std::slice::from_ref(live));
    assert!(old.exists(), "an earlier version may be running");
    drop(other.lock().unwrap());
    assert!(!old.exists());
    sink.flush().unwrap();
    assert!(sink.has(&name_of(b"object", ObjectKind::File), 6).unwrap());
    drop(sink);
    assert!(!live.exists(), "a process that ends removes its folder");
}

#[test]
fn processes_that_make_and_remove_folders_at_once_keep_their_objects() {
    let (_folder, sink) = sink();
    let work = |number: usize| {
        for round in 0..50 {
            let own = LocalSink::open(sink.root());
            let bytes = format!("{number} {round}");
            let name = name_of(bytes.as_bytes(), ObjectKind::File);
            own.prepare().unwrap();
            own.put(&name, bytes.as_bytes()).unwrap();
            own.prepare().unwrap();
            own.flush().unwrap();
            assert_eq!(own.read(&name.path(), 100).unwrap().as_deref(), Some(bytes.as_bytes()));
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|number| drop(scope.spawn(move || work(number)))));
    assert!(in_transit(&sink).is_empty());
}

#[test]
fn a_root_file_is_replaced_only_if_it_has_the_expected_content() {
    let (_folder, sink) = sink();
    let swap = |bytes: &[u8], expected: Option<&[u8]>| sink.replace_root("head", bytes, expected).unwrap();
    assert_eq!(swap(b"first", Some(b"none")), Swap::Moved);
    assert_eq!(sink.read("head", 10).unwrap(), None);
    assert_eq!(swap(b"first", None), Swap::Replaced);
    assert_eq!(swap(b"second", None), Swap::Moved);
    assert_eq!(swap(b"second", Some(b"other")), Swap::Moved);
    assert_eq!(sink.read("head", 10).unwrap().as_deref(), Some(&b"first"[..]));
    assert_eq!(swap(b"second", Some(b"first")), Swap::Replaced);
    assert_eq!(sink.read("head", 10).unwrap().as_deref(), Some(&b"second"[..]));
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
    fs::remove_file(in_transit(&sink)[0].join("1")).unwrap();
    assert!(sink.flush().is_err());
    assert!(sink.flush().is_err());
    assert!(sink.put(&later, b"later").is_err());
    assert!(!sink.has(&lost, 4).unwrap());
}
