//! Libraries and executables, and their chunks.

use std::mem;
use std::ops::Range;
use std::sync::Arc;

use esker_format::catalog::Chunk;
use esker_format::compress::Compression;
use esker_format::object::{ObjectKind, ObjectName};
use esker_store::{CacheKey, ObjectRequest};

use crate::candidate::Candidate;
use crate::remaining;

/// Maximum size in plain bytes of a file that is fetched whole.
const SMALL_MAX: u64 = 32 << 20;

/// A library or executable.
#[derive(Clone, Debug)]
pub struct ElfFile {
    /// Path of the file.
    pub path: Box<[u8]>,
    /// Chunks of the file; a single one if the file is one object.
    pub chunks: Arc<[Chunk]>,
    compression: Compression,
    kind: ObjectKind,
}

impl ElfFile {
    /// Returns a file that consists of chunks.
    pub fn chunked(path: &[u8], chunks: Arc<[Chunk]>, compression: Compression) -> Self {
        Self { path: path.into(), chunks, compression, kind: ObjectKind::Chunk }
    }

    /// Returns a file that consists of one object.
    pub fn whole(path: &[u8], content: CacheKey, size: u64) -> Self {
        let chunks = [Chunk { offset: 0, size, hash: content.hash }].into();
        Self { path: path.into(), chunks, compression: content.compression, kind: ObjectKind::File }
    }

    fn len(&self) -> u64 {
        self.chunks.last().map_or(0, |last| last.offset.saturating_add(last.size))
    }

    /// Returns true if the file is fetched whole.
    pub fn is_small(&self) -> bool {
        self.len() <= SMALL_MAX
    }

    /// Returns the request for a chunk.
    pub fn wanted(&self, chunk: &Chunk) -> ObjectRequest {
        let object = ObjectName::new(chunk.hash, self.kind);
        ObjectRequest::new(object, self.compression, String::from_utf8_lossy(&self.path)).size(chunk.size)
    }

    /// Returns the candidate for a chunk.
    pub fn candidate(&self, chunk: &Chunk) -> Candidate {
        Candidate::new(self.wanted(chunk), chunk.size)
    }

    /// Returns the number of the chunk in which a range of the file begins, if there is such a chunk.
    pub(super) fn number_of(&self, part: &Range<u64>) -> Option<usize> {
        Some(remaining::chunk_at(&self.chunks, part.start)).filter(|number| *number < self.chunks.len())
    }

    /// Returns the numbers of the chunks with these bytes.
    fn numbers_of(&self, part: &Range<u64>) -> Range<usize> {
        let first = remaining::chunk_at(&self.chunks, part.start);
        let last = remaining::chunk_at(&self.chunks, part.end.saturating_sub(1));
        first..last.saturating_add(1).min(self.chunks.len())
    }

    /// Returns the chunks with any of these bytes, each once, however often the headers name it.
    pub(super) fn chunks_of(&self, parts: impl IntoIterator<Item = Range<u64>>) -> Vec<Chunk> {
        let mut is_taken = vec![false; self.chunks.len()];
        let mut taken = Vec::new();
        for number in parts.into_iter().flat_map(|part| self.numbers_of(&part)) {
            if !mem::replace(&mut is_taken[number], true) {
                taken.push(self.chunks[number]);
            }
        }
        taken
    }
}
