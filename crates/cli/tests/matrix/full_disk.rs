//! Mounts whose cache is on a disk that other programs filled.

use std::fs;
use std::path::Path;
use std::time::Instant;

use esker_testkit::disk::Tmpfs;
use esker_testkit::skip;
use esker_testkit::waiting::until;
use rustix::fs::statvfs;

use crate::publishing::{NAME, Workshop};
use crate::test_env::{Mounted, PATIENCE, words};
use crate::test_user::TestUser;

/// Bytes of the disk, and of each file.
const DISK: u64 = 24 << 20;
const FILE: usize = 64 << 10;
/// Files that are read before the disk is full, and while it is. If each of these waited for room as long as the first may, they
/// would take longer than a test may.
const BEFORE: usize = 10;
const MEANWHILE: usize = 150;
const FILES: usize = 250;

fn content(number: usize) -> Vec<u8> {
    let mut state = number as u64 + 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33).to_le_bytes()[0]
    };
    (0..FILE).map(|_| next()).collect()
}

#[track_caller]
fn read(mounted: &Mounted<'_>, number: usize) {
    let found = mounted.does(|| fs::read(mounted.path(&number.to_string()))).expect("reading");
    assert!(found == content(number), "file {number} has other bytes");
}

/// > C27: A full disk of the cache delays no read by more than one attempt to make room every few seconds: unused objects of the cache make room for others, and while none can, objects pass through memory, up to 256 MiB of them at once.
#[test]
fn a_job_on_a_full_disk_reads_as_ever() {
    if !TestUser::myself().is_root() {
        skip!("only root mounts a small disk");
    }
    for person in TestUser::all() {
        let workshop = Workshop::with(person, |top| {
            fs::create_dir_all(top).expect("a folder");
            (0..FILES).for_each(|number| {
                fs::write(top.join(number.to_string()), content(number)).expect("a file");
            });
        });
        workshop.create();
        workshop.json(&["publish", NAME, &workshop.tree()]);
        let (url, world) = (workshop.published(), &workshop.world);
        let place = world.path("home/disk");
        let disk = Tmpfs::mount(&place, DISK).expect("a small disk");
        std::os::unix::fs::chown(&place, Some(person.uid), Some(person.gid)).expect("giving a folder away");
        let mut mount = world.esker(&["mount", &url, "--no-prefetch", "--no-broker"]);
        mount.arg(world.mountpoint()).arg("--public-key").arg(world.path("key.pub"));
        let output = mount.arg("--cache").arg(place.join("cache")).output().expect("running esker");
        assert!(output.status.success(), "{}", words(&output));
        let mounted = world.mounted();
        let number = |name: &str| mounted.status()["cache"][name].as_u64().expect("a number");
        assert_eq!(number("quota"), size(&place) / 2, "half of a small disk");

        (0..BEFORE).for_each(|file| read(&mounted, file));
        assert_eq!(number("unkept"), 0);
        disk.fill();
        let start = Instant::now();
        (BEFORE..BEFORE + MEANWHILE).for_each(|file| read(&mounted, file));
        let took = start.elapsed();
        assert!(took < PATIENCE, "{MEANWHILE} reads on a full disk took {took:?}");
        let missed = number("unkept") + number("evicted");
        assert!(missed >= MEANWHILE as u64 / 2, "the disk was not full: {:#}", mounted.status());

        disk.empty();
        let mut files = BEFORE + MEANWHILE..FILES;
        let is_kept = until(PATIENCE, || {
            let before = number("unkept");
            let Some(file) = files.next() else { return false };
            read(&mounted, file);
            number("unkept") == before
        });
        assert!(is_kept, "nothing is cached again: {:#}", mounted.status());
        drop(mounted);
    }
}

fn size(place: &Path) -> u64 {
    let disk = statvfs(place).expect("a disk");
    disk.f_blocks * disk.f_frsize
}
