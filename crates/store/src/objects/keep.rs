//! From stored bytes to an object in the cache.

use std::sync::Arc;

use esker_format::compress::{Compression, DecompressError, Inflater, decompress};

use super::{Trip, says_full};
use crate::cache::{Entry, Reservation, Writing};
use crate::error::Cause;
use crate::source::Stored;

/// Objects up to this many plain bytes are decompressed in memory, which is faster; larger ones piece by
/// piece. With one such buffer for each core, and the budget for stored bytes, memory stays bounded whatever
/// is fetched.
const WHOLE_MAX: u64 = 64 << 20;

/// How often room is made for a large object of unstated size. Each time at least twice as much of it fits, so
/// that what deflates best, a thousandfold, still comes to its end.
const PLAIN_ROUNDS: u32 = 10;

/// The plain bytes of a small object.
enum Plain {
    /// They are what was stored.
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

/// How often an object has met a full disk.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    First,
    AfterMakingRoom,
}

impl Trip {
    /// Verifies what came, then decompresses and keeps it. Runs on the pool.
    pub(super) fn arrived(mut self, stored: Stored) {
        let stored = match stored.verify(&self.wanted.name.hash) {
            Ok(stored) => stored,
            Err(cause) => return self.land(Err(cause)),
        };
        self.store.traffic.note_fetch(stored.len(), self.is_prefetch);
        self.fetched = Some(stored.len());
        let most = self.wanted.size.unwrap_or(self.wanted.limit);
        if stored.memory().is_none() || most > WHOLE_MAX {
            return self.keep_in_pieces(stored, 0);
        }
        match self.whole(stored) {
            Ok(plain) => self.keep_whole(plain, Attempt::First),
            Err(cause) => self.land(Err(cause)),
        }
    }

    /// Keeps an object that a lower tier had.
    pub(crate) fn found_below(self, plain: Vec<u8>) {
        self.keep_whole(Plain::Inflated(plain), Attempt::First);
    }

    /// The same for one that was copied into a file of ours already.
    pub(crate) fn written_from_below(self, writing: Writing) {
        let cache = self.store.cache.clone();
        self.reserve(cache.charge_of(writing.len()), move |trip, granted| {
            trip.on_pool(move |trip| match granted {
                Ok(reservation) => match writing.keep(trip.wanted.key(), reservation, None) {
                    Ok(entry) => trip.kept(entry),
                    // Large objects that can't be written here are fetched, which knows what to do then.
                    Err(_) => trip.fetch(),
                },
                Err(no_room) => trip.serve_file(writing, no_room),
            });
        });
    }

    /// The object is in the cache. One that was fetched may be given to others.
    fn kept(self, entry: Arc<Entry>) {
        if let (Some(below), Some(_)) = (&self.store.cache.below, self.fetched) {
            below.give(&self.store.cache, &entry);
        }
        self.found(entry);
    }

    /// The stored bytes of an object that nobody demanded when it was asked for.
    fn prefetched(&self) -> Option<u64> {
        self.fetched.filter(|_| self.is_prefetch)
    }

    fn whole(&self, stored: Stored) -> Result<Plain, Cause> {
        let bytes = stored.memory().unwrap_or_default();
        if self.wanted.compression == Compression::Stored {
            self.check_len(bytes.len() as u64)?;
            return Ok(Plain::AsStored(stored));
        }
        decompress(bytes, self.wanted.compression, self.wanted.size, self.wanted.limit)
            .map(Plain::Inflated)
            .map_err(undecodable)
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
        self.reserve(charge, move |trip, granted| {
            trip.on_pool(move |trip| match granted {
                Ok(reservation) => trip.write_whole(plain, reservation, attempt),
                Err(cause) => trip.serve_unkept(plain, cause),
            });
        });
    }

    /// Asks for room; there is none for what is only passed on.
    fn reserve(self, charge: u64, then: impl FnOnce(Self, Result<Reservation, Cause>) + Send + 'static) {
        let cache = self.store.cache.clone();
        if cache.streaming && self.wanted.name.kind.is_content() {
            return then(self, Err(Cause::Full { needed: charge, used: 0, limit: 0 }));
        }
        cache.space.reserve(charge, move |granted| then(self, granted));
    }

    fn write_whole(self, plain: Plain, reservation: Reservation, attempt: Attempt) {
        let written = Writing::begin(&self.store.cache).and_then(|mut writing| {
            writing.write(plain.bytes()).map_err(|source| writing.failed(source))?;
            writing.keep(self.wanted.key(), reservation, self.prefetched())
        });
        match written {
            Ok(entry) => self.kept(entry),
            Err(cause) if attempt == Attempt::First && says_full(&cause) => {
                let cache = self.store.cache.clone();
                let bytes = cache.charge_of(plain.bytes().len() as u64);
                cache.space.make_room(bytes, move || {
                    self.on_pool(move |trip| trip.keep_whole(plain, Attempt::AfterMakingRoom));
                });
            }
            // The disk failed, but the bytes are here and verified.
            Err(cause) => self.serve_unkept(plain, cause),
        }
    }

