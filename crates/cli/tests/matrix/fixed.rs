//! Mounts that stay at a revision, and the kernel's overlay above them.

use std::fs::{self, File};
use std::os::fd::AsFd;

use esker_testkit::fixture::{self, Fixture};
use esker_testkit::skip;
use esker_testkit::tree_scan::{differences, scan_tree};
use rustix::mount::UnmountFlags;
use rustix::process::Signal;
use rustix::thread::CapabilitySet;

use crate::daemons::{signal, wait_until_gone};
use crate::hot::requests;
use crate::publishing::{NAME, Workshop};
use crate::running::processes_naming;
use crate::test_env::{Mounted, TestEnv, mountinfo, words};
use crate::test_user::TestUser;

/// Time to live: a refresh of such a mount would be noticed.
const TTL: [&str; 2] = ["--ttl", "0.05"];

fn assert_shows(mounted: &Mounted<'_>, world: &TestEnv, tag: &str) {
    let found = mounted.does(|| scan_tree(&mounted.path("")));
    let complaints = differences(&world.fixture().listing(tag), &found, world.person.ownership());
    assert!(complaints.is_empty(), "{} {tag}:\n  {}", world.fixture().name(), complaints.join("\n  "));
}

/// > V5: A mount made with `--fixed` shows the revision it found for as long as it is mounted.
#[test]
fn a_fixed_mount_stays_at_its_revision_and_reads_exactly() {
    for person in TestUser::all() {
        for fixture in fixture::ALL {
            let world = TestEnv::new(person, fixture);
            world.repository.publish(&world.repository.head_at("v1"));
            let mounted = world.mount(&["--fixed", TTL[0], TTL[1]]);
            assert_shows(&mounted, &world, "v1");
            let looks = || world.mirror.count(|path| path.ends_with(".cvmfspublished"));
            let before = looks();
            world.repository.publish(&world.repository.head_at("v2"));
            assert_shows(&mounted, &world, "v1");
            let status = mounted.status();
            assert_eq!((&status["fixed"], &status["revision"]), (&true.into(), &1.into()), "{status:#}");
            let shown_with = if person.is_root() { "overlay" } else { "fuse" };
            assert_eq!(status["shown_with"], shown_with, "only root may put overlays over the mounts of all");
            assert_eq!(looks(), before, "the mount looks for no new revision");
            drop(mounted);
            assert_shows(&world.mount(&TTL), &world, "v2");
        }
    }
}

/// Checks for every file whether it is a terminal, as Python does.
fn ask_files(mounted: &Mounted<'_>, fixture: Fixture) -> u64 {
    let files = fixture.listing("v3").into_iter().filter(|entry| entry.is_file());
    files
        .map(|entry| {
            use std::os::unix::ffi::OsStrExt;
            let path = mounted.path("").join(std::ffi::OsStr::from_bytes(&entry.path[1..]));
            assert!(!rustix::termios::isatty(File::open(path).expect("opening").as_fd()));
        })
        .count() as u64
}

/// > P7: Below a fixed mount made by root, ioctls are answered by the kernel.
#[test]
fn ioctls_reach_a_mount_but_not_one_below_an_overlay() {
    // Only root may put overlays over the mounts of all.
    let Some(root) = TestUser::root() else { skip!("only root mounts overlays for all") };
    let world = TestEnv::new(root, fixture::RMD);
    for (options, each) in [(&[][..], 1), (&["--fixed"], 0)] {
        let mounted = world.mount(options);
        let asked = ask_files(&mounted, world.fixture());
        let requests = requests(&mounted.status());
        assert!(asked > 100);
        assert_eq!(requests.get("IOCTL").copied().unwrap_or(0), asked * each, "{options:?}: {requests:?}");
    }
}

