//! What never changes, shown by the kernel's EROFS.

use std::fs;
use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use esker_testkit::fixture;
use esker_testkit::mirror::Fault;
use esker_testkit::survey::{differences, survey};
use rustix::process::Signal;

use crate::daemons::{signal, wait_until_gone};
use crate::person::Person;
use crate::world::{World, mountinfo, words};

const EROFS: [&str; 3] = ["--fixed", "--show-with", "erofs"];

/// Only root may mount what isn't FUSE for all to see.
fn root() -> Option<Person> {
    Person::all().into_iter().find(|person| person.is_root())
}

/// > S1: A fixed revision or an image that EROFS shows (`--show-with erofs`, by root) has the same names, attributes, contents, owners and numbers of inodes whenever it is mounted.
#[test]
fn a_revision_is_shown_exactly() {
    let Some(root) = root() else { return };
    for fixture in fixture::ALL {
        let world = World::new(root, fixture);
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
            let found = survey(&mounted.path(""));
            let complaints = differences(&fixture.listing("v3"), &found, root.ownership());
            assert!(complaints.is_empty(), "{}:\n  {}", fixture.name(), complaints.join("\n  "));
            numbers.push(found.iter().map(|found| found.ino).collect::<Vec<_>>());
        }
        assert_eq!(numbers[0], numbers[1], "{}", fixture.name());
        assert!(!world.is_mounted());
    }
}

#[test]
fn its_source_is_what_was_mounted() {
    let Some(root) = root() else { return };
    let world = World::new(root, fixture::RMD);
    let _mounted = world.mount(&EROFS);
    let lines = mountinfo();
    let line = lines.lines().find(|line| line.contains(&world.url())).expect("it is mounted");
    assert!(line.contains(&format!(" - erofs esker+{} ro", world.url())), "{line}");
}

/// > S2: What EROFS was told stays readable when the daemon is gone, every other read fails with EIO and every other name with ENOTCONN, and `esker umount` takes it away.
#[test]
fn a_daemon_that_is_gone_leaves_what_is_known() {
    let Some(root) = root() else { return };
    let world = World::new(root, fixture::FULL);
    let mounted = world.mount(&EROFS);
    let known = fs::read(mounted.path("data/exactly64k")).expect("reading");
    let mut open = fs::File::open(mounted.path("data/random.bin")).expect("opening");
    let pid = u32::try_from(mounted.status()["pid"].as_u64().expect("a number")).expect("fits");
    signal(pid, Signal::KILL);
    wait_until_gone(pid);
    assert_eq!(fs::read(mounted.path("data/exactly64k")).expect("it is known"), known);
    let error = open.read_to_end(&mut Vec::new()).expect_err("not all of it is known");
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let error = fs::read(mounted.path("nested/f0")).expect_err("nobody tells");
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    drop(open);
    let output = world.esker(&["umount"]).arg(world.mountpoint()).output().expect("running esker");
    assert!(output.status.success(), "{}", words(&output));
    assert!(!world.is_mounted());
    std::mem::forget(mounted);
}

/// > S3: A program that waits for a server through EROFS, for bytes or for a name, can be killed and is gone within a second.
#[test]
fn who_waits_can_be_killed() {
    let Some(root) = root() else { return };
    let world = World::new(root, fixture::FULL);
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
