//! Finds the stored blocks of a file's content.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Access, Inode, ReadResult};
use crate::blocks::{Extent, Length};
use crate::layout::{BlockWord, FileBody, METADATA_BLOCK, MetaRef};

/// Number of blocks between checkpoints. A block's position is the sum of all lengths before it; this bounds
/// how many are added up.
const CHECKPOINT: u64 = 1024;
/// Minimum and maximum length of the read-ahead window in bytes.
const AHEAD_MIN: u64 = 256 << 10;
const AHEAD_MAX: u64 = 4 << 20;
/// Distance in bytes by which requests of one sequential reader may be out of order.
const DISORDER: u64 = 1 << 20;

/// A part of a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// This many zero bytes.
    Hole(usize),
    /// `len` bytes of a block, starting at byte `from`.
    Block { extent: Extent, from: usize, len: usize },
}

/// Cached state of a file that is being read.
pub(crate) struct FileState {
    /// Position of the word and of the stored data of every [`CHECKPOINT`]th block.
    checkpoints: Mutex<Vec<(MetaRef, u64)>>,
    /// Offset in bytes at which a sequential reader would read next.
    next: AtomicU64,
    /// End of the range that was prefetched, in bytes.
    ahead: AtomicU64,
    /// Number of bytes that were read sequentially up to now.
    row: AtomicU64,
}

impl<'a> Access<'a> {
    /// Returns the cached state of a file.
    pub(crate) fn file_state(self, inode: &Inode<'_>, file: &FileBody) -> Arc<FileState> {
        let key = inode.place.0;
        self.core.files.get(&key).unwrap_or_else(|| {
            let state = Arc::new(FileState {
                checkpoints: Mutex::new(vec![(inode.after.place(), file.start)]),
                next: AtomicU64::new(0),
                ahead: AtomicU64::new(0),
                row: AtomicU64::new(0),
            });
            self.core.files.insert(key, Arc::clone(&state), 1 << 10);
            state
        })
    }

    /// Returns the parts of a read of `len` bytes from `offset`; fewer at the end of the file.
    pub(crate) fn pieces(
        self,
        inode: &Inode<'a>,
        file: &FileBody,
        offset: u64,
        len: u64,
    ) -> ReadResult<Vec<Piece>> {
        let end = offset.saturating_add(len).min(file.size);
        if offset >= end {
            return Ok(Vec::new());
        }
        let size = u64::from(self.core.superblock.block_size);
        let blocks = file.blocks(self.core.superblock.block_size);
        let (first, last) = (offset / size, (end - 1) / size);
        let mut pieces = Vec::with_capacity(usize::try_from(last - first + 1).unwrap_or(1).min(1 << 10));
        let part = |start: u64, length: u64| {
            let from = offset.max(start) - start;
            let until = end.min(start + length) - start;
            (small(from), small(until - from))
        };
        if first < blocks {
            self.words(inode, file, first, last.min(blocks - 1), |number, start, word| {
                let (from, len) = part(number * size, size);
                if word.is_hole() {
                    pieces.push(Piece::Hole(len));
                    return;
                }
                let length = Length::Exactly(small(size.min(file.size - number * size)));
                pieces.push(Piece::Block { extent: Extent { start, word, length }, from, len });
            })?;
        }
        if last >= blocks {
            let (from, len) = part(blocks * size, size);
            pieces.push(self.fragment_piece(inode, file, from, len)?);
        }
        Ok(pieces)
    }

    /// Returns the piece stored directly after those of a read: the next block of the file, or the next
    /// fragment block, which holds the tails of the files that follow.
    pub(crate) fn following_piece(
        self,
        inode: &Inode<'a>,
        file: &FileBody,
        offset: u64,
        len: u64,
    ) -> ReadResult<Option<Piece>> {
        let superblock = &self.core.superblock;
        let size = u64::from(superblock.block_size);
        let next = offset.saturating_add(len).min(file.size).div_ceil(size).saturating_mul(size);
        if next < file.size {
            return Ok(self.pieces(inode, file, next, 1)?.pop());
        }
        let number = file.fragment.saturating_add(1);
        if file.blocks(superblock.block_size).saturating_mul(size) >= file.size
            || number >= superblock.fragments
        {
            return Ok(None);
        }
        let extent = self.fragment_extent(number)?;
        Ok(Some(Piece::Block { extent, from: 0, len: 0 }))
    }

