//! Detects and removes the compression of archives, by their first bytes.

use std::io::{self, BufRead, Chain, Cursor, Read};

use flate2::bufread::GzDecoder;

/// Number of bytes at the start of a stream that identify its compression.
pub const MAGIC_LEN: usize = 13;
/// Memory limit of xz and lzma decoders: enough for the largest dictionaries in use. The formats allow 4 GiB.
const XZ_MEMORY_KIB: u32 = 1 << 20;
/// Length of the header of a skippable frame of zstd or lz4: four bytes of magic, four of length.
const SKIPPABLE_HEADER_LEN: usize = 8;

/// Compression of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Gzip, in any number of members.
    Gzip,
    /// Zstandard, in any number of frames.
    Zstd,
    /// Xz, in any number of streams.
    Xz,
    /// Bzip2, in any number of streams.
    Bzip2,
    /// Lz4, in any number of frames.
    Lz4,
    /// Lzip, in any number of members.
    Lzip,
    /// The `.lzma` format of old versions of xz.
    Lzma,
}

impl Compression {
    /// Returns the compression of a stream that begins with `start`; none if the stream is not compressed.
    pub fn of(start: &[u8]) -> Option<Self> {
        match start {
            [0x1f, 0x8b, ..] => Some(Self::Gzip),
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Some(Self::Zstd),
            // Frames that decoders skip. pzstd puts one in front of each frame; lz4 has the same magic.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Some(Self::Zstd),
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Some(Self::Xz),
            [b'B', b'Z', b'h', b'1'..=b'9', 0x31 | 0x17, ..] => Some(Self::Bzip2),
            [0x04, 0x22, 0x4d, 0x18, ..] => Some(Self::Lz4),
            [b'L', b'Z', b'I', b'P', 1, ..] => Some(Self::Lzip),
            // There is no magic: usual properties, a dictionary of whole 64 KiB, and a length that is unknown or below 2^48.
            [0x5d, 0, 0, low, high, .., a, b] if start.len() >= MAGIC_LEN => {
                let is_dictionary = *low != 0 || *high != 0;
                (is_dictionary && matches!((a, b), (0, 0) | (0xff, 0xff))).then_some(Self::Lzma)
            }
            _ => None,
        }
    }

    /// Returns the name of the compression and the command that removes it.
    pub fn name_and_command(self) -> (&'static str, &'static str) {
        match self {
            Self::Gzip => ("gzip", "gunzip"),
            Self::Zstd => ("zstd", "zstd -d"),
            Self::Xz => ("xz", "unxz"),
            Self::Bzip2 => ("bzip2", "bunzip2"),
            Self::Lz4 => ("lz4", "lz4 -d"),
            Self::Lzip => ("lzip", "lzip -d"),
            Self::Lzma => ("lzma", "unlzma"),
        }
    }
}

/// Returns the stream without its compression, which its first bytes identify.
pub fn decompressed<R: BufRead>(mut input: R) -> io::Result<Decompressed<R>> {
    let mut start = read_start(&mut input, Vec::new())?;
    let is_empty = start.is_empty();
    // Skippable frames precede the frame whose magic distinguishes zstd from lz4.
    while let [0x50..=0x5f, 0x2a, 0x4d, 0x18, a, b, c, d, ..] = start[..] {
        let left = u64::from(u32::from_le_bytes([a, b, c, d]));
        let mut rest = Cursor::new(start.split_off(SKIPPABLE_HEADER_LEN)).chain(&mut input);
        let passed = io::copy(&mut rest.by_ref().take(left), &mut io::sink())?;
        if passed < left {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut known = Vec::new();
        rest.into_inner().0.read_to_end(&mut known)?;
        start = read_start(&mut input, known)?;
    }
    let compression = Compression::of(&start);
    let whole = Cursor::new(start).chain(input);
    let memory = XZ_MEMORY_KIB;
    let decoder = match compression {
        Some(Compression::Gzip) => Decoder::Gzip(Box::new(Members::new(whole))),
        Some(Compression::Bzip2) => Decoder::Bzip2(Box::new(Members::new(whole))),
        Some(Compression::Lz4) => Decoder::Lz4(Box::new(Members::new(whole))),
        Some(Compression::Zstd) => Decoder::Zstd(zstd::Decoder::with_buffer(whole)?),
        Some(Compression::Xz) => {
            Decoder::Xz(Box::new(lzma_rust2::XzReader::new_mem_limit(whole, true, memory)))
        }
        Some(Compression::Lzip) => Decoder::Lzip(Box::new(lzma_rust2::LzipReader::new(whole))),
        Some(Compression::Lzma) => {
            Decoder::Lzma(Box::new(lzma_rust2::LzmaReader::new_mem_limit(whole, memory, None)?))
        }
        None => Decoder::Plain(whole),
    };
    Ok(Decompressed { decoder, is_empty })
}

fn read_start(input: &mut impl BufRead, mut start: Vec<u8>) -> io::Result<Vec<u8>> {
    let missing = MAGIC_LEN.saturating_sub(start.len());
    input.take(missing as u64).read_to_end(&mut start)?;
    Ok(start)
}

/// A decompressed stream.
pub struct Decompressed<R: BufRead> {
    decoder: Decoder<R>,
    is_empty: bool,
}

impl<R: BufRead> Decompressed<R> {
    /// Returns true if the compressed stream has no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.is_empty
    }
}

