//! Access control lists that were published.

use std::fs;
use std::io::ErrorKind;

use esker_testkit::object::{Algorithm, deflate, unhex};
use esker_testkit::revision_builder::{FLAG_FILE, NewEntry, RevisionBuilder};

use super::Site;
use crate::test_user::TestUser;

/// Tags of entries of an access control list (acl(5)), and the id of entries without a user or group.
const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;
const NOBODY: u32 = u32::MAX;
const READ: u16 = 4;

/// Returns a list in the form of Linux's attribute.
fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, may, id) in entries {
        bytes.extend_from_slice(&tag.to_le_bytes());
        bytes.extend_from_slice(&may.to_le_bytes());
        bytes.extend_from_slice(&id.to_le_bytes());
    }
    bytes
}

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
        (OWNER, READ, NOBODY),
        (USER, READ, reader),
        (GROUP, 0, NOBODY),
        (MASK, READ, NOBODY),
        (OTHERS, 0, NOBODY),
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
