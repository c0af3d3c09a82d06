//! Reads a whole directory tree in several ways, for comparison with a fixture's listing.
//!
//! Every file is read from its start, again in odd pieces, and through a mapping; every directory is listed, listed
//! again, and resumed at positions it gave out. Whatever does not agree with itself panics here; whatever does not
//! agree with the listing comes out of [`differences`].

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, RawDir, SeekFrom};

use crate::listing::Entry;
use crate::object;
use crate::sys::Mapped;

/// An entry as read, with facts that listings don't have.
#[derive(Clone, Debug)]
pub struct Found {
    /// Facts that listings have.
    pub entry: Entry,
    /// The inode number.
    pub ino: u64,
}

/// Expected owners of the entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ownership {
    /// The published owners.
    Published,
    /// One user and group for all files, those of the reader.
    Claimed(u32, u32),
}

/// Reads everything below `root` and returns it in path order.
pub fn scan_tree(root: &Path) -> Vec<Found> {
    let mut found = Vec::new();
    let mut waiting = vec![b"/".to_vec()];
    while let Some(path) = waiting.pop() {
        let on_disk = root.join(OsStr::from_bytes(&path[1..]));
        let (entry, ino) = Entry::on_disk(&on_disk, &path, |meta| read(&on_disk, meta.size()));
        let this = Found { entry, ino };
        if this.entry.is_dir() {
            let parent = on_disk.join("..");
            for name in list(&on_disk, this.ino, if path == b"/" { None } else { Some(&parent) }) {
                let separator: &[u8] = if path == b"/" { b"" } else { b"/" };
                waiting.push([&path, separator, &name].concat());
            }
        }
        found.push(this);
    }
    found.sort_by(|a, b| a.entry.path.cmp(&b.entry.path));
    found
}

/// Reads a file in three ways; returns its SHA-256, or none if access is denied.
fn read(file: &Path, size: u64) -> Option<String> {
    let opened = match File::open(file) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return None,
        opened => opened.unwrap_or_else(|e| panic!("open {}: {e}", file.display())),
    };
    let whole = fs::read(file).unwrap_or_else(|e| panic!("read {}: {e}", file.display()));
    assert_eq!(whole.len() as u64, size, "{} is as long as it says", file.display());
    for (start, length) in [(0, 4_095), (1, 65_537), (whole.len() / 3, 131_071)] {
        in_pieces(&opened, file, &whole, start, length);
    }
    let beyond = opened.read_at(&mut [0; 16], size + 1).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    assert_eq!(beyond, 0, "{} ends where it says", file.display());
    if !whole.is_empty() {
        let mapped =
            Mapped::of(&opened, whole.len()).unwrap_or_else(|e| panic!("mmap {}: {e}", file.display()));
        assert!(mapped.bytes() == whole, "{} reads the same mapped", file.display());
    }
    Some(object::sha256(&whole))
}

/// Maximum number of pieces of a file: enough to cross every chunk boundary of the fixtures in one of the
/// passes.
const PIECES_MAX: usize = 600;

fn in_pieces(opened: &File, file: &Path, whole: &[u8], start: usize, length: usize) {
    let mut piece = vec![0; length];
    for (_, offset) in (0..PIECES_MAX).zip((start..whole.len()).step_by(length)) {
        let end = whole.len().min(offset + length);
        opened
            .read_exact_at(&mut piece[..end - offset], offset as u64)
            .unwrap_or_else(|e| panic!("{} at {offset}: {e}", file.display()));
        assert!(piece[..end - offset] == whole[offset..end], "{} at {offset}+{length}", file.display());
    }
}

/// One entry of a directory and the position after it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Listed {
    name: Vec<u8>,
    ino: u64,
    next: u64,
}

