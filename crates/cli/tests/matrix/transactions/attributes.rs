//! Transactions of an ordinary user in a tree whose attributes the user's overlay can't copy.

use std::collections::BTreeMap;
use std::fs;

use esker_testkit::object::unhex;
use esker_testkit::posix_acl::{GROUP, MASK, NO_ID, OTHERS, OWNER, USER, list};
use serde_json::Value;

use super::Publisher;
use crate::publishing::NAME;
use crate::test_env::{printed, words};
use crate::test_user::TestUser;

const ACCESS: &str = "system.posix_acl_access";
const DEFAULT: &str = "system.posix_acl_default";
const CAPABILITY: &str = "security.capability";

/// Returns a list for user 4711, with the permissions of owner, mask and others.
fn for_4711([owner, mask, others]: [u16; 3]) -> Vec<u8> {
    list(&[
        (OWNER, owner, NO_ID),
        (USER, 6, 4711),
        (GROUP, 4, NO_ID),
        (MASK, mask, NO_ID),
        (OTHERS, others, NO_ID),
    ])
}

/// `cap_net_raw+ep` (capabilities(7), version 2).
fn capability() -> Vec<u8> {
    [0x0200_0001_u32, 1 << 13, 0, 0, 0].map(u32::to_le_bytes).concat()
}

/// Returns an archive of entries with attributes that only root can set.
fn archive() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let mut add = |name: &str, kind, target: Option<&str>, xattrs: &[(&str, Vec<u8>)]| {
        let names: Vec<String> = xattrs.iter().map(|(name, _)| format!("SCHILY.xattr.{name}")).collect();
        let records = names.iter().zip(xattrs).map(|(name, (_, value))| (name.as_str(), value.as_slice()));
        archive.append_pax_extensions(records).expect("attributes");
        let content: &[u8] = if kind == tar::EntryType::Regular { b"text\n" } else { b"" };
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(if kind == tar::EntryType::Directory { 0o770 } else { 0o660 });
        header.set_size(content.len() as u64);
        header.set_uid(0);
        header.set_gid(0);
        header.set_mtime(1_600_000_000);
        match target {
            Some(target) => archive.append_link(&mut header, name, target),
            None => archive.append_data(&mut header, name, content),
        }
        .expect("a member");
    };
    let acl = || (ACCESS, for_4711([6, 6, 0]));
    add(
        "d",
        tar::EntryType::Directory,
        None,
        &[(ACCESS, for_4711([7, 7, 0])), (DEFAULT, for_4711([7, 7, 0]))],
    );
    for name in ["touched", "strict", "replaced", "base", "unmarked", "moved"] {
        add(&format!("d/{name}"), tar::EntryType::Regular, None, &[acl(), ("user.colour", b"red".to_vec())]);
    }
    for name in ["capable", "written"] {
        add(&format!("d/{name}"), tar::EntryType::Regular, None, &[(CAPABILITY, capability())]);
    }
    add(
        "d/trusted",
        tar::EntryType::Regular,
        None,
        &[("trusted.kept", b"t".to_vec()), ("user.removed", b"r".to_vec())],
    );
    add("d/name1", tar::EntryType::Regular, None, &[acl(), ("trusted.kept", b"t".to_vec())]);
    add("d/name2", tar::EntryType::Link, Some("d/name1"), &[]);
    archive.into_inner().expect("an archive")
}

/// Mode, number of names, and attributes of a published entry.
fn published(publisher: &Publisher, path: &str) -> (u64, u64, BTreeMap<String, Vec<u8>>) {
    let url = publisher.workshop.published();
    let world = &publisher.workshop.world;
    let place = format!("{url}:{path}");
    let mut stat = world.esker(&["stat", &place, "--json", "--cache", "ram", "--public-key"]);
    let json: Value = serde_json::from_str(&printed(stat.arg(world.path("key.pub")))).expect("JSON");
    let mode = json["mode"].as_str().and_then(|mode| u64::from_str_radix(mode, 8).ok()).expect("a mode");
    let links = json["nlink"].as_u64().expect("a number");
    let xattrs = json["xattrs"].as_object().into_iter().flatten();
    let value = |value: &Value| unhex(value.as_str().expect("text"));
    (mode, links, xattrs.map(|(name, hex)| (name.clone(), value(hex))).collect())
}

/// What a command of a user's transaction does, as tar, setfacl and setcap would. `setfacl -b` sets the list of the
/// permissions alone.
const SCRIPT: &str = r#"
import errno, os, struct
def acl(*entries):
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
none, access = 0xffffffff, "system.posix_acl_access"
os.chdir("t/d")
os.utime("touched")
os.chmod("strict", 0o600)
os.setxattr("replaced", access, acl((1, 6, none), (2, 4, os.getuid()), (4, 0, none), (16, 4, none), (32, 0, none)))
os.setxattr("base", access, acl((1, 6, none), (4, 4, none), (32, 0, none)))
os.removexattr("unmarked", "user.esker.published")
os.rename("moved", "elsewhere")
for name in ["touched", "capable", "trusted"]:
    for attribute in [access, "security.capability", "trusted.kept"]:
        try:
            os.removexattr(name, attribute)
        except OSError as error:
            assert error.errno in (errno.ENODATA, errno.EPERM, errno.EOPNOTSUPP), error
