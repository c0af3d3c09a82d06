//! Extended attributes with values of more than 255 bytes, which catalogs list in version 2.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use rustix::fs::{getxattr, listxattr};
use rustix::io::Errno;

use crate::publishing::{NAME, Workshop};
use crate::test_env::printed;
use crate::test_user::TestUser;

/// Names and lengths of the values: the longest of version 1 and the shortest and longest of version 2.
const LENGTHS: [(&str, usize); 4] =
    [("user.empty", 0), ("user.short", 255), ("user.long", 256), ("user.longest", 65_535)];

fn value(name: &str, len: usize) -> Vec<u8> {
    name.bytes().cycle().take(len).collect()
}

/// Returns the attributes in `user.` that begin with a name of [`LENGTHS`].
fn attributes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut names = vec![0; 1 << 16];
    let len = listxattr(path, &mut names[..]).expect("names");
    let names = names[..len].split(|byte| *byte == 0).map(|name| String::from_utf8_lossy(name).into_owned());
    let read = |name: String| {
        let mut value = vec![0; 1 << 16];
        let len = getxattr(path, &name, &mut value[..]).expect("a value");
        value.truncate(len);
        (name, value)
    };
    names.filter(|name| LENGTHS.iter().any(|(known, _)| known == name)).map(read).collect()
}

/// > R4: The extended attributes that were published are listed and read as they were published.
#[test]
fn long_attributes_are_read_through_mounts_and_commands() {
    for person in TestUser::all() {
        let workshop = Workshop::with(person, |top| {
            fs::create_dir_all(top).expect("a folder");
            fs::write(top.join("plain"), "without attributes").expect("a file");
        });
        workshop.create();
        workshop.json(&["publish", NAME, &workshop.tree()]);
        let values: BTreeMap<String, Vec<u8>> =
            LENGTHS.iter().map(|(name, len)| ((*name).to_owned(), value(name, *len))).collect();
        let mut archive = tar::Builder::new(Vec::new());
        for folder in [false, true] {
            let headers = values.iter().map(|(name, value)| (format!("SCHILY.xattr.{name}"), value));
            let headers: Vec<_> = headers.collect();
            let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
            archive.append_pax_extensions(headers).expect("a header");
            let mut header = tar::Header::new_gnu();
            header.set_entry_type(if folder { tar::EntryType::Directory } else { tar::EntryType::Regular });
            header.set_size(0);
            header.set_mode(if folder { 0o755 } else { 0o644 });
            let name = if folder { "folder" } else { "file" };
            archive.append_data(&mut header, name, &[][..]).expect("a member");
        }
        let (file, bytes) = (workshop.home("long.tar"), archive.into_inner().expect("an archive"));
        person.does(|| fs::write(&file, bytes)).expect("writing an archive");
        workshop.json(&["ingest", NAME, &file, "--to", "/in"]);
        let (url, world) = (workshop.published(), &workshop.world);
        for options in [&[][..], &["--fixed"]] {
            let mounted = world.mount_of(&url, options);
            mounted.does(|| {
                for name in ["in/file", "in/folder"] {
                    let found = attributes(&mounted.path(name));
                    assert!(found == values, "{name}: {:?}", found.keys());
                    let mut small = [0; 100];
                    let refused = getxattr(mounted.path(name), "user.longest", &mut small[..]);
                    assert_eq!(refused, Err(Errno::RANGE));
                }
                assert!(attributes(&mounted.path("plain")).is_empty());
            });
            drop(mounted);
            let script = "import os, sys\n\
                          for name in sys.argv[2:]:\n    \
                          assert name in os.listxattr(sys.argv[1]), name\n    \
                          print(name, len(os.getxattr(sys.argv[1], name)), \
                          os.getxattr(sys.argv[1], name).decode())";
            let mut run = world.esker(&["run", &url, "--public-key"]);
            run.arg(world.path("key.pub")).arg("--cache").arg(world.cache()).args(options);
            run.args(["--", "/usr/bin/python3", "-c", script, &format!("/cvmfs/{NAME}/in/file")]);
            let told = printed(run.args(LENGTHS.map(|(name, _)| name)));
            let line = |(name, len): &(&str, usize)| {
                format!("{name} {len} {}\n", String::from_utf8(value(name, *len)).expect("text"))
            };
            let expected: String = LENGTHS.iter().map(line).collect();
            assert!(told == expected, "{person:?} {options:?}: {} bytes", told.len());
        }
    }
}
