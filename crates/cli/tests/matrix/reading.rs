//! Everything in the fixtures reads exactly.

use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;

use esker_testkit::fixture::{self, TAGS};
use esker_testkit::mirror::Mirror;
use esker_testkit::revision_builder::RevisionBuilder;
use esker_testkit::tree_scan::{differences, scan_tree};
use rustix::fs::{XattrFlags, setxattr};

use crate::test_env::{TestEnv, mountinfo, words};
use crate::test_user::TestUser;

/// The kernels whose abilities a mount is restricted to, oldest first.
const KERNELS: [&str; 3] = ["4.18", "5.14", "6.18"];

/// Reads all revisions of all fixtures on all kernels as all test users. Each mount has a cache of its own, and the one of the
/// newest kernel is read again after remounting, from the cache alone.
///
/// > R1: Every entry of the revision is shown with the type, permissions, size, modification time, link count, symlink target and device number its publisher recorded, and no name is shown that is not in it.
///
/// > R2: A read at any offset and of any length returns the published bytes, whether the file is stored whole or in chunks.
///
/// > R4: The extended attributes that were published are listed and read as they were published.
///
/// > R5: A listing has `.`, `..` and every name once, in the same order each time, and can be resumed at any position it gave out.
///
/// > R6: The names of one hardlink group share an inode number; other files never do, equal content or not.
///
/// > R7: Inode numbers are the same after unmounting and mounting again.
///
/// > O1: Mounted by root, entries belong to the users and groups they were published with.
#[test]
fn every_revision_of_every_fixture_reads_exactly() {
    for person in TestUser::all() {
        for fixture in fixture::ALL {
            for tag in TAGS {
                let world = TestEnv::new(person, fixture);
                world.repository.publish(&world.repository.head_at(tag));
                let expected = fixture.listing(tag);
                let mut numbers = Vec::new();
                for kernel in KERNELS {
                    let mounted = world.mount(&["--kernel", kernel]);
                    let found = mounted.does(|| scan_tree(&mounted.path("")));
                    let complaints = differences(&expected, &found, person.ownership());
                    assert!(
                        complaints.is_empty(),
                        "{} {tag} on {kernel} as {person:?}:\n  {}",
                        fixture.name(),
                        complaints.join("\n  ")
                    );
                    numbers.push(found.iter().map(|found| found.ino).collect::<Vec<_>>());
                }
                assert!(numbers.iter().all(|each| *each == numbers[0]), "{} {tag}", fixture.name());
            }
        }
    }
}

/// > R3: A mapped file has the same bytes as a read one, and programs and scripts run from a mount.
///
/// > R8: A mount is read-only: every attempt to change it fails with EROFS, also for root.
#[test]
fn programs_run_and_nothing_can_be_changed() {
    for person in TestUser::all() {
        let world = TestEnv::new(person, fixture::FULL);
        let mounted = world.mount(&[]);
        let output = person.command(mounted.path("sw/pkg-2.0/bin/hello")).output().expect("running a script");
        assert!(output.status.success() && !output.stdout.is_empty(), "{}", words(&output));

        let at = |name: &str| mounted.path(name);
        type Attempt<'a> = (&'a str, Box<dyn Fn() -> io::Result<()> + Send + Sync + 'a>);
        let attempts: [Attempt<'_>; 9] = [
            ("create", Box::new(|| fs::write(at("new"), b""))),
            ("write", Box::new(|| OpenOptions::new().write(true).open(at("data/hex.txt")).map(drop))),
            ("truncate", Box::new(|| fs::File::create(at("data/hex.txt")).map(drop))),
            ("mkdir", Box::new(|| fs::create_dir(at("new")))),
            ("unlink", Box::new(|| fs::remove_file(at("data/hex.txt")))),
            ("rmdir", Box::new(|| fs::remove_dir(at("empty/a/b")))),
            ("rename", Box::new(|| fs::rename(at("data/hex.txt"), at("data/new")))),
            ("chmod", Box::new(|| fs::set_permissions(at("data/hex.txt"), Permissions::from_mode(0o600)))),
            ("setxattr", Box::new(|| Ok(setxattr(at("data/hex.txt"), "user.a", b"b", XattrFlags::empty())?))),
        ];
        for (what, attempt) in attempts {
            let error = person.does(attempt).expect_err(what);
            assert_eq!(error.raw_os_error(), Some(libc::EROFS), "{what} as {person:?}: {error}");
        }
    }
}

/// > O2: Mounted by another user, everything belongs to the user who mounted, with the published permissions; device files cannot be opened and set-user-ID bits have no effect.
///
/// Who owns what is compared with the rest of the listing; here are the mount's options and a device.
#[test]
fn an_ordinary_users_mount_has_no_devices_and_no_setuid() {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let mounted = world.mount(&[]);
    let mounts = mountinfo();
    let mountpoint = world.mountpoint();
    let line =
        mounts.lines().find(|line| line.contains(mountpoint.to_str().expect("text"))).expect("mounted");
    let options: Vec<&str> = line.split(' ').nth(5).expect("options").split(',').collect();
    for option in ["ro", "nosuid", "nodev"] {
        assert!(options.contains(&option), "{option} in {line}");
    }
    mounted.does(|| {
        let error = fs::File::open(mounted.path("special/chr")).expect_err("a device");
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
    });
}

/// > R9: Entries that the publisher marked hidden are not listed but can be opened by name.
#[test]
fn hidden_entries_are_found_by_name_only() {
    let repository = fixture::FULL.unpack();
    let craft = RevisionBuilder::of(&repository);
    craft.hide("/data/one.byte");
    craft.publish(&repository);
    let mirror = Mirror::serve(repository.document_root());
    let world = TestEnv::at(TestUser::ordinary(), repository, mirror);
    let mounted = world.mount(&[]);
    mounted.does(|| {
        let listed = fs::read_dir(mounted.path("data")).expect("listing");
        let names: Vec<_> = listed.map(|entry| entry.expect("an entry").file_name()).collect();
        assert!(names.iter().any(|name| name == "hex.txt"), "{names:?}");
        assert!(names.iter().all(|name| name != "one.byte"), "{names:?}");
        let path = mounted.path("data/one.byte");
        assert!(fs::symlink_metadata(&path).expect("stat by name").is_file());
    });
}
