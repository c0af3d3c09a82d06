//! Reads files ahead from the cache's disk when one of their neighbours is read from there.

use std::time::{Duration, Instant};

use crate::event::{Event, Read, Source};
use crate::neighbours::Neighbours;
use crate::objects;
use crate::predictor::{Context, Predictor};
use crate::remaining::chunk_at;
use crate::sequential_readers::SequentialReaders;

/// Time for which data read from the cache's disk counts as in memory.
const IN_MEMORY: Duration = Duration::from_secs(60);

/// Predicts reads of cached objects.
pub(crate) struct CachedReads {
    /// Neighbours of objects that are read from the cache's disk; reset at intervals.
    neighbours: Neighbours,
    readers: SequentialReaders,
    since: Instant,
}

impl Default for CachedReads {
    fn default() -> Self {
        Self { neighbours: Neighbours::once(), readers: SequentialReaders::default(), since: Instant::now() }
    }
}

impl CachedReads {
    fn read<C>(&mut self, read: &Read, context: &mut Context<'_, C>) {
        if self.since.elapsed() > IN_MEMORY {
            (self.neighbours, self.since) = (Neighbours::once(), Instant::now());
        }
        let file = &read.file;
        if !file.is_chunked {
            let Some(path) = &file.path else { return };
            for leaf in self.neighbours.missed(context.world, path) {
                context.world.read_ahead(&leaf.wanted(), 0..u64::MAX);
            }
            // No catalog is fetched for what is in the cache.
            context.attach_missing(|| None);
        } else if let Some(chunks) = context.world.open_chunks(&file.node.key)
            && let Some(compression) = file.compression
        {
            let here = chunk_at(&chunks, read.at);
            let ahead = self.readers.missed(file.node.key, &chunks, here);
            for chunk in chunks.get(here).into_iter().chain(ahead) {
                context.world.read_ahead(&objects::chunk(chunk, compression, ""), 0..u64::MAX);
            }
        }
    }
}

impl<C> Predictor<C> for CachedReads {
    fn on(&mut self, event: Event<C>, context: &mut Context<'_, C>) -> Option<Event<C>> {
        match event {
            Event::Read(read) if matches!(read.source, Source::Server { .. }) => Some(Event::Read(read)),
            // What is in memory tells nothing, and a sequence tells more.
            Event::Read(read) if read.is_guided || read.source == Source::Memory => None,
            Event::Read(read) if read.source == Source::Disk => {
                self.read(&read, context);
                None
            }
            other => Some(other),
        }
    }
}
