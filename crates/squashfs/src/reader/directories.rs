//! Names in directories.
//!
//! A directory is a stream of runs. A large one has an index of where in it which name begins; where a large one has
//! none, or one that makes no sense, we make our own. Either way what lies between two landmarks is at most
//! [`GAP_MAX`] bytes long: that is what a lookup goes through, and what a listing returns at once.

use std::sync::Arc;

use esker_vfs::{Cookie, DirEntry, FIRST_COOKIE, Kind};

use super::metadata::{Cursor, Stream};
use super::{Answer, Inode, Scene};
use crate::layout::{
    DirectoryBody, ENTRY_LEN, Entry, INDEX_LEN, IndexEntry, METADATA_BLOCK, MetaRef, NAME_MAX, RUN_LEN, Run,
};
use crate::tree::node;

/// A directory of fewer bytes is gone through from its beginning.
const SMALL: u32 = 8 << 10;
/// Most bytes of names between two landmarks.
const GAP_MAX: u32 = 64 << 10;

/// A place in a directory where a run begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Landmark {
    /// The first name of the run; empty at the beginning.
    name: Box<[u8]>,
    /// In bytes from the start of the directory.
    position: u32,
    /// In the stream of directories.
    place: MetaRef,
}

/// A name, while it is passed by.
struct Passed<'n> {
    /// Where its run begins, if it is the first of that.
    begins: Option<(u32, MetaRef)>,
    name: &'n [u8],
    position: u32,
    entry: Entry,
    run: Run,
}

/// Whether to go on.
#[derive(PartialEq, Eq)]
enum Go {
    On,
    Stop,
}

impl<'a> Scene<'a> {
    const fn directory_stream(self) -> Stream {
        let superblock = &self.core.superblock;
        Stream { start: superblock.directory_table, end: superblock.bytes_used }
    }

