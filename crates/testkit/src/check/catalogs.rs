//! Checks catalogs row by row.

use std::collections::{BTreeMap, BTreeSet};

use md5::{Digest, Md5};
use rusqlite::Connection;

use crate::contents;
use crate::listing::Entry;
use crate::object::{self, Algorithm};

use super::head::{Head, integrity};
use super::objects::Objects;
use super::{Findings, bundles};

const S_IFMT: u32 = 0o170_000;
const DIRECTORY: u64 = 1;
const MOUNTPOINT: u64 = 2;
const FILE: u64 = 4;
const LINK: u64 = 8;
const SPECIAL: u64 = 16;
const ROOT: u64 = 32;
const CHUNKED: u64 = 64;
const EXTERNAL: u64 = 128;
const BIND: u64 = 1 << 14;
pub(super) const HIDDEN: u64 = 1 << 15;

/// The names of the counters, without prefix.
const COUNTERS: [&str; 12] = [
    "regular",
    "symlink",
    "special",
    "dir",
    "nested",
    "chunked",
    "chunks",
    "file_size",
    "chunked_size",
    "xattr",
    "external",
    "external_file_size",
];
type Counts = BTreeMap<&'static str, u64>;

pub(super) struct Row {
    rowid: i64,
    key: [i64; 2],
    parent: [i64; 2],
    pub(super) hardlinks: u64,
    pub(super) hash: Option<Vec<u8>>,
    size: i64,
    pub(super) mode: u32,
    mtime: i64,
    mtime_ns: Option<i64>,
    pub(super) flags: u64,
    pub(super) name: Vec<u8>,
    symlink: Vec<u8>,
    uid: u32,
    gid: u32,
    xattr: Option<Vec<u8>>,
}

fn key_of(path: &[u8]) -> [i64; 2] {
    let digest: [u8; 16] = Md5::digest(path).into();
    let half = |at: usize| i64::from_le_bytes(digest[at..at + 8].try_into().expect("8 bytes"));
    [half(0), half(8)]
}

/// A catalog to check, as its parent describes it.
struct Waiting {
    mountpoint: Vec<u8>,
    hash: String,
    size: u64,
    /// The transition entry in the parent.
    transition: Option<Row>,
}

struct Judge<'c> {
    objects: &'c Objects,
    findings: &'c mut Findings,
    /// Counts of each catalog's own rows, and the counts that the catalog states for its subtree.
    counted: BTreeMap<Vec<u8>, (Counts, Counts)>,
}

pub(super) fn check(head: &Head, objects: &Objects, findings: &mut Findings) {
    let mut judge = Judge { objects, findings, counted: BTreeMap::new() };
    let root =
        Waiting { mountpoint: Vec::new(), hash: head.root.clone(), size: head.root_size, transition: None };
    let mut waiting = vec![root];
    while let Some(catalog) = waiting.pop() {
        judge.catalog(head, catalog, &mut waiting);
    }
    judge.subtrees();
}

