//! Decompresses blocks with each of the five codecs.

mod lzo;

use std::cell::RefCell;
use std::io::Read;

use crate::layout::CodecId;

/// Memory limit of an xz decoder in KiB; a dictionary is at most one block of data (1 MiB).
const XZ_MEMORY_KIB: u32 = 4 << 10;

/// Error: the stored bytes are not a compressed block, or decompress to more than the allowed length.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct CodecError(String);

impl CodecError {
    fn new(cause: impl std::fmt::Display) -> Self {
        Self(cause.to_string())
    }
}

thread_local! {
    static INFLATER: RefCell<libdeflater::Decompressor> = RefCell::new(libdeflater::Decompressor::new());
    static ZSTD: RefCell<zstd::bulk::Decompressor<'static>> = RefCell::default();
}

impl CodecId {
    /// Decompresses a block into `out` and returns its length, which is at most that of `out`.
    pub fn decompress(self, stored: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
        match self {
            Self::Gzip => INFLATER
                .with_borrow_mut(|inflater| inflater.zlib_decompress(stored, out))
                .map_err(CodecError::new),
            Self::Lzo => lzo::decompress(stored, out).map_err(CodecError::new),
            Self::Xz => unxz(stored, out),
            Self::Lz4 => lz4_flex::block::decompress_into(stored, out).map_err(CodecError::new),
            Self::Zstd => ZSTD
                .with_borrow_mut(|context| context.decompress_to_buffer(stored, out))
                .map_err(CodecError::new),
        }
    }
}

fn unxz(stored: &[u8], out: &mut [u8]) -> Result<usize, CodecError> {
    let mut reader = lzma_rust2::XzReader::new_mem_limit(stored, false, XZ_MEMORY_KIB);
    let mut filled = 0;
    while let Some(rest) = out.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        match reader.read(rest) {
            Ok(0) => return Ok(filled),
            Ok(read) => filled += read,
            Err(error) => return Err(CodecError::new(error)),
        }
    }
    // Reading to the end of the stream verifies its checksum.
    match reader.read(&mut [0]) {
        Ok(0) => Ok(filled),
        Ok(_) => Err(CodecError::new("the block is longer than it may be")),
        Err(error) => Err(CodecError::new(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn garbage_is_an_error_in_every_codec() {
        let garbage: Vec<u8> = (0..997u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let mut out = vec![0; 8192];
        for codec in CodecId::ALL {
            for len in 1..garbage.len() {
                // LZ4 and LZO have no checksums: garbage may decompress, but never to more than the buffer
                // holds.
                if let Ok(length) = codec.decompress(&garbage[..len], &mut out) {
                    assert!(length <= out.len(), "{codec:?}");
                    assert!(!matches!(codec, CodecId::Gzip | CodecId::Xz | CodecId::Zstd), "{codec:?}");
                }
            }
        }
    }

    #[test]
    fn a_block_that_is_too_long_is_an_error() {
        let long = vec![7; 10_000];
        let zstd = zstd::bulk::compress(&long, 3).unwrap();
        let lz4 = lz4_flex::block::compress(&long);
        for (codec, stored) in [(CodecId::Zstd, zstd), (CodecId::Lz4, lz4)] {
            assert!(codec.decompress(&stored, &mut vec![0; 9_999]).is_err(), "{codec:?}");
            let mut out = vec![0; 10_001];
            assert_eq!(codec.decompress(&stored, &mut out), Ok(10_000), "{codec:?}");
            assert_eq!(out[..10_000], long, "{codec:?}");
        }
    }
}
