//! Images with very large directories, and images made from archives, by both families of tools.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use esker_vfs::{ErrorKind, Reply, Tree};

use crate::samples::{self, SampleImage};
use crate::walk;

const NAMES: usize = 100_000;
/// Number of names for tools that convert archives: they scan all names of a directory for each name they
/// add.
const NAMES_OF_ARCHIVES: usize = 10_000;

fn name(number: usize) -> String {
    format!("{:07} of many", number * 7)
}

fn archive(path: &Path, names: usize) {
    let mut archive = tar::Builder::new(BufWriter::new(File::create(path).unwrap()));
    let header = |kind: tar::EntryType, len: usize| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_mode(if kind.is_dir() { 0o755 } else { 0o640 });
        header.set_uid(1234);
        header.set_gid(5678);
        header.set_mtime(1_500_000_000);
        header.set_size(len as u64);
        header
    };
    archive.append_data(&mut header(tar::EntryType::Directory, 0), "many", &[][..]).unwrap();
    for number in 0..names {
        let text = if number % 1000 == 0 { name(number) } else { String::new() };
        let path = format!("many/{}", name(number));
        archive.append_data(&mut header(tar::EntryType::Regular, text.len()), path, text.as_bytes()).unwrap();
    }
    for (number, kind) in
        [tar::EntryType::Char, tar::EntryType::Block, tar::EntryType::Fifo].into_iter().enumerate()
    {
        let mut header = header(kind, 0);
        header.set_device_major(7).unwrap();
        header.set_device_minor(300).unwrap();
        archive.append_data(&mut header, format!("special {number}"), &[][..]).unwrap();
    }
    archive.into_inner().unwrap().flush().unwrap();
}

fn check(sample: &SampleImage, names: usize) {
    let tree = sample.open().unwrap();
    let find = |dir: &esker_vfs::NodeWithAttr, name: &str| {
        Reply::wait(|reply| tree.lookup(&dir.node, name.as_bytes(), reply))
    };
    let many = find(&tree.root(), "many").unwrap();
    let listed = walk::names(&tree, &many).unwrap();
    assert!(
        listed.iter().map(|(listed, _)| listed.as_slice()).eq((0..names)
            .map(name)
            .map(String::into_bytes)
            .collect::<Vec<_>>()
            .iter()
            .map(Vec::as_slice))
    );
    for number in (0..names).step_by(97).chain([names - 1]) {
        let found = find(&many, &name(number)).unwrap();
        assert_eq!((found.node, found.attr), (listed[number].1.node, listed[number].1.attr));
        assert_eq!((found.attr.uid, found.attr.gid, found.attr.permissions), (1234, 5678, 0o640));
        let content = walk::content(&tree, &found, 4096).unwrap();
        assert_eq!(content, if number % 1000 == 0 { name(number).into_bytes() } else { Vec::new() });
        let absent = find(&many, &format!("{:07} of few", number * 7)).unwrap_err();
        assert_eq!(absent.kind, ErrorKind::NotFound);
    }
    assert_eq!(find(&many, "").unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(find(&many, "~ after all").unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(find(&many, "..").unwrap().node, tree.root().node);
}

fn checked(names: usize, program: &str, options: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let tar = folder.path().join("many.tar");
    archive(&tar, names);
    let sample = SampleImage::new(|image| {
        samples::run(program, &[options, &[image.to_str().unwrap()]].concat(), Some(&tar));
    });
    check(&sample, names);
    let tree = sample.open().unwrap();
    let device = Reply::wait(|reply| tree.lookup(&tree.root().node, b"special 0", reply)).unwrap();
    assert_eq!((device.attr.rdev.major, device.attr.rdev.minor), (7, 300));
}

#[test]
fn a_directory_of_a_hundred_thousand_names_can_be_searched_and_listed() {
    let folder = tempfile::tempdir().unwrap();
    let many = folder.path().join("many");
    fs::create_dir(&many).unwrap();
    for number in 0..NAMES {
        let path = many.join(name(number));
        fs::write(&path, if number % 1000 == 0 { name(number) } else { String::new() }).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    }
    let owner = ["-force-uid", "1234", "-force-gid", "5678"];
    check(&SampleImage::new(|image| samples::mksquashfs(folder.path(), image, &owner)), NAMES);
}

#[test]
fn images_of_archives_contain_the_entries_of_the_archives() {
    checked(NAMES_OF_ARCHIVES, "sqfstar", &["-comp", "gzip", "-no-progress", "-quiet"]);
    checked(NAMES_OF_ARCHIVES, "tar2sqfs", &["--quiet", "--exportable", "--compressor", "zstd"]);
}

#[test]
fn more_attribute_names_than_a_list_can_hold_are_a_fault() {
    let folder = tempfile::tempdir().unwrap();
    for (names, fit) in [(200, true), (300, false)] {
        let tar = folder.path().join("it.tar");
        let mut archive = tar::Builder::new(File::create(&tar).unwrap());
        let keys: Vec<String> = (0..names).map(|number| format!("SCHILY.xattr.user.{number:0240}")).collect();
        archive.append_pax_extensions(keys.iter().map(|key| (key.as_str(), &b"value"[..]))).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(0);
        archive.append_data(&mut header, "file", &[][..]).unwrap();
        archive.finish().unwrap();
        let sample = SampleImage::new(|image| {
            samples::run("sqfstar", &["-quiet", "-no-progress", image.to_str().unwrap()], Some(&tar))
        });
        let tree = sample.open().unwrap();
        let file = Reply::wait(|reply| tree.lookup(&tree.root().node, b"file", reply)).unwrap();
        match walk::xattr_names(&tree, &file.node) {
            Ok(listed) => assert!(fit && listed.len() == names),
            Err(error) => assert!(!fit && error.kind == ErrorKind::Damaged, "{error}"),
        }
        let first = format!("user.{:0240}", 0);
        let value = Reply::wait(|reply| tree.xattr(&file.node, first.as_bytes(), reply));
        assert_eq!(value.unwrap(), b"value");
    }
}