    /// Serves an object that can't be kept for the reason `cause`: from a file without a name if only the
    /// cache is full, from memory if the disk fails.
    fn serve_unkept(self, plain: Plain, cause: Cause) {
        if self.priority.give_up() {
            return self.land(Err(cause));
        }
        if matches!(cause, Cause::Full { .. }) {
            let written = Writing::begin(&self.store.cache).and_then(|mut writing| {
                writing.write(plain.bytes()).map_err(|source| writing.failed(source))?;
                Ok(writing)
            });
            if let Ok(writing) = written {
                return self.serve_file(writing, cause);
            }
        }
        let cache = self.store.cache.clone();
        let Some(share) = cache.unkept_memory.take(plain.bytes().len() as u64) else {
            return self.land(Err(cause));
        };
        cache.with_slot(self.urgency(), move |slot| {
            let served = self.store.cache.serve_memory(plain.bytes(), slot, share);
            self.land(served);
        });
    }

    /// `rounds` says how often room was made for it on a full disk.
    fn keep_in_pieces(self, stored: Stored, rounds: u32) {
        let cache = self.store.cache.clone();
        // Without a stated size the reservation is a guess that is corrected once the size is known.
        let charge = cache.charge_of(self.wanted.size.unwrap_or_else(|| stored.len()));
        self.reserve(charge, move |trip, granted| {
            trip.on_pool(move |trip| trip.write_pieces(stored, granted, rounds));
        });
    }

    fn write_pieces(self, stored: Stored, granted: Result<Reservation, Cause>, rounds: u32) {
        let cache = self.store.cache.clone();
        let mut came_to = 0;
        let written = Writing::begin(&cache).and_then(|mut writing| {
            let inflated = self.inflate(&stored, &mut writing);
            came_to = writing.len();
            inflated.map(|()| writing)
        });
        let most = if self.wanted.size.is_some() { 1 } else { PLAIN_ROUNDS };
        let full = |cause: &Cause| rounds < most && says_full(cause);
        let outcome = match (written, granted) {
            (Ok(writing), Ok(reservation)) => writing.keep(self.wanted.key(), reservation, self.prefetched()),
            (Ok(writing), Err(no_room)) => return self.serve_file(writing, no_room),
            (Err(cause), _) => Err(cause),
        };
        match outcome {
            Ok(entry) => self.kept(entry),
            Err(cause) if full(&cause) => {
                // What was written of it is free again, too.
                let plain = self.wanted.size.unwrap_or_else(|| came_to.saturating_add(stored.len()));
                cache.space.make_room(cache.charge_of(plain), move || {
                    self.on_pool(move |trip| trip.keep_in_pieces(stored, rounds + 1));
                });
            }
            Err(cause) => self.land(Err(cause)),
        }
    }

    fn inflate(&self, stored: &Stored, writing: &mut Writing) -> Result<(), Cause> {
        let most = self.wanted.size.unwrap_or(self.wanted.limit);
        let mut inflater = Inflater::new(self.wanted.compression, most);
        let inflated = stored
            .pieces(|piece| Ok(inflater.write(piece, &mut |plain| writing.write(plain))?))
            .and_then(|()| Ok(inflater.finish()?));
        match inflated {
            Ok(len) => self.check_len(len),
            Err(PieceError::Inflate(DecompressError::Sink(source))) => Err(writing.failed(source)),
            Err(PieceError::Inflate(DecompressError::TooLarge { .. })) if self.wanted.size.is_some() => {
                Err(Cause::WrongSize { expected: most, actual: most.saturating_add(1) })
            }
            Err(PieceError::Inflate(error)) => Err(undecodable(error)),
            Err(PieceError::Read(source)) => {
                Err(Cause::Disk { doing: "reading back", path: "spooled bytes".into(), source })
            }
        }
    }

    fn serve_file(self, writing: Writing, cause: Cause) {
        if self.priority.give_up() {
            return self.land(Err(cause));
        }
        let cache = self.store.cache.clone();
        let Some(share) = cache.unkept_files.take(writing.len()) else { return self.land(Err(cause)) };
        cache.with_slot(self.urgency(), move |slot| {
            let served = self.store.cache.serve_file(writing, slot, share);
            self.land(served);
        });
    }
}

/// What stops a body on its way through the inflater.
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
