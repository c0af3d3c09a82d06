//! Compares two directory trees side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Condvar, Mutex, PoisonError};

use rustix::fs::{lgetxattr, llistxattr};
use serde::Serialize;

use crate::output::lossy;

/// Facts to compare besides names, types, modes, sizes, times and targets of links.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    /// The bytes of files.
    pub(crate) content: bool,
    /// Owners and groups.
    pub(crate) owners: bool,
}

/// A difference between the two trees. Field names are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Difference {
    /// Path, from the roots of the trees.
    pub(crate) path: String,
    /// Kind of the difference.
    pub(crate) what: &'static str,
    /// Value in the first tree.
    pub(crate) a: String,
    /// Value in the second tree.
    pub(crate) b: String,
}

/// Maximum length in Linux of a list of attribute names, and of a value.
const XATTR_MAX: usize = 64 * 1024;
const BLOCK: usize = 256 * 1024;

/// Two trees that are compared by several threads.
pub(crate) struct Pair<'p> {
    a: &'p Path,
    b: &'p Path,
    scope: Scope,
    /// Directories to read.
    queue: Mutex<Queue>,
    more: Condvar,
    entries: AtomicU64,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<PathBuf>,
    /// Number of threads that may still find more work.
    busy: usize,
}

impl<'p> Pair<'p> {
    pub(crate) fn new(a: &'p Path, b: &'p Path, scope: Scope) -> Self {
        let queue = Queue { waiting: vec![PathBuf::new()], busy: 0 };
        Self { a, b, scope, queue: Mutex::new(queue), more: Condvar::new(), entries: AtomicU64::new(0) }
    }

    /// Returns the number of names compared so far.
    pub(crate) fn entries(&self) -> u64 {
        self.entries.load(Ordering::Relaxed)
    }

    /// Compares entries until none is left or the receiver is gone.
    pub(crate) fn work(&self, found: &Sender<Difference>) {
        while let Some(directory) = self.next() {
            let inside = self.directory(&directory, found);
            let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
            queue.busy -= 1;
            match inside {
                Some(inside) => queue.waiting.extend(inside),
                None => queue.waiting.clear(),
            }
            self.more.notify_all();
        }
    }

    fn next(&self) -> Option<PathBuf> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(directory) = queue.waiting.pop() {
                queue.busy += 1;
                return Some(directory);
            }
            if queue.busy == 0 {
                return None;
            }
            queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Compares the entries of two directories; returns the directories in both, or `None` if the receiver is gone.
    fn directory(&self, path: &Path, found: &Sender<Difference>) -> Option<Vec<PathBuf>> {
        let mut differences = Vec::new();
        let mut inside = Vec::new();
        if path.as_os_str().is_empty() {
            self.entry(path, &mut differences);
        }
        match (names(&self.a.join(path)), names(&self.b.join(path))) {
            (Ok(a), Ok(b)) => {
                for name in a.union(&b) {
                    let path = path.join(name);
                    match (a.contains(name), b.contains(name)) {
                        (true, true) if self.entry(&path, &mut differences) => inside.push(path),
                        (true, true) => {}
                        (there, _) => differences.push(self.only(&path, there)),
                    }
                }
            }
            (a, b) => differences.push(difference(path, "listing", &said(&a), &said(&b))),
        }
        for one in differences {
            found.send(one).ok()?;
        }
        Some(inside)
    }

    fn only(&self, path: &Path, in_a: bool) -> Difference {
        self.entries.fetch_add(1, Ordering::Relaxed);
        let (a, b) = if in_a { ("there", "missing") } else { ("missing", "there") };
        difference(path, "name", a, b)
    }

    /// Compares two entries of the same name; returns whether both are directories.
    fn entry(&self, path: &Path, differences: &mut Vec<Difference>) -> bool {
        self.entries.fetch_add(1, Ordering::Relaxed);
        let (at_a, at_b) = (self.a.join(path), self.b.join(path));
        let (a, b) = match (fs::symlink_metadata(&at_a), fs::symlink_metadata(&at_b)) {
            (Ok(a), Ok(b)) => (a, b),
            (a, b) => {
                differences.push(difference(path, "attributes", &said(&a), &said(&b)));
                return false;
            }
        };
        let mut compare = |what, a: String, b: String| {
            let same = a == b;
            if !same {
                differences.push(difference(path, what, &a, &b));
            }
            same
        };
        if !compare("type", kind(&a).into(), kind(&b).into()) {
            return false;
        }
        compare("mode", mode(&a), mode(&b));
        compare("mtime", mtime(&a), mtime(&b));
        if self.scope.owners {
            compare("owner", owner(&a), owner(&b));
        }
        compare("xattrs", xattrs(&at_a), xattrs(&at_b));
        if a.is_symlink() {
            let target = |at: &Path| fs::read_link(at).map(|target| lossy(target.as_os_str().as_bytes()));
            compare("target", text(target(&at_a)), text(target(&at_b)));
        } else if a.is_file() {
            let same = compare("size", a.len().to_string(), b.len().to_string());
            if same && self.scope.content {
                match first_difference(&at_a, &at_b) {
                    Ok(None) => {}
                    Ok(Some(at)) => _ = compare("content", format!("as is up to byte {at}"), "other".into()),
                    Err((a, b)) => _ = compare("content", a, b),
                }
            }
        } else if !a.is_dir() {
            compare("device", a.rdev().to_string(), b.rdev().to_string());
        }
        a.is_dir()
    }
}

