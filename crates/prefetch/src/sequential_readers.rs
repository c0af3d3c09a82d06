//! Reads ahead in large files that are read in order.

use std::collections::HashMap;

use esker_format::catalog::Chunk;
use esker_vfs::NodeKey;

use crate::candidate::Candidate;
use crate::event::Event;
use crate::objects;
use crate::predictor::{Context, Predictor};
use crate::remaining::chunk_at;

/// Maximum plain bytes that are read ahead of a sequential reader.
const AHEAD_MAX: u64 = 64 << 20;
/// Maximum number of tracked readers.
const READERS_MAX: usize = 1024;
/// Tracks the positions of readers in large files.
#[derive(Default)]
pub(crate) struct SequentialReaders(HashMap<NodeKey, Reader>);

/// Position of a reader, and the end of its read-ahead.
#[derive(Clone, Copy, Debug)]
struct Reader {
    /// Number of the first chunk that was neither read nor requested.
    next: usize,
    /// Number of chunks to read ahead next time.
    ahead: usize,
}

impl SequentialReaders {
    /// Returns the chunks to read ahead after a miss of the chunk at `missed`, if the reader is sequential.
    ///
    /// Their number doubles with each sequential miss.
    pub(crate) fn missed<'c>(&mut self, file: NodeKey, chunks: &'c [Chunk], missed: usize) -> &'c [Chunk] {
        if self.0.len() >= READERS_MAX && !self.0.contains_key(&file) {
            self.0.clear();
        }
        let reader = self.0.entry(file).or_insert(Reader { next: 0, ahead: 1 });
        // A chunk that can't be fetched is missed again and again, and each time `ahead` doubles.
        let reach = missed.saturating_add(1).saturating_add(reader.ahead);
        let in_order = missed == 0 || (missed <= reader.next && reach > reader.next);
        if !in_order {
            *reader = Reader { next: missed + 1, ahead: 1 };
            return &[];
        }
        let start = (missed + 1).max(reader.next).min(chunks.len());
        let mut bytes = 0_u64;
        let fits = |chunk: &&Chunk| {
            bytes = bytes.saturating_add(chunk.size);
            bytes <= AHEAD_MAX
        };
        let count = chunks[start..].iter().take(reader.ahead).take_while(fits).count();
        *reader = Reader { next: start + count, ahead: reader.ahead.saturating_mul(2) };
        &chunks[start..start + count]
    }
}

impl<C> Predictor<C> for SequentialReaders {
    fn on(&mut self, event: Event<C>, context: &mut Context<'_, C>) -> Option<Event<C>> {
        let Event::Read(read) = event else { return Some(event) };
        let (Some((chunks, is_program)), Some(compression)) = (&read.chunks, read.file.compression) else {
            return Some(Event::Read(read));
        };
        // Otherwise the sequence, or the bundle that names the program, predicts what follows.
        if !(read.is_guided || *is_program && !read.is_surprise()) {
            let what = String::from_utf8_lossy(read.file.path.as_deref().unwrap_or_default());
            for chunk in self.missed(read.file.node.key, chunks, chunk_at(chunks, read.at)) {
                let wanted = objects::chunk(chunk, compression, &what);
                if context.queue.is_new(&wanted.key()) {
                    context.queue.push_last(Candidate::new(wanted, chunk.size));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use esker_format::hash::{ContentHash, HashAlgorithm};

    use super::*;

    const SIZE: u64 = 4 << 20;

    fn file(count: u8) -> Vec<Chunk> {
        let chunk = |number: u8| Chunk {
            offset: u64::from(number) * SIZE,
            size: SIZE,
            hash: ContentHash::new(HashAlgorithm::Sha1, [number; 20]),
        };
        (0..count).map(chunk).collect()
    }

    fn places(chunks: &[Chunk]) -> Vec<u64> {
        chunks.iter().map(|chunk| chunk.offset / SIZE).collect()
    }

    #[test]
    fn sequential_readers_get_twice_as_many_chunks_each_time() {
        let chunks = file(100);
        let mut readers = SequentialReaders::default();
        let key = NodeKey([1; 16]);
        let (mut at, mut ahead, mut seen) = (0, Vec::new(), vec![false; 100]);
        while at < chunks.len() {
            let more = readers.missed(key, &chunks, at);
            assert!(more.len() as u64 * SIZE <= AHEAD_MAX);
            for place in places(more) {
                assert!(!std::mem::replace(&mut seen[place as usize], true), "{place} is fetched once");
            }
            ahead.push(more.len());
            at += 1 + more.len();
        }
        assert_eq!(ahead[..5], [1, 2, 4, 8, 16]);
    }

    #[test]
    fn random_readers_get_no_chunks_until_they_read_in_order() {
        let chunks = file(60);
        let mut readers = SequentialReaders::default();
        let key = NodeKey([2; 16]);
        for (missed, ahead) in [(50, &[][..]), (7, &[]), (8, &[9]), (59, &[]), (600, &[])] {
            assert_eq!(places(readers.missed(key, &chunks, missed)), ahead, "{missed}");
        }
    }

    #[test]
    fn repeated_misses_of_one_chunk_do_not_overflow() {
        let chunks = file(60);
        let mut readers = SequentialReaders::default();
        for _ in 0..200 {
            let more = readers.missed(NodeKey([3; 16]), &chunks, 0).len() as u64;
            assert!(more * SIZE <= AHEAD_MAX);
        }
    }
}