impl Judge<'_> {
    fn catalog(&mut self, head: &Head, at: Waiting, waiting: &mut Vec<Waiting>) {
        let what = format!("catalog {:?}", String::from_utf8_lossy(&at.mountpoint));
        let Some(bytes) = self.objects.plain(&at.hash, "C", 0, self.findings) else { return };
        if bytes.len() as u64 != at.size {
            self.findings.problem(format!("{what} has {} bytes, {} were said", bytes.len(), at.size));
        }
        let (_file, database) = contents::open(&bytes);
        integrity(&what, &database, self.findings);
        self.properties(&what, head, &at, &database);
        let rows = read_rows(&database);
        self.findings
            .catalogs
            .insert(String::from_utf8_lossy(&at.mountpoint).into_owned(), rows.len() as u64);
        let nested = nested(&database);
        let mut own: Counts = COUNTERS.iter().map(|name| (*name, 0)).collect();
        *own.get_mut("nested").expect("a counter") = nested.len() as u64;
        let said = statistics(&database);
        let mut by_parent: BTreeMap<[i64; 2], Vec<Row>> = BTreeMap::new();
        let mut top = None;
        let total = rows.len();
        for row in rows {
            if row.key == key_of(&at.mountpoint) {
                top = Some(row)
            } else {
                by_parent.entry(row.parent).or_default().push(row)
            }
        }
        let Some(top) = top else {
            self.findings.problem(format!("{what} has no root entry"));
            return;
        };
        self.top(&what, &at, &top);
        let mut reached = 0;
        let mut directories = vec![(at.mountpoint.clone(), top)];
        while let Some((path, row)) = directories.pop() {
            reached += 1;
            let children = by_parent.remove(&row.key).unwrap_or_default();
            let subdirectories = children.iter().filter(|child| child.flags & DIRECTORY != 0).count() as u64;
            self.entry(&what, &path, &row, &database, &mut own);
            if row.hardlinks != 2 + subdirectories {
                self.findings.problem(format!(
                    "{what}: {:?} has link count {:#x}, not {}",
                    lossy(&path),
                    row.hardlinks,
                    2 + subdirectories
                ));
            }
            self.groups(&what, &path, &children);
            self.bundles(&what, &path, &children);
            for child in children {
                let path = [&path[..], b"/", &child.name].concat();
                if child.key != key_of(&path) {
                    self.findings.problem(format!("{what}: {:?} has the key of another path", lossy(&path)));
                }
                if child.flags & MOUNTPOINT != 0 {
                    reached += 1;
                    self.entry(&what, &path, &child, &database, &mut own);
                    match nested.get(&path) {
                        Some((hash, size)) => waiting.push(Waiting {
                            mountpoint: path,
                            hash: hash.clone(),
                            size: *size,
                            transition: Some(child),
                        }),
                        None => self
                            .findings
                            .problem(format!("{what}: mountpoint {:?} is not listed", lossy(&path))),
                    }
                } else if child.flags & (DIRECTORY | BIND) == DIRECTORY {
                    directories.push((path, child));
                } else {
                    reached += 1;
                    self.entry(&what, &path, &child, &database, &mut own);
                }
            }
        }
        if reached != total {
            self.findings.problem(format!("{what}: {reached} of {total} entries can be reached"));
        }
        let subtree = COUNTERS
            .iter()
            .map(|name| (*name, said.get(&format!("subtree_{name}")).copied().unwrap_or(u64::MAX)))
            .collect();
        for name in COUNTERS {
            if said.get(&format!("self_{name}")) != own.get(name) {
                self.findings.problem(format!(
                    "{what}: self_{name} is {:?}, counted {:?}",
                    said.get(&format!("self_{name}")),
                    own.get(name)
                ));
            }
        }
        self.counted.insert(at.mountpoint, (own, subtree));
    }

    fn properties(&mut self, what: &str, head: &Head, at: &Waiting, database: &Connection) {
        let get = |key: &str| {
            let sql = "SELECT CAST(value AS BLOB) FROM properties WHERE key = ?1";
            database.query_row(sql, [key], |row| row.get::<_, Vec<u8>>(0)).ok()
        };
        let prefix = if at.mountpoint.is_empty() { None } else { Some(at.mountpoint.clone()) };
        if get("root_prefix") != prefix {
            self.findings.problem(format!("{what} is for {:?}", get("root_prefix").map(|path| lossy(&path))));
        }
        if get("schema").as_deref() != Some(b"2.5")
            || get("last_modified").is_none()
            || get("revision").is_none()
        {
            self.findings.problem(format!("{what} lacks properties"));
        }
        if at.mountpoint.is_empty() {
            let revision = head.revision.to_string().into_bytes();
            if get("revision") != Some(revision) {
                self.findings.problem(format!("{what} has another revision than the manifest"));
            }
            if get("TTL") != Some(head.ttl.to_string().into_bytes()) {
                self.findings.problem(format!("{what} has another TTL than the manifest"));
            }
        }
    }

    fn top(&mut self, what: &str, at: &Waiting, top: &Row) {
        let flag = if at.mountpoint.is_empty() { 0 } else { ROOT };
        if top.flags & (ROOT | MOUNTPOINT) != flag {
            self.findings.problem(format!("{what}: its root has flags {:#x}", top.flags));
        }
        if at.mountpoint.is_empty() && (!top.name.is_empty() || top.parent != [0, 0]) {
            self.findings.problem(format!("{what}: its root has a name or a parent"));
        }
        let Some(transition) = &at.transition else { return };
        let about = |row: &Row| {
            (
                row.name.clone(),
                row.parent,
                row.hardlinks,
                row.size,
                row.mode,
                (row.mtime, row.mtime_ns),
                row.xattr.clone(),
                (row.uid, row.gid),
            )
        };
        if about(top) != about(transition) {
            self.findings.problem(format!("{what}: its root differs from the entry in its parent"));
        }
    }

    fn groups(&mut self, what: &str, directory: &[u8], children: &[Row]) {
        let mut groups: BTreeMap<u64, Vec<&Row>> = BTreeMap::new();
        for child in children.iter().filter(|child| child.flags & DIRECTORY == 0) {
            let (group, count) = (child.hardlinks >> 32, child.hardlinks & 0xffff_ffff);
            if group == 0 && count != 1 {
                self.findings
                    .problem(format!("{what}: {:?} has {count} links and no group", lossy(&child.name)));
            }
            if group != 0 {
                groups.entry(group).or_default().push(child);
            }
        }
        for (group, members) in groups {
            let about = |row: &Row| {
                (row.hardlinks, row.mode, row.size, row.mtime, row.hash.clone(), row.flags & !HIDDEN)
            };
            let first = about(members[0]);
            if members.len() as u64 != members[0].hardlinks & 0xffff_ffff
                || members.iter().any(|row| about(row) != first)
            {
                self.findings.problem(format!(
                    "{what}: group {group} of {:?} does not fit together",
                    lossy(directory)
                ));
            }
        }
    }

    fn bundles(&mut self, what: &str, directory: &[u8], children: &[Row]) {
        for spec in bundles::siblings(what, directory, children, self.findings) {
            let path = [directory, b"/", &spec.name].concat();
            let hash = spec.hash.as_ref().map(|hash| text(hash, self.objects.algorithm()));
            let plain =
                hash.and_then(|hash| self.objects.plain(&hash, "", spec.flags >> 11 & 7, self.findings));
            if let Some(plain) = plain {
                bundles::content(&path, &plain, self.findings);
            }
        }
    }

    fn entry(&mut self, what: &str, path: &[u8], row: &Row, database: &Connection, own: &mut Counts) {
        let mut count = |name: &str, by: u64| *own.get_mut(name).expect("a counter") += by;
        let kind = row.mode & S_IFMT;
        let expected = match kind {
            0o040_000 => DIRECTORY,
            0o100_000 => FILE,
            0o120_000 => FILE | LINK,
            _ => FILE | SPECIAL,
        };
        let mut problems = Vec::new();
        if row.flags & (DIRECTORY | FILE | LINK | SPECIAL) != expected {
            problems.push(format!("flags {:#x}", row.flags));
        }
        if kind != 0o100_000 && (row.hash.is_some() || row.flags & (CHUNKED | EXTERNAL | 0x3f00) != 0) {
            problems.push(format!("content, and flags {:#x}", row.flags));
        }
        match kind {
            0o040_000 => count("dir", 1),
            0o100_000 => count("regular", 1),
            0o120_000 => count("symlink", 1),
            _ => count("special", 1),
        }
        if (kind == 0o120_000) == row.symlink.is_empty()
            || kind == 0o120_000 && row.size != row.symlink.len() as i64
        {
            problems.push(format!("symlink {:?} of size {}", lossy(&row.symlink), row.size));
        }
        let mut sha256 = None;
        if kind == 0o100_000 {
            let size = row.size.cast_unsigned();
            count("file_size", size);
            let chunks = chunks(database, row.key);
            if (row.flags & CHUNKED != 0) == chunks.is_empty() || row.hash.is_none() && chunks.is_empty() {
                problems.push(format!(
                    "{} chunks, hash {:?}, flags {:#x}",
                    chunks.len(),
                    row.hash,
                    row.flags
                ));
            }
            if !chunks.is_empty() {
                count("chunked", 1);
                count("chunks", chunks.len() as u64);
                count("chunked_size", size);
            }
            if row.flags & EXTERNAL == 0 {
                sha256 = self.content(row, &chunks, &mut problems);
            } else {
                count("external", 1);
                count("external_file_size", size);
                self.remember_external(path, row, &chunks);
            }
        }
        let xattrs = row.xattr.as_deref().map(parse_xattrs).unwrap_or_else(|| Some(BTreeMap::new()));
        if row.xattr.is_some() {
            count("xattr", 1);
        }
        if xattrs.is_none() || row.mtime_ns.is_some_and(|ns| !(0..1_000_000_000).contains(&ns)) {
            problems.push("bad attributes or time".to_owned());
        }
        for problem in problems {
            self.findings.problem(format!("{what}: {:?} (row {}) has {problem}", lossy(path), row.rowid));
        }
        if row.flags & HIDDEN == 0 {
            self.remember(path, row, sha256, xattrs.unwrap_or_default());
        }
    }

    fn content(
        &mut self,
        row: &Row,
        chunks: &[(u64, u64, Vec<u8>)],
        problems: &mut Vec<String>,
    ) -> Option<String> {
        let algorithm = match row.flags >> 8 & 7 {
            0 => Algorithm::Sha1,
            1 => Algorithm::Rmd160,
            2 => Algorithm::Shake128,
            other => {
                problems.push(format!("hash algorithm {other}"));
                return None;
            }
        };
        if algorithm != self.objects.algorithm() {
            problems.push("another hash algorithm than the repository".to_owned());
        }
        let compression = row.flags >> 11 & 7;
        let size = row.size.cast_unsigned();
        if chunks.is_empty() {
            let hash = text(row.hash.as_ref()?, algorithm);
            let (sha256, len) = self.objects.digest(&hash, "", compression, self.findings)?;
            if len != size {
                problems.push(format!("size {size}, its object has {len}"));
            }
            return Some(sha256);
        }
        let mut whole = Vec::new();
        for (offset, len, hash) in chunks {
            if *offset != whole.len() as u64 {
                problems.push(format!("a chunk at {offset} where {} was expected", whole.len()));
            }
            let chunk = self.objects.plain(&text(hash, algorithm), "P", compression, self.findings)?;
            if chunk.len() as u64 != *len {
                problems.push(format!("a chunk of {} bytes that should have {len}", chunk.len()));
            }
            whole.extend(chunk);
        }
        if whole.len() as u64 != size {
            problems.push(format!("size {size}, its chunks have {}", whole.len()));
        }
        Some(object::sha256(&whole))
    }

    /// Keeps where external data is cut, and its hashes; the content is not in the repository.
    fn remember_external(&mut self, path: &[u8], row: &Row, chunks: &[(u64, u64, Vec<u8>)]) {
        let algorithm = self.objects.algorithm();
        let whole = row.hash.iter().map(|hash| (0, text(hash, algorithm)));
        let chunks = chunks.iter().map(|(offset, _, hash)| (*offset, text(hash, algorithm)));
        self.findings.external.insert(path.to_vec(), whole.chain(chunks).collect());
    }

    fn remember(
        &mut self,
        path: &[u8],
        row: &Row,
        sha256: Option<String>,
        xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    ) {
        let kind = row.mode & S_IFMT;
        let is_dir = kind == 0o040_000;
        let is_device = matches!(kind, 0o020_000 | 0o060_000);
        let shown = if path.is_empty() { b"/".to_vec() } else { path.to_vec() };
        let entry = Entry {
            path: shown.clone(),
            mode: row.mode,
            mtime_ns: row.mtime * 1_000_000_000 + row.mtime_ns.unwrap_or(0),
            uid: row.uid,
            gid: row.gid,
            size: (!is_dir).then_some(if is_device { 0 } else { row.size.cast_unsigned() }),
            nlink: (!is_dir).then_some(row.hardlinks & 0xffff_ffff),
            rdev: is_device.then_some(row.size.cast_unsigned()),
            target: (kind == 0o120_000).then(|| row.symlink.clone()),
            sha256,
            xattrs,
        };
        self.findings.tree.insert(shown, entry);
    }

    /// Compares the counters of subtrees with the counts of the catalogs below.
    fn subtrees(&mut self) {
        let mut problems = Vec::new();
        for (mountpoint, (_, said)) in &self.counted {
            let below: BTreeSet<&Vec<u8>> = self
                .counted
                .keys()
                .filter(|other| {
                    *other != mountpoint
                        && other.strip_prefix(&mountpoint[..]).is_some_and(|rest| rest.starts_with(b"/"))
                })
                .collect();
            for name in COUNTERS {
                let sum: u64 = below.iter().map(|path| self.counted[*path].0[name]).sum();
                if said[name] != sum {
                    problems.push(format!(
                        "catalog {:?}: subtree_{name} is {}, counted {sum}",
                        lossy(mountpoint),
                        said[name]
                    ));
                }
            }
        }
        problems.into_iter().for_each(|problem| self.findings.problem(problem));
    }
}

