//! Directories: names, order, positions.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirEntryExt, MetadataExt};

use esker_testkit::memory_tree::{Call, Entry, MemoryTree};
use rustix::fs::{Dir, Mode, OFlags};

use crate::mounted::{Mounted, keep_caches};
use crate::on_all_kernels;

fn many(count: usize) -> MemoryTree {
    let tree = MemoryTree::new();
    tree.put("dir", Entry::directory());
    for i in 0..count {
        tree.put(&format!("dir/name-{i}"), Entry::file(b""));
    }
    tree
}

fn open(path: &std::path::Path) -> Dir {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let file = rustix::fs::open(path, flags, Mode::empty()).expect("open");
    Dir::new(file).expect("a directory")
}

on_all_kernels! {
    fn listings_return_the_names_of_the_tree(kernel: KernelMask) {
        let tree = MemoryTree::new();
        tree.put("dir", Entry::directory());
        tree.put("dir/.hidden", Entry::file(b""));
        tree.put("dir/file", Entry::file(b""));
        tree.put("dir/sub", Entry::directory());
        tree.put("dir/link", Entry::symlink(b"file"));
        tree.put("dir/\u{fc}ber lang", Entry::file(b""));
        let mounted = Mounted::new(tree, kernel);
        let names: BTreeSet<OsString> =
            fs::read_dir(mounted.path("dir")).expect("list").map(|e| e.expect("entry").file_name()).collect();
        let expected = [".hidden", "file", "link", "sub", "\u{fc}ber lang"].map(OsString::from);
        assert_eq!(names, BTreeSet::from(expected));
        for entry in fs::read_dir(mounted.path("dir")).expect("list") {
            let entry = entry.expect("entry");
            let metadata = fs::symlink_metadata(entry.path()).expect("stat");
            assert_eq!(entry.ino(), metadata.ino());
            assert_eq!(entry.file_type().expect("type"), metadata.file_type());
        }
    }

    fn dots_carry_the_numbers_of_the_directories(kernel: KernelMask) {
        let mounted = Mounted::new(many(3), kernel);
        let number = |name: &[u8]| {
            let entries = open(&mounted.path("dir")).map(|e| e.expect("entry"));
            entries.into_iter().find(|e| e.file_name().to_bytes() == name).expect("there").ino()
        };
        assert_eq!(number(b"."), fs::metadata(mounted.path("dir")).expect("stat").ino());
        assert_eq!(number(b".."), fs::metadata(mounted.root()).expect("stat").ino());
        let up = fs::canonicalize(mounted.path("dir/..")).expect("walked");
        assert_eq!(up, fs::canonicalize(mounted.root()).expect("walked"));
    }

    /// > R5: A listing has `.`, `..` and every name once, in the same order each time, and can be resumed
    /// at any position it gave out.
    fn seekdir_returns_to_the_position_of_telldir(kernel: KernelMask) {
        let mounted = Mounted::new(many(3000), kernel);
        let mut dir = open(&mounted.path("dir"));
        let mut order = Vec::new();
        for entry in dir.by_ref() {
            let entry = entry.expect("entry");
            order.push((entry.offset(), entry.file_name().to_owned()));
        }
        assert_eq!(order.len(), 3002);
        // Once while nothing is cached for this position, once more when everything may be.
        for step in [7, 501, 3001, 0, 1, 2, 1500] {
            let (offset, _) = order[step];
            dir.seek(offset).expect("seek");
            let next = dir.next().map(|e| e.expect("entry").file_name().to_owned());
            assert_eq!(next.as_ref(), order.get(step + 1).map(|(_, name)| name), "after {step}");
        }
        dir.rewind();
        assert_eq!(dir.next().expect("first").expect("entry").file_name().to_bytes(), b".");
    }

    fn listing_time_grows_linearly_to_a_hundred_thousand_names(kernel: KernelMask) {
        let mounted = Mounted::new(many(100_000), kernel);
        let names: BTreeSet<Vec<u8>> = fs::read_dir(mounted.path("dir"))
            .expect("list")
            .map(|e| e.expect("entry").file_name().as_bytes().to_vec())
            .collect();
        assert_eq!(names.len(), 100_000);
        let asked = mounted.tree.script().calls(Call::List, "dir");
        // A name takes some 40 bytes, an answer one page or more; what a name costs does not depend on
        // where it is, because each answer goes on where the last one ended.
        let most = 100_000 * 48 / 4096 + 64;
        assert!(asked <= most, "{asked} calls for 100,000 names");
    }

    fn listings_hold_only_the_returned_nodes(kernel: KernelMask) {
        let _caches = keep_caches();
        let mounted = Mounted::new(many(1000), kernel);
        let mut dir = open(&mounted.path("dir"));
        assert!(dir.next().is_some());
        let names = mounted.session.counters().nodes;
        let most = 3 + 1000;
        assert!(names <= most, "{names} nodes");
        assert_eq!(names, mounted.tree.held() as u64);
    }
}