type Restarted<R> = Chain<Cursor<Vec<u8>>, R>;

enum Decoder<R: BufRead> {
    Gzip(Box<Members<GzDecoder<Restarted<R>>>>),
    Bzip2(Box<Members<bzip2::bufread::BzDecoder<Restarted<R>>>>),
    Lz4(Box<Members<lz4_flex::frame::FrameDecoder<Restarted<R>>>>),
    Zstd(zstd::Decoder<'static, Restarted<R>>),
    Xz(Box<lzma_rust2::XzReader<Restarted<R>>>),
    Lzip(Box<lzma_rust2::LzipReader<Restarted<R>>>),
    Lzma(Box<lzma_rust2::LzmaReader<Restarted<R>>>),
    Plain(Restarted<R>),
}

impl<R: BufRead> Read for Decompressed<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match &mut self.decoder {
            Decoder::Gzip(parts) => parts.read(room),
            Decoder::Bzip2(parts) => parts.read(room),
            Decoder::Lz4(parts) => parts.read(room),
            Decoder::Zstd(frames) => frames.read(room),
            Decoder::Xz(streams) => streams.read(room),
            Decoder::Lzip(members) => members.read(room),
            Decoder::Lzma(stream) => stream.read(room),
            Decoder::Plain(whole) => whole.read(room),
        }
    }
}

impl<R: BufRead> std::fmt::Debug for Decompressed<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Decompressed").finish_non_exhaustive()
    }
}

/// Decoder of one member of a file that may have several.
trait MemberDecoder: Read + Sized {
    type Input: BufRead;
    /// First byte of a member. Other bytes after the last member are garbage, which the format's own programs
    /// ignore.
    const FIRST: u8;

    fn new(input: Self::Input) -> Self;
    fn input(&mut self) -> &mut Self::Input;
    fn into_input(self) -> Self::Input;
}

macro_rules! member_decoder {
    ($decoder:ty, $first:literal) => {
        impl<R: BufRead> MemberDecoder for $decoder {
            type Input = R;
            const FIRST: u8 = $first;

            fn new(input: R) -> Self {
                <$decoder>::new(input)
            }
            fn input(&mut self) -> &mut R {
                self.get_mut()
            }
            fn into_input(self) -> R {
                self.into_inner()
            }
        }
    };
}
member_decoder!(GzDecoder<R>, 0x1f);
member_decoder!(bzip2::bufread::BzDecoder<R>, b'B');
member_decoder!(lz4_flex::frame::FrameDecoder<R>, 0x04);

/// Decodes all members of a file, one after the other.
struct Members<P>(Option<P>);

impl<P: MemberDecoder> Members<P> {
    fn new(input: P::Input) -> Self {
        Self(Some(P::new(input)))
    }
}

impl<P: MemberDecoder> Read for Members<P> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        while let Some(part) = &mut self.0 {
            let len = part.read(room)?;
            if len > 0 || room.is_empty() {
                return Ok(len);
            }
            let is_part = part.input().fill_buf()?.first() == Some(&P::FIRST);
            self.0 = self.0.take().filter(|_| is_part).map(|ended| P::new(ended.into_input()));
        }
        Ok(0)
    }
}

#[cfg(test)]
mod tests;
