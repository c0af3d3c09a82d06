//! What stat(2), readlink(2) and getxattr(2) say is what the tree says.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use esker_vfs::memory::{Entry, MemoryTree};
use esker_vfs::{Device, Kind};

use crate::mounted::Mounted;
use crate::on_all_kernels;

fn sample() -> MemoryTree {
    let tree = MemoryTree::new();
    tree.put("bin", Entry::directory().mode(0o751));
    tree.put("bin/tool", Entry::file(b"#!/bin/sh\necho from the mount\n").mode(0o755));
    tree.put("bin/empty", Entry::file(b""));
    tree.put("lib", Entry::directory());
    tree.put("lib/link", Entry::symlink(b"../bin/tool"));
    tree.put("pipe", Entry::special(Kind::Fifo, Device::default()));
    tree.put("null", Entry::special(Kind::CharDevice, Device { major: 1, minor: 3 }));
    tree.put("disk", Entry::special(Kind::BlockDevice, Device { major: 259, minor: 70_000 }));
    tree.put("sock", Entry::special(Kind::Socket, Device::default()));
    tree
}

on_all_kernels! {
    fn stat_says_what_the_tree_says(kernel: KernelMask) {
        let mounted = Mounted::new(sample(), kernel);
        let tool = fs::metadata(mounted.path("bin/tool")).expect("stat");
        assert_eq!(tool.mode(), 0o100_755);
        assert_eq!((tool.size(), tool.nlink(), tool.blocks()), (30, 1, 1));
        assert_eq!((tool.mtime(), tool.mtime_nsec()), (1_600_000_000, 123_456_789));
        let bin = fs::metadata(mounted.path("bin")).expect("stat");
        assert_eq!((bin.mode(), bin.nlink()), (0o40_751, 2));
        let root = fs::metadata(mounted.root()).expect("stat");
        assert_eq!(root.nlink(), 4);
        assert!(fs::symlink_metadata(mounted.path("lib/link")).expect("lstat").is_symlink());
        assert_eq!(fs::read_link(mounted.path("lib/link")).expect("readlink").to_str(), Some("../bin/tool"));
        assert_eq!(fs::metadata(mounted.path("lib/link")).expect("stat").ino(), tool.ino());
        assert!(fs::metadata(mounted.path("pipe")).expect("stat").file_type().is_fifo());
        assert!(fs::metadata(mounted.path("sock")).expect("stat").file_type().is_socket());
        let null = fs::metadata(mounted.path("null")).expect("stat");
        assert!(null.file_type().is_char_device());
        assert_eq!((libc::major(null.rdev()), libc::minor(null.rdev())), (1, 3));
        let disk = fs::metadata(mounted.path("disk")).expect("stat").rdev();
        assert_eq!((libc::major(disk), libc::minor(disk)), (259, 70_000));
    }
}
