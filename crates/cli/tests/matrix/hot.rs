//! Requests of the kernel when everything is in its caches.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use esker_testkit::fixture::{self, Fixture};
use esker_testkit::sys::Mapped;
use serde_json::Value;

use crate::test_env::{Mounted, TestEnv};
use crate::test_user::TestUser;

/// Requests that a hot file must not cost.
const FORBIDDEN: [&str; 8] =
    ["LOOKUP", "GETATTR", "OPEN", "RELEASE", "FLUSH", "OPENDIR", "RELEASEDIR", "ACCESS"];

/// These must not come either, but their answers are in pages, and a kernel drops a clean page here and there without
/// any pressure and without counting it (seen with ext4 just the same). So they must be absent from some pass.
const FORBIDDEN_WITH_ITS_PAGE: [&str; 4] = ["READ", "READDIR", "READDIRPLUS", "READLINK"];

/// The longest name of a file.
const NAME_MAX: usize = 255;

/// Lists, stats, opens, reads, maps and follows everything, and runs the script.
fn pass(root: &Path, as_root: bool) -> u64 {
    let mut entries = 0;
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("listing") {
            let path = entry.expect("an entry").path();
            let meta = fs::symlink_metadata(&path).expect("stat");
            entries += 1;
            if meta.is_dir() {
                folders.push(path);
            } else if meta.is_symlink() {
                let target = fs::read_link(&path).expect("readlink");
                // Following may lead nowhere, which the kernel remembers too, except of a name that is too long
                // for any file: that is an error each time.
                if target.as_os_str().len() <= NAME_MAX {
                    let _ = fs::metadata(&path);
                }
            } else if meta.is_file() && (as_root || meta.mode() & 0o400 != 0) {
                // Before the kernel denies access it requests the attributes once more, so unreadable files are not
                // opened here.
                let file = File::open(&path).expect("opening");
                let content = fs::read(&path).expect("reading");
                if !content.is_empty() {
                    let mapped = Mapped::of(&file, content.len()).expect("mapping");
                    assert!(mapped.bytes() == content);
                }
            }
        }
    }
    entries
}

fn run_script(mounted: &Mounted<'_>, world: &TestEnv) {
    let script = mounted.path("sw/pkg-2.0/bin/hello");
    let output = world.person.command("sh").arg("-c").arg(&script).output().expect("running a script");
    assert!(output.status.success(), "{output:?}");
}

pub(crate) fn requests(status: &Value) -> BTreeMap<String, u64> {
    let requests = status["requests"].as_array().expect("counters");
    requests
        .iter()
        .map(|each| {
            (each["name"].as_str().expect("a name").to_owned(), each["requests"].as_u64().expect("a count"))
        })
        .collect()
}

fn hot_pass(person: TestUser, fixture: Fixture) -> BTreeMap<String, u64> {
    let world = TestEnv::new(person, fixture);
    let mounted = world.mount(&[]);
    let once = || {
        let entries = mounted.does(|| pass(&mounted.path(""), person.is_root()));
        run_script(&mounted, &world);
        entries
    };
    let entries = once();
    assert_eq!(entries as usize + 1, fixture.listing("v3").len(), "the pass saw everything");
    let first = requests(&mounted.status());
    assert!(first.get("READ").is_some_and(|reads| *reads > 0), "the first pass was cold: {first:?}");
    for _ in 0..PASSES_MAX {
        let reclaimed = reclaimed();
        once();
        let before = requests(&mounted.status());
        once();
        let after = requests(&mounted.status());
        if reclaimed != self::reclaimed() {
            continue;
        }
        let cost: BTreeMap<String, u64> = after
            .into_iter()
            .map(|(name, count)| (name.clone(), count - before.get(&name).unwrap_or(&0)))
            .collect();
        let spent = |name: &str| cost.get(name).copied().unwrap_or(0);
        assert!(FORBIDDEN.iter().all(|name| spent(name) == 0), "{} as {person:?}: {cost:?}", fixture.name());
        if FORBIDDEN_WITH_ITS_PAGE.iter().all(|name| spent(name) == 0) {
            return cost;
        }
        println!("a page was dropped and asked for again: {cost:?}");
    }
    panic!("something was asked again in each of {PASSES_MAX} pairs of passes");
}

/// Limit of pairs of passes until the kernel drops nothing during one.
const PASSES_MAX: usize = 20;

/// Returns how much the kernel has ever dropped from memory, by itself or on request: after that nothing is hot, and
/// a pass does not measure the mount.
fn reclaimed() -> u64 {
    let counters = fs::read_to_string("/proc/vmstat").expect("the kernel's counters");
    let dropping = [
        "drop_pagecache",
        "drop_slab",
        "pginodesteal",
        "kswapd_inodesteal",
        "pgscan_kswapd",
        "pgscan_direct",
    ];
    let values = counters.lines().filter_map(|line| line.split_once(' '));
    values
        .filter(|(name, _)| dropping.contains(name))
        .map(|(_, value)| value.parse::<u64>().expect("a count"))
        .sum()
}

/// > P1: A second pass over files the kernel knows costs no open, lookup, attribute, listing, read, readlink, flush, release or access upcall.
#[test]
fn a_hot_pass_costs_no_upcall() {
    for person in TestUser::all() {
        for fixture in fixture::ALL {
            let cost = hot_pass(person, fixture);
            let shown: Vec<String> = cost.iter().map(|(name, count)| format!("{name} {count}")).collect();
            println!("{} as {person:?}, second pass: {}", fixture.name(), shown.join(", "));
        }
    }
}
