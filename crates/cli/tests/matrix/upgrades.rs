//! Upgrades of mounts to another build, and back from a build that doesn't serve.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use esker_testkit::fixture;
use esker_testkit::programs;
use esker_testkit::waiting::Pace;
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use rustix::process::Signal;
use serde_json::Value;

use crate::daemons::{serving_daemon, signal, wait_until_gone};
use crate::test_env::{BUILT, Mounted, PATIENCE, TestEnv, words};
use crate::test_user::TestUser;

/// Environment variable with another build of esker. Without it the tests use the build of cargo beside that of
/// `ESKER_BINARY`, or a copy of the only build with other bytes at its end.
const OTHER_BUILD: &str = "ESKER_TEST_OTHER_BUILD";
/// File of the fixture that the tests read.
const FILE: &str = "data/hex.txt";

/// Puts another build of esker into a world.
pub(crate) fn other_build(world: &TestEnv) -> PathBuf {
    let path = world.path("other-esker");
    if !path.exists() {
        let given = std::env::var_os(OTHER_BUILD).map(PathBuf::from);
        programs::copy(given.as_deref().unwrap_or(Path::new(BUILT)), &path);
        // Bytes behind the sections of an ELF file mean nothing.
        let append = Command::new("sh").args(["-c", r#"printf other >>"$1""#, "sh"]).arg(&path).status();
        assert!(append.expect("sh").success(), "a copy that differs");
    }
    path
}

/// Asks for an upgrade; returns the outcome of the mount, and the reason.
pub(crate) fn upgrade(world: &TestEnv, program: &Path) -> (String, String) {
    let mut command = world.esker(&["upgrade", "--json", "--binary"]);
    let output = command.arg(program).arg(world.mountpoint()).output().expect("esker");
    let all: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", words(&output)));
    let row = &all["mounts"][0];
    let outcome = row["outcome"].as_str().expect("an outcome").to_owned();
    assert_eq!(output.status.success(), outcome == "upgraded", "{}", words(&output));
    (outcome, row["reason"].as_str().unwrap_or_default().to_owned())
}

/// Returns the program of a process, with ` (deleted)` at its end if the file is gone.
fn program_of(pid: u32) -> OsString {
    fs::read_link(format!("/proc/{pid}/exe")).expect("a process").into_os_string()
}

/// Returns content and inode number of the file that the tests read.
fn read(mounted: &Mounted<'_>) -> (Vec<u8>, u64) {
    let path = mounted.path(FILE);
    mounted.does(|| (fs::read(&path).expect("reading"), fs::metadata(&path).expect("a file").ino()))
}

#[test]
fn a_mount_goes_on_with_another_build_also_after_its_file_is_removed() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::FULL);
        let mounted = world.mount(&[]);
        let before = read(&mounted);
        let other = other_build(&world);
        assert_eq!(upgrade(&world, &other), ("upgraded".to_owned(), String::new()), "{}", world.logs());
        let upgraded = serving_daemon(&mounted);
        assert_eq!(program_of(upgraded), other);
        fs::remove_file(&other).expect("removing a program");
        signal(upgraded, Signal::KILL);
        wait_until_gone(upgraded);
        let after = program_of(serving_daemon(&mounted)).into_string().expect("text");
        assert_eq!(after, format!("{} (deleted)", other.display()));
        assert_eq!(read(&mounted), before);
    }
}

#[test]
fn a_build_that_ends_at_once_is_replaced_by_the_one_before() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::FULL);
        let mounted = world.mount(&[]);
        let before = read(&mounted);
        let broken = world.path("broken-esker");
        let script = "#!/bin/sh\n[ \"$1\" = --version ] && echo esker 99.0.0\n";
        programs::write(Command::new("sh"), &broken, script);
        let (outcome, reason) = upgrade(&world, &broken);
        assert_eq!(outcome, "rolled_back", "{reason}");
        assert!(reason.contains("ended before it was proven"), "{reason}");
        assert_eq!(program_of(serving_daemon(&mounted)), world.program());
        assert_eq!(read(&mounted), before);
        // The roll-back leaves nothing that keeps the mount from the next upgrade.
        assert_eq!(upgrade(&world, &other_build(&world)).0, "upgraded", "{}", world.logs());
        assert_eq!(read(&mounted), before);
    }
}

/// The new daemon waits for ever for its public key, which is a pipe that nothing is written to.
#[test]
fn a_build_that_does_not_serve_is_replaced_by_the_one_before() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mounted = world.mount(&[]);
    let before = read(&mounted);
    let first = serving_daemon(&mounted);
    let (key, aside) = (world.path("key.pub"), world.path("key.pub.aside"));
    fs::rename(&key, &aside).expect("moving the key");
    mknodat(CWD, &key, FileType::Fifo, Mode::from_raw_mode(0o644), 0).expect("a pipe");
    let other = other_build(&world);
    let (outcome, reason) = std::thread::scope(|scope| {
        let upgrading = scope.spawn(|| upgrade(&world, &other));
        // A pipe without a reader can't be opened for writing: this waits until the new daemon reads it.
        let pipe = || open(&key, OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty()).ok();
        let pipe = Pace::PROCESS.until_some(PATIENCE, pipe).map(File::from).expect("a daemon that waits");
        fs::rename(&aside, &key).expect("moving the key back");
        let outcome = upgrading.join().expect("an upgrade");
        drop(pipe);
        outcome
    });
    assert_eq!(outcome, "rolled_back", "{reason}");
    assert!(reason.contains("ended before it was proven"), "{reason}");
    let last = serving_daemon(&mounted);
    assert_ne!(last, first);
    assert_eq!(program_of(last), world.program());
    assert_eq!(read(&mounted), before);
}
