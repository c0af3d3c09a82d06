//! Converts stored bytes to an object in the cache.

use std::sync::Arc;

use esker_format::compress::{Compression, DecompressError, Inflater, decompress};
use esker_threads::waits::WaitCause;

use super::{FetchJob, says_full};
use crate::cache::{Entry, FileRoom, Reservation, SealedMemory, UncachedShare, Writing};
use crate::error::Cause;
use crate::transport::source::Stored;

/// Maximum plain size of objects that are decompressed in memory; larger ones are decompressed piece by piece.
/// With one such buffer for each core, and the budget for stored bytes, memory stays bounded.
const WHOLE_MAX: u64 = 64 << 20;

/// Plain bytes of a small object.
enum Plain {
    /// The plain bytes are the stored bytes.
    AsStored(Stored),
    Inflated(Vec<u8>),
}

impl Plain {
    fn bytes(&self) -> &[u8] {
        match self {
            // Only made of bytes in memory.
            Plain::AsStored(stored) => stored.memory().unwrap_or_default(),
            Plain::Inflated(bytes) => bytes,
        }
    }
}

/// Attempts of an object on a full disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    First,
    AfterMakingRoom,
}

impl FetchJob {
    /// Verifies the stored bytes, then decompresses and caches them. Runs on the pool.
    pub(super) fn arrived(mut self, stored: Stored) {
        let stored = match stored.verify(&self.wanted.name.hash, &self.progress) {
            Ok(stored) => stored,
            Err(cause) => return self.complete(Err(cause)),
        };
        self.store.traffic.note_fetch(stored.len(), self.is_prefetch);
        self.fetched = Some(stored.len());
        if stored.memory().is_none() || self.wanted.size.is_some_and(|size| size > WHOLE_MAX) {
            return self.measure_and_keep(stored);
        }
        match self.whole(&stored) {
            Ok(Decompressed::Inflated(plain)) => self.keep_whole(Plain::Inflated(plain), Attempt::First),
            Ok(Decompressed::AsStored) => self.keep_whole(Plain::AsStored(stored), Attempt::First),
            Ok(Decompressed::TooLarge) => self.measure_and_keep(stored),
            Err(cause) => self.complete(Err(cause)),
        }
    }

