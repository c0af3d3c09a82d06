//! Compression of stored objects.
//!
//! [`decompress`] converts a whole object; [`Inflater`] works in pieces, for objects that should not be in
//! memory as a whole. Both stop at a limit that the caller sets, and neither allocates by a length before the
//! bytes exist. Bytes after the end of a zlib stream are ignored, as in the reference client.

mod inflater;

use std::io;

pub use inflater::Inflater;
use serde::{Deserialize, Serialize};

/// Storage format of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// A zlib stream (RFC 1950).
    Zlib,
    /// Uncompressed bytes.
    #[serde(rename = "none")]
    Stored,
    /// Zstandard frames.
    Zstd,
}

impl Compression {
    /// Returns the compression with this number in the flags of a catalog entry.
    pub const fn from_flag(number: u8) -> Option<Self> {
        match number {
            0 => Some(Self::Zlib),
            1 => Some(Self::Stored),
            2 => Some(Self::Zstd),
            _ => None,
        }
    }

    /// Returns the number of this compression in the flags of a catalog entry.
    pub const fn to_flag(self) -> u8 {
        match self {
            Self::Zlib => 0,
            Self::Stored => 1,
            Self::Zstd => 2,
        }
    }

    /// Detects the compression of an object outside of catalogs by its first bytes.
    ///
    /// Catalogs, histories, certificates and metainfo are always compressed, so uncompressed bytes are not
    /// expected.
    pub fn recognise(stored: &[u8]) -> Option<Self> {
        if stored.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            Some(Self::Zstd)
        } else if stored.first() == Some(&0x78) {
            Some(Self::Zlib)
        } else {
            None
        }
    }
}

