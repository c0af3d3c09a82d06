//! Trees that never change, presented by the kernel's EROFS. Only root may mount file systems other than FUSE for all
//! users.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use esker_testkit::fixture;
use esker_testkit::mirror::Fault;
use esker_testkit::skip;
use esker_testkit::sys::Mapped;
use esker_testkit::tree_scan::{differences, scan_tree};
use rustix::process::Signal;

use crate::daemons::{signal, wait_until_gone};
use crate::test_env::{TestEnv, mountinfo, words};
use crate::test_user::TestUser;

const EROFS: [&str; 3] = ["--fixed", "--show-with", "erofs"];

/// > S1: A fixed revision or an image that EROFS shows (`--show-with erofs`, by root) has the same names, attributes, contents, owners and numbers of inodes whenever it is mounted.
#[test]
fn a_revision_is_shown_exactly() {
    let Some(root) = TestUser::root() else { skip!("only root mounts EROFS") };
    for fixture in fixture::ALL {
        let world = TestEnv::new(root, fixture);
        let mut numbers = Vec::new();
        for turn in 0..2 {
            let mounted = world.mount(&EROFS);
            assert_eq!(mounted.status()["shown_with"], "erofs");
            if turn == 1 {
                // Begun elsewhere, and not from the top.
                for found in fs::read_dir(mounted.path("")).expect("a listing").flatten() {
                    let _ = fs::read_dir(found.path()).map(Iterator::count);
                }
            }
            let found = scan_tree(&mounted.path(""));
            let complaints = differences(&fixture.listing("v3"), &found, root.ownership());
            assert!(complaints.is_empty(), "{}:\n  {}", fixture.name(), complaints.join("\n  "));
            numbers.push(found.iter().map(|found| found.ino).collect::<Vec<_>>());
        }
        assert_eq!(numbers[0], numbers[1], "{}", fixture.name());
        assert!(!world.is_mounted());
    }
}

#[test]
fn the_source_of_a_mount_is_its_argument() {
    let Some(root) = TestUser::root() else { skip!("only root mounts EROFS") };
    let world = TestEnv::new(root, fixture::RMD);
    let _mounted = world.mount(&EROFS);
    let lines = mountinfo();
    let line = lines.lines().find(|line| line.contains(&world.url())).expect("it is mounted");
    assert!(line.contains(&format!(" - erofs esker+{} ro", world.url())), "{line}");
}

/// > S2: What EROFS was told stays readable when the daemon is gone, every other read fails with EIO and every other name with ENOTCONN, or EIO in a directory that was looked at, and `esker umount` takes it away.
#[test]
fn known_names_stay_readable_after_the_daemon_ends() {
    let Some(root) = TestUser::root() else { skip!("only root mounts EROFS") };
    let world = TestEnv::new(root, fixture::FULL);
    // A prefetch might look up names before the end.
    let mounted = world.mount(&[&EROFS[..], &["--no-prefetch", "--no-supervisor"]].concat());
    let known = fs::read(mounted.path("data/exactly64k")).expect("reading");
    let mut open = fs::File::open(mounted.path("data/random.bin")).expect("opening");
    let pid = u32::try_from(mounted.status()["pid"].as_u64().expect("a number")).expect("fits");
    signal(pid, Signal::KILL);
    wait_until_gone(pid);
    assert_eq!(fs::read(mounted.path("data/exactly64k")).expect("it is known"), known);
    let error = open.read_to_end(&mut Vec::new()).expect_err("not all of it is known");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let error = fs::read(mounted.path("nested/f0")).expect_err("no answer");
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    drop(open);
    let output = world.esker(&["umount"]).arg(world.mountpoint()).output().expect("running esker");
    assert!(output.status.success(), "{}", words(&output));
    assert!(!world.is_mounted());
    std::mem::forget(mounted);
}

