//! Whole and piecewise decompression agree, keep to their limit, and give back what was compressed.

use esker_format::compress::{Compression, DecompressError, Inflater, compress_zlib, decompress};

/// The limit of a run; larger inputs are not made.
const LIMIT: u64 = 256 * 1024;

/// Checks any bytes.
pub fn check(bytes: &[u8]) {
    for compression in [Compression::Zlib, Compression::Stored, Compression::Zstd] {
        let whole = decompress(bytes, compression, None, LIMIT);
        let pieces = in_pieces(bytes, compression);
        match &whole {
            Ok(plain) => {
                assert!(plain.len() as u64 <= LIMIT);
                assert_eq!(pieces.as_ref().ok(), Some(plain));
                let len = plain.len() as u64;
                let exact = decompress(bytes, compression, Some(len), LIMIT);
                assert_eq!(exact.as_ref().ok(), Some(plain));
                assert!(decompress(bytes, compression, Some(len + 1), u64::MAX).is_err());
            }
            Err(_) => assert!(pieces.is_err()),
        }
    }
    if let Some(compression) = Compression::recognise(bytes) {
        assert_ne!(compression, Compression::Stored);
    }
    let packed = compress_zlib(bytes);
    let plain = decompress(&packed, Compression::Zlib, Some(bytes.len() as u64), u64::MAX);
    assert_eq!(plain.expect("our own stream"), bytes);
}

/// Feeds pieces whose lengths the bytes themselves decide.
fn in_pieces(bytes: &[u8], compression: Compression) -> Result<Vec<u8>, DecompressError> {
    let mut inflater = Inflater::new(compression, LIMIT);
    let mut plain = Vec::new();
    let mut rest = bytes;
    while let Some(first) = rest.first() {
        let (piece, after) = rest.split_at(rest.len().min(usize::from(*first) + 1));
        rest = after;
        inflater.write(piece, &mut |piece| {
            plain.extend_from_slice(piece);
            Ok(())
        })?;
    }
    assert_eq!(inflater.finish()?, plain.len() as u64);
    Ok(plain)
}