    /// The inode that `name` has in a directory.
    pub(crate) fn find(
        self,
        inode: &Inode<'a>,
        dir: &DirectoryBody,
        name: &[u8],
    ) -> Answer<Option<Inode<'a>>> {
        if name.len() > NAME_MAX || !usable(name) || dir.names_len() == 0 {
            return Ok(None);
        }
        let landmarks = self.landmarks(inode, dir)?;
        let number = landmarks.partition_point(|landmark| *landmark.name <= *name).saturating_sub(1);
        let mut found = None;
        self.pass(dir, &landmarks, number, |passed| {
            Ok(match passed.name.cmp(name) {
                std::cmp::Ordering::Less => Go::On,
                std::cmp::Ordering::Equal => {
                    found = Some((passed.run.inode_block, passed.entry));
                    Go::Stop
                }
                std::cmp::Ordering::Greater => Go::Stop,
            })
        })?;
        found.map(|(block, entry)| self.named(inode, block, &entry)).transpose()
    }

    /// The names of a directory after a cookie, in the part that has the next of them; and where in it they begin.
    pub(crate) fn window(
        self,
        inode: &Inode<'a>,
        dir: &DirectoryBody,
        after: Cookie,
    ) -> Answer<(Arc<[DirEntry]>, usize)> {
        if dir.names_len() == 0 {
            return Ok((Arc::from([]), 0));
        }
        let landmarks = self.landmarks(inode, dir)?;
        let position = after.0.saturating_sub(FIRST_COOKIE.0);
        let before = landmarks.partition_point(|landmark| u64::from(landmark.position) <= position);
        let mut last: Arc<[DirEntry]> = Arc::from([]);
        for number in before.saturating_sub(1)..landmarks.len() {
            last = self.part(inode, dir, &landmarks, number)?;
            let start = last.partition_point(|entry| entry.cookie <= after);
            if start < last.len() {
                return Ok((last, start));
            }
        }
        let end = last.len();
        Ok((last, end))
    }

    /// All names between a landmark and the next.
    fn part(
        self,
        inode: &Inode<'a>,
        dir: &DirectoryBody,
        landmarks: &[Landmark],
        number: usize,
    ) -> Answer<Arc<[DirEntry]>> {
        let key = (inode.place.0, number);
        if let Some(part) = self.core.windows.get(&key) {
            return Ok(part);
        }
        let mut entries = Vec::new();
        self.pass(dir, landmarks, number, |passed| {
            if !usable(passed.name) {
                let what = format!("a directory has the name {:?}", String::from_utf8_lossy(passed.name));
                return Err(self.core.fault(self.at(inode.place), what).into());
            }
            let named = self.named(inode, passed.run.inode_block, &passed.entry)?;
            let attr = self.attr(&named)?;
            entries.push(DirEntry {
                name: passed.name.into(),
                cookie: Cookie(FIRST_COOKIE.0 + u64::from(passed.position)),
                node: node(&named, &attr, self.xattr_set(&named)?),
                attr,
            });
            Ok(Go::On)
        })?;
        let part: Arc<[DirEntry]> = entries.into();
        let weight = part.iter().map(|entry| size_of::<DirEntry>() + entry.name.len()).sum();
        self.core.windows.insert(key, Arc::clone(&part), weight);
        Ok(part)
    }

    /// The inode of an entry of directory `parent`.
    fn named(self, parent: &Inode<'_>, block: u32, entry: &Entry) -> Answer<Inode<'a>> {
        let place = MetaRef::new(block.into(), entry.inode_offset);
        let inode = self.inode(place)?;
        let fault = |what: String| Err(self.core.fault(self.at(place), what).into());
        if inode.header.kind.basic() != entry.kind {
            return fault(format!(
                "directory {} takes inode {} for another type than it has",
                parent.header.number, inode.header.number
            ));
        }
        let above = [parent.place, self.core.superblock.root];
        if super::inodes::kind(entry.kind) == Kind::Directory && above.contains(&place) {
            return fault(format!("directory {} contains itself or the root", parent.header.number));
        }
        Ok(inode)
    }

    /// Passes by the names from a landmark to the next.
    fn pass(
        self,
        dir: &DirectoryBody,
        landmarks: &[Landmark],
        number: usize,
        each: impl FnMut(Passed<'_>) -> Answer<Go>,
    ) -> Answer<()> {
        let Some(landmark) = landmarks.get(number) else { return Ok(()) };
        let end = landmarks.get(number + 1).map_or(dir.names_len(), |next| next.position);
        let cursor = self.cursor(self.directory_stream(), landmark.place)?;
        pass_runs(cursor, landmark.position, end, each)
    }

    /// The landmarks of a directory; the first is its beginning.
    fn landmarks(self, inode: &Inode<'a>, dir: &DirectoryBody) -> Answer<Arc<[Landmark]>> {
        let beginning = || Landmark {
            name: Box::default(),
            position: 0,
            place: MetaRef::new(dir.block.into(), dir.offset),
        };
        if dir.names_len() <= SMALL {
            return Ok(Arc::from([beginning()]));
        }
        let key = inode.place.0;
        if let Some(landmarks) = self.core.landmarks.get(&key) {
            return Ok(landmarks);
        }
        let mut landmarks = vec![beginning()];
        if !self.read_index(inode, dir, &mut landmarks)? {
            landmarks.truncate(1);
            self.make_index(dir, &mut landmarks)?;
        }
        let weight = landmarks.iter().map(|landmark| size_of::<Landmark>() + landmark.name.len()).sum();
        let landmarks: Arc<[Landmark]> = landmarks.into();
        self.core.landmarks.insert(key, Arc::clone(&landmarks), weight);
        Ok(landmarks)
    }

    /// Reads the index that follows the inode; `false` if there is none, or it can't be.
    fn read_index(
        self,
        inode: &Inode<'a>,
        dir: &DirectoryBody,
        landmarks: &mut Vec<Landmark>,
    ) -> Answer<bool> {
        let mut cursor = inode.after.clone();
        let mut last = 0;
        for _ in 0..dir.indexes {
            let index = IndexEntry::decode(&cursor.array::<INDEX_LEN>()?);
            let index = index.map_err(|error| cursor.fault(&error))?;
            let name = cursor.bytes(index.name_len)?.into();
            let position = index.position;
            // The first run of a directory may be in its index or not.
            if position == 0 {
                continue;
            }
            if position <= last || position - last > GAP_MAX || position >= dir.names_len() {
                return Ok(false);
            }
            let offset = (u64::from(dir.offset) + u64::from(position)) % METADATA_BLOCK as u64;
            let place = MetaRef::new(index.block.into(), u16::try_from(offset).unwrap_or(u16::MAX));
            landmarks.push(Landmark { name, position, place });
            last = position;
        }
        let sorted = landmarks.is_sorted_by(|a, b| a.name < b.name);
        Ok(sorted && dir.names_len() - last <= GAP_MAX)
    }

    /// Makes an index of a directory that has none.
    fn make_index(self, dir: &DirectoryBody, landmarks: &mut Vec<Landmark>) -> Answer<()> {
        let cursor = self.cursor(self.directory_stream(), MetaRef::new(dir.block.into(), dir.offset))?;
        let mut last = 0;
        pass_runs(cursor, 0, dir.names_len(), |passed| {
            if let Some((position, place)) = passed.begins
                && position - last >= SMALL
            {
                landmarks.push(Landmark { name: passed.name.into(), position, place });
                last = position;
            }
            Ok(Go::On)
        })
    }
}

/// Passes by the names of the runs from `position` to `end`.
fn pass_runs(
    mut cursor: Cursor<'_>,
    mut position: u32,
    end: u32,
    mut each: impl FnMut(Passed<'_>) -> Answer<Go>,
) -> Answer<()> {
    let mut room = [0; NAME_MAX];
    while position < end {
        let mut begins = Some((position, cursor.place()));
        let run = Run::decode(&cursor.array::<RUN_LEN>()?).map_err(|error| cursor.fault(&error))?;
        position = passed_by(position, RUN_LEN);
        for _ in 0..run.count {
            let entry = Entry::decode(cursor.take(&mut [0; ENTRY_LEN])?);
            let entry = entry.map_err(|error| cursor.fault(&error))?;
            let name = cursor.take(room.get_mut(..entry.name_len).unwrap_or_default())?;
            if each(Passed { begins: begins.take(), name, position, entry, run })? == Go::Stop {
                return Ok(());
            }
            position = passed_by(position, ENTRY_LEN + name.len());
        }
    }
    Ok(())
}

/// A position, `len` bytes on.
fn passed_by(position: u32, len: usize) -> u32 {
    position.saturating_add(u32::try_from(len).unwrap_or(u32::MAX))
}

/// Whether a program can use the name.
fn usable(name: &[u8]) -> bool {
    !name.is_empty() && name != b"." && name != b".." && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}