pub(super) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn text(digest: &[u8], algorithm: Algorithm) -> String {
    let tag = match algorithm {
        Algorithm::Sha1 => "",
        Algorithm::Rmd160 => "-rmd160",
        Algorithm::Shake128 => "-shake128",
    };
    format!("{}{tag}", object::hex(digest))
}

fn read_rows(database: &Connection) -> Vec<Row> {
    let mut statement = database
        .prepare(
            "SELECT rowid, md5path_1, md5path_2, parent_1, parent_2, hardlinks, hash, size, mode, mtime, mtimens, flags, \
             CAST(name AS BLOB), CAST(symlink AS BLOB), uid, gid, xattr FROM catalog",
        )
        .expect("a catalog");
    let rows = statement.query_map([], |row| {
        Ok(Row {
            rowid: row.get(0)?,
            key: [row.get(1)?, row.get(2)?],
            parent: [row.get(3)?, row.get(4)?],
            hardlinks: row.get::<_, i64>(5)?.cast_unsigned(),
            hash: row.get(6)?,
            size: row.get(7)?,
            mode: row.get(8)?,
            mtime: row.get(9)?,
            mtime_ns: row.get(10)?,
            flags: row.get(11)?,
            name: row.get(12)?,
            symlink: row.get(13)?,
            uid: row.get(14)?,
            gid: row.get(15)?,
            xattr: row.get(16)?,
        })
    });
    rows.expect("rows").map(|row| row.expect("a row")).collect()
}

