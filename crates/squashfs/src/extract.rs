//! Extracts any tree into a folder.
//!
//! Names in the tree are not trusted. This module creates every directory itself and keeps it open while it
//! is filled; every entry is created newly, relative to that descriptor. So no name and no symlink can lead
//! out of the folder.

use std::collections::HashMap;
use std::ffi::{CString, OsStr};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crossbeam_channel::{Receiver, bounded};
use esker_vfs::{
    Attr, DirEntry, ErrorKind, Ino, Kind, Node, NodeWithAttr, Reply, Segment, Tree, TreeError, whole_listing,
};
use parking_lot::Mutex;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags, chmodat, chownat,
    fchmod, fstat, linkat, lsetxattr, mkdirat, mknodat, openat, symlinkat, unlinkat, utimensat,
};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

/// Callback that sets an extended attribute of the entry being extracted.
type SetXattr<'a> = &'a mut dyn FnMut(&CString, &[u8]) -> Result<(), Errno>;

/// Options of an extraction.
#[derive(Clone, Copy, Debug)]
pub struct Extract<'e> {
    /// True to restore owners and extended attributes of all namespaces, which requires root.
    pub as_root: bool,
    /// Number of threads that write files.
    pub threads: usize,
    /// Flag that stops the extraction when set.
    pub stop: &'e AtomicBool,
}

/// Result of an extraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extracted {
    /// Number of extracted entries, the top directory included.
    pub entries: u64,
    /// Number of extracted bytes of file content.
    pub bytes: u64,
    /// Number of extended attributes that this file system or user can't set.
    pub xattrs_left_out: u64,
    /// Number of device nodes that this user can't create.
    pub devices_left_out: u64,
}

/// Reasons why a tree was not extracted.
#[derive(Debug, thiserror::Error)]
pub enum ExtractError {
    /// The tree can't be read.
    #[error("reading {path}")]
    Tree {
        /// Path of the entry in the tree.
        path: String,
        /// Error of the tree.
        source: TreeError,
    },
    /// The folder can't be written.
    #[error("{doing} {path}")]
    Folder {
        /// Operation that failed.
        doing: &'static str,
        /// Path of the entry.
        path: String,
        /// Error of the system.
        source: io::Error,
    },
    /// The folder is not empty.
    #[error("{0} is not empty")]
    NotEmpty(String),
    /// An entry has a name that no file can have.
    #[error("{0} has a name that leads elsewhere")]
    Name(String),
    /// The caller stopped the extraction.
    #[error("interrupted")]
    Interrupted,
}

/// A created file whose content is still to be written.
struct Job {
    file: OwnedFd,
    node: Node,
    attr: Attr,
    path: Vec<u8>,
}

struct ExtractRun<'e> {
    tree: &'e dyn Tree,
    how: Extract<'e>,
    error: Mutex<Option<ExtractError>>,
    over: AtomicBool,
    entries: AtomicU64,
    bytes: AtomicU64,
    xattrs_left_out: AtomicU64,
    devices_left_out: AtomicU64,
}

/// Number of bytes of one read.
const PIECE: usize = 1 << 20;
/// Maximum number of files that are open and waiting for their content.
const OPEN_MAX: usize = 64;