/// Lists a directory; returns its names without `.` and `..` in the order of the listing.
fn list(folder: &Path, ino: u64, parent: Option<&PathBuf>) -> Vec<Vec<u8>> {
    let opened =
        rustix::fs::open(folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
            .unwrap_or_else(|e| panic!("open {}: {e}", folder.display()));
    let all = listed_from(&opened, 0, folder);
    let numbers: BTreeMap<&[u8], u64> = all.iter().map(|line| (line.name.as_slice(), line.ino)).collect();
    assert_eq!(numbers.len(), all.len(), "{} lists every name once", folder.display());
    assert_eq!(numbers.get(&b"."[..]), Some(&ino), "{} lists itself", folder.display());
    if let Some(parent) = parent {
        let parent = fs::metadata(parent).unwrap_or_else(|e| panic!("stat {}: {e}", parent.display())).ino();
        assert_eq!(numbers.get(&b".."[..]), Some(&parent), "{} lists its parent", folder.display());
    }
    assert!(listed_from(&opened, 0, folder) == all, "{} lists the same twice", folder.display());
    for at in [0, 1, all.len() / 2, all.len() - 1] {
        let rest = listed_from(&opened, all[at].next, folder);
        assert!(rest == all[at + 1..], "{} resumes after entry {at}", folder.display());
    }
    for line in &all {
        if line.name != b"." && line.name != b".." {
            let meta = fs::symlink_metadata(folder.join(OsStr::from_bytes(&line.name)));
            let ino = meta.unwrap_or_else(|e| panic!("stat in {}: {e}", folder.display())).ino();
            assert_eq!(ino, line.ino, "{}/{} has one number", folder.display(), line.name.escape_ascii());
        }
    }
    all.into_iter().map(|line| line.name).filter(|name| name != b"." && name != b"..").collect()
}

fn listed_from(opened: &rustix::fd::OwnedFd, position: u64, folder: &Path) -> Vec<Listed> {
    rustix::fs::seek(opened, SeekFrom::Start(position))
        .unwrap_or_else(|e| panic!("seekdir {} to {position}: {e}", folder.display()));
    let mut buffer = [MaybeUninit::uninit(); 2048];
    let mut lines = RawDir::new(opened, &mut buffer);
    let mut listed = Vec::new();
    while let Some(line) = lines.next() {
        let line = line.unwrap_or_else(|e| panic!("readdir {}: {e}", folder.display()));
        listed.push(Listed {
            name: line.file_name().to_bytes().to_vec(),
            ino: line.ino(),
            next: line.next_entry_cookie(),
        });
    }
    listed
}

/// Lists the differences between the found entries and the expected ones.
pub fn differences(expected: &[Entry], found: &[Found], ownership: Ownership) -> Vec<String> {
    let mut differences = Vec::new();
    let found_at: BTreeMap<&[u8], &Found> =
        found.iter().map(|found| (found.entry.path.as_slice(), found)).collect();
    let expected_at: BTreeSet<&[u8]> = expected.iter().map(|entry| entry.path.as_slice()).collect();
    for path in found_at.keys().filter(|path| !expected_at.contains(*path)) {
        differences.push(format!("{} should not be there", path.escape_ascii()));
    }
    for entry in expected {
        let Some(found) = found_at.get(entry.path.as_slice()) else {
            differences.push(format!("{} is missing", entry.path.escape_ascii()));
            continue;
        };
        let expected = as_shown(entry, ownership);
        if found.entry != expected {
            differences.push(difference(&expected, &found.entry));
        }
    }
    differences.extend(shared_numbers(found));
    differences
}

/// Returns an entry as a mount with this ownership shows it.
fn as_shown(entry: &Entry, ownership: Ownership) -> Entry {
    let mut shown = entry.clone();
    if let Ownership::Claimed(uid, gid) = ownership {
        (shown.uid, shown.gid) = (uid, gid);
        // Then not even the owner may read it.
        if shown.mode & 0o400 == 0 {
            shown.sha256 = None;
        }
    }
    shown
}

fn difference(expected: &Entry, found: &Entry) -> String {
    let mut words = format!("{}:", expected.path.escape_ascii());
    let mut add = |what: &str, expected: String, found: String| {
        if expected != found {
            words.push_str(&format!(" {what} is {found}, not {expected};"));
        }
    };
    add("mode", format!("{:o}", expected.mode), format!("{:o}", found.mode));
    add("mtime", expected.mtime_ns.to_string(), found.mtime_ns.to_string());
    add("owner", format!("{}:{}", expected.uid, expected.gid), format!("{}:{}", found.uid, found.gid));
    add("size", format!("{:?}", expected.size), format!("{:?}", found.size));
    add("nlink", format!("{:?}", expected.nlink), format!("{:?}", found.nlink));
    add("rdev", format!("{:?}", expected.rdev), format!("{:?}", found.rdev));
    add("target", format!("{:?}", expected.target), format!("{:?}", found.target));
    add("content", format!("{:?}", expected.sha256), format!("{:?}", found.sha256));
    let names = |entry: &Entry| {
        let pairs = entry.xattrs.iter();
        pairs
            .map(|(name, value)| format!("{}={}", name.escape_ascii(), object::hex(value)))
            .collect::<Vec<_>>()
    };
    add("xattrs", names(expected).join(" "), names(found).join(" "));
    words
}

/// Reports files that share an inode number without being links of one group, and the reverse.
fn shared_numbers(found: &[Found]) -> Vec<String> {
    let mut groups: BTreeMap<u64, Vec<&Found>> = BTreeMap::new();
    for found in found {
        groups.entry(found.ino).or_default().push(found);
    }
    groups
        .values()
        .filter(|group| {
            let links = group[0].entry.nlink.unwrap_or(1);
            group.len() as u64 != links
        })
        .map(|group| {
            let names: Vec<String> = group.iter().map(|f| f.entry.path.escape_ascii().to_string()).collect();
            format!(
                "{} share inode number {} with link count {:?}",
                names.join(", "),
                group[0].ino,
                group[0].entry.nlink
            )
        })
        .collect()
}
