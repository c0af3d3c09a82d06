use esker_format::hash::HashAlgorithm;

use super::*;

const NOW: Time = Time { seconds: 1_700_000_000, nanoseconds: 0 };

fn facts(changed: i64) -> Facts {
    let time = Time { seconds: changed, nanoseconds: 7 };
    Facts {
        mode: 0o100_644,
        links: 1,
        uid: 0,
        gid: 0,
        size: 5,
        device: 1,
        inode: 99,
        special: 0,
        mtime: Time { seconds: 1_600_000_000, nanoseconds: 0 },
        ctime: time,
    }
}

fn published(settings: &Settings, facts: &Facts, content: &[u8]) -> Entry {
    Entry {
        name: b"file".to_vec(),
        hash: Some(ContentHash::of(HashAlgorithm::Sha1, content)),
        flags: Flags(Flags::storage(HashAlgorithm::Sha1, settings.compression) | Flags::FILE),
        ..source_entry::of_facts(facts, settings)
    }
}

fn compare(file_index: &FileIndex, now: &Facts, old: Option<Entry>) -> DirectoryPlan {
    compare_on(true, file_index, now, old)
}

fn compare_on(dated: bool, file_index: &FileIndex, now: &Facts, old: Option<Entry>) -> DirectoryPlan {
    let settings = Settings::default();
    let empty = (ContentHash::of(HashAlgorithm::Sha1, b""), Flags(0));
    let (rules, filter) = (Rules::default(), Filter::default());
    let comparison = Comparison { settings: &settings, file_index, rules: &rules, filter: &filter, empty };
    let source = SourceEntry { name: b"file".to_vec(), facts: *now, target: Vec::new(), dated };
    let found = vec![(source, None)];
    let directory = Facts { mode: 0o040_755, ..*now };
    comparison.compare(b"/d", &directory, found, &Grafts::default(), old.into_iter().collect(), NOW).unwrap()
}

fn read(folder: &std::path::Path) -> FileIndex {
    FileIndex::read(std::sync::Arc::new(esker_store::RealDisk::PRIVATE), folder, b"/d")
}

fn remember(folder: &std::path::Path, facts: &Facts, entry: &Entry) -> FileIndex {
    let file_index = read(folder);
    file_index.write(vec![Record::new(PathKey::of(b"/d/file"), facts, entry)]).unwrap();
    read(folder)
}

#[test]
fn files_in_the_index_are_not_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let settled = facts(NOW.seconds - 100);
    let entry = published(&Settings::default(), &settled, b"stored");
    let file_index = remember(folder.path(), &settled, &entry);
    let plan = compare(&file_index, &settled, Some(entry.clone()));
    assert!(plan.reads.is_empty() && plan.puts.is_empty(), "{plan:?}");
    assert_eq!((plan.differences.unchanged.files, plan.records.len()), (1, 1));

    // Its permissions changed: the entry does, the content need not be read.
    let mode = Facts { mode: 0o100_755, ..settled };
    let plan = compare(&file_index, &mode, Some(entry.clone()));
    assert!(plan.reads.is_empty(), "{plan:?}");
    assert_eq!((plan.puts[0].hash, plan.puts[0].mode), (entry.hash, 0o100_755));
}

#[test]
fn files_that_may_have_changed_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let settled = facts(NOW.seconds - 100);
    let entry = published(&Settings::default(), &settled, b"stored");
    let file_index = remember(folder.path(), &settled, &entry);
    let other = published(&Settings::default(), &settled, b"published by another publisher");
    for (now, old) in [
        (facts(NOW.seconds - 99), Some(entry.clone())),
        (Facts { inode: 100, ..settled }, Some(entry.clone())),
        (Facts { size: 6, ..settled }, Some(entry.clone())),
        (Facts { mtime: Time { seconds: 1_600_000_000, nanoseconds: 1 }, ..settled }, Some(entry.clone())),
        (settled, Some(other)),
        (settled, None),
    ] {
        let plan = compare(&file_index, &now, old);
        assert_eq!((plan.reads.len(), plan.waiting.len(), plan.puts.len()), (1, 1, 1), "{now:?}");
    }
    let damaged = folder.path().join("known");
    for file in std::fs::read_dir(&damaged).unwrap() {
        let path = file.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[40] ^= 1;
        std::fs::write(path, bytes).unwrap();
    }
    let plan = compare(&read(folder.path()), &settled, Some(entry));
    assert_eq!(plan.reads.len(), 1);
}

/// A file that could change again with the same times is not remembered.
#[test]
fn recently_changed_files_are_read_again() {
    let folder = tempfile::tempdir().unwrap();
    let file_index = read(folder.path());
    for (age, settled) in [(-10, false), (0, false), (2, false), (3, true), (1000, true)] {
        let plan = compare(&file_index, &facts(NOW.seconds - age), None);
        assert_eq!(plan.waiting[0].3, settled, "{age} s old");
    }
}

#[test]
fn all_files_are_read_where_ctimes_are_unreliable() {
    let folder = tempfile::tempdir().unwrap();
    let settled = facts(NOW.seconds - 100);
    let entry = published(&Settings::default(), &settled, b"stored");
    let file_index = remember(folder.path(), &settled, &entry);
    let plan = compare_on(false, &file_index, &settled, Some(entry));
    assert_eq!((plan.reads.len(), plan.records.len()), (1, 0));
    assert!(!plan.waiting[0].3, "nor is anything remembered");
}
