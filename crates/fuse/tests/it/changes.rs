//! Reported changes of a tree are visible at once, and only changed entries are requested again.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use esker_fuse::KernelMask;
use esker_testkit::memory_tree::{Action, Call, Entry, MemoryTree};
use esker_vfs::Change;

use crate::child::Task;
use crate::mounted::{Mounted, PATIENCE, keep_caches, undisturbed, until};
use crate::{on_all_kernels, sys};

fn tree() -> MemoryTree {
    let tree = MemoryTree::new();
    tree.put("dir", Entry::directory());
    tree.put("dir/sub", Entry::directory());
    tree.put("dir/sub/deep", Entry::file(b"deep"));
    tree.put("dir/same", Entry::file(b"same"));
    tree.put("dir/changes", Entry::file(b"old content"));
    tree.put("dir/goes", Entry::file(b"going"));
    tree.put("dir/link", Entry::symlink(b"same"));
    tree
}

fn names(path: &std::path::Path) -> BTreeSet<String> {
    let entries = fs::read_dir(path).expect("list");
    entries.map(|e| e.expect("entry").file_name().into_string().expect("text")).collect()
}

/// Makes the kernel cache all there is, absence included.
fn warm(mounted: &Mounted) {
    for _ in 0..2 {
        for name in names(&mounted.path("dir")) {
            let path = mounted.path("dir").join(name);
            fs::symlink_metadata(&path).expect("stat");
            if path.is_file() {
                fs::read(&path).expect("read");
            }
        }
        fs::read(mounted.path("dir/sub/deep")).expect("read");
        fs::read_link(mounted.path("dir/link")).expect("readlink");
        assert!(!mounted.path("dir/comes").exists());
        assert!(!mounted.path("dir/never").exists());
    }
}

/// Makes the next revision of the tree, and returns its reported changes.
fn turn(tree: &MemoryTree) -> Vec<Change> {
    tree.put("dir/changes", Entry::file(b"new"));
    tree.put("dir/comes", Entry::file(b"came"));
    tree.remove("dir/goes");
    tree.put("dir/link", Entry::symlink(b"comes"));
    tree.change_attributes("dir/same", |entry| entry.permissions = 0o604);
    let mut changes: Vec<Change> =
        ["changes", "comes", "goes", "link"].iter().map(|n| tree.name_change(&format!("dir/{n}"))).collect();
    changes.push(tree.listing_change("dir"));
    changes.push(Change::Attributes { node: tree.key("dir/same") });
    changes
}

/// Returns the requests after a change; an error if they are more than the changed entries need.
fn only_changes_are_asked(kernel: KernelMask) -> Result<(), String> {
    let mounted = Mounted::new(tree(), kernel);
    warm(&mounted);
    let (same, number) =
        (mounted.path("dir/same"), fs::metadata(mounted.path("dir/same")).expect("stat").ino());
    let changed_number = fs::metadata(mounted.path("dir/changes")).expect("stat").ino();
    let changes = turn(&mounted.tree);
    // Nothing says so yet: the kernel still has the old state.
    assert_eq!(fs::read(mounted.path("dir/changes")).expect("read"), b"old content");
    assert!(!mounted.path("dir/comes").exists());
    let before = mounted.requests("READ");
    mounted.tree.notify(&changes);
    assert_turned(&mounted);
    assert_eq!(fs::metadata(&same).expect("stat").ino(), number, "other attributes, same file");
    assert_ne!(fs::metadata(mounted.path("dir/changes")).expect("stat").ino(), changed_number);
    let asked = mounted.requests("LOOKUP");
    assert_eq!(fs::read(&same).expect("read"), b"same");
    assert_eq!(fs::read(mounted.path("dir/sub/deep")).expect("read"), b"deep");
    assert!(!mounted.path("dir/never").exists());
    let lookups = mounted.requests("LOOKUP") - asked;
    let reads = mounted.requests("READ") - before;
    // The new content of two files, nothing else.
    if (lookups, reads) == (0, 2) {
        Ok(())
    } else {
        Err(format!("{lookups} lookups of what was cached, {reads} reads for two new files"))
    }
}

fn assert_turned(mounted: &Mounted) {
    assert_eq!(fs::read(mounted.path("dir/changes")).expect("read"), b"new");
    assert_eq!(fs::metadata(mounted.path("dir/changes")).expect("stat").len(), 3);
    assert_eq!(fs::read(mounted.path("dir/comes")).expect("read"), b"came");
    assert!(!mounted.path("dir/goes").exists());
    assert_eq!(fs::read(mounted.path("dir/link")).expect("read"), b"came");
    assert_eq!(fs::metadata(mounted.path("dir/same")).expect("stat").mode(), 0o100_604);
    let expected = ["changes", "comes", "link", "same", "sub"].map(String::from);
    assert_eq!(names(&mounted.path("dir")), BTreeSet::from(expected));
}

