//! What stat(2), readlink(2) and getxattr(2) say is what the tree says.

use std::fs;
use std::io::ErrorKind as Io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use esker_testkit::memory_tree::{Entry, MemoryTree};
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
    fn stat_returns_the_attributes_of_the_tree(kernel: KernelMask) {
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

    fn extended_attributes_are_read_with_their_sizes(kernel: KernelMask) {
        let tree = sample();
        let marked = Entry::file(b"x").xattr("user.colour", b"blue").xattr("user.empty", b"");
        tree.put("marked", marked.xattr("trusted.secret", b"x"));
        let mounted = Mounted::new(tree, kernel);
        let path = mounted.path("marked");
        let get = |name: &str, room: usize| {
            let mut value = vec![0; room];
            rustix::fs::getxattr(&path, name, value.as_mut_slice()).map(|n| (n, value))
        };
        let (size, value) = get("user.colour", 10).expect("a value");
        assert_eq!(&value[..size], b"blue");
        assert_eq!(rustix::fs::getxattr_query(&path, "user.colour"), Ok(4));
        assert_eq!(get("user.colour", 3).expect_err("too little room"), rustix::io::Errno::RANGE);
        assert_eq!(rustix::fs::getxattr_query(&path, "user.empty"), Ok(0));
        assert_eq!(get("user.none", 9).expect_err("no such"), rustix::io::Errno::NODATA);
        // Only a user whom the kernel lets read the attribute sees that it exists.
        let secret = if get("trusted.secret", 9).is_ok() { "trusted.secret\0" } else { "" };
        let mut names = [0; 64];
        let size = rustix::fs::listxattr(&path, &mut names[..]).expect("names");
        assert_eq!(names[..size], *format!("{secret}user.colour\0user.empty\0").as_bytes());
        assert_eq!(rustix::fs::listxattr_query(&path), Ok(size));
        assert_eq!(rustix::fs::listxattr(&path, &mut names[..5]), Err(rustix::io::Errno::RANGE));
    }

    /// > R8: A mount is read-only: every attempt to change it fails with EROFS, also for root.
    fn every_write_is_refused(kernel: KernelMask) {
        let tree = sample();
        // Permissions would allow it.
        for path in ["", "bin", "bin/tool"] {
            tree.change_attributes(path, |entry| entry.permissions = 0o777);
        }
        let mounted = Mounted::new(tree, kernel);
        let read_only = |r: std::io::Result<()>| r.expect_err("read-only").kind() == Io::ReadOnlyFilesystem;
        assert!(read_only(fs::write(mounted.path("new"), b"")));
        assert!(read_only(fs::write(mounted.path("bin/tool"), b"")));
        assert!(read_only(fs::remove_file(mounted.path("bin/tool"))));
        assert!(read_only(fs::create_dir(mounted.path("dir"))));
        assert!(read_only(fs::rename(mounted.path("bin"), mounted.path("nib"))));
        assert!(read_only(std::os::unix::fs::symlink("x", mounted.path("y"))));
        let missing = fs::metadata(mounted.path("none")).expect_err("not there");
        assert_eq!(missing.kind(), Io::NotFound);
        let long = fs::metadata(mounted.path(&"n".repeat(256))).expect_err("too long");
        assert_eq!(long.raw_os_error(), Some(libc::ENAMETOOLONG));
        assert_eq!(fs::read(mounted.path("bin")).expect_err("a directory").kind(), Io::IsADirectory);
        assert_eq!(fs::read_link(mounted.path("bin")).expect_err("no link").kind(), Io::InvalidInput);
    }

    fn statfs_returns_the_numbers_of_the_tree(kernel: KernelMask) {
        let mounted = Mounted::new(sample(), kernel);
        let sizes = rustix::fs::statvfs(mounted.root()).expect("statvfs");
        assert_eq!(sizes.f_blocks * sizes.f_frsize, 1 << 30);
        assert_eq!((sizes.f_bfree, sizes.f_bavail), (sizes.f_blocks / 2, sizes.f_blocks / 2));
        assert_eq!((sizes.f_files, sizes.f_ffree, sizes.f_namemax), (10, 3, 255));
        let flags = rustix::fs::StatVfsMountFlags::RDONLY
            | rustix::fs::StatVfsMountFlags::NOSUID
            | rustix::fs::StatVfsMountFlags::NODEV
            | rustix::fs::StatVfsMountFlags::NOATIME;
        assert!(sizes.f_flag.contains(flags), "{:?}", sizes.f_flag);
    }
}