fn nested(database: &Connection) -> BTreeMap<Vec<u8>, (String, u64)> {
    let mut statement =
        database.prepare("SELECT CAST(path AS BLOB), sha1, size FROM nested_catalogs").expect("a catalog");
    let rows = statement.query_map([], |row| Ok((row.get(0)?, (row.get(1)?, row.get(2)?))));
    rows.expect("nested catalogs").map(|row| row.expect("a nested catalog")).collect()
}

fn statistics(database: &Connection) -> BTreeMap<String, u64> {
    let mut statement = database.prepare("SELECT counter, value FROM statistics").expect("a catalog");
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)));
    rows.expect("statistics").map(|row| row.expect("a counter")).collect()
}

fn chunks(database: &Connection, key: [i64; 2]) -> Vec<(u64, u64, Vec<u8>)> {
    let sql = "SELECT offset, size, hash FROM chunks WHERE md5path_1 = ?1 AND md5path_2 = ?2 ORDER BY offset";
    let mut statement = database.prepare_cached(sql).expect("a catalog");
    let rows = statement.query_map(key, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)));
    rows.expect("chunks").map(|row| row.expect("a chunk")).collect()
}

fn parse_xattrs(blob: &[u8]) -> Option<BTreeMap<Vec<u8>, Vec<u8>>> {
    let (&[1, count], mut rest) = blob.split_first_chunk::<2>()? else { return None };
    let mut found = BTreeMap::new();
    let mut last: Option<Vec<u8>> = None;
    for _ in 0..count {
        let (&[name_len, value_len], tail) = rest.split_first_chunk::<2>()?;
        let (name, tail) = tail.split_at_checked(name_len.into())?;
        let (value, tail) = tail.split_at_checked(value_len.into())?;
        // Sorted by name, none twice.
        if name.is_empty() || last.as_deref().is_some_and(|last| last >= name) {
            return None;
        }
        last = Some(name.to_vec());
        found.insert(name.to_vec(), value.to_vec());
        rest = tail;
    }
    (rest.is_empty() && !found.is_empty()).then_some(found)
}
