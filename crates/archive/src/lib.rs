//! What archives are compressed with, found out and undone.
//!
//! Archives, layers of containers among them, may be compressed with gzip, zstd or xz, or be as they are; their first bytes tell.
#![forbid(unsafe_code)]

use std::io::{self, BufRead, Chain, Cursor, Read};

use flate2::bufread::GzDecoder;

/// How many of the first bytes tell.
pub const MAGIC_LEN: usize = 6;
/// Memory that an archive of xz may ask for to be read: what comes with the largest dictionaries in use. The format allows 4 GiB.
const XZ_MEMORY_KIB: u32 = 1 << 20;

/// What a stream is compressed with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packed {
    /// In parts, one after the other.
    Gzip,
    /// In frames, one after the other.
    Zstd,
    /// In streams, one after the other.
    Xz,
}

impl Packed {
    /// What a stream with this start is compressed with; none if it is as it is.
    pub fn of(start: &[u8]) -> Option<Self> {
        match start {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            _ => None,
        }
    }
}

/// What a stream is without the compression that its first bytes tell of.
pub fn unpacked<R: BufRead>(mut input: R) -> io::Result<Unpacked<R>> {
    let mut start = Vec::new();
    input.by_ref().take(MAGIC_LEN as u64).read_to_end(&mut start)?;
    let (packed, is_empty) = (Packed::of(&start), start.is_empty());
    let whole = Cursor::new(start).chain(input);
    let decoder = match packed {
        Some(Packed::Gzip) => Decoder::Gzip(Box::new(Gzip(Some(GzDecoder::new(whole))))),
        Some(Packed::Zstd) => Decoder::Zstd(zstd::Decoder::with_buffer(whole)?),
        Some(Packed::Xz) => {
            Decoder::Xz(Box::new(lzma_rust2::XzReader::new_mem_limit(whole, true, XZ_MEMORY_KIB)))
        }
        None => Decoder::Plain(whole),
    };
    Ok(Unpacked { decoder, is_empty })
}

/// A stream as it was before it was compressed.
pub struct Unpacked<R: BufRead> {
    decoder: Decoder<R>,
    is_empty: bool,
}

impl<R: BufRead> Unpacked<R> {
    /// Whether there is nothing at all, not even something that was compressed.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }
}

type Whole<R> = Chain<Cursor<Vec<u8>>, R>;

enum Decoder<R: BufRead> {
    Gzip(Box<Gzip<Whole<R>>>),
    Zstd(zstd::Decoder<'static, Whole<R>>),
    Xz(Box<lzma_rust2::XzReader<Whole<R>>>),
    Plain(Whole<R>),
}

impl<R: BufRead> Read for Unpacked<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match &mut self.decoder {
            Decoder::Gzip(parts) => parts.read(room),
            Decoder::Zstd(frames) => frames.read(room),
            Decoder::Xz(streams) => streams.read(room),
            Decoder::Plain(whole) => whole.read(room),
        }
    }
}

impl<R: BufRead> std::fmt::Debug for Unpacked<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Unpacked").finish_non_exhaustive()
    }
}

/// The parts of a file of gzip, one after the other. What follows the last one is ignored, as by gzip itself.
struct Gzip<R>(Option<GzDecoder<R>>);

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        while let Some(part) = &mut self.0 {
            let len = part.read(room)?;
            if len > 0 || room.is_empty() {
                return Ok(len);
            }
            let is_part = part.get_mut().fill_buf()?.starts_with(&[0x1f]);
            self.0 = self.0.take().filter(|_| is_part).map(|ended| GzDecoder::new(ended.into_inner()));
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Write as _};

    use super::*;

    fn read(stored: &[u8]) -> io::Result<Vec<u8>> {
        let mut plain = Vec::new();
        // Pieces of three bytes, so that no start comes at once.
        let input = BufReader::with_capacity(3, stored);
        unpacked(input)?.read_to_end(&mut plain)?;
        Ok(plain)
    }

    fn gzip(plain: &[u8]) -> Vec<u8> {
        let mut stored = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        stored.write_all(plain).unwrap();
        stored.finish().unwrap()
    }

    fn xz(plain: &[u8]) -> Vec<u8> {
        let mut stored =
            lzma_rust2::XzWriter::new(Vec::new(), lzma_rust2::XzOptions::with_preset(1)).unwrap();
        stored.write_all(plain).unwrap();
        stored.finish().unwrap()
    }

    fn zstd(plain: &[u8]) -> Vec<u8> {
        zstd::encode_all(plain, 1).unwrap()
    }

    #[test]
    fn every_kind_is_found_out_and_undone_part_after_part() {
        let kinds = [(Packed::Gzip, gzip as fn(&[u8]) -> Vec<u8>), (Packed::Zstd, zstd), (Packed::Xz, xz)];
        for (kind, pack) in kinds {
            let stored = [pack(b"one, "), pack(b"two")].concat();
            assert_eq!(Packed::of(&stored), Some(kind));
            assert_eq!(read(&stored).unwrap(), b"one, two", "{kind:?}");
            assert!(read(&stored[..stored.len() - 1]).is_err(), "{kind:?}: one that was cut");
        }
    }

    #[test]
    fn what_is_not_compressed_is_as_it_is() {
        for plain in [&b"a"[..], b"\x1f", b"\x28\xb5\x2f", b"\xfd7zXZ", b"something longer"] {
            assert_eq!((Packed::of(plain), read(plain).unwrap().as_slice()), (None, plain));
        }
        assert!(unpacked(&b""[..]).unwrap().is_empty() && read(b"").unwrap().is_empty());
        assert!(!unpacked(&gzip(b"")[..]).unwrap().is_empty() && read(&gzip(b"")).unwrap().is_empty());
    }

    #[test]
    fn what_follows_the_last_part_of_gzip_is_ignored() {
        let padded = [gzip(b"one, "), gzip(b"two"), vec![0; 700]].concat();
        assert_eq!(read(&padded).unwrap(), b"one, two");
    }

    #[test]
    fn an_archive_of_xz_may_not_have_all_memory() {
        let mut stored = xz(b"small");
        // The size of the dictionary, 4 GiB less one byte, behind the header of the stream and that of its filter.
        assert_eq!(stored[14..16], [0x21, 1]);
        stored[16] = 40;
        let sum = crc(&stored[12..20]);
        stored[20..24].copy_from_slice(&sum.to_le_bytes());
        assert_eq!(read(&stored).unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    }

    fn crc(bytes: &[u8]) -> u32 {
        let mut crc = flate2::Crc::new();
        crc.update(bytes);
        crc.sum()
    }
}