on_all_kernels! {
    fn changes_are_visible_and_only_changed_entries_are_requested(kernel: KernelMask) {
        undisturbed(|| only_changes_are_asked(kernel));
    }

    /// > V2: A file that is open or mapped keeps the content it was opened with, whatever the revision.
    fn an_open_file_keeps_its_content(kernel: KernelMask) {
        let mounted = Mounted::new(tree(), kernel);
        warm(&mounted);
        let open = File::open(mounted.path("dir/changes")).expect("open");
        let gone = File::open(mounted.path("dir/goes")).expect("open");
        let mapped = sys::Held::new(&open);
        mounted.tree.notify(&turn(&mounted.tree));
        assert_turned(&mounted);
        let mut bytes = [0; 32];
        for _ in 0..2 {
            let read = open.read_at(&mut bytes, 0).expect("read");
            assert_eq!(&bytes[..read], b"old content");
            assert_eq!(open.metadata().expect("fstat").len(), 11);
            assert_eq!(mapped.bytes(), b"old content");
            let read = gone.read_at(&mut bytes, 0).expect("read");
            assert_eq!(&bytes[..read], b"going");
            // Once from the kernel's cache, once from the tree again.
            rustix::fs::fadvise(&open, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
            rustix::fs::fadvise(&gone, 0, None, rustix::fs::Advice::DontNeed).expect("advised");
        }
    }

    fn all_cached_entries_are_invalidated(kernel: KernelMask) {
        let mounted = Mounted::new(tree(), kernel);
        warm(&mounted);
        let open = File::open(mounted.path("dir/changes")).expect("open");
        turn(&mounted.tree);
        mounted.tree.notify(&[Change::Everything]);
        assert_turned(&mounted);
        let mut bytes = [0; 32];
        let read = open.read_at(&mut bytes, 0).expect("read");
        assert_eq!(&bytes[..read], b"old content");
        // Again, from a state that was learnt after the first time.
        mounted.tree.put("dir/never", Entry::file(b"now"));
        mounted.tree.remove("dir/comes");
        mounted.tree.notify(&[Change::Everything]);
        assert_eq!(fs::read(mounted.path("dir/never")).expect("read"), b"now");
        assert!(!mounted.path("dir/comes").exists());
    }

    fn eviction_detects_open_files(kernel: KernelMask) {
        let _caches = keep_caches();
        let mounted = Mounted::new(tree(), kernel);
        warm(&mounted);
        let open = File::open(mounted.path("dir/changes")).expect("open");
        assert!(mounted.tree.is_held("dir/same") && mounted.tree.is_held("dir/changes"));
        mounted.tree.notify(&["same", "changes"].map(|n| mounted.tree.name_change(&format!("dir/{n}"))));
        assert!(until(PATIENCE, || !mounted.tree.is_held("dir/same")), "forgotten, because no program holds it");
        assert!(mounted.tree.is_held("dir/changes"), "kept, because a program holds it");
        drop(open);
        mounted.tree.notify(&[mounted.tree.name_change("dir/changes")]);
        assert!(until(PATIENCE, || !mounted.tree.is_held("dir/changes")));
    }

    fn a_waiting_lookup_does_not_block_a_change(kernel: KernelMask) {
        let mounted = Mounted::new(tree(), kernel);
        warm(&mounted);
        mounted.tree.script().set_times(Call::Lookup, "dir/slow", Action::Park, 1);
        let path = mounted.path("dir/slow");
        let walker = std::thread::spawn(move || fs::metadata(path).map(|m| m.len()));
        assert!(mounted.tree.script().until_parked(Call::Lookup, 1, PATIENCE));
        let mut changes = turn(&mounted.tree);
        mounted.tree.put("dir/slow", Entry::file(b"there now"));
        changes.push(mounted.tree.name_change("dir/slow"));
        let since = Instant::now();
        mounted.tree.notify(&changes);
        let took = since.elapsed();
        assert!(took < Duration::from_secs(2), "told after {took:?}");
        assert_turned_with_slow(&mounted);
        assert_eq!(walker.join().expect("ended").expect("walked again by itself"), 9);
        // The lookup's late answer is of the old state; it is dropped.
        mounted.tree.script().resume(Call::Lookup);
        assert!(mounted.path("dir/slow").exists());
    }

    fn a_waiting_lookup_is_repeated_only_once(kernel: KernelMask) {
        let many = |tree: &MemoryTree| (0..3000).map(|n| tree.name_change(&format!("dir/n{n}"))).collect();
        told_only_once(kernel, many);
        told_only_once(kernel, |_| vec![Change::Everything]);
    }

    fn an_outdated_listing_is_not_cached(kernel: KernelMask) {
        let mounted = Mounted::new(tree(), kernel);
        mounted.tree.script().set_times(Call::List, "dir", Action::Park, 1);
        let path = mounted.path("dir");
        let lister = std::thread::spawn(move || names(&path));
        assert!(mounted.tree.script().until_parked(Call::List, 1, PATIENCE));
        let changes = turn(&mounted.tree);
        let told = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                mounted.tree.notify(&changes);
                told.store(true, Ordering::SeqCst);
            });
            // Other directories don't wait for that listing.
            assert_eq!(fs::read(mounted.path("dir/sub/deep")).expect("read"), b"deep");
            assert!(!told.load(Ordering::SeqCst));
            mounted.tree.script().resume(Call::List);
        });
        assert!(lister.join().expect("ended").contains("goes"), "it lists what it asked for");
        assert_turned(&mounted);
    }

    fn a_killed_reader_does_not_block_a_change(kernel: KernelMask) {
        let tree = tree();
        tree.put("dir/changes", Entry::file(&vec![1; 1 << 20]));
        tree.script().set(Call::Read, "dir/changes", Action::Park);
        let mounted = Mounted::new(tree, kernel);
        let mut task = Task::new("read", &mounted.path("dir/changes"));
        assert!(mounted.tree.script().until_parked(Call::Read, 1, PATIENCE));
        task.kill();
        task.ends_within();
        drop(task);
        mounted.tree.script().clear(Call::Read, "dir/changes");
        mounted.tree.put("dir/changes", Entry::file(b"new"));
        let since = Instant::now();
        mounted.tree.notify(&[mounted.tree.name_change("dir/changes")]);
        assert!(since.elapsed() < Duration::from_secs(2), "told after {:?}", since.elapsed());
        assert_eq!(fs::read(mounted.path("dir/changes")).expect("read"), b"new");
        mounted.tree.script().resume(Call::Read);
    }

    fn changes_under_load_are_never_missed(kernel: KernelMask) {
        let mounted = Mounted::new(tree(), kernel);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while !done.load(Ordering::SeqCst) {
                        let _ = fs::read(mounted.path("dir/changes"));
                        let _ = fs::metadata(mounted.path("dir/comes"));
                        names(&mounted.path("dir"));
                    }
                });
            }
            for round in 0..200_u32 {
                let content = round.to_string();
                mounted.tree.put("dir/changes", Entry::file(content.as_bytes()));
                let there = round % 2 == 0;
                if there {
                    mounted.tree.put("dir/comes", Entry::file(b"x"));
                } else {
                    mounted.tree.remove("dir/comes");
                }
                let names_changed = ["dir/changes", "dir/comes"].map(|n| mounted.tree.name_change(n));
                mounted.tree.notify(&names_changed);
                mounted.tree.notify(&[mounted.tree.listing_change("dir")]);
                assert_eq!(fs::read(mounted.path("dir/changes")).expect("read"), content.as_bytes());
                assert_eq!(mounted.path("dir/comes").exists(), there, "round {round}");
                assert_eq!(names(&mounted.path("dir")).contains("comes"), there, "round {round}");
            }
            done.store(true, Ordering::SeqCst);
        });
    }
}

