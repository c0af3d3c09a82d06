//! What was read once costs nothing the second time.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;

use esker_fuse::KernelMask;
use esker_testkit::memory_tree::{Entry, MemoryTree};

use crate::mounted::{Mounted, undisturbed};
use crate::{on_all_kernels, sys};

fn software() -> MemoryTree {
    let tree = MemoryTree::new();
    tree.put("bin", Entry::directory());
    tree.put("bin/run", Entry::file(b"#!/bin/sh\nexit 0\n").mode(0o755));
    tree.put("lib", Entry::directory());
    for i in 0..40 {
        tree.put(&format!("lib/module{i}.py"), Entry::file(&vec![i; 5000 * usize::from(i)]));
        tree.put(&format!("lib/link{i}"), Entry::symlink(format!("module{i}.py").as_bytes()));
    }
    tree.put("lib/deep", Entry::directory());
    tree.put("lib/deep/er", Entry::directory());
    tree.put("lib/deep/er/data", Entry::file(&vec![1; 3 << 20]));
    tree
}

/// Lists everything; stats, opens, reads and maps every file; follows links; asks for what is not there;
/// runs a script.
fn pass(root: &Path) {
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("list") {
            let path = entry.expect("entry").path();
            let metadata = fs::symlink_metadata(&path).expect("lstat");
            if metadata.is_dir() {
                folders.push(path);
                continue;
            }
            if metadata.is_symlink() {
                fs::read_link(&path).expect("readlink");
            }
            let file = File::open(&path).expect("open");
            assert_eq!(file.metadata().expect("fstat").len(), fs::read(&path).expect("read").len() as u64);
            if file.metadata().expect("fstat").len() > 0 {
                sys::read_mapped(&file);
            }
            assert!(rustix::termios::tcgetattr(file.as_fd()).is_err(), "not a terminal");
        }
        assert!(!folder.join("not-there").exists());
        rustix::fs::access(&folder, rustix::fs::Access::READ_OK).expect("access");
    }
    assert!(Command::new(root.join("bin/run")).status().expect("started").success());
}

fn counts(mounted: &Mounted) -> BTreeMap<&'static str, u64> {
    mounted.session.counters().opcodes.iter().map(|o| (o.name, o.requests)).collect()
}

/// Returns the requests of a second pass over a fresh mount; an error if there are more than allowed.
fn second_pass(kernel: KernelMask) -> Result<BTreeMap<&'static str, u64>, String> {
    let mounted = Mounted::new(software(), kernel);
    pass(mounted.root());
    let cold = counts(&mounted);
    for name in ["LOOKUP", "READ", "READLINK", "READDIRPLUS"] {
        assert!(cold.get(name).is_some_and(|&n| n > 0), "the first pass asks {name}: {cold:?}");
    }
    pass(mounted.root());
    let more = |(name, count): (_, u64)| (name, count - cold.get(name).copied().unwrap_or(0));
    let hot: BTreeMap<_, _> = counts(&mounted).into_iter().map(more).filter(|(_, more)| *more > 0).collect();
    let may = |name: &&str| always_requested(kernel).contains(name) || ["IOCTL", "GETXATTR"].contains(name);
    if hot.keys().all(may) { Ok(hot) } else { Err(format!("a second pass asked {hot:?}")) }
}

/// What may still be asked on the second pass: what no kernel of that age can keep.
fn always_requested(kernel: KernelMask) -> &'static [&'static str] {
    match kernel {
        // Linux 4.18 keeps neither listings nor targets of links, and can't be told to do without OPENDIR.
        KernelMask::LINUX_4_18 => &["OPENDIR", "READDIR", "READDIRPLUS", "READLINK", "RELEASEDIR"],
        _ => &[],
    }
}

on_all_kernels! {
    /// > P1: A second pass over files the kernel knows costs no open, lookup, attribute, listing, read,
    /// readlink, flush, release or access upcall.
    fn a_second_pass_causes_no_request(kernel: KernelMask) {
        let hot = undisturbed(|| second_pass(kernel));
        println!("second pass: {hot:?}");
        if kernel == KernelMask::LINUX_4_18 {
            // The list is exact, so that it doesn't grow unseen and isn't longer than it must be.
            for names in [&["OPENDIR"][..], &["READDIR", "READDIRPLUS"], &["READLINK"], &["RELEASEDIR"]] {
                let asked = names.iter().any(|name| hot.contains_key(name));
                assert!(asked, "{names:?} is allowed but was not asked: {hot:?}");
            }
        }
        assert!(hot.contains_key("IOCTL"), "ioctl always reaches us: {hot:?}");
    }

    fn open_is_requested_until_answered_and_close_never(kernel: KernelMask) {
        let mounted = Mounted::new(software(), kernel);
        let opens = || mounted.requests("OPEN");
        // A program that opens files at the same moment sends requests, too: other programs on this machine may look at new mounts.
        assert!(File::open(mounted.path("bin/run")).is_ok());
        let asked = opens();
        assert!((1..10).contains(&asked));
        pass(mounted.root());
        assert_eq!(opens(), asked);
        assert!(mounted.requests("FLUSH") < 10);
        assert_eq!(mounted.requests("RELEASE"), 0);
        assert_eq!(mounted.requests("ACCESS"), 0);
        if kernel != KernelMask::LINUX_4_18 {
            assert!(mounted.requests("OPENDIR") < 10);
            assert_eq!(mounted.requests("RELEASEDIR"), 0);
        }
    }
}
