//! Tests that the scan of trees finds differences; a plain folder replaces the mount.

use esker_testkit::listing::Entry;
use esker_testkit::tree_scan::{Found, Ownership, differences, scan_tree};

fn folder() -> (tempfile::TempDir, Vec<Found>) {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::create_dir(at("sub")).expect("a folder");
    let content: Vec<u8> = (0..200_000_u32).map(|n| (n % 251) as u8).collect();
    std::fs::write(at("sub/file"), &content).expect("a file");
    std::fs::write(at("empty"), b"").expect("a file");
    std::fs::hard_link(at("empty"), at("sub/link")).expect("a link");
    std::os::unix::fs::symlink("sub/file", at("symlink")).expect("a symlink");
    let found = scan_tree(folder.path());
    (folder, found)
}

fn listing(found: &[Found]) -> Vec<Entry> {
    found.iter().map(|found| found.entry.clone()).collect()
}

#[test]
fn a_folder_equals_itself() {
    let (folder, found) = folder();
    let paths: Vec<String> = found.iter().map(|found| found.entry.path.escape_ascii().to_string()).collect();
    assert_eq!(paths, ["/", "/empty", "/sub", "/sub/file", "/sub/link", "/symlink"]);
    assert_eq!(differences(&listing(&found), &scan_tree(folder.path()), Ownership::Published), [""; 0]);
}

#[test]
fn every_kind_of_difference_is_seen() {
    type Change = fn(&mut Vec<Entry>);
    let changes: [(&str, Change); 11] = [
        ("is missing", |l| l.push(Entry { path: b"/new".to_vec(), ..l[1].clone() })),
        ("should not be there", |l| drop(l.remove(1))),
        ("mode is", |l| l[1].mode ^= 1),
        ("mtime is", |l| l[1].mtime_ns += 1),
        ("owner is", |l| l[1].gid += 1),
        ("size is", |l| l[3].size = Some(1)),
        ("nlink is", |l| l[1].nlink = Some(1)),
        ("rdev is", |l| l[1].rdev = Some(1)),
        ("target is", |l| l[5].target = Some(b"x".to_vec())),
        ("content is", |l| l[3].sha256 = Some("00".to_owned())),
        ("xattrs is", |l| drop(l[1].xattrs.insert(b"user.a".to_vec(), b"b".to_vec()))),
    ];
    let (_folder, found) = folder();
    for (words, change) in changes {
        let mut expected = listing(&found);
        change(&mut expected);
        let seen = differences(&expected, &found, Ownership::Published);
        assert_eq!(seen.len(), 1, "{words}: {seen:?}");
        assert!(seen[0].contains(words), "{words}: {seen:?}");
    }
    let mut shared = found.clone();
    shared[3].ino = shared[5].ino;
    let seen = differences(&listing(&found), &shared, Ownership::Published);
    assert!(seen.len() == 1 && seen[0].contains("share inode number"), "{seen:?}");
}

#[test]
fn claimed_files_belong_to_the_reader() {
    let (_folder, found) = folder();
    let (uid, gid) = (found[0].entry.uid, found[0].entry.gid);
    let mut expected = listing(&found);
    for entry in &mut expected {
        entry.uid += 1;
    }
    assert_eq!(differences(&expected, &found, Ownership::Claimed(uid, gid)), [""; 0]);
    assert_eq!(differences(&expected, &found, Ownership::Published).len(), found.len());
}