/// > P11: The overlay above a fixed mount made by root asks it for no marks where the catalogs count no extended attributes; where they count some, root sees those in `trusted.`.
#[test]
fn an_overlay_reads_its_marks_only_where_they_may_exist() {
    // Only root may put overlays over the mounts of all.
    let Some(root) = TestUser::root() else { skip!("only root mounts overlays for all") };
    let asked = |mounted: &Mounted<'_>| requests(&mounted.status()).get("GETXATTR").copied().unwrap_or(0);
    let tree = |marked: bool| {
        let workshop = Workshop::with(root, |top| {
            fs::create_dir(top).expect("a folder");
            for number in 0..100 {
                fs::write(top.join(number.to_string()), "").expect("a file");
            }
            if marked {
                let (file, flags) = (top.join("0"), rustix::fs::XattrFlags::empty());
                rustix::fs::setxattr(&file, "trusted.mark", b"seen", flags).expect("an attribute");
            }
        });
        workshop.create();
        workshop.json(&["publish", NAME, &workshop.tree()]);
        workshop
    };
    for (marked, may_map) in [(false, true), (true, true), (false, false)] {
        let workshop = tree(marked);
        let url = workshop.published();
        let mounted = root.does(|| {
            if !may_map {
                // A container may lack this capability: without it a user namespace can't map users.
                rustix::thread::remove_capability_from_bounding_set(CapabilitySet::SETUID)
                    .expect("fewer rights");
            }
            workshop.world.mount_of(&url, &["--fixed"])
        });
        assert_eq!(mounted.status()["shown_with"], "overlay");
        for number in 0..100 {
            fs::metadata(mounted.path(&number.to_string())).expect("a file");
        }
        assert_eq!(asked(&mounted) >= 100, marked || !may_map, "{}", asked(&mounted));
        let mut value = [0; 8];
        let found = rustix::fs::getxattr(mounted.path("0"), "trusted.mark", &mut value);
        assert_eq!(found, if marked { Ok(4) } else { Err(rustix::io::Errno::NODATA) });
        rustix::fs::getxattr(mounted.path(""), "user.revision", &mut value).expect("the mount's own");
    }
}

/// Only the overlay or EROFS is visible, and unmounting it ends the daemon.
#[test]
fn a_fixed_mount_ends_after_every_kind_of_unmount() {
    // Only root may put overlays over the mounts of all.
    let Some(root) = TestUser::root() else { skip!("only root mounts overlays for all") };
    let world = TestEnv::new(root, fixture::RMD);
    let left = || {
        let mounts = mountinfo();
        mounts.lines().filter(|line| line.contains(&world.url())).count()
    };
    let ways = ["umount(8)", "kill -9"].map(|how| ["overlay", "erofs"].map(|with| (how, with)));
    for (how, with) in ways.into_iter().flatten() {
        let mounted = world.mount(&["--fixed", "--no-supervisor", "--show-with", with]);
        assert_eq!(left(), 1, "one mount, not the layers of an overlay, nor an image");
        let pid = u32::try_from(mounted.status()["pid"].as_u64().expect("a number")).expect("fits");
        match how {
            "kill -9" => {
                signal(pid, Signal::KILL);
                wait_until_gone(pid);
                let umount =
                    world.esker(&["umount"]).arg(world.mountpoint()).output().expect("running esker");
                assert!(umount.status.success(), "{}", words(&umount));
            }
            _ => {
                rustix::mount::unmount(world.mountpoint(), UnmountFlags::empty()).expect("unmounting");
                wait_until_gone(pid);
            }
        }
        std::mem::forget(mounted);
        assert_eq!(left(), 0);
        assert_eq!(processes_naming(&world.url()), [0; 0]);
    }
}

/// Dentries of the overlay must not keep the cache from evicting.
#[test]
fn a_cache_below_an_overlay_keeps_its_quota() {
    // As root, the overlay of the second is of a user namespace: it has no extended attributes.
    for fixture in [fixture::FULL, fixture::RMD] {
        let world = TestEnv::new(TestUser::myself(), fixture);
        let mounted = world.mount(&["--fixed", "--quota", "1M"]);
        assert_shows(&mounted, &world, "v3");
        let status = mounted.wait_until("room in the cache", |status| {
            status["cache"]["bytes"].as_u64() <= status["cache"]["quota"].as_u64()
        });
        assert!(status["cache"]["evicted"].as_u64() > Some(0), "{status:#}");
        assert_shows(&mounted, &world, "v3");
    }
}

/// In `esker run` the overlay can't be made to drop dentries: then objects beyond the quota are read without caching,
/// and without waiting for room each time.
#[test]
fn a_command_below_an_overlay_reads_more_than_the_cache_holds() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let listing = fixture::FULL.listing("v3");
    let readable = listing.iter().filter(|entry| entry.is_file() && entry.mode & 0o400 != 0);
    let bytes: u64 = readable.filter_map(|entry| entry.size).sum();
    let mut command = world.run(&["--fixed", "--quota", "1M"]);
    let script = "cd /cvmfs/\"$0\" && find . -type f -perm -400 -exec cat {} + | wc -c";
    let output = command.args(["sh", "-c", script, fixture::FULL.name()]).output().expect("running esker");
    assert!(output.status.success(), "{}", words(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), bytes.to_string());
}