/// Reasons why stored bytes could not be decompressed.
#[derive(Debug, thiserror::Error)]
pub enum DecompressError {
    /// The stored bytes are not valid for their compression.
    #[error("the stored bytes are not a valid {compression:?} stream: {reason}")]
    Damaged {
        /// Compression that was tried.
        compression: Compression,
        /// Error text of the decompressor.
        reason: String,
    },
    /// The stored bytes end before the stream does.
    #[error("the stored bytes end in the middle of the {0:?} stream")]
    Truncated(Compression),
    /// The decompressed length differs from the repository's.
    #[error("the object has {actual} plain bytes where {expected} are expected")]
    Length {
        /// Length that the repository states, in bytes.
        expected: u64,
        /// Actual length, or the length at which decompression stopped.
        actual: u64,
    },
    /// The decompressed bytes exceed the caller's limit.
    #[error("the object has more than the {limit} plain bytes that are allowed here")]
    TooLarge {
        /// Limit in bytes.
        limit: u64,
    },
    /// The receiver of the decompressed bytes failed.
    #[error("the plain bytes could not be written")]
    Sink(#[source] io::Error),
}

/// Maximum expansion factor of a deflate stream.
const DEFLATE_RATIO_MAX: u64 = 1032;

/// Decompresses a whole object.
///
/// `expected_len` is the decompressed length that the repository states, if it does; any other length is an
/// error. Never produces more than `limit` bytes.
pub fn decompress(
    stored: &[u8],
    compression: Compression,
    expected_len: Option<u64>,
    limit: u64,
) -> Result<Vec<u8>, DecompressError> {
    match (compression, expected_len) {
        (Compression::Zlib, Some(expected)) if expected <= limit => inflate_exactly(stored, expected),
        _ => inflate_growing(stored, compression, expected_len, limit),
    }
}

fn inflate_exactly(stored: &[u8], expected: u64) -> Result<Vec<u8>, DecompressError> {
    let damaged =
        |reason: &str| DecompressError::Damaged { compression: Compression::Zlib, reason: reason.to_owned() };
    // A length that these bytes can't reach is rejected before any allocation for it.
    let reachable = (stored.len() as u64).saturating_mul(DEFLATE_RATIO_MAX);
    if expected > reachable {
        return Err(DecompressError::Length { expected, actual: reachable });
    }
    let len =
        usize::try_from(expected).map_err(|_| DecompressError::TooLarge { limit: usize::MAX as u64 })?;
    let mut plain = vec![0; len];
    match libdeflater::Decompressor::new().zlib_decompress(stored, &mut plain) {
        Ok(actual) if actual == len => Ok(plain),
        Ok(actual) => Err(DecompressError::Length { expected, actual: actual as u64 }),
        Err(libdeflater::DecompressionError::InsufficientSpace) => {
            Err(DecompressError::Length { expected, actual: expected.saturating_add(1) })
        }
        Err(libdeflater::DecompressionError::BadData) => Err(damaged("bad or incomplete data, or checksum")),
    }
}

fn inflate_growing(
    stored: &[u8],
    compression: Compression,
    expected_len: Option<u64>,
    limit: u64,
) -> Result<Vec<u8>, DecompressError> {
    let mut plain = Vec::new();
    inflate_into(stored, compression, expected_len, limit, &mut |piece| {
        plain.extend_from_slice(piece);
        Ok(())
    })?;
    Ok(plain)
}

/// Decompresses like [`decompress`] and passes the plain bytes on in pieces; returns their number.
pub fn inflate_into(
    stored: &[u8],
    compression: Compression,
    expected_len: Option<u64>,
    limit: u64,
    sink: &mut dyn FnMut(&[u8]) -> io::Result<()>,
) -> Result<u64, DecompressError> {
    if expected_len.is_some_and(|expected| expected > limit) {
        return Err(DecompressError::TooLarge { limit });
    }
    let mut inflater = Inflater::new(compression, expected_len.unwrap_or(limit));
    let outcome = inflater.write(stored, sink).and_then(|()| inflater.finish());
    match (outcome, expected_len) {
        (Err(DecompressError::TooLarge { .. }), Some(expected)) => {
            Err(DecompressError::Length { expected, actual: expected.saturating_add(1) })
        }
        (Ok(actual), Some(expected)) if actual != expected => {
            Err(DecompressError::Length { expected, actual })
        }
        (outcome, _) => outcome,
    }
}

/// Compresses bytes as a zlib stream of the default level.
pub fn compress_zlib(plain: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::default());
    encoder
        .write_all(plain)
        .and_then(|()| encoder.finish())
        .expect("writing to memory succeeds because a vector takes every byte")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples() -> Vec<Vec<u8>> {
        let noise: Vec<u8> = (0..300_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        vec![vec![], b"hello\n".to_vec(), vec![0; 1_000_000], noise]
    }

    fn stored(plain: &[u8], compression: Compression) -> Vec<u8> {
        match compression {
            Compression::Zlib => compress_zlib(plain),
            Compression::Stored => plain.to_vec(),
            Compression::Zstd => zstd::bulk::compress(plain, 3).unwrap(),
        }
    }

    const ALL: [Compression; 3] = [Compression::Zlib, Compression::Stored, Compression::Zstd];

    #[test]
    fn whole_objects_and_pieces_decompress_equally() {
        for plain in samples() {
            for compression in ALL {
                let bytes = stored(&plain, compression);
                let len = plain.len() as u64;
                for expected in [Some(len), None] {
                    assert_eq!(decompress(&bytes, compression, expected, len).unwrap(), plain);
                }
                let mut inflater = Inflater::new(compression, len);
                let mut got = Vec::new();
                for piece in bytes.chunks(997) {
                    let sink = &mut |plain: &[u8]| {
                        got.extend_from_slice(plain);
                        Ok(())
                    };
                    inflater.write(piece, sink).unwrap();
                }
                assert_eq!(inflater.finish().unwrap(), len);
                assert_eq!(got, plain);
            }
        }
    }

    #[test]
    fn other_lengths_than_stated_are_rejected() {
        for plain in samples() {
            for compression in ALL {
                let (bytes, len) = (stored(&plain, compression), plain.len() as u64);
                let longer = decompress(&bytes, compression, Some(len + 1), u64::MAX).unwrap_err();
                assert!(matches!(longer, DecompressError::Length { .. }), "{longer}");
                if len > 0 {
                    let shorter = decompress(&bytes, compression, Some(len - 1), u64::MAX).unwrap_err();
                    assert!(matches!(shorter, DecompressError::Length { .. }), "{shorter}");
                    let limited = decompress(&bytes, compression, None, len - 1).unwrap_err();
                    assert!(matches!(limited, DecompressError::TooLarge { .. }), "{limited}");
                    assert!(decompress(&bytes, compression, Some(len), len - 1).is_err());
                }
            }
        }
    }

    #[test]
    fn stated_lengths_are_not_allocated_in_advance() {
        let bytes = compress_zlib(b"small");
        for claim in [1 << 20, 1 << 40, u64::MAX] {
            assert!(decompress(&bytes, Compression::Zlib, Some(claim), u64::MAX).is_err());
        }
    }

    #[test]
    fn truncated_and_damaged_streams_are_rejected() {
        for plain in samples() {
            for compression in [Compression::Zlib, Compression::Zstd] {
                let bytes = stored(&plain, compression);
                for keep in [0, 1, bytes.len() / 2, bytes.len() - 1] {
                    let cut = &bytes[..keep];
                    assert!(decompress(cut, compression, None, 1 << 30).is_err());
                    assert!(decompress(cut, compression, Some(plain.len() as u64), 1 << 30).is_err());
                }
                let mut flipped = bytes.clone();
                flipped[0] ^= 0x55;
                assert!(decompress(&flipped, compression, None, 1 << 30).is_err());
            }
        }
    }

    /// A stream states the window of its level rather than its length, which was unknown when it began.
    #[test]
    fn short_zstd_streams_of_every_usual_level_decompress() {
        for level in [1, 3, 9, 15, 19] {
            let stream = zstd::stream::encode_all(&b"short"[..], level).unwrap();
            assert_eq!(decompress(&stream, Compression::Zstd, Some(5), 5).unwrap(), b"short");
        }
        let frames = [zstd::bulk::compress(b"two ", 3).unwrap(), zstd::bulk::compress(b"frames", 3).unwrap()];
        assert_eq!(decompress(&frames.concat(), Compression::Zstd, Some(10), 10).unwrap(), b"two frames");
    }

    #[test]
    fn a_failing_sink_stops_decompression() {
        for compression in ALL {
            let mut inflater = Inflater::new(compression, 1 << 20);
            let error = inflater
                .write(&stored(b"plain", compression), &mut |_| Err(io::Error::other("disk full")))
                .unwrap_err();
            assert!(matches!(error, DecompressError::Sink(_)));
        }
    }

    #[test]
    fn compressions_are_detected_by_their_first_bytes() {
        assert_eq!(Compression::recognise(&stored(b"x", Compression::Zlib)), Some(Compression::Zlib));
        assert_eq!(Compression::recognise(&stored(b"x", Compression::Zstd)), Some(Compression::Zstd));
        assert_eq!(Compression::recognise(b"SQLite format 3\0"), None);
        assert_eq!(Compression::recognise(b""), None);
    }
}
