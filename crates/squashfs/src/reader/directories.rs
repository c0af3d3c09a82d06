//! Lookup and listing of directories.
//!
//! A directory is a stream of runs. A large one has an index of names and positions; where the index is
//! missing or invalid, the reader builds its own. Two seek points are at most [`GAP_MAX`] bytes apart, which
//! bounds the bytes that a lookup scans and a listing returns at once.

use std::sync::Arc;

use esker_vfs::{Cookie, DirEntry, FIRST_COOKIE, Kind};

use super::metadata::{Cursor, Stream};
use super::{Access, Inode, ReadResult};
use crate::layout::{
    DirectoryBody, ENTRY_LEN, Entry, INDEX_LEN, IndexEntry, METADATA_BLOCK, MetaRef, NAME_MAX, RUN_LEN, Run,
};
use crate::tree::node;

/// Size in bytes below which a directory is scanned from its beginning.
const SMALL: u32 = 8 << 10;
/// Maximum distance of two seek points in bytes.
const GAP_MAX: u32 = 64 << 10;

/// A position in a directory at which a run begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SeekPoint {
    /// First name of the run; empty at the beginning of the directory.
    name: Box<[u8]>,
    /// Offset from the start of the directory, in bytes.
    position: u32,
    /// Position in the stream of directories.
    place: MetaRef,
}

/// A name in a directory scan.
struct ScannedName<'n> {
    /// Position of the run, if this is its first name.
    begins: Option<(u32, MetaRef)>,
    name: &'n [u8],
    position: u32,
    entry: Entry,
    run: Run,
}

/// Decision whether a scan continues.
#[derive(PartialEq, Eq)]
enum Scan {
    Continue,
    ReadError,
}

impl<'a> Access<'a> {
    const fn directory_stream(self) -> Stream {
        let superblock = &self.core.superblock;
        Stream { start: superblock.directory_table, end: superblock.bytes_used }
    }