/// Extracts all entries below the directory `top` into `folder`, which must be empty or missing.
///
/// A stopped or failed extraction removes its entries again.
pub fn extract(
    tree: &dyn Tree,
    top: &NodeWithAttr,
    folder: &Path,
    how: Extract<'_>,
) -> Result<Extracted, ExtractError> {
    let shown = folder.display().to_string();
    let failed = |doing| {
        let path = shown.clone();
        move |error: Errno| ExtractError::Folder { doing, path, source: error.into() }
    };
    let is_new = match mkdirat(CWD, folder, Mode::RWXU) {
        Ok(()) => true,
        Err(Errno::EXIST) => false,
        Err(error) => return Err(failed("making")(error)),
    };
    let root = openat(CWD, folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let root = root.map_err(failed("opening"))?;
    let opened = fcntl_dupfd_cloexec(&root, 0).map_err(failed("opening"))?;
    let before = fstat(&root).map_err(failed("looking at"))?;
    let mut listed = Dir::read_from(&root).map_err(failed("reading"))?;
    if listed.any(|entry| !entry.is_ok_and(|entry| matches!(entry.file_name().to_bytes(), b"." | b".."))) {
        return Err(ExtractError::NotEmpty(shown));
    }
    let run = ExtractRun {
        tree,
        how,
        error: Mutex::new(None),
        over: AtomicBool::new(false),
        entries: AtomicU64::new(0),
        bytes: AtomicU64::new(0),
        xattrs_left_out: AtomicU64::new(0),
        devices_left_out: AtomicU64::new(0),
    };
    let (jobs, to_do) = bounded::<Job>(OPEN_MAX);
    std::thread::scope(|scope| {
        for _ in 0..how.threads.max(1) {
            let (run, to_do) = (&run, to_do.clone());
            scope.spawn(move || run.fill_files(&to_do));
        }
        drop(to_do);
        let walked = run.walk(top, root, &mut |job| jobs.send(job).map_err(|_| ExtractError::Interrupted));
        drop(jobs);
        if let Err(error) = walked {
            run.fail(error);
        }
    });
    match run.error.into_inner() {
        Some(ExtractError::Interrupted) => {
            // The folder may already have the mode of the tree's top directory, which may not be writable by
            // its owner.
            fchmod(&opened, Mode::from_raw_mode(before.st_mode))
                .and_then(|()| empty(&opened))
                .map_err(failed("removing extracted entries of"))?;
            if is_new {
                unlinkat(CWD, folder, AtFlags::REMOVEDIR).map_err(failed("removing"))?;
            }
            Err(ExtractError::Interrupted)
        }
        Some(error) => Err(error),
        None => Ok(Extracted {
            entries: run.entries.into_inner(),
            bytes: run.bytes.into_inner(),
            xattrs_left_out: run.xattrs_left_out.into_inner(),
            devices_left_out: run.devices_left_out.into_inner(),
        }),
    }
}

/// A directory that is being filled.
struct Level {
    folder: OwnedFd,
    node: Node,
    attr: Attr,
    path: Vec<u8>,
    left: Vec<DirEntry>,
}

impl ExtractRun<'_> {
    fn fail(&self, error: ExtractError) {
        let mut first = self.error.lock();
        *first = first.take().or(Some(error));
        self.over.store(true, Ordering::Relaxed);
    }

    fn level(&self, folder: OwnedFd, node: Node, attr: Attr, path: Vec<u8>) -> Result<Level, ExtractError> {
        let left = whole_listing(self.tree, &node).map_err(unread(&path))?;
        Ok(Level { folder, node, attr, path, left })
    }

    /// Creates all entries except file contents; a directory gets its attributes once it is full.
    fn walk(
        &self,
        top: &NodeWithAttr,
        root: OwnedFd,
        give: &mut dyn FnMut(Job) -> Result<(), ExtractError>,
    ) -> Result<(), ExtractError> {
        let root = Arc::new(root);
        let mut linked: HashMap<Ino, Vec<u8>> = HashMap::new();
        let dot = openat(&*root, c".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let dot = dot.map_err(unwritten("opening", b""))?;
        let mut way = vec![self.level(dot, top.node, top.attr, Vec::new())?];
        while let Some(level) = way.last_mut() {
            if self.how.stop.load(Ordering::Relaxed) || self.over.load(Ordering::Relaxed) {
                return Err(ExtractError::Interrupted);
            }
            let Some(entry) = level.left.pop() else {
                self.set_attributes(&level.folder, &level.node, &level.attr, &level.path)?;
                way.pop();
                continue;
            };
            let path = joined(&level.path, &entry.name);
            let is_odd = entry.name.is_empty() || entry.name.iter().any(|byte| matches!(byte, b'/' | 0));
            if is_odd || matches!(&*entry.name, b"." | b"..") {
                return Err(ExtractError::Name(shown(&path)));
            }
            let is_linked = entry.attr.kind != Kind::Directory && entry.attr.nlink > 1;
            if is_linked && let Some(first) = linked.get(&entry.attr.ino) {
                // All parent directories of this entry were created by this extraction, and so was the entry.
                let name = OsStr::from_bytes(&entry.name);
                linkat(&*root, OsStr::from_bytes(first), &level.folder, name, AtFlags::empty())
                    .map_err(unwritten("linking", &path))?;
                self.entries.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            if !self.make(&level.folder, &entry, &path, give)? {
                continue;
            }
            if is_linked {
                linked.insert(entry.attr.ino, path);
            } else if entry.attr.kind == Kind::Directory {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let below = openat(&level.folder, OsStr::from_bytes(&entry.name), flags, Mode::empty());
                let below = below.map_err(unwritten("opening", &path))?;
                way.push(self.level(below, entry.node, entry.attr, path)?);
            }
        }
        Ok(())
    }

    /// Creates one entry; returns false if the entry was omitted.
    fn make(
        &self,
        folder: &OwnedFd,
        entry: &DirEntry,
        path: &[u8],
        give: &mut dyn FnMut(Job) -> Result<(), ExtractError>,
    ) -> Result<bool, ExtractError> {
        let (name, attr) = (OsStr::from_bytes(&entry.name), &entry.attr);
        let failed = || unwritten("making", path);
        let private = Mode::RUSR | Mode::WUSR;
        let kind = match attr.kind {
            Kind::Directory => {
                mkdirat(folder, name, Mode::RWXU).map_err(failed())?;
                return Ok(true);
            }
            Kind::File => {
                let flags =
                    OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                let file = openat(folder, name, flags, private).map_err(failed())?;
                give(Job { file, node: entry.node, attr: *attr, path: path.to_vec() })?;
                return Ok(true);
            }
            Kind::Symlink => {
                let target = Reply::wait(|reply| self.tree.link_target(&entry.node, reply));
                let target = target.map_err(unread(path))?;
                symlinkat(OsStr::from_bytes(&target), folder, name).map_err(failed())?;
                self.set_attributes_at(folder, &entry.name, &entry.node, attr, path)?;
                return Ok(true);
            }
            Kind::Fifo => FileType::Fifo,
            Kind::Socket => FileType::Socket,
            Kind::CharDevice => FileType::CharacterDevice,
            Kind::BlockDevice => FileType::BlockDevice,
        };
        let device = rustix::fs::makedev(attr.rdev.major, attr.rdev.minor);
        match mknodat(folder, name, kind, private, device) {
            Ok(()) => {}
            Err(Errno::PERM) if matches!(attr.kind, Kind::CharDevice | Kind::BlockDevice) => {
                self.devices_left_out.fetch_add(1, Ordering::Relaxed);
                return Ok(false);
            }
            Err(error) => return Err(failed()(error)),
        }
        self.set_attributes_at(folder, &entry.name, &entry.node, attr, path)?;
        let mode = Mode::from_raw_mode(attr.permissions.into());
        // This extraction created the entry, so it can't be a symlink.
        rustix::fs::chmodat(folder, name, mode, AtFlags::empty()).map_err(failed())?;
        utimensat(folder, name, &times(attr), AtFlags::SYMLINK_NOFOLLOW).map_err(failed())?;
        Ok(true)
    }

    fn fill_files(&self, to_do: &Receiver<Job>) {
        for Job { file, node, attr, path } in to_do {
            if self.over.load(Ordering::Relaxed) || self.how.stop.load(Ordering::Relaxed) {
                continue;
            }
            let filled = self.fill(file, &node, &attr, &path);
            if let Err(error) = filled {
                self.fail(error);
            }
        }
    }

    fn fill(&self, file: OwnedFd, node: &Node, attr: &Attr, path: &[u8]) -> Result<(), ExtractError> {
        let failed = |source| ExtractError::Folder { doing: "writing", path: shown(path), source };
        let file = File::from(file);
        let mut offset = 0;
        while offset < attr.size {
            let data =
                Reply::wait(|reply| self.tree.read(node, offset, PIECE, reply)).map_err(unread(path))?;
            if data.is_empty() {
                let source = ErrorKind::Damaged.into();
                return Err(ExtractError::Tree { path: shown(path), source });
            }
            for segment in &data.0 {
                match segment {
                    // The file gets its length at the end; unwritten ranges are holes.
                    Segment::Zeros(_) => {}
                    Segment::Bytes { bytes, start, len } => {
                        let bytes = bytes.get(*start..*start + *len).unwrap_or_default();
                        file.write_all_at(bytes, offset).map_err(failed)?;
                    }
                    Segment::File { .. } => {
                        let bytes = esker_vfs::Data(vec![segment.clone()]).to_vec().map_err(failed)?;
                        file.write_all_at(&bytes, offset).map_err(failed)?;
                    }
                }
                offset += segment.len() as u64;
            }
            if self.how.stop.load(Ordering::Relaxed) {
                return Err(ExtractError::Interrupted);
            }
        }
        file.set_len(attr.size).map_err(failed)?;
        self.bytes.fetch_add(attr.size, Ordering::Relaxed);
        self.set_attributes(&file, node, attr, path)
    }

    /// Sets owner, mode, extended attributes and times of an open file or directory, times last.
    fn set_attributes(
        &self,
        file: &impl AsFd,
        node: &Node,
        attr: &Attr,
        path: &[u8],
    ) -> Result<(), ExtractError> {
        let failed = || unwritten("setting attributes of", path);
        if self.how.as_root {
            let (uid, gid) = (Uid::from_raw(attr.uid), Gid::from_raw(attr.gid));
            rustix::fs::fchown(file, Some(uid), Some(gid)).map_err(failed())?;
        }
        let link = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd()).into_bytes();
        self.xattrs(node, path, &mut |name, value| {
            rustix::fs::setxattr(&link[..], name, value, XattrFlags::empty())
        })?;
        fchmod(file, Mode::from_raw_mode(attr.permissions.into())).map_err(failed())?;
        rustix::fs::futimens(file, &times(attr)).map_err(failed())?;
        self.entries.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Like [`ExtractRun::set_attributes`], for entries that can't be opened; the caller sets the mode, where
    /// there is one.
    fn set_attributes_at(
        &self,
        folder: &OwnedFd,
        name: &[u8],
        node: &Node,
        attr: &Attr,
        path: &[u8],
    ) -> Result<(), ExtractError> {
        let failed = || unwritten("setting attributes of", path);
        let os_name = OsStr::from_bytes(name);
        if self.how.as_root {
            let (uid, gid) = (Uid::from_raw(attr.uid), Gid::from_raw(attr.gid));
            chownat(folder, os_name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW).map_err(failed())?;
        }
        let mut link = format!("/proc/self/fd/{}/", folder.as_raw_fd()).into_bytes();
        link.extend_from_slice(name);
        self.xattrs(node, path, &mut |name, value| lsetxattr(&link[..], name, value, XattrFlags::empty()))?;
        utimensat(folder, os_name, &times(attr), AtFlags::SYMLINK_NOFOLLOW).map_err(failed())?;
        self.entries.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn xattrs(&self, node: &Node, path: &[u8], set: SetXattr<'_>) -> Result<(), ExtractError> {
        let names = match Reply::wait(|reply| self.tree.xattr_names(node, reply)) {
            Ok(names) => names,
            Err(error) if error.kind == ErrorKind::Unsupported => return Ok(()),
            Err(error) => return Err(unread(path)(error)),
        };
        for name in names {
            let value = Reply::wait(|reply| self.tree.xattr(node, &name, reply)).map_err(unread(path))?;
            let is_for_us = self.how.as_root || name.starts_with(b"user.");
            let c_name = CString::new(name).map_err(|_| ExtractError::Name(shown(path)))?;
            let outcome = if is_for_us { set(&c_name, &value) } else { Err(Errno::PERM) };
            match outcome {
                Ok(()) => {}
                // This user, file system or type of file doesn't support the attribute.
                Err(Errno::PERM | Errno::NOTSUP | Errno::NOSPC | Errno::ACCESS) => {
                    self.xattrs_left_out.fetch_add(1, Ordering::Relaxed);
                }
                Err(error) => return Err(unwritten("setting attributes of", path)(error)),
            }
        }
        Ok(())
    }
}

/// Removes everything in a folder.
fn empty(folder: &OwnedFd) -> Result<(), Errno> {
    for entry in Dir::read_from(folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        match unlinkat(folder, name, AtFlags::empty()) {
            Err(Errno::ISDIR) => {}
            removed => {
                removed?;
                continue;
            }
        }
        // The directory may be closed even to its owner.
        chmodat(folder, name, Mode::RWXU, AtFlags::empty())?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        empty(&openat(folder, name, flags, Mode::empty())?)?;
        unlinkat(folder, name, AtFlags::REMOVEDIR)?;
    }
    Ok(())
}

fn times(attr: &Attr) -> Timestamps {
    let time = Timespec { tv_sec: attr.mtime.secs, tv_nsec: attr.mtime.nanos.into() };
    Timestamps { last_access: time, last_modification: time }
}

fn joined(above: &[u8], name: &[u8]) -> Vec<u8> {
    if above.is_empty() { name.to_vec() } else { [above, name].join(&b'/') }
}

fn shown(path: &[u8]) -> String {
    format!("/{}", String::from_utf8_lossy(path))
}

fn unread(path: &[u8]) -> impl FnOnce(TreeError) -> ExtractError {
    let path = shown(path);
    move |source| ExtractError::Tree { path, source }
}

fn unwritten(doing: &'static str, path: &[u8]) -> impl FnOnce(Errno) -> ExtractError {
    let path = shown(path);
    move |error| ExtractError::Folder { doing, path, source: error.into() }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    #[test]
    fn emptying_a_folder_removes_closed_directories_and_nothing_outside() {
        let scratch = tempfile::tempdir().unwrap();
        let (elsewhere, folder) = (scratch.path().join("elsewhere"), scratch.path().join("folder"));
        fs::create_dir_all(&elsewhere).unwrap();
        fs::write(elsewhere.join("kept"), "").unwrap();
        fs::create_dir_all(folder.join("closed/inner")).unwrap();
        fs::write(folder.join("closed/inner/file"), "").unwrap();
        symlink(&elsewhere, folder.join("closed/link")).unwrap();
        for closed in ["closed/inner", "closed"] {
            fs::set_permissions(folder.join(closed), Permissions::from_mode(0o000)).unwrap();
        }
        empty(&fs::File::open(&folder).unwrap().into()).unwrap();
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        assert!(elsewhere.join("kept").exists());
    }
}