fn difference(path: &Path, what: &'static str, a: &str, b: &str) -> Difference {
    let path = format!("/{}", lossy(path.as_os_str().as_bytes()));
    Difference { path, what, a: a.to_owned(), b: b.to_owned() }
}

fn said<T>(outcome: &io::Result<T>) -> String {
    outcome.as_ref().map_or_else(|error| format!("error: {error}"), |_| "readable".into())
}

fn text(outcome: io::Result<String>) -> String {
    outcome.unwrap_or_else(|error| format!("error: {error}"))
}

fn names(directory: &Path) -> io::Result<BTreeSet<OsString>> {
    fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.file_name())).collect()
}

fn kind(meta: &Metadata) -> &'static str {
    let kind = meta.file_type();
    match () {
        () if kind.is_dir() => "directory",
        () if kind.is_file() => "file",
        () if kind.is_symlink() => "symlink",
        () if kind.is_fifo() => "fifo",
        () if kind.is_socket() => "socket",
        () if kind.is_char_device() => "char device",
        () => "block device",
    }
}

fn mode(meta: &Metadata) -> String {
    format!("{:04o}", meta.mode() & 0o7777)
}

fn mtime(meta: &Metadata) -> String {
    format!("{}.{:09}", meta.mtime(), meta.mtime_nsec())
}

fn owner(meta: &Metadata) -> String {
    format!("{}:{}", meta.uid(), meta.gid())
}

/// Returns true for attributes in which a client describes itself, which differ between clients.
fn is_about_the_client(name: &str) -> bool {
    const ABOUT: [&str; 39] = [
        "authz",
        "catalog_counters",
        "chunk_list",
        "chunks",
        "compression",
        "direct_io",
        "esker.error",
        "expires",
        "external_file",
        "external_host",
        "external_timeout",
        "external_url",
        "fqrn",
        "hash",
        "hitrate",
        "host",
        "host_list",
        "inode_max",
        "lhash",
        "logbuffer",
        "maxfd",
        "nclg",
        "ncleanup24",
        "ndiropen",
        "ndownload",
        "nioerr",
        "nopen",
        "pid",
        "proxy",
        "proxy_list",
        "proxy_list_external",
        "pubkeys",
        "rawlink",
        "repo_counters",
        "repo_metainfo",
        "revision",
        "root_hash",
        "tag",
        "version",
    ];
    const USAGE: [&str; 9] = [
        "rx",
        "speed",
        "timeout",
        "timeout_direct",
        "timestamp_last_ioerr",
        "uptime",
        "usedfd",
        "useddirp",
        "errors",
    ];
    match name.split_once('.') {
        Some(("user", rest)) => ABOUT.contains(&rest) || USAGE.contains(&rest),
        Some(("xfsroot", rest)) => rest == "rawlink",
        _ => false,
    }
}

/// Returns the published extended attributes in one line.
fn xattrs(path: &Path) -> String {
    let all = stored_xattrs(path);
    let shown = all.iter().filter(|(name, _)| !is_about_the_client(name));
    shown.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// Returns the attributes of an entry by name; an unreadable one has the error as value.
pub(crate) fn stored_xattrs(path: &Path) -> BTreeMap<String, String> {
    let mut room = vec![0; XATTR_MAX];
    let listed = match llistxattr(path, &mut room[..]) {
        Ok(len) => room.get(..len).unwrap_or_default().to_vec(),
        Err(rustix::io::Errno::OPNOTSUPP) => return BTreeMap::new(),
        Err(error) => return BTreeMap::from([("all".to_owned(), format!("error: {error}"))]),
    };
    let mut value = |name: &[u8]| match lgetxattr(path, name, &mut room[..]) {
        Ok(len) => room.get(..len).unwrap_or_default().escape_ascii().to_string(),
        Err(error) => format!("error: {error}"),
    };
    let names = listed.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| (lossy(name), value(name))).collect()
}

/// Returns the offset of the first different byte; the results of both reads if one of them failed.
fn first_difference(a: &Path, b: &Path) -> Result<Option<u64>, (String, String)> {
    let failed = |a: &io::Result<()>, b: &io::Result<()>| (said(a), said(b));
    let (mut file_a, mut file_b) = match (File::open(a), File::open(b)) {
        (Ok(a), Ok(b)) => (a, b),
        (a, b) => return Err(failed(&a.map(drop), &b.map(drop))),
    };
    let (mut block_a, mut block_b) = (Vec::with_capacity(BLOCK), Vec::with_capacity(BLOCK));
    let mut at = 0;
    loop {
        block_a.clear();
        block_b.clear();
        let read_a = file_a.by_ref().take(BLOCK as u64).read_to_end(&mut block_a);
        let read_b = file_b.by_ref().take(BLOCK as u64).read_to_end(&mut block_b);
        let (Ok(_), Ok(_)) = (&read_a, &read_b) else {
            return Err(failed(&read_a.map(drop), &read_b.map(drop)));
        };
        if let Some(first) = block_a.iter().zip(&block_b).position(|(a, b)| a != b) {
            return Ok(Some(at + first as u64));
        }
        if block_a.len() != block_b.len() {
            return Ok(Some(at + block_a.len().min(block_b.len()) as u64));
        }
        if block_a.is_empty() {
            return Ok(None);
        }
        at += block_a.len() as u64;
    }
}