    /// Returns the inode of `name` in a directory.
    pub(crate) fn find(
        self,
        inode: &Inode<'a>,
        dir: &DirectoryBody,
        name: &[u8],
    ) -> ReadResult<Option<Inode<'a>>> {
        if name.len() > NAME_MAX || !usable(name) || dir.names_len() == 0 {
            return Ok(None);
        }
        let seek_points = self.seek_points(inode, dir)?;
        let number = seek_points.partition_point(|seek_point| *seek_point.name <= *name).saturating_sub(1);
        let mut found = None;
        self.scan(dir, &seek_points, number, |scanned| {
            Ok(match scanned.name.cmp(name) {
                std::cmp::Ordering::Less => Scan::Continue,
                std::cmp::Ordering::Equal => {
                    found = Some((scanned.run.inode_block, scanned.entry));
                    Scan::ReadError
                }
                std::cmp::Ordering::Greater => Scan::ReadError,
            })
        })?;
        found.map(|(block, entry)| self.named(inode, block, &entry)).transpose()
    }

    /// Returns the names of the part of a directory that holds the first name after a cookie, and the index
    /// of that name.
    pub(crate) fn window(
        self,
        inode: &Inode<'a>,
        dir: &DirectoryBody,
        after: Cookie,
    ) -> ReadResult<(Arc<[DirEntry]>, usize)> {
        if dir.names_len() == 0 {
            return Ok((Arc::from([]), 0));
        }
        let seek_points = self.seek_points(inode, dir)?;
        let position = after.0.saturating_sub(FIRST_COOKIE.0);
        let before = seek_points.partition_point(|seek_point| u64::from(seek_point.position) <= position);
        let mut last: Arc<[DirEntry]> = Arc::from([]);
        for number in before.saturating_sub(1)..seek_points.len() {
            last = self.names_between(inode, dir, &seek_points, number)?;
            let start = last.partition_point(|entry| entry.cookie <= after);
            if start < last.len() {
                return Ok((last, start));
            }
        }
        let end = last.len();
        Ok((last, end))
    }

    /// Returns all names between a seek point and the next.
    fn names_between(
        self,
        inode: &Inode<'a>,
        dir: &DirectoryBody,
        seek_points: &[SeekPoint],
        number: usize,
    ) -> ReadResult<Arc<[DirEntry]>> {
        let key = (inode.place.0, number);
        if let Some(part) = self.core.windows.get(&key) {
            return Ok(part);
        }
        let mut entries = Vec::new();
        self.scan(dir, seek_points, number, |scanned| {
            if !usable(scanned.name) {
                let what = format!("a directory has the name {:?}", String::from_utf8_lossy(scanned.name));
                return Err(self.core.fault(self.at(inode.place), what).into());
            }
            let named = self.named(inode, scanned.run.inode_block, &scanned.entry)?;
            let attr = self.attr(&named)?;
            entries.push(DirEntry {
                name: scanned.name.into(),
                cookie: Cookie(FIRST_COOKIE.0 + u64::from(scanned.position)),
                node: node(&named, &attr, self.xattr_set(&named)?),
                attr,
            });
            Ok(Scan::Continue)
        })?;
        let part: Arc<[DirEntry]> = entries.into();
        let weight = part.iter().map(|entry| size_of::<DirEntry>() + entry.name.len()).sum();
        self.core.windows.insert(key, Arc::clone(&part), weight);
        Ok(part)
    }

    /// Returns the inode of an entry of directory `parent`.
    fn named(self, parent: &Inode<'_>, block: u32, entry: &Entry) -> ReadResult<Inode<'a>> {
        let place = MetaRef::new(block.into(), entry.inode_offset);
        let inode = self.inode(place)?;
        let fault = |what: String| Err(self.core.fault(self.at(place), what).into());
        if inode.header.kind.basic() != entry.kind {
            return fault(format!(
                "directory {} lists inode {} with another type",
                parent.header.number, inode.header.number
            ));
        }
        let above = [parent.place, self.core.superblock.root];
        if super::inodes::kind(entry.kind) == Kind::Directory && above.contains(&place) {
            return fault(format!("directory {} contains itself or the root", parent.header.number));
        }
        Ok(inode)
    }

    /// Calls `each` with the names from a seek point to the next.
    fn scan(
        self,
        dir: &DirectoryBody,
        seek_points: &[SeekPoint],
        number: usize,
        each: impl FnMut(ScannedName<'_>) -> ReadResult<Scan>,
    ) -> ReadResult<()> {
        let Some(seek_point) = seek_points.get(number) else { return Ok(()) };
        let end = seek_points.get(number + 1).map_or(dir.names_len(), |next| next.position);
        let cursor = self.cursor(self.directory_stream(), seek_point.place)?;
        scan_runs(cursor, seek_point.position, end, each)
    }

    /// Returns the seek points of a directory; the first is its beginning.
    fn seek_points(self, inode: &Inode<'a>, dir: &DirectoryBody) -> ReadResult<Arc<[SeekPoint]>> {
        let beginning = || SeekPoint {
            name: Box::default(),
            position: 0,
            place: MetaRef::new(dir.block.into(), dir.offset),
        };
        if dir.names_len() <= SMALL {
            return Ok(Arc::from([beginning()]));
        }
        let key = inode.place.0;
        if let Some(seek_points) = self.core.seek_points.get(&key) {
            return Ok(seek_points);
        }
        let mut seek_points = vec![beginning()];
        if !self.read_index(inode, dir, &mut seek_points)? {
            seek_points.truncate(1);
            self.make_index(dir, &mut seek_points)?;
        }
        let weight =
            seek_points.iter().map(|seek_point| size_of::<SeekPoint>() + seek_point.name.len()).sum();
        let seek_points: Arc<[SeekPoint]> = seek_points.into();
        self.core.seek_points.insert(key, Arc::clone(&seek_points), weight);
        Ok(seek_points)
    }

    /// Reads the index that follows the inode; returns false if it is missing or invalid.
    fn read_index(
        self,
        inode: &Inode<'a>,
        dir: &DirectoryBody,
        seek_points: &mut Vec<SeekPoint>,
    ) -> ReadResult<bool> {
        let mut cursor = inode.after.clone();
        let mut last = 0;
        for _ in 0..dir.indexes {
            let index = IndexEntry::decode(&cursor.array::<INDEX_LEN>()?);
            let index = index.map_err(|error| cursor.fault(&error))?;
            let name = cursor.bytes(index.name_len)?.into();
            let position = index.position;
            // The index may or may not include the first run of the directory.
            if position == 0 {
                continue;
            }
            if position <= last || position - last > GAP_MAX || position >= dir.names_len() {
                return Ok(false);
            }
            let offset = (u64::from(dir.offset) + u64::from(position)) % METADATA_BLOCK as u64;
            let place = MetaRef::new(index.block.into(), u16::try_from(offset).unwrap_or(u16::MAX));
            seek_points.push(SeekPoint { name, position, place });
            last = position;
        }
        let sorted = seek_points.is_sorted_by(|a, b| a.name < b.name);
        Ok(sorted && dir.names_len() - last <= GAP_MAX)
    }

    /// Builds an index for a directory that has none.
    fn make_index(self, dir: &DirectoryBody, seek_points: &mut Vec<SeekPoint>) -> ReadResult<()> {
        let cursor = self.cursor(self.directory_stream(), MetaRef::new(dir.block.into(), dir.offset))?;
        let mut last = 0;
        scan_runs(cursor, 0, dir.names_len(), |scanned| {
            if let Some((position, place)) = scanned.begins
                && position - last >= SMALL
            {
                seek_points.push(SeekPoint { name: scanned.name.into(), position, place });
                last = position;
            }
            Ok(Scan::Continue)
        })
    }
}

/// Calls `each` with the names of the runs from `position` to `end`.
fn scan_runs(
    mut cursor: Cursor<'_>,
    mut position: u32,
    end: u32,
    mut each: impl FnMut(ScannedName<'_>) -> ReadResult<Scan>,
) -> ReadResult<()> {
    let mut room = [0; NAME_MAX];
    while position < end {
        let mut begins = Some((position, cursor.place()));
        let run = Run::decode(&cursor.array::<RUN_LEN>()?).map_err(|error| cursor.fault(&error))?;
        position = advanced(position, RUN_LEN);
        for _ in 0..run.count {
            let entry = Entry::decode(cursor.take(&mut [0; ENTRY_LEN])?);
            let entry = entry.map_err(|error| cursor.fault(&error))?;
            let name = cursor.take(room.get_mut(..entry.name_len).unwrap_or_default())?;
            if each(ScannedName { begins: begins.take(), name, position, entry, run })? == Scan::ReadError {
                return Ok(());
            }
            position = advanced(position, ENTRY_LEN + name.len());
        }
    }
    Ok(())
}

/// Returns the position `len` bytes further.
fn advanced(position: u32, len: usize) -> u32 {
    position.saturating_add(u32::try_from(len).unwrap_or(u32::MAX))
}

/// Returns true if programs can use the name.
fn usable(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}