    /// Stores a large object once its plain size is known. Where nothing states the size, the object is
    /// inflated once to nowhere, so that no byte is written before there is room for it.
    fn measure_and_keep(self, stored: Stored) {
        let plain_len = match self.wanted.size {
            Some(size) => Ok(size),
            None => self.inflate(&mut |take: Take<'_>| stored.pieces(take), &mut |_| Ok(())),
        };
        match plain_len {
            Ok(plain_len) => self.keep_in_pieces(stored, plain_len, 0),
            Err(cause) => self.complete(Err(cause)),
        }
    }

    /// Stores an object found in a lower tier.
    pub(super) fn found_in_lower(self, plain: Vec<u8>) {
        self.keep_whole(Plain::Inflated(plain), Attempt::First);
    }

    /// Continues with an object that was copied from a lower tier into a file of the cache.
    pub(super) fn written_from_lower(self, writing: Writing, room: FileRoom) {
        match room {
            FileRoom::Kept(reservation) => self.on_pool(move |job| {
                match writing.keep(job.wanted.key(), reservation, None) {
                    Ok(entry) => job.kept(entry),
                    // Large objects that can't be written here are fetched, which handles a failing disk.
                    Err(_) => job.fetch(),
                }
            }),
            FileRoom::UncachedAccount(_) if self.priority.give_up() => {
                let (needed, space) = (writing.len(), &self.store.cache.space);
                let no_room = Cause::Full { needed, used: space.used(), limit: space.hard() };
                self.complete(Err(no_room));
            }
            FileRoom::UncachedAccount(share) => self.serve_file(writing, share),
        }
    }

    /// Continues with a cached object. A fetched one may be copied to shared lower tiers.
    fn kept(self, entry: Arc<Entry>) {
        self.enter(WaitCause::Disk);
        if let (Some(lower), Some(_)) = (&self.store.lower, self.fetched) {
            lower.give(&self.store.cache, &entry);
        }
        self.found(entry);
    }

    /// Returns the stored bytes of a prefetched object.
    fn prefetched(&self) -> Option<u64> {
        self.fetched.filter(|_| self.is_prefetch)
    }

    fn whole(&self, stored: &Stored) -> Result<Decompressed, Cause> {
        let bytes = stored.memory().unwrap_or_default();
        if self.wanted.compression == Compression::Stored {
            self.check_len(bytes.len() as u64)?;
            return Ok(Decompressed::AsStored);
        }
        let limit = self.wanted.limit.min(WHOLE_MAX);
        match decompress(bytes, self.wanted.compression, self.wanted.size, limit) {
            Ok(plain) => Ok(Decompressed::Inflated(plain)),
            Err(DecompressError::TooLarge { .. }) if limit < self.wanted.limit => Ok(Decompressed::TooLarge),
            Err(error) => Err(undecodable(error)),
        }
    }

    fn check_len(&self, actual: u64) -> Result<(), Cause> {
        match self.wanted.size {
            Some(expected) if expected != actual => Err(Cause::WrongSize { expected, actual }),
            _ if actual > self.wanted.limit => Err(Cause::TooLarge { limit: self.wanted.limit }),
            _ => Ok(()),
        }
    }

    fn keep_whole(self, plain: Plain, attempt: Attempt) {
        let cache = self.store.cache.clone();
        let charge = cache.charge_of(plain.bytes().len() as u64);
        self.reserve(charge, move |job, granted| {
            job.on_pool(move |job| match granted {
                Ok(reservation) => job.write_whole(plain, reservation, attempt),
                Err(cause) => job.serve_unkept(plain, cause),
            });
        });
    }

    /// Reserves room; none for files that are only passed through.
    fn reserve(self, charge: u64, then: impl FnOnce(Self, Result<Reservation, Cause>) + Send + 'static) {
        let cache = self.store.cache.clone();
        if cache.streaming && self.wanted.name.kind.is_content() {
            return then(self, Err(Cause::Full { needed: charge, used: 0, limit: 0 }));
        }
        // Room may have to be made.
        self.enter(WaitCause::Disk);
        cache.space.reserve(charge, move |granted| then(self, granted));
    }

    fn write_whole(self, plain: Plain, reservation: Reservation, attempt: Attempt) {
        self.enter(WaitCause::Disk);
        let written = Writing::begin(&self.store.cache).and_then(|mut writing| {
            writing.write(plain.bytes()).map_err(|source| writing.failed(source))?;
            writing.keep(self.wanted.key(), reservation, self.prefetched())
        });
        match written {
            Ok(entry) => self.kept(entry),
            Err(cause) if attempt == Attempt::First && says_full(&cause) => {
                let cache = self.store.cache.clone();
                let bytes = cache.charge_of(plain.bytes().len() as u64);
                self.enter(WaitCause::Disk);
                cache.space.make_room(bytes, move |made| {
                    self.on_pool(move |job| match made {
                        true => job.keep_whole(plain, Attempt::AfterMakingRoom),
                        false => job.serve_unkept(plain, cause),
                    });
                });
            }
            // The disk failed, but the bytes are here and verified.
            Err(cause) => {
                self.note_uselessness(&cause);
                self.serve_unkept(plain, cause);
            }
        }
    }

    /// Serves an object that can't be stored because of `cause`: from an unnamed file if only the cache is
    /// full, from memory if the disk fails.
    fn serve_unkept(self, plain: Plain, cause: Cause) {
        if self.priority.give_up() {
            return self.complete(Err(cause));
        }
        let cache = self.store.cache.clone();
        if matches!(cause, Cause::Full { .. }) {
            let charge = cache.charge_of(plain.bytes().len() as u64);
            let Some(share) = cache.uncached_files.take(charge) else { return self.complete(Err(cause)) };
            let written = Writing::begin(&cache).and_then(|mut writing| {
                writing.write(plain.bytes()).map_err(|source| writing.failed(source))?;
                Ok(writing)
            });
            if let Ok(writing) = written {
                return self.serve_file(writing, share);
            }
        }
        let Some(share) = cache.uncached_memory.take(plain.bytes().len() as u64) else {
            return self.complete(Err(cause));
        };
        cache.with_slot(self.urgency(), move |slot| {
            let written = SealedMemory::begin().and_then(|mut memory| {
                memory.write(plain.bytes())?;
                Ok(memory)
            });
            let served = written.and_then(|memory| self.store.cache.serve_memory(memory, slot, share));
            self.complete(served);
        });
    }

    /// Caches a large object; `rounds` counts how often room was made on a full disk.
    fn keep_in_pieces(self, stored: Stored, plain_len: u64, rounds: u32) {
        let charge = self.store.cache.charge_of(plain_len);
        self.reserve(charge, move |job, granted| {
            job.on_pool(move |job| match granted {
                Ok(reservation) => job.write_pieces(stored, plain_len, reservation, rounds),
                Err(no_room) => job.write_unkept(stored, charge, no_room),
            });
        });
    }

    fn write_pieces(self, stored: Stored, plain_len: u64, reservation: Reservation, rounds: u32) {
        let cache = self.store.cache.clone();
        let outcome = self
            .write_inflated(&mut |take: Take<'_>| stored.pieces(take), |_| Ok(()))
            .and_then(|writing| writing.keep(self.wanted.key(), reservation, self.prefetched()));
        match outcome {
            Ok(entry) => self.kept(entry),
            Err(cause) if rounds == 0 && says_full(&cause) => {
                // The bytes written so far are free again, too.
                self.enter(WaitCause::Disk);
                cache.space.make_room(cache.charge_of(plain_len), move |made| {
                    self.on_pool(move |job| match made {
                        true => job.keep_in_pieces(stored, plain_len, 1),
                        false => job.write_in_memory(&stored, plain_len, cause),
                    });
                });
            }
            Err(cause @ Cause::Disk { .. }) => {
                self.note_uselessness(&cause);
                self.write_in_memory(&stored, plain_len, cause);
            }
            Err(cause) => self.complete(Err(cause)),
        }
    }

    /// Records that room was made on a full disk for nothing.
    fn note_uselessness(&self, cause: &Cause) {
        if says_full(cause) {
            self.store.cache.space.is_of_no_use();
        }
    }

    /// Serves a large object from memory, because the disk fails.
    fn write_in_memory(self, stored: &Stored, plain_len: u64, failure: Cause) {
        let cache = self.store.cache.clone();
        if self.priority.give_up() {
            return self.complete(Err(failure));
        }
        let Some(share) = cache.uncached_memory.take(plain_len) else { return self.complete(Err(failure)) };
        let mut memory = match SealedMemory::begin() {
            Ok(memory) => memory,
            Err(cause) => return self.complete(Err(cause)),
        };
        self.enter(WaitCause::Processing);
        match self.inflate(&mut |take: Take<'_>| stored.pieces(take), &mut |plain| memory.write(plain)) {
            Ok(_) => cache.with_slot(self.urgency(), move |slot| {
                let served = self.store.cache.serve_memory(memory, slot, share);
                self.complete(served);
            }),
            Err(cause) => self.complete(Err(cause)),
        }
    }

    /// Writes an object that the cache has no room for: to an uncached file, or in exchange for its stored
    /// bytes.
    fn write_unkept(self, stored: Stored, charge: u64, no_room: Cause) {
        if self.priority.give_up() {
            return self.complete(Err(no_room));
        }
        let cache = self.store.cache.clone();
        let Some(share) = cache.uncached_files.take(charge) else {
            let (is_spooled, may_fit) = (stored.memory().is_none(), charge <= cache.space.hard());
            return match no_room {
                Cause::Full { limit: 1.., .. } if is_spooled && may_fit => {
                    self.write_in_exchange(stored, charge)
                }
                no_room => self.complete(Err(no_room)),
            };
        };
        match self.write_inflated(&mut |take: Take<'_>| stored.pieces(take), |_| Ok(())) {
            Ok(writing) => self.serve_file(writing, share),
            Err(cause) => self.complete(Err(cause)),
        }
    }

    /// Writes an object piece by piece while it releases the room of the spooled bytes, since both together may
    /// exceed the cache.
    fn write_in_exchange(self, stored: Stored, charge: u64) {
        let cache = self.store.cache.clone();
        let mut room = cache.space.nothing();
        let mut grow_to = |bytes: u64| {
            let missing = cache.charge_of(bytes).min(charge).saturating_sub(room.bytes());
            if missing > 0 {
                room.add(cache.space.reserve_now(missing)?);
            }
            Ok(())
        };
        let mut stored = Some(stored);
        let mut drain = |take: Take<'_>| stored.take().map_or(Ok(()), |stored| stored.drain(take));
        let written = self.write_inflated(&mut drain, &mut grow_to);
        let kept = written.and_then(|writing| {
            if room.bytes() == 0 {
                room.add(cache.space.reserve_now(cache.charge_of(0))?);
            }
            writing.keep(self.wanted.key(), room, self.prefetched())
        });
        match kept {
            Ok(entry) => self.kept(entry),
            Err(cause) => self.complete(Err(cause)),
        }
    }

    /// Writes the plain bytes of the stored `pieces`; calls `before` with the new length before the file grows.
    fn write_inflated(
        &self,
        pieces: Pieces<'_>,
        mut before: impl FnMut(u64) -> Result<(), Cause>,
    ) -> Result<Writing, Cause> {
        self.enter(WaitCause::Processing);
        let mut writing = Writing::begin(&self.store.cache)?;
        self.inflate(pieces, &mut |plain| {
            before(writing.len().saturating_add(plain.len() as u64))?;
            self.enter(WaitCause::Disk);
            let written = writing.write(plain).map_err(|source| writing.failed(source));
            self.enter(WaitCause::Processing);
            written
        })?;
        Ok(writing)
    }

    /// Inflates the stored `pieces`; returns the number of plain bytes.
    fn inflate(
        &self,
        pieces: Pieces<'_>,
        sink: &mut dyn FnMut(&[u8]) -> Result<(), Cause>,
    ) -> Result<u64, Cause> {
        let most = self.wanted.size.unwrap_or(self.wanted.limit);
        let mut inflater = Inflater::new(self.wanted.compression, most);
        let mut refused = None;
        let mut take = |piece: &[u8]| {
            // Inflating a piece may take long; that is not the server's silence.
            self.progress.mark();
            let mut write = |plain: &[u8]| {
                sink(plain).map_err(|cause| {
                    refused = Some(cause);
                    std::io::Error::other("the plain bytes were refused")
                })
            };
            Ok(inflater.write(piece, &mut write)?)
        };
        let inflated = pieces(&mut take).and_then(|()| Ok(inflater.finish()?));
        if let Some(cause) = refused {
            return Err(cause);
        }
        match inflated {
            Ok(len) => self.check_len(len).map(|()| len),
            Err(PieceError::Inflate(DecompressError::TooLarge { .. })) if self.wanted.size.is_some() => {
                Err(Cause::WrongSize { expected: most, actual: most.saturating_add(1) })
            }
            Err(PieceError::Inflate(error)) => Err(undecodable(error)),
            Err(PieceError::Read(source)) => {
                Err(Cause::Disk { doing: "reading back", path: "spooled bytes".into(), source })
            }
        }
    }

    fn serve_file(self, writing: Writing, share: UncachedShare) {
        let cache = self.store.cache.clone();
        cache.with_slot(self.urgency(), move |slot| {
            let served = self.store.cache.serve_file(writing, slot, share);
            self.complete(served);
        });
    }
}

/// Callback for one piece of stored bytes.
type Take<'a> = &'a mut dyn FnMut(&[u8]) -> Result<(), PieceError>;
/// Function that passes on all stored bytes of an object, piece by piece.
type Pieces<'a> = &'a mut dyn FnMut(Take<'_>) -> Result<(), PieceError>;

/// Result of decompressing an object in memory.
enum Decompressed {
    /// The plain bytes are the stored ones.
    AsStored,
    Inflated(Vec<u8>),
    /// The object is too large.
    TooLarge,
}

/// Failure while inflating.
enum PieceError {
    Read(std::io::Error),
    Inflate(DecompressError),
}

impl From<std::io::Error> for PieceError {
    fn from(error: std::io::Error) -> Self {
        Self::Read(error)
    }
}

impl From<DecompressError> for PieceError {
    fn from(error: DecompressError) -> Self {
        Self::Inflate(error)
    }
}

fn undecodable(error: DecompressError) -> Cause {
    match error {
        DecompressError::Length { expected, actual } => Cause::WrongSize { expected, actual },
        error => Cause::Undecodable(error),
    }
}
