//! Reads stored bytes in large aligned ranges and caches them: one read serves many blocks.

use std::sync::Arc;

use crate::fault::Fault;
use crate::image::Image;
use crate::loading_cache::LoadingCache;

/// Default length of a range in bytes; an image may ask for a larger one.
const PIECE: usize = 128 << 10;
/// Maximum length of a range in bytes: that of the longest block of a list of digests.
const PIECE_MAX: usize = 16 << 20;

/// Cache of an image's stored bytes, in aligned ranges.
pub(crate) struct ReadCache {
    image: Arc<dyn Image>,
    name: Arc<str>,
    len: u64,
    /// Distance from the start of a range to the start of the image; ranges are aligned to the file.
    skew: u64,
    /// End of the image in bytes.
    end: u64,
    cached: LoadingCache<u64, Arc<[u8]>>,
}

impl ReadCache {
    /// Creates a cache of about `room` bytes for the first `end` bytes of an image.
    pub(crate) fn new(image: &Arc<dyn Image>, end: u64, room: usize) -> Self {
        let len = image.stripe().clamp(PIECE, PIECE_MAX);
        Self {
            name: image.name(),
            len: len as u64,
            skew: image.origin() % len as u64,
            end,
            cached: LoadingCache::new(room.max(4 * len), len, |piece| piece.len()),
            image: Arc::clone(image),
        }
    }

    /// Fills `out` from `offset`; returns false if that needs a read and `may_wait` is false.
    pub(crate) fn fill(&self, mut offset: u64, mut out: &mut [u8], may_wait: bool) -> Result<bool, Fault> {
        let end = offset.checked_add(out.len() as u64);
        if end.is_none_or(|end| end > self.end) {
            return Err(Fault::damaged(
                &self.name,
                offset,
                "the stored data goes beyond the end of the image",
            ));
        }
        while !out.is_empty() {
            let number = (offset + self.skew) / self.len;
            let Some(piece) = self.piece(number, may_wait)? else { return Ok(false) };
            let from = usize::try_from(offset - self.start(number)).unwrap_or(usize::MAX);
            let found = piece.get(from..).unwrap_or_default();
            let len = found.len().min(out.len());
            if len == 0 {
                return Err(Fault::damaged(&self.name, offset, "the image ends too early"));
            }
            let (now, later) = out.split_at_mut(len);
            now.copy_from_slice(found.get(..len).unwrap_or_default());
            out = later;
            offset += len as u64;
        }
        Ok(true)
    }

    fn start(&self, number: u64) -> u64 {
        (number * self.len).saturating_sub(self.skew)
    }

    fn piece(&self, number: u64, may_wait: bool) -> Result<Option<Arc<[u8]>>, Fault> {
        if let Some(piece) = self.cached.get(&number) {
            return Ok(Some(piece));
        }
        if !may_wait {
            return Ok(None);
        }
        let given_up = || Err(Fault::damaged(&self.name, self.start(number), "the read was abandoned"));
        self.cached.load_or_wait(number, true, || self.read(number)).unwrap_or_else(given_up).map(Some)
    }

    fn read(&self, number: u64) -> Result<Arc<[u8]>, Fault> {
        let start = self.start(number);
        let end = self.start(number + 1).min(self.end);
        let mut bytes = vec![0; usize::try_from(end - start).unwrap_or(PIECE_MAX)];
        let read = self.image.read_at(start, &mut bytes);
        read.map_err(|error| Fault::read(&self.name, start, bytes.len(), error))?;
        Ok(bytes.into())
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Mutex;

    use super::*;

    /// Image that records its reads.
    struct RecordingImage(u64, Mutex<Vec<(u64, usize)>>);

    impl Image for RecordingImage {
        fn name(&self) -> Arc<str> {
            "noted".into()
        }

        fn len(&self) -> u64 {
            10 << 20
        }

        fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
            self.1.lock().unwrap().push((offset, buffer.len()));
            buffer.iter_mut().zip(offset..).for_each(|(byte, at)| *byte = (at / 1000) as u8);
            Ok(())
        }

        fn stripe(&self) -> usize {
            1 << 20
        }

        fn origin(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn reads_are_aligned_to_the_file_and_happen_once() {
        let noted = Arc::new(RecordingImage(4096, Mutex::default()));
        let image: Arc<dyn Image> = noted.clone();
        let pieces = ReadCache::new(&image, 3 << 20, 8 << 20);
        let mut out = vec![0; 5000];
        assert!(!pieces.fill(1_040_000, &mut out, false).unwrap());
        for _ in 0..2 {
            assert!(pieces.fill(1_040_000, &mut out, true).unwrap());
            let expected: Vec<u8> = (1_040_000..1_045_000u64).map(|at| (at / 1000) as u8).collect();
            assert_eq!(out, expected);
        }
        assert!(pieces.fill(3 << 20, &mut [0], true).is_err());
        assert!(pieces.fill((3 << 20) - 1, &mut [0], true).unwrap());
        let first = (1 << 20) - 4096;
        let read = [(0, first), (first as u64, 1 << 20), ((3 << 20) - 4096, 4096)];
        assert_eq!(*noted.1.lock().unwrap(), read);
    }
}
