//! Snapshots of a whole tree that can be compared.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use esker_squashfs::ImageTree;
use esker_vfs::{DirEntry, ErrorKind, Kind, Node, NodeWithAttr, Reply, Tree, TreeError, whole_listing};

/// Observed properties of one name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) mode: u32,
    pub(crate) owner: (u32, u32),
    pub(crate) mtime: i64,
    pub(crate) size: u64,
    pub(crate) nlink: u32,
    pub(crate) device: (u32, u32),
    /// Digest of the content, or target of a link.
    pub(crate) content: Vec<u8>,
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Identity: names with the same number are the same file.
    pub(crate) number: u64,
}

pub(crate) type Walked = BTreeMap<PathBuf, Seen>;

fn digest(bytes: &[u8]) -> Vec<u8> {
    // The digest is not collision-resistant; only a deliberate collision would go unnoticed.
    let fold = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, fold).to_le_bytes().to_vec()
}

/// Returns all names of a directory.
pub(crate) fn names(tree: &ImageTree, dir: &NodeWithAttr) -> Result<Vec<(Vec<u8>, NodeWithAttr)>, TreeError> {
    let entries = whole_listing(tree, &dir.node)?;
    assert!(entries.is_sorted_by(|a, b| a.cookie < b.cookie), "cookies ascend");
    let named = |entry: DirEntry| (entry.name.into(), NodeWithAttr { node: entry.node, attr: entry.attr });
    Ok(entries.into_iter().map(named).collect())
}

/// Returns the content of a file, read in pieces of `len` bytes.
pub(crate) fn content(tree: &ImageTree, file: &NodeWithAttr, len: usize) -> Result<Vec<u8>, TreeError> {
    let mut content = Vec::new();
    loop {
        let data = Reply::wait(|reply| tree.read(&file.node, content.len() as u64, len, reply))?;
        if data.is_empty() {
            return Ok(content);
        }
        content.extend(data.to_vec().expect("bytes in memory"));
    }
}

fn see(tree: &ImageTree, found: &NodeWithAttr) -> Result<Seen, TreeError> {
    let NodeWithAttr { node, attr } = found;
    let content = match attr.kind {
        Kind::File => {
            let content = content(tree, found, 100_000)?;
            assert_eq!(content.len() as u64, attr.size);
            digest(&content)
        }
        Kind::Symlink => Reply::wait(|reply| tree.link_target(node, reply))?,
        _ => Vec::new(),
    };
    let mut xattrs = BTreeMap::new();
    for name in xattr_names(tree, node)? {
        let value = Reply::wait(|reply| tree.xattr(node, &name, reply))?;
        xattrs.insert(name, value);
    }
    Ok(Seen {
        mode: attr.mode(),
        owner: (attr.uid, attr.gid),
        mtime: attr.mtime.secs,
        size: attr.size,
        nlink: attr.nlink,
        device: (attr.rdev.major, attr.rdev.minor),
        content,
        xattrs,
        number: attr.ino.0,
    })
}

/// Returns a snapshot of an image; every name is looked up, too.
pub(crate) fn image(tree: &ImageTree) -> Result<Walked, TreeError> {
    let mut walked = Walked::new();
    let mut waiting = vec![(PathBuf::new(), tree.root())];
    while let Some((path, found)) = waiting.pop() {
        walked.insert(path.clone(), see(tree, &found)?);
        if found.attr.kind != Kind::Directory {
            continue;
        }
        for (name, listed) in names(tree, &found)? {
            let looked_up = Reply::wait(|reply| tree.lookup(&found.node, &name, reply))?;
            assert_eq!((looked_up.node, looked_up.attr), (listed.node, listed.attr));
            waiting.push((path.join(OsStr::from_bytes(&name)), listed));
        }
    }
    Ok(walked)
}

/// Returns a snapshot of a folder.
pub(crate) fn folder(top: &Path) -> Walked {
    let mut walked = Walked::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(path) = waiting.pop() {
        let at = top.join(&path);
        let meta = fs::symlink_metadata(&at).unwrap();
        let kind = meta.file_type();
        let mut content = Vec::new();
        if kind.is_file() {
            content = digest(&fs::read(&at).unwrap());
        } else if kind.is_symlink() {
            content = fs::read_link(&at).unwrap().into_os_string().into_vec();
        } else if kind.is_dir() {
            waiting.extend(fs::read_dir(&at).unwrap().map(|entry| path.join(entry.unwrap().file_name())));
        }
        let is_device = kind.is_block_device() || kind.is_char_device();
        let device = |rdev| (rustix::fs::major(rdev), rustix::fs::minor(rdev));
        let seen = Seen {
            mode: meta.mode(),
            owner: (meta.uid(), meta.gid()),
            mtime: meta.mtime(),
            size: meta.size(),
            nlink: meta.nlink() as u32,
            device: if is_device { device(meta.rdev()) } else { (0, 0) },
            content,
            xattrs: xattrs(&at),
            number: meta.ino(),
        };
        walked.insert(path, seen);
    }
    walked
}

fn xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut list = vec![0; 64 << 10];
    let len = rustix::fs::llistxattr(path, &mut list).unwrap();
    list[..len]
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| {
            let mut value = vec![0; 64 << 10];
            let len = rustix::fs::lgetxattr(path, name, &mut value).unwrap();
            value.truncate(len);
            (name.to_vec(), value)
        })
        .collect()
}

/// Panics with the first difference. A folder that is not mounted has its own inode numbers, and its own
/// sizes and link counts of directories.
#[track_caller]
pub(crate) fn assert_same(ours: &Walked, theirs: &Walked, mounted: bool) {
    let names = |walked: &Walked| walked.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(ours), names(theirs));
    let mut pairs = BTreeMap::new();
    for (path, ours) in ours {
        let mut theirs = theirs[path].clone();
        if !mounted {
            let same = *pairs.entry(theirs.number).or_insert(ours.number);
            assert_eq!(same, ours.number, "{}: hard links", path.display());
            theirs.number = same;
            if theirs.mode & libc_dir() == libc_dir() {
                (theirs.size, theirs.nlink) = (ours.size, ours.nlink);
            }
        }
        assert_eq!(*ours, theirs, "{}", path.display());
    }
}

const fn libc_dir() -> u32 {
    Kind::Directory.mode_bits()
}

/// Returns the names of extended attributes; an image without an attribute table has none.
pub(crate) fn xattr_names(tree: &dyn Tree, node: &Node) -> Result<Vec<Vec<u8>>, TreeError> {
    match Reply::wait(|reply| tree.xattr_names(node, reply)) {
        Err(error) if error.kind == ErrorKind::Unsupported => Ok(Vec::new()),
        names => names,
    }
}
