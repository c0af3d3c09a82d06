//! Queues the chunks of libraries and executables in use.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use esker_format::catalog::Chunk;
use esker_store::CacheKey;

use crate::candidate::Candidate;

/// Maximum number of files that are tracked as announced.
const ANNOUNCED_MAX: usize = 4096;

/// Idle time after which the remaining chunks are fetched; a starting program reads more often.
const QUIET: Duration = Duration::from_secs(1);
/// Maximum delay of the remaining chunks if a program never pauses.
const LONG: Duration = Duration::from_secs(60);

/// Maximum number of remaining chunks; further ones are not queued.
const LINE_MAX: usize = 1 << 16;

/// Queues the chunks of libraries and executables in use.
///
/// Chunks that will be read soon come first. The remaining ones follow after everything else and only when the mount
/// is idle, so that they take no CPU time from a starting program; code from a far server does not wait for that. A
/// bundle lists the reads of the files that it names, so a read beside it prefetches no more than in any other
/// file. While a bundle is being fetched, all of these chunks wait for it.
#[derive(Default)]
pub(crate) struct RemainingChunks {
    specs_awaited: usize,
    /// Paths of the files that bundles name.
    announced: HashSet<Box<[u8]>>,
    /// Chunks that will be read soon, with the paths of their files.
    soon: VecDeque<(Box<[u8]>, Candidate)>,
    line: VecDeque<RemainingChunk>,
    /// Time at which chunks first remained to be read; `None` if none remain.
    since: Option<Instant>,
    /// True if nothing was read for a while.
    quiet: bool,
    /// True if code does not wait for idle time.
    hurries: bool,
}

/// A remaining chunk.
struct RemainingChunk {
    path: Box<[u8]>,
    candidate: Candidate,
    is_code: bool,
}

impl RemainingChunks {
    /// Queues a chunk that will be read soon.
    pub(crate) fn push_soon(&mut self, path: &[u8], candidate: Candidate) {
        self.soon.push_back((path.into(), candidate));
    }

    /// Queues a remaining chunk; returns false if there are too many.
    pub(crate) fn push(&mut self, path: &[u8], candidate: Candidate, is_code: bool) -> bool {
        let is_room = self.line.len() < LINE_MAX;
        if is_room {
            self.since.get_or_insert_with(Instant::now);
            self.line.push_back(RemainingChunk { path: path.into(), candidate, is_code });
        }
        is_room
    }

    /// Returns true if an object is queued as a remaining chunk.
    pub(crate) fn is_queued(&self, key: &CacheKey) -> bool {
        self.line.iter().any(|rest| rest.candidate.wanted.key() == *key)
    }

    /// Sets whether code is fetched at once instead of in idle time.
    pub(crate) fn hurries(&mut self, hurries: bool) {
        self.hurries = hurries;
    }

    /// Returns the idle time until the remaining chunks begin; `None` if there are none, or they have begun.
    pub(crate) fn quiet_period(&self) -> Option<Duration> {
        (!self.line.is_empty() && !self.quiet).then_some(QUIET)
    }

    /// Starts with the remaining chunks after the idle time; returns false if there are none.
    pub(crate) fn begin(&mut self) -> bool {
        let begins = self.quiet_period().is_some();
        self.quiet |= begins;
        begins
    }

    /// Delays the remaining chunks again after a read.
    pub(crate) fn wait(&mut self) {
        self.quiet = false;
    }

    /// Records that a bundle names this large file.
    pub(crate) fn announce(&mut self, path: &[u8]) {
        if self.announced.len() < ANNOUNCED_MAX && !self.announced.contains(path) {
            self.announced.insert(path.into());
        }
    }

    /// Returns true if a bundle named this file.
    pub(crate) fn is_announced(&self, path: &[u8]) -> bool {
        self.announced.contains(path)
    }

    /// Records a request for the specification of a bundle.
    pub(crate) fn await_spec(&mut self) {
        self.specs_awaited += 1;
    }

    /// Returns true while a specification is being fetched.
    pub(crate) fn awaits_spec(&self) -> bool {
        self.specs_awaited > 0
    }

    /// Records that a specification has arrived or failed.
    pub(crate) fn spec_arrived(&mut self) {
        self.specs_awaited = self.specs_awaited.saturating_sub(1);
    }