/// A program looks a slow name up in a directory with many notifications; only the first lookup gets `ESTALE`.
fn told_only_once(kernel: KernelMask, changes: impl FnOnce(&MemoryTree) -> Vec<Change>) {
    let mounted = Mounted::new(tree(), kernel);
    warm(&mounted);
    mounted.tree.put("dir/slow", Entry::file(b"there now"));
    mounted.tree.script().set(Call::Lookup, "dir/slow", Action::Park);
    let path = mounted.path("dir/slow");
    let walker = std::thread::spawn(move || fs::metadata(path).map(|m| m.len()));
    assert!(mounted.tree.script().until_parked(Call::Lookup, 1, PATIENCE));
    let changes = changes(&mounted.tree);
    std::thread::scope(|scope| {
        scope.spawn(|| mounted.tree.notify(&changes));
        assert!(mounted.tree.script().until_parked(Call::Lookup, 2, PATIENCE), "it walks again");
        // Several times what a notification takes to be stuck.
        assert!(!until(Duration::from_millis(300), || walker.is_finished()), "{kernel:?}");
        mounted.tree.script().clear(Call::Lookup, "dir/slow");
        mounted.tree.script().resume(Call::Lookup);
    });
    assert_eq!(walker.join().expect("ended").expect("found"), 9);
}

fn assert_turned_with_slow(mounted: &Mounted) {
    assert_eq!(fs::read(mounted.path("dir/changes")).expect("read"), b"new");
    assert!(names(&mounted.path("dir")).contains("slow"));
}
