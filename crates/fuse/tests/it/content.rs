//! The bytes of files: pieces of all kinds at any offset, mapped, executed.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::sync::Arc;

use esker_testkit::memory_tree::{Entry, MemoryTree};
use esker_vfs::{Data, Segment};

use crate::mounted::Mounted;
use crate::{on_all_kernels, sys};

/// Bytes that differ from place to place.
fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32).map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 24) as u8).collect()
}

/// A file of pieces of every kind, none of them ending at a page, and what it reads as.
fn pieced() -> (Entry, Vec<u8>) {
    let mut local = tempfile::tempfile().expect("a file");
    let on_disk = pattern(3_000_001, 1);
    local.write_all(&on_disk).expect("written");
    let in_memory = pattern(150_003, 2);
    let file: Arc<File> = Arc::new(local);
    let (front, back) = (1_234_567, on_disk.len() - 1_234_567);
    let pieces = vec![
        Segment::File { file: Arc::clone(&file) as _, offset: 0, len: front },
        Segment::Zeros(400_007),
        Segment::Bytes { bytes: in_memory.clone().into(), start: 3, len: in_memory.len() - 3 },
        Segment::File { file, offset: front as u64, len: back },
        Segment::Zeros(11),
    ];
    let mut whole = on_disk[..front].to_vec();
    whole.resize(whole.len() + 400_007, 0);
    whole.extend_from_slice(&in_memory[3..]);
    whole.extend_from_slice(&on_disk[front..]);
    whole.resize(whole.len() + 11, 0);
    (Entry::pieces(pieces), whole)
}

on_all_kernels! {
    fn reads_of_any_range_return_the_content(kernel: KernelMask) {
        let tree = MemoryTree::new();
        let (entry, whole) = pieced();
        tree.put("file", entry);
        let mounted = Mounted::new(tree, kernel);
        let file = File::open(mounted.path("file")).expect("open");
        let mut at = 7_usize;
        for round in 0..200_usize {
            at = (at * 48_271 + round) % whole.len();
            let len = (round * 7919) % 300_000;
            let mut buffer = vec![0xAA; len];
            let read = file.read_at(&mut buffer, at as u64).expect("read");
            assert_eq!(read, len.min(whole.len() - at), "at {at} for {len}");
            assert_eq!(buffer[..read], whole[at..at + read], "at {at} for {len}");
        }
        assert_eq!(file.read_at(&mut [0; 8], whole.len() as u64).expect("read at the end"), 0);
        assert!(fs::read(mounted.path("file")).expect("read") == whole);
    }

    fn a_mapping_returns_the_content(kernel: KernelMask) {
        let tree = MemoryTree::new();
        let (entry, whole) = pieced();
        tree.put("file", entry);
        let mounted = Mounted::new(tree, kernel);
        let file = File::open(mounted.path("file")).expect("open");
        assert!(sys::read_mapped(&file) == whole);
    }

    fn a_reply_of_many_pieces_is_delivered(kernel: KernelMask) {
        let tree = MemoryTree::new();
        let bytes: Arc<[u8]> = pattern(65_536, 3).into();
        let piece = |start| Segment::Bytes { bytes: Arc::clone(&bytes), start, len: 16 };
        tree.put("file", Entry::pieces((0..4096).map(|i| piece(i * 16)).collect()));
        let mounted = Mounted::new(tree, kernel);
        assert!(fs::read(mounted.path("file")).expect("read") == *bytes);
    }

    fn a_program_runs_from_the_mount(kernel: KernelMask) {
        let tree = MemoryTree::new();
        tree.put("script", Entry::file(b"#!/bin/sh\necho \"$0\"\nexit 7\n").mode(0o755));
        let program = fs::read("/bin/true").expect("a program");
        tree.put("true", Entry::file(&program).mode(0o755));
        tree.put("secret", Entry::file(&program));
        let mounted = Mounted::new(tree, kernel);
        assert!(Command::new(mounted.path("true")).status().expect("started").success());
        let output = Command::new(mounted.path("script")).output().expect("started");
        assert_eq!(output.status.code(), Some(7));
        assert_eq!(output.stdout.trim_ascii_end(), mounted.path("script").as_os_str().as_encoded_bytes());
        let refused = Command::new(mounted.path("secret")).status().expect_err("not executable");
        assert_eq!(refused.raw_os_error(), Some(libc::EACCES));
    }

    fn an_unreadable_segment_is_requested_again_once(kernel: KernelMask) {
        let tree = MemoryTree::new();
        let file = Arc::new(tempfile::tempfile().expect("a file"));
        tree.put("file", Entry::pieces(vec![Segment::File { file: file as _, offset: 0, len: 10 }]));
        let bytes: Arc<[u8]> = pattern(10, 4).into();
        tree.set_replacement("file", Data(vec![Segment::Bytes { bytes: Arc::clone(&bytes), start: 0, len: 10 }]));
        let mounted = Mounted::new(tree, kernel);
        assert!(fs::read(mounted.path("file")).expect("read") == *bytes);
        assert!(mounted.tree.failures().is_empty());
    }

    fn a_local_file_that_is_too_short_is_an_error(kernel: KernelMask) {
        let tree = MemoryTree::new();
        let file = Arc::new(tempfile::tempfile().expect("a file"));
        tree.put("file", Entry::pieces(vec![Segment::File { file: file as _, offset: 0, len: 10 }]));
        let mounted = Mounted::new(tree, kernel);
        let error = fs::read(mounted.path("file")).expect_err("nothing there");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
        assert!(mounted.tree.failures().iter().any(|(path, kind, caller)| {
            path == "file" && *kind == esker_vfs::ErrorKind::Local && caller.is_some()
        }));
    }
}