/// > S3: A program that waits for a server through EROFS, for bytes or for a name, can be killed and is gone within a second.
#[test]
fn a_waiting_reader_can_be_killed() {
    let Some(root) = TestUser::root() else { skip!("only root mounts EROFS") };
    let world = TestEnv::new(root, fixture::FULL);
    let mounted = world.mount(&[&EROFS[..], &["--no-prefetch"]].concat());
    let contents = world.repository.contents("v3");
    // A file, and the names of a directory, which a nested catalog has.
    let waits = [
        ("data/exactly64k", contents.whole("/data/exactly64k").to_owned()),
        ("nested/f0", contents.catalogs["/nested"].clone()),
    ];
    for (file, object) in waits {
        let rule = world.mirror.fault(move |path| path.ends_with(&object), Fault::NoAnswer);
        let mut cat = Command::new("cat");
        let mut caller =
            cat.arg(mounted.path(file)).stdout(Stdio::null()).spawn().expect("a program that waits");
        mounted.wait_until("a waiting read", |status| status["waiting"] == 1);
        rule.assert_hit();
        let start = Instant::now();
        caller.kill().expect("killing");
        caller.wait().expect("waiting");
        assert!(start.elapsed() < Duration::from_secs(1), "{file}: gone after {:?}", start.elapsed());
        rule.lift();
        fs::read(mounted.path(file)).expect("it answers again");
    }
}

/// As elsewhere (P5, D2): a page fault waits, a lookup fails, and both are retried.
#[test]
fn a_page_fault_outlasts_a_server_that_fails_and_a_name_does_not() {
    let Some(root) = TestUser::root() else { skip!("only root mounts EROFS") };
    let world = TestEnv::new(root, fixture::FULL);
    let mounted = world.mount(&[&EROFS[..], &["--no-prefetch"]].concat());
    let contents = world.repository.contents("v3");
    let catalog = contents.catalogs["/nested"].clone();
    let rule = world.mirror.fault(move |path| path.ends_with(&catalog), Fault::Status(503));
    let mut stat = Command::new("stat");
    let output = stat.arg(mounted.path("nested/f0")).output().expect("stat");
    rule.assert_hit();
    assert!(words(&output).contains("Input/output error"), "{}", words(&output));
    rule.lift();
    fs::metadata(mounted.path("nested/f0")).expect("it is there again");

    let object = contents.whole("/data/exactly64k").to_owned();
    let rule = world.mirror.fault(move |path| path.ends_with(&object), Fault::Status(503));
    let file = fs::File::open(mounted.path("data/exactly64k")).expect("opening");
    let error = fs::read(mounted.path("data/exactly64k")).expect_err("a call is told");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let mapped = Mapped::of(&file, 65_536).expect("mapping");
    std::thread::scope(|scope| {
        // If it got SIGBUS, all of us would.
        let faults = scope.spawn(|| mapped.bytes().to_vec());
        let before = rule.hits();
        rule.wait_for_hits(before + 3);
        assert!(!faults.is_finished(), "it waits");
        rule.lift();
        let found = faults.join().expect("reading");
        assert_eq!(found, fs::read(mounted.path("data/exactly64k")).expect("a call"));
    });
}

/// Where the kernel is too old, or refuses for any reason, an overlay is used.
#[test]
fn an_overlay_replaces_erofs_where_the_kernel_refuses_it() {
    let Some(root) = TestUser::root() else { skip!("only root mounts EROFS") };
    let world = TestEnv::new(root, fixture::RMD);
    // No name is as long as this, so that the kernel can't be given the path of the image.
    let long = "x".repeat(300);
    for options in [["--kernel", "5.14"], ["--source", &long]] {
        let mounted = world.mount(&[&EROFS[..], &options].concat());
        assert_eq!(mounted.status()["shown_with"], "overlay", "{options:?}");
        let found = scan_tree(&mounted.path(""));
        let complaints = differences(&fixture::RMD.listing("v3"), &found, root.ownership());
        assert!(complaints.is_empty(), "{}", complaints.join("\n"));
        let lines = mountinfo();
        let ours = lines.lines().filter(|line| line.contains(&world.url()) || line.contains(&long));
        assert_eq!(ours.count(), 1, "nothing is left of what was tried: {lines}");
    }
}
