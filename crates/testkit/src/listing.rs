//! Parses the listings of the fixtures: the expected entries of a revision.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{lgetxattr, llistxattr};
use serde::Deserialize;

use crate::object;

/// One entry of a revision as the reference client showed it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Entry {
    /// The absolute path inside the repository; `/` is the root.
    pub path: Vec<u8>,
    /// `st_mode`: type and permissions.
    pub mode: u32,
    /// Time of the last change, in nanoseconds since the epoch (before it, too).
    pub mtime_ns: i64,
    /// The owner as published.
    pub uid: u32,
    /// The group as published.
    pub gid: u32,
    /// The size; unknown for directories.
    pub size: Option<u64>,
    /// The link count; unknown for directories.
    pub nlink: Option<u64>,
    /// The device number of a device.
    pub rdev: Option<u64>,
    /// The target of a symlink, variables expanded with none set.
    pub target: Option<Vec<u8>>,
    /// SHA-256 of a regular file's content, in hex.
    pub sha256: Option<String>,
    /// Extended attributes by name.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Entry {
    /// Reads an entry from a path, with its inode number; `content` returns the SHA-256 of a regular file.
    pub(crate) fn on_disk(
        place: &Path,
        path: &[u8],
        content: impl FnOnce(&fs::Metadata) -> Option<String>,
    ) -> (Self, u64) {
        let meta = fs::symlink_metadata(place).unwrap_or_else(|e| panic!("stat {}: {e}", place.display()));
        let kind = meta.file_type();
        let is_device = kind.is_char_device() || kind.is_block_device();
        let target = || fs::read_link(place).unwrap_or_else(|e| panic!("readlink {}: {e}", place.display()));
        let is_root = path == b"/";
        let entry = Self {
            path: path.to_vec(),
            mode: meta.mode(),
            mtime_ns: meta.mtime() * 1_000_000_000 + meta.mtime_nsec(),
            uid: meta.uid(),
            gid: meta.gid(),
            size: (!kind.is_dir()).then_some(meta.size()),
            nlink: (!kind.is_dir()).then_some(meta.nlink()),
            rdev: is_device.then_some(meta.rdev()),
            target: kind.is_symlink().then(|| target().into_os_string().into_vec()),
            sha256: if kind.is_file() { content(&meta) } else { None },
            xattrs: xattrs(place, |name| is_root && ABOUT_THE_CLIENT.contains(&name)),
        };
        (entry, meta.ino())
    }

    /// Returns the type bits of the mode.
    pub fn kind(&self) -> u32 {
        self.mode & libc::S_IFMT
    }

    /// Returns true for a regular file.
    pub fn is_file(&self) -> bool {
        self.kind() == libc::S_IFREG
    }

    /// Returns true for a directory.
    pub fn is_dir(&self) -> bool {
        self.kind() == libc::S_IFDIR
    }

    /// Returns true for a symlink.
    pub fn is_symlink(&self) -> bool {
        self.kind() == libc::S_IFLNK
    }

    /// Returns the path below a mount point: without the slash in front, empty for the root.
    pub fn below_root(&self) -> &[u8] {
        &self.path[1..]
    }
}

#[derive(Deserialize)]
struct Line {
    path: String,
    mode: u32,
    mtime_ns: i64,
    uid: u32,
    gid: u32,
    size: Option<u64>,
    nlink: Option<u64>,
    rdev: Option<u64>,
    target: Option<String>,
    sha256: Option<String>,
    #[serde(default)]
    xattrs: BTreeMap<String, String>,
}

/// Reads a `tree.vN.jsonl.zst` in its order, which is that of the paths.
pub fn read(file: &Path) -> Vec<Entry> {
    let packed = std::fs::read(file).unwrap_or_else(|e| panic!("reading {}: {e}", file.display()));
    let text = zstd::decode_all(packed.as_slice()).expect("a zstd stream");
    let text = String::from_utf8(text).expect("JSON is UTF-8");
    text.lines().map(|line| entry(serde_json::from_str(line).expect("a listing line"))).collect()
}

fn entry(line: Line) -> Entry {
    Entry {
        path: latin1(&line.path),
        mode: line.mode,
        mtime_ns: line.mtime_ns,
        uid: line.uid,
        gid: line.gid,
        size: line.size,
        nlink: line.nlink,
        rdev: line.rdev,
        target: line.target.as_deref().map(latin1),
        sha256: line.sha256,
        xattrs: line.xattrs.iter().map(|(name, hex)| (latin1(name), object::unhex(hex))).collect(),
    }
}

fn latin1(text: &str) -> Vec<u8> {
    text.chars().map(|c| u8::try_from(u32::from(c)).expect("a byte as a Latin-1 character")).collect()
}

/// Attributes of the root directory in which a client describes itself; no listing has them.
const ABOUT_THE_CLIENT: [&[u8]; 37] = [
    b"user.catalog_counters",
    b"user.esker.error",
    b"user.expires",
    b"user.external_host",
    b"user.external_timeout",
    b"user.fqrn",
    b"user.hitrate",
    b"user.host",
    b"user.host_list",
    b"user.inode_max",
    b"user.logbuffer",
    b"user.maxfd",
    b"user.ncleanup24",
    b"user.nclg",
    b"user.ndiropen",
    b"user.ndownload",
    b"user.nioerr",
    b"user.nopen",
    b"user.pid",
    b"user.proxy",
    b"user.proxy_list",
    b"user.proxy_list_external",
    b"user.pubkeys",
    b"user.repo_counters",
    b"user.revision",
    b"user.revision_timestamp",
    b"user.root_hash",
    b"user.rx",
    b"user.speed",
    b"user.tag",
    b"user.timeout",
    b"user.timeout_direct",
    b"user.timestamp_last_ioerr",
    b"user.uptime",
    b"user.useddirp",
    b"user.usedfd",
    b"user.version",
];

/// Lists the entries of a folder, in path order, to compare it with its source.
pub fn of_folder(folder: &Path) -> Vec<Entry> {
    let mut found = Vec::new();
    let mut waiting = vec![(folder.to_owned(), b"/".to_vec())];
    while let Some((place, path)) = waiting.pop() {
        let read = |_: &fs::Metadata| Some(object::sha256(&fs::read(&place).unwrap()));
        found.push(Entry::on_disk(&place, &path, read).0);
        if !found.last().is_some_and(Entry::is_dir) {
            continue;
        }
        for child in fs::read_dir(&place).unwrap() {
            let name = child.unwrap().file_name();
            let separator: &[u8] = if path == b"/" { b"" } else { b"/" };
            waiting.push((place.join(&name), [&path, separator, name.as_bytes()].concat()));
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// Returns the extended attributes of a path, but for names to be left out.
fn xattrs(place: &Path, left_out: impl Fn(&[u8]) -> bool) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut names = vec![0; 64 << 10];
    let len =
        llistxattr(place, &mut names[..]).unwrap_or_else(|e| panic!("listxattr {}: {e}", place.display()));
    let names = names[..len].split(|byte| *byte == 0).filter(|name| !name.is_empty() && !left_out(name));
    names
        .map(|name| {
            let mut value = vec![0; 64 << 10];
            let len = lgetxattr(place, name, &mut value[..])
                .unwrap_or_else(|e| panic!("getxattr {} {}: {e}", place.display(), name.escape_ascii()));
            (name.to_vec(), value[..len].to_vec())
        })
        .collect()
}