    /// Drops the chunks of these files; returns the keys of those that were queued as read soon.
    pub(crate) fn leave<'f>(&mut self, files: impl Iterator<Item = &'f [u8]>) -> Vec<CacheKey> {
        if self.line.is_empty() && self.soon.is_empty() {
            return Vec::new();
        }
        let files: HashSet<&[u8]> = files.collect();
        let mut left = Vec::new();
        self.line.retain(|rest| !files.contains(&*rest.path));
        self.soon.retain(|(path, candidate)| {
            let stays = !files.contains(&**path);
            if !stays {
                left.push(candidate.wanted.key());
            }
            stays
        });
        left
    }

    /// Removes and returns the next chunk that will be read soon.
    pub(crate) fn take_soon(&mut self) -> Option<Candidate> {
        if self.awaits_spec() {
            return None;
        }
        Some(self.soon.pop_front()?.1)
    }

    /// Removes and returns the next remaining chunk that is not requested already, if this is the time for it.
    pub(crate) fn take(&mut self, is_asked_for: impl Fn(&CacheKey) -> bool) -> Option<Candidate> {
        if self.awaits_spec() {
            return None;
        }
        let is_time = self.quiet || self.since.is_some_and(|since| since.elapsed() > LONG);
        let comes_now = |rest: &RemainingChunk| is_time || self.hurries && rest.is_code;
        while let Some(number) = self.line.iter().position(comes_now) {
            let RemainingChunk { candidate, .. } = self.line.remove(number)?;
            if !is_asked_for(&candidate.wanted.key()) {
                return Some(candidate);
            }
        }
        if self.line.is_empty() {
            self.since = None;
        }
        None
    }

    /// Removes all queued chunks.
    pub(crate) fn clear(&mut self) {
        (self.soon, self.line, self.since) = Default::default();
    }
}

/// Returns all other chunks, from the one after the missed one around to the one before it.
pub(crate) fn around(chunks: &[Chunk], missed: usize) -> impl Iterator<Item = &Chunk> {
    let after = missed.saturating_add(1).min(chunks.len());
    chunks[after..].iter().chain(&chunks[..missed.min(chunks.len())])
}

/// Returns the number of the chunk with the byte at `offset`.
pub(crate) fn chunk_at(chunks: &[Chunk], offset: u64) -> usize {
    chunks.partition_point(|chunk| chunk.offset + chunk.size <= offset)
}

#[cfg(test)]
mod tests {
    use esker_format::compress::Compression;
    use esker_format::hash::{ContentHash, HashAlgorithm};

    use super::super::objects;
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

    fn candidate(chunk: &Chunk) -> Candidate {
        Candidate::new(objects::chunk(chunk, Compression::Zlib, "/lib.so"), chunk.size)
    }

    #[test]
    fn remaining_chunks_wait_for_idle_time_unless_they_are_urgent_code() {
        let chunks = file(4);
        let mut rests = RemainingChunks::default();
        assert!(rests.quiet_period().is_none() && !rests.begin(), "there is none");
        for (chunk, is_code) in chunks.iter().zip([false, false, true, true]) {
            rests.push(b"/lib.so", candidate(chunk), is_code);
        }
        let next =
            |rests: &mut RemainingChunks| rests.take(|_| false).map(|candidate| candidate.wanted.name.hash);
        assert_eq!((next(&mut rests), rests.quiet_period()), (None, Some(QUIET)));
        assert!(rests.begin());
        assert_eq!((next(&mut rests), rests.quiet_period()), (Some(chunks[0].hash), None));
        rests.wait();
        assert_eq!((next(&mut rests), rests.quiet_period()), (None, Some(QUIET)), "something was read");
        rests.hurries(true);
        rests.await_spec();
        assert_eq!(next(&mut rests), None, "a bundle is on its way");
        rests.spec_arrived();
        let asked_for = candidate(&chunks[2]).wanted.key();
        assert_eq!(
            rests.take(|key| *key == asked_for).map(|candidate| candidate.wanted.name.hash),
            Some(chunks[3].hash)
        );
        assert_eq!((next(&mut rests), rests.quiet_period()), (None, Some(QUIET)), "only code hurries");
        assert!(rests.begin());
        assert_eq!((next(&mut rests), next(&mut rests)), (Some(chunks[1].hash), None));
    }

    #[test]
    fn chunks_read_soon_come_first_and_a_bundle_replaces_them() {
        let chunks = file(3);
        let mut rests = RemainingChunks::default();
        rests.push_soon(b"/lib.so", candidate(&chunks[0]));
        rests.push_soon(b"/other.so", candidate(&chunks[1]));
        rests.push(b"/lib.so", candidate(&chunks[2]), true);
        assert_eq!(rests.leave([&b"/lib.so"[..]].into_iter()), [candidate(&chunks[0]).wanted.key()]);
        assert_eq!(rests.take_soon().map(|candidate| candidate.wanted.name.hash), Some(chunks[1].hash));
        rests.hurries(true);
        assert!(rests.take_soon().is_none() && rests.take(|_| false).is_none());
    }

    #[test]
    fn remaining_chunks_begin_after_the_missed_one() {
        let chunks = file(4);
        let order = |missed| around(&chunks, missed).map(|chunk| chunk.offset / SIZE).collect::<Vec<_>>();
        assert_eq!(order(0), [1, 2, 3]);
        assert_eq!(order(2), [3, 0, 1]);
        assert_eq!(order(9), [0, 1, 2, 3]);
        assert_eq!([0, SIZE - 1, SIZE, 4 * SIZE].map(|offset| chunk_at(&chunks, offset)), [0, 0, 1, 4]);
    }
}