    fn fragment_piece(
        self,
        inode: &Inode<'_>,
        file: &FileBody,
        from: usize,
        len: usize,
    ) -> ReadResult<Piece> {
        let extent = self.fragment_extent(file.fragment)?;
        let block_size = self.core.superblock.block_size;
        let end = u64::from(file.fragment_offset) + file.size % u64::from(block_size);
        if end > u64::from(block_size) {
            let what = format!("the end of inode {} goes beyond its fragment block", inode.header.number);
            return Err(self.core.fault(self.at(inode.place), what).into());
        }
        Ok(Piece::Block { extent, from: small(file.fragment_offset.into()) + from, len })
    }

    fn fragment_extent(self, number: u32) -> ReadResult<Extent> {
        let fragment = self.fragment(number)?;
        let length = Length::UpTo(small(self.core.superblock.block_size.into()));
        Ok(Extent { start: fragment.start, word: fragment.word, length })
    }

    /// Calls `each` with number, position and word of the blocks from `first` to `last`.
    fn words(
        self,
        inode: &Inode<'a>,
        file: &FileBody,
        first: u64,
        last: u64,
        mut each: impl FnMut(u64, u64, BlockWord),
    ) -> ReadResult<()> {
        let superblock = &self.core.superblock;
        self.check_room(inode, file)?;
        let state = self.file_state(inode, file);
        let wanted = small(first / CHECKPOINT);
        let (known, (place, start)) = {
            let checkpoints = state.checkpoints.lock();
            let known = wanted.min(checkpoints.len() - 1);
            (known, checkpoints.get(known).copied().unwrap_or((inode.after.place(), file.start)))
        };
        let mut number = known as u64 * CHECKPOINT;
        let mut at = start;
        let mut cursor = self.cursor(self.inode_stream(), place)?;
        while number <= last {
            let until = ((number / CHECKPOINT + 1) * CHECKPOINT).min(last + 1);
            cursor.words(until - number, |word| {
                let word = BlockWord::decode(word, superblock.block_size)
                    .map_err(|error| self.core.fault(self.at(inode.place), error))?;
                if number >= first {
                    each(number, at, word);
                }
                number += 1;
                at = at
                    .checked_add(word.len.into())
                    .ok_or_else(|| self.core.fault(at, "the blocks of a file go beyond every end"))?;
                Ok(())
            })?;
            if number.is_multiple_of(CHECKPOINT) {
                let mut checkpoints = state.checkpoints.lock();
                if checkpoints.len() as u64 == number / CHECKPOINT {
                    checkpoints.push((cursor.place(), at));
                }
            }
        }
        Ok(())
    }

    /// Rejects a file whose block words can't all be in the image, before any lengths are added up: a
    /// metadata block takes at least three stored bytes.
    fn check_room(self, inode: &Inode<'_>, file: &FileBody) -> ReadResult<()> {
        let stream = self.inode_stream();
        let room = ((stream.end - stream.start) / 3 + 1).saturating_mul(METADATA_BLOCK as u64);
        let blocks = file.blocks(self.core.superblock.block_size);
        if blocks.checked_mul(4).is_none_or(|len| len > room) {
            let what = format!(
                "inode {} has {} bytes, more than the image can hold",
                inode.header.number, file.size
            );
            return Err(self.core.fault(self.at(inode.place), what).into());
        }
        Ok(())
    }
}

impl FileState {
    /// Records a read and returns the offset and length to prefetch because of it.
    pub(crate) fn note_read(&self, file: &FileBody, offset: u64, len: u64) -> Option<(u64, u64)> {
        let end = offset.saturating_add(len).min(file.size);
        let next = self.next.fetch_max(end, Ordering::Relaxed);
        let goes_on = offset <= next.saturating_add(DISORDER) && end.saturating_add(DISORDER) >= next;
        if !goes_on || (offset != 0 && next == 0) {
            self.next.store(end, Ordering::Relaxed);
            self.ahead.store(end, Ordering::Relaxed);
            self.row.store(0, Ordering::Relaxed);
            return None;
        }
        let row = self.row.fetch_add(len, Ordering::Relaxed);
        if row == 0 {
            // A first read doesn't show whether the reader is sequential.
            return None;
        }
        let window = row.clamp(AHEAD_MIN, AHEAD_MAX);
        let until = end.saturating_add(window).min(file.size);
        let from = self.ahead.fetch_max(until, Ordering::Relaxed).max(end);
        (from < until).then(|| (from, until - from))
    }
}

/// Converts a number that is at most the length of a block, or of a list in memory.
fn small(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}
