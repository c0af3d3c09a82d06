//! Verifies plain bytes of an object without its stored bytes.
//!
//! An object is named by the hash of its compressed bytes. Plain bytes from an untrusted place are verified by
//! compressing them as publishers do: if the hash matches, they are the object's, whatever their origin. Output of
//! another encoder can't be verified in this way and is refused.

mod sys;

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_format::compress::Compression;
use esker_format::hash::{ContentHash, Hasher};
use esker_format::write::deflate::ExactZlib;
use esker_format::write::encode::{FastZlib, Zstd};

use crate::objects::request::CacheKey;

pub use sys::StockZlib;

/// Verifies objects one after the other, and remembers which encoder matched last.
#[derive(Debug, Default)]
pub(crate) struct PlainVerifier {
    /// True if the last zlib object was not made by zlib itself.
    fast_first: AtomicBool,
}

impl PlainVerifier {
    /// Returns true if these are the plain bytes of the object.
    pub(crate) fn is_content(&self, key: &CacheKey, plain: &[u8]) -> io::Result<bool> {
        let matches = |stored: &[u8]| ContentHash::of(key.hash.algorithm(), stored) == key.hash;
        match key.compression {
            Compression::Stored => Ok(matches(plain)),
            Compression::Zstd => {
                let mut stored = Vec::new();
                Zstd::new()?.encode(plain, &mut stored)?;
                Ok(matches(&stored))
            }
            Compression::Zlib => {
                let fast_first = self.fast_first.load(Ordering::Relaxed);
                for fast in [fast_first, !fast_first] {
                    let made = if fast { made_fast(key, plain) } else { made_by_zlib(key, plain) };
                    if made {
                        self.fast_first.store(fast, Ordering::Relaxed);
                        return Ok(true);
                    }
                }
                Ok(false)
            }
        }
    }
}

fn made_fast(key: &CacheKey, plain: &[u8]) -> bool {
    let mut stored = Vec::new();
    FastZlib::new().encode(plain, &mut stored);
    ContentHash::of(key.hash.algorithm(), &stored) == key.hash
}

fn made_by_zlib(key: &CacheKey, plain: &[u8]) -> bool {
    let mut stored = Vec::new();
    ExactZlib::new().encode(plain, &mut stored);
    ContentHash::of(key.hash.algorithm(), &stored) == key.hash
}

/// Verification of an object in pieces.
pub(crate) struct StreamVerifier {
    expected: ContentHash,
    hasher: Hasher,
    zlib: Option<StockZlib>,
}

impl StreamVerifier {
    /// Begins a streaming verification; none if no streaming encoder exists.
    pub(crate) fn begin(key: &CacheKey) -> io::Result<Option<Self>> {
        let zlib = match key.compression {
            Compression::Stored => None,
            Compression::Zlib => Some(StockZlib::new()?),
            Compression::Zstd => return Ok(None),
        };
        Ok(Some(Self { expected: key.hash, hasher: Hasher::new(key.hash.algorithm()), zlib }))
    }

    /// Adds the next piece.
    pub(crate) fn feed(&mut self, plain: &[u8], last: bool) -> io::Result<()> {
        match &mut self.zlib {
            None => self.hasher.update(plain),
            Some(zlib) => zlib.feed(plain, last, &mut |stored| self.hasher.update(stored))?,
        }
        Ok(())
    }

    /// Returns whether all pieces together are the object.
    pub(crate) fn holds(self) -> bool {
        self.hasher.finish() == self.expected
    }
}

#[cfg(test)]
mod tests {
    use esker_format::hash::HashAlgorithm;

    use super::*;

    fn text(len: usize) -> Vec<u8> {
        (0..len)
            .flat_map(|number: usize| (number * number % 977).to_string().into_bytes())
            .take(len)
            .collect()
    }

    #[test]
    fn only_output_of_known_encoders_is_verified() {
        let prover = PlainVerifier::default();
        for len in [0, 1, 5000, 300_000] {
            let plain = text(len);
            let (mut stock, mut fast, mut zstd) = (Vec::new(), Vec::new(), Vec::new());
            StockZlib::new().unwrap().encode(&plain, &mut stock).unwrap();
            FastZlib::new().encode(&plain, &mut fast);
            Zstd::new().unwrap().encode(&plain, &mut zstd).unwrap();
            for (stored, compression) in [
                (&stock, Compression::Zlib),
                (&fast, Compression::Zlib),
                (&zstd, Compression::Zstd),
                (&plain, Compression::Stored),
            ] {
                let key = CacheKey { hash: ContentHash::of(HashAlgorithm::Sha1, stored), compression };
                assert!(prover.is_content(&key, &plain).unwrap());
                let mut other = plain.clone();
                match other.last_mut() {
                    Some(byte) => *byte ^= 1,
                    None => other.push(0),
                }
                assert!(!prover.is_content(&key, &other).unwrap());
            }
        }
    }

    #[test]
    fn the_sizes_of_pieces_make_no_difference() {
        let plain = text(400_000);
        let mut stored = Vec::new();
        let mut zlib = StockZlib::new().unwrap();
        zlib.encode(&plain, &mut stored).unwrap();
        let hash = ContentHash::of(HashAlgorithm::Shake128, &stored);
        let key = CacheKey { hash, compression: Compression::Zlib };
        for piece in [1000, 65_536, 399_999, 400_000] {
            let mut proof = StreamVerifier::begin(&key).unwrap().unwrap();
            let pieces = plain.chunks(piece);
            let count = pieces.len();
            for (number, piece) in pieces.enumerate() {
                proof.feed(piece, number + 1 == count).unwrap();
            }
            assert!(proof.holds(), "in pieces of {piece}");
        }
        let mut cut = StreamVerifier::begin(&key).unwrap().unwrap();
        cut.feed(&plain[..399_999], true).unwrap();
        assert!(!cut.holds());
    }
}