os.utime("capable")
open("written", "w").write("more\n")
os.removexattr("trusted", "user.removed")
os.chmod("name1", 0o640)
open("new", "w").close()
os.mkdir("below")
open("below/new", "w").close()
"#;

/// > K5: Attributes that the overlay of an ordinary user can't copy (access control lists, capabilities, `trusted.*`) stay with the entries that a transaction touches, renames or copies with `cp -a`; a list follows `chmod`, capabilities stay as long as the content does, and attributes in `user.` that the user removed are gone.
#[test]
fn a_transaction_of_a_user_keeps_attributes_that_its_overlay_hides() {
    let publisher = Publisher::new(TestUser::ordinary());
    let world = &publisher.workshop.world;
    let (tar, script) = (publisher.workshop.home("a.tar"), publisher.workshop.home("script.py"));
    world
        .person
        .does(|| fs::write(&tar, archive()).and_then(|()| fs::write(&script, SCRIPT)))
        .expect("files");
    let output = publisher.workshop.esker(&["ingest", NAME, &tar, "--to", "/t", "--quiet"]);
    assert!(output.status.success(), "{}", words(&output));
    let kept = |xattrs: &BTreeMap<String, Vec<u8>>, name: &str| xattrs.get(name).cloned();
    assert_eq!(kept(&published(&publisher, "/t/d").2, DEFAULT), Some(for_4711([7, 7, 0])), "it is published");

    let mut begin = publisher.begin(&[], &format!("python3 {script}"));
    let output = begin.output().expect("esker");
    assert!(output.status.success(), "{}", words(&output));
    let said = words(&output);

    let of = |name: &str| published(&publisher, &format!("/t/d/{name}"));
    let (mode, _, xattrs) = of("touched");
    assert_eq!((mode, kept(&xattrs, ACCESS)), (0o660, Some(for_4711([6, 6, 0]))));
    assert_eq!(kept(&xattrs, "user.colour"), Some(b"red".to_vec()));
    let (mode, _, xattrs) = of("strict");
    assert_eq!((mode, kept(&xattrs, ACCESS)), (0o600, Some(for_4711([6, 0, 0]))));
    let own = list(&[
        (OWNER, 6, NO_ID),
        (USER, 4, world.person.uid),
        (GROUP, 0, NO_ID),
        (MASK, 4, NO_ID),
        (OTHERS, 0, NO_ID),
    ]);
    assert_eq!(kept(&of("replaced").2, ACCESS), Some(own));
    // The overlay has no trace of it.
    let (mode, _, xattrs) = of("base");
    assert_eq!((mode, kept(&xattrs, ACCESS)), (0o640, Some(for_4711([6, 4, 0]))));
    let (_, _, xattrs) = of("unmarked");
    assert_eq!((kept(&xattrs, ACCESS), kept(&xattrs, "user.colour")), (None, Some(b"red".to_vec())));
    assert_eq!(kept(&of("elsewhere").2, ACCESS), Some(for_4711([6, 6, 0])));
    assert_eq!(kept(&of("capable").2, CAPABILITY), Some(capability()));
    assert_eq!(kept(&of("written").2, CAPABILITY), None);
    assert!(said.contains("1 files with new content lost their capabilities"), "{said}");
    let (_, _, xattrs) = of("trusted");
    assert_eq!(xattrs, BTreeMap::from([("trusted.kept".to_owned(), b"t".to_vec())]));
    // The overlay has a file of its own for one of the names.
    let (mode, links, xattrs) = of("name1");
    assert_eq!((mode, links, kept(&xattrs, ACCESS)), (0o640, 1, Some(for_4711([6, 4, 0]))));
    assert_eq!(kept(&xattrs, "trusted.kept"), Some(b"t".to_vec()));
    assert_eq!((of("name2").0, kept(&of("name2").2, ACCESS)), (0o660, Some(for_4711([6, 6, 0]))));
    let (_, _, xattrs) = published(&publisher, "/t/d");
    assert_eq!(kept(&xattrs, DEFAULT), Some(for_4711([7, 7, 0])));
    for name in ["new", "below", "below/new"] {
        assert_eq!(of(name).2, BTreeMap::new(), "{name}");
    }
    assert!(said.contains("default access control list"), "{said}");
    let output = publisher.workshop.esker(&["check", NAME, "--data"]);
    assert!(output.status.success(), "{}", words(&output));
}
