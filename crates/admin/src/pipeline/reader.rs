//! Reads files and cuts them.

use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::Ordering;

use crossbeam_channel::Sender;
use esker_format::chunker::Chunker;

use crate::error::AdminError;
use crate::path;
use crate::plan::{Plan, ReadFile};
use crate::source::Facts;

use super::{Budget, Piece, Pipeline, Run};

/// Files of one directory that one reader takes at once.
pub(super) struct Batch<'p> {
    relative: &'p [u8],
    files: Vec<&'p ReadFile>,
    size: u64,
}

/// Small files of a directory stay together up to this number.
const BATCH_FILES: usize = 64;
/// Bytes read at once while looking for a cut.
const BLOCK: usize = 256 << 10;

/// Splits the work: large files first, each alone, so that none is left over for the end.
pub(super) fn batches(plan: &Plan, small: u64) -> Vec<Batch<'_>> {
    let mut large = Vec::new();
    let mut batches = Vec::new();
    for directory in &plan.reads {
        let (big, rest): (Vec<_>, Vec<_>) = directory.files.iter().partition(|file| file.facts.size > small);
        let relative = directory.relative.as_slice();
        large.extend(big.into_iter().map(|file| Batch {
            relative,
            size: file.facts.size,
            files: vec![file],
        }));
        batches.extend(rest.chunks(BATCH_FILES).map(|files| Batch {
            relative,
            size: 0,
            files: files.to_vec(),
        }));
    }
    large.sort_by_key(|batch| std::cmp::Reverse(batch.size));
    large.extend(batches);
    large
}

pub(super) fn work(
    pipeline: &Pipeline<'_>,
    run: &Run,
    batches: &[Batch<'_>],
    budget: &Budget,
    pieces: &Sender<Piece>,
) -> Result<(), AdminError> {
    while !run.is_over() {
        let Some(batch) = batches.get(run.next.fetch_add(1, Ordering::Relaxed)) else { break };
        let directory = pipeline.source.open_directory(batch.relative)?;
        for file in &batch.files {
            let mut reading = Reading { pipeline, run, budget, pieces, batch, file };
            reading.read(&directory)?;
        }
    }
    Ok(())
}

struct Reading<'r> {
    pipeline: &'r Pipeline<'r>,
    run: &'r Run,
    budget: &'r Budget,
    pieces: &'r Sender<Piece>,
    batch: &'r Batch<'r>,
    file: &'r ReadFile,
}

impl Reading<'_> {
    fn read(&mut self, directory: &OwnedFd) -> Result<(), AdminError> {
        let file = self.pipeline.source.open_file(directory, self.batch.relative, &self.file.name)?;
        self.check(&file)?;
        if self.file.facts.size <= u64::from(self.pipeline.settings.chunks.min()) {
            self.read_whole(&file)?;
        } else {
            self.read_in_chunks(&file)?;
        }
        self.check(&file)?;
        self.pipeline.counters.files.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn path(&self) -> Vec<u8> {
        path::join(self.batch.relative, &self.file.name)
    }

    /// Compares the open file with what was seen when the plan was made.
    fn check(&self, file: &OwnedFd) -> Result<(), AdminError> {
        let facts = Facts::of_file(file.as_fd());
        let facts = facts.map_err(|error| self.pipeline.source.failed("looking at", &self.path())(error))?;
        if facts == self.file.facts { Ok(()) } else { Err(self.changed()) }
    }

    fn changed(&self) -> AdminError {
        AdminError::Changed(self.pipeline.source.shown(&self.path()))
    }

    /// Fills a buffer from where the file was left; less is read only at its end.
    fn fill(&self, file: &OwnedFd, mut room: &mut [u8]) -> Result<usize, AdminError> {
        let wanted = room.len();
        while !room.is_empty() {
            match rustix::io::read(file, &mut *room) {
                Ok(0) => break,
                Ok(len) => room = &mut room[len..],
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(self.pipeline.source.failed("reading", &self.path())(error)),
            }
        }
        let read = wanted - room.len();
        self.pipeline.counters.bytes.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }

    fn read_whole(&mut self, file: &OwnedFd) -> Result<(), AdminError> {
        let size = self.file.facts.size;
        let share = self.budget.take(size);
        let mut plain = vec![0; usize::try_from(size).map_err(|_| self.changed())?];
        if self.fill(file, &mut plain)? != plain.len() {
            return Err(self.changed());
        }
        self.send(Piece { job: self.file.job, offset: None, plain, _share: share });
        Ok(())
    }

    fn read_in_chunks(&mut self, file: &OwnedFd) -> Result<(), AdminError> {
        let sizes = self.pipeline.settings.chunks;
        let largest = sizes.max() as usize;
        let mut chunker = Chunker::new(sizes);
        let (mut offset, mut left) = (0, self.file.facts.size);
        // Bytes that were read beyond the last cut.
        let mut carried = Vec::new();
        while left > 0 && !self.run.is_over() {
            let mut share = self.budget.take(u64::from(sizes.max()));
            let mut plain = Vec::with_capacity(largest.min(usize::try_from(left).unwrap_or(largest)));
            let cut = self.next_chunk(file, &mut chunker, left, &mut carried, &mut plain)?;
            let len = plain.len() as u64;
            share.shrink(len);
            let whole = !cut && offset == 0;
            let piece_offset = if whole { None } else { Some(offset) };
            self.send(Piece { job: self.file.job, offset: piece_offset, plain, _share: share });
            offset += len;
            left -= len;
        }
        Ok(())
    }

    /// Collects the bytes of one chunk; tells whether it ends in a cut, and not at the end of the file.
    fn next_chunk(
        &self,
        file: &OwnedFd,
        chunker: &mut Chunker,
        left: u64,
        carried: &mut Vec<u8>,
        plain: &mut Vec<u8>,
    ) -> Result<bool, AdminError> {
        let mut fresh = std::mem::take(carried);
        loop {
            if let Some(cut) = chunker.next_cut(&fresh) {
                carried.extend_from_slice(&fresh[cut..]);
                plain.extend_from_slice(&fresh[..cut]);
                return Ok(true);
            }
            plain.extend_from_slice(&fresh);
            let missing = left - plain.len() as u64;
            if missing == 0 {
                return Ok(false);
            }
            fresh.resize(BLOCK.min(usize::try_from(missing).unwrap_or(BLOCK)), 0);
            if self.fill(file, &mut fresh)? != fresh.len() {
                return Err(self.changed());
            }
        }
    }

    fn send(&self, piece: Piece) {
        // If no worker is left, there is an error already.
        let _ = self.pieces.send(piece);
    }
}
