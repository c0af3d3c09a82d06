//! `esker compare`: two mounts, and two trees that differ.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::time::{Duration, SystemTime};

use esker_testkit::fixture;
use serde_json::Value;

use crate::test_env::{TestEnv, words};
use crate::test_user::TestUser;

#[test]
fn two_mounts_of_a_repository_are_the_same() {
    for person in TestUser::all() {
        let (one, other) = (TestEnv::new(person, fixture::RMD), TestEnv::new(person, fixture::RMD));
        let (_a, _b) = (one.mount(&[]), other.mount(&["--fixed"]));
        let mut compare = one.esker(&["compare", "--content", "--owners"]);
        let output = compare.arg(one.mountpoint()).arg(other.mountpoint()).output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let count = said.split(' ').next().and_then(|count| count.parse::<usize>().ok());
        assert_eq!(count, Some(fixture::RMD.listing("v3").len()), "{said}");
    }
}

/// Makes a tree with one of everything that is compared.
fn tree(at: &Path) {
    fs::create_dir_all(at.join("dir/deep")).expect("folders");
    for (name, text) in
        [("mode", "m"), ("size", "s"), ("content", "one"), ("time", "t"), ("dir/deep/file", "f")]
    {
        fs::write(at.join(name), text).expect("a file");
    }
    symlink("here", at.join("link")).expect("a link");
    fs::write(at.join("kind"), "").expect("a file");
    set_times(at);
}

fn set_times(at: &Path) {
    for name in ["mode", "size", "content", "time", "kind", "dir/deep/file", "dir/deep", "dir", ""] {
        let file = fs::File::open(at.join(name)).expect("a file");
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)).expect("a time");
    }
    let now = rustix::fs::Timespec { tv_sec: 1_000_000, tv_nsec: 0 };
    let times = rustix::fs::Timestamps { last_access: now, last_modification: now };
    let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
    rustix::fs::utimensat(rustix::fs::CWD, at.join("link"), &times, flags).expect("a time");
}

#[test]
fn every_difference_is_reported() {
    let world = TestEnv::new(TestUser::myself(), fixture::RMD);
    let (a, b) = (world.path("home/a"), world.path("home/b"));
    let differences = |options: &[&str]| {
        let mut compare = world.esker(&["compare", "--json"]);
        let output = compare.args(options).arg(&a).arg(&b).output().expect("running esker");
        let all: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        let text = |one: &Value, field: &str| one[field].as_str().expect("text").to_owned();
        let all = all.as_array().expect("an array");
        let all: BTreeSet<_> = all.iter().map(|one| (text(one, "path"), text(one, "what"))).collect();
        assert_eq!(output.status.code(), Some(i32::from(!all.is_empty())), "{}", words(&output));
        all
    };
    tree(&a);
    tree(&b);
    assert_eq!(differences(&["--content", "--owners"]), BTreeSet::new());
    fs::set_permissions(b.join("mode"), fs::Permissions::from_mode(0o600)).expect("a mode");
    fs::write(b.join("size"), "longer").expect("a file");
    fs::write(b.join("content"), "two").expect("a file");
    fs::write(b.join("dir/deep/new"), "").expect("a file");
    fs::remove_file(b.join("dir/deep/file")).expect("removing");
    fs::remove_file(b.join("link")).expect("removing");
    symlink("there", b.join("link")).expect("a link");
    fs::remove_file(b.join("kind")).expect("removing");
    fs::create_dir(b.join("kind")).expect("a folder");
    set_times_of_what_is_there(&b);
    let file = fs::File::open(b.join("time")).expect("a file");
    file.set_modified(SystemTime::UNIX_EPOCH + Duration::new(1_000_000, 5)).expect("a time");
    let pair = |(path, what): (&str, &str)| (path.to_owned(), what.to_owned());
    let mut expected: BTreeSet<_> = [
        ("/mode", "mode"),
        ("/size", "size"),
        ("/time", "mtime"),
        ("/dir/deep/new", "name"),
        ("/dir/deep/file", "name"),
        ("/link", "target"),
        ("/kind", "type"),
    ]
    .map(pair)
    .into();
    assert_eq!(differences(&[]), expected);
    expected.insert(pair(("/content", "content")));
    assert_eq!(differences(&["--content", "--jobs", "1"]), expected);
}

fn set_times_of_what_is_there(at: &Path) {
    let missing = at.join("dir/deep/file");
    fs::write(&missing, "").expect("a file");
    set_times(at);
    fs::remove_file(&missing).expect("removing");
    let folder = fs::File::open(at.join("dir/deep")).expect("a folder");
    folder.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000)).expect("a time");
}

#[test]
fn unreadable_entries_do_not_count_as_equal() {
    let world = TestEnv::new(TestUser::myself(), fixture::RMD);
    let output = world.esker(&["compare", "/no/such", "/"]).output().expect("running esker");
    assert_eq!(output.status.code(), Some(1), "{}", words(&output));
    assert!(String::from_utf8_lossy(&output.stderr).contains("/no/such"), "{}", words(&output));
}
