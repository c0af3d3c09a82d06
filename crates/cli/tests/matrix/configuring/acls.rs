//! Access control lists that were published.

use std::fs;
use std::io::ErrorKind;

use esker_testkit::object::{Algorithm, deflate, unhex};
use esker_testkit::posix_acl::{GROUP, MASK, NO_ID, OTHERS, OWNER, USER, list};
use esker_testkit::revision_builder::{FLAG_FILE, NewEntry, RevisionBuilder};

use super::Site;
use crate::test_user::TestUser;

const READ: u16 = 4;

/// Publishes a file of root that its list lets only this user read.
fn publish(site: &Site, reader: u32) {
    const NAME: &[u8] = b"system.posix_acl_access";
    let repository = &site.world.repository;
    let stored = repository.store(b"for one user\n", "");
    assert_eq!(stored, Algorithm::Sha1.hash(&deflate(b"for one user\n")));
    let craft = RevisionBuilder::of(repository);
    craft.add_directory("lists");
    let digest = Some(unhex(&stored).try_into().expect("twenty bytes"));
    let (mode, flags) = (libc::S_IFREG | 0o640, FLAG_FILE);
    craft.add(&NewEntry { parent: "/lists", name: "shared", mode, flags, size: 13, digest });
    let value = list(&[
        (OWNER, READ, NO_ID),
        (USER, READ, reader),
        (GROUP, 0, NO_ID),
        (MASK, READ, NO_ID),
        (OTHERS, 0, NO_ID),
    ]);
    let sizes = [NAME.len(), value.len()].map(|len| u8::try_from(len).expect("short"));
    let blob = [&[1, 1][..], &sizes, NAME, &value].concat();
    let changed = craft.catalog().execute("UPDATE catalog SET xattr = ? WHERE name = 'shared'", [blob]);
    assert_eq!(changed.expect("a catalog"), 1);
    craft.publish(repository);
}

/// Access control lists are enforced where that is configured; otherwise the permissions alone count.
#[test]
fn access_control_lists_are_enforced_if_configured() {
    for person in TestUser::all() {
        let (named, other) = (TestUser { uid: 4711, gid: 4711 }, TestUser { uid: 4712, gid: 4712 });
        let site = Site::new(person);
        publish(&site, named.uid);
        for (lines, enforced) in [
            ("CVMFS_CLAIM_OWNERSHIP=no\nCVMFS_ENFORCE_ACLS=yes\n", true),
            ("CVMFS_CLAIM_OWNERSHIP=no\n", false),
        ] {
            let mounted = site.mounts(lines);
            let path = mounted.path("lists/shared");
            assert_eq!(mounted.does(|| fs::read(&path)).expect("whoever mounted"), b"for one user\n");
            // A mount without root shows all files as the mounting user's, and admits no other user.
            if person.is_root() {
                let read = |person: TestUser| person.does(|| fs::read(&path)).map_err(|error| error.kind());
                let expected =
                    if enforced { Ok(b"for one user\n".to_vec()) } else { Err(ErrorKind::PermissionDenied) };
                assert_eq!(read(named), expected, "{lines}");
                assert_eq!(read(other), Err(ErrorKind::PermissionDenied), "{lines}");
            }
        }
    }
}
