//! Fast encoders of stored objects.
//!
//! An object's name is the hash of its stored bytes. So an encoder must not change its output without a
//! reason: old and new objects of equal content would be stored twice.

use std::fmt;

/// Level of the fast encoder: its output is no larger than zlib's at the default level, in a third of the
/// time (measured in `docs/reports/encoders.md`).
const FAST_LEVEL: i32 = 6;
/// Level of zstd for small content, which takes no more bytes than zlib; level 3 takes 5 % more.
const ZSTD_LEVEL: i32 = 6;
/// Level of zstd for large content: an eighth fewer bytes than zlib, in less than half of the time of level 6, which
/// would save another 7 % (measured in `docs/reports/encoders.md`).
const ZSTD_LEVEL_LARGE: i32 = 3;
/// Maximum length of small content. Up to this length, zstd has other parameters for each level.
const ZSTD_SMALL_MAX: usize = 128 << 10;

/// Encoder of zlib streams by libdeflate.
pub struct FastZlib(libdeflater::Compressor);

impl Default for FastZlib {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for FastZlib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FastZlib")
    }
}

impl FastZlib {
    /// Creates an encoder, which one thread may reuse.
    pub fn new() -> Self {
        let level = libdeflater::CompressionLvl::new(FAST_LEVEL)
            .expect("the level is valid because libdeflate has levels up to 12");
        Self(libdeflater::Compressor::new(level))
    }

    /// Replaces `stored` by the stream for these bytes.
    pub fn encode(&mut self, plain: &[u8], stored: &mut Vec<u8>) {
        let bound = self.0.zlib_compress_bound(plain.len());
        stored.resize(bound, 0);
        let len = self
            .0
            .zlib_compress(plain, stored)
            .expect("the stream fits because the room for it was computed for the worst case");
        stored.truncate(len);
    }
}

/// Encoder of zstd frames with length and checksum.
pub struct Zstd {
    small: zstd::bulk::Compressor<'static>,
    large: zstd::bulk::Compressor<'static>,
}

impl fmt::Debug for Zstd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Zstd")
    }
}

impl Zstd {
    /// Creates an encoder, which one thread may reuse.
    pub fn new() -> std::io::Result<Self> {
        let compressor = |level| {
            let mut compressor = zstd::bulk::Compressor::new(level)?;
            compressor.include_checksum(true)?;
            compressor.include_contentsize(true)?;
            std::io::Result::Ok(compressor)
        };
        Ok(Self { small: compressor(ZSTD_LEVEL)?, large: compressor(ZSTD_LEVEL_LARGE)? })
    }

    /// Replaces `stored` by the frame for these bytes.
    pub fn encode(&mut self, plain: &[u8], stored: &mut Vec<u8>) -> std::io::Result<()> {
        stored.clear();
        stored.reserve(zstd::zstd_safe::compress_bound(plain.len()));
        let compressor = if plain.len() <= ZSTD_SMALL_MAX { &mut self.small } else { &mut self.large };
        compressor.compress_to_buffer(plain, stored)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compress::{Compression, decompress};

    #[test]
    fn streams_decode_and_do_not_change() {
        let noise: Vec<u8> = (0..300_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        let (mut fast, mut zstd) = (FastZlib::new(), Zstd::new().unwrap());
        let (mut stored, mut again) = (vec![7; 3], Vec::new());
        for plain in [&[][..], b"hello\n", &[0; 1_000_000], &noise] {
            let len = plain.len() as u64;
            fast.encode(plain, &mut stored);
            assert_eq!(decompress(&stored, Compression::Zlib, Some(len), len).unwrap(), plain);
            FastZlib::new().encode(plain, &mut again);
            assert_eq!(stored, again);
            zstd.encode(plain, &mut stored).unwrap();
            assert_eq!(decompress(&stored, Compression::Zstd, Some(len), len).unwrap(), plain);
            assert_eq!(Compression::recognise(&stored), Some(Compression::Zstd));
        }
    }
}
