//! Compresses blocks as other squashfs tools do, so that every reader accepts them.

use liblzma::stream::{Action, Check, Filters, LzmaOptions, Status, Stream};
use lz4::block::{CompressionMode, compress_bound, compress_to_buffer};

use super::WriteError;
use crate::layout::{CodecId, CodecOptions};

/// A codec and its compression level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compression {
    codec: CodecId,
    level: Option<u32>,
}

/// Default level of gzip, as in mksquashfs, so that images have the size that users expect.
const GZIP_LEVEL: u32 = 9;
const ZSTD_LEVEL: u32 = 15;
const XZ_LEVEL: u32 = 6;
const LZ4_BEST: u32 = 12;

impl Compression {
    /// Returns a codec at `level`, or at its default level. The error names the valid levels.
    pub fn new(codec: CodecId, level: Option<u32>) -> Result<Self, String> {
        let levels = match codec {
            CodecId::Gzip => 1..=12,
            CodecId::Xz => 0..=9,
            CodecId::Lz4 => 1..=LZ4_BEST,
            CodecId::Zstd => 1..=22,
            CodecId::Lzo => {
                return Err("images with lzo can be read, not written; lz4 is as fast to read".to_owned());
            }
        };
        match level {
            Some(level) if !levels.contains(&level) => {
                Err(format!("{} has levels {} to {}", codec.name(), levels.start(), levels.end()))
            }
            _ => Ok(Self { codec, level }),
        }
    }

    /// Returns the codec.
    pub fn codec(self) -> CodecId {
        self.codec
    }

    /// Returns the options that the image records; none if they are the defaults.
    pub(super) fn options(self) -> Option<CodecOptions> {
        match self.codec {
            CodecId::Gzip => {
                // Levels above zlib's own still produce a zlib stream.
                let level = self.level.unwrap_or(GZIP_LEVEL).min(GZIP_LEVEL);
                (level != GZIP_LEVEL).then_some(CodecOptions::Gzip { level, window: 15, strategies: 0 })
            }
            CodecId::Zstd => {
                self.level.filter(|level| *level != ZSTD_LEVEL).map(|level| CodecOptions::Zstd { level })
            }
            // An LZ4 image always records its options.
            CodecId::Lz4 => Some(CodecOptions::Lz4 { high: self.level.is_some() }),
            CodecId::Xz | CodecId::Lzo => None,
        }
    }
}

/// Compresses blocks independently: the same block always becomes the same bytes.
pub(super) struct Encoder {
    state: State,
    codec: CodecId,
    room: Vec<u8>,
}

enum State {
    Gzip(libdeflater::Compressor),
    Xz(Filters),
    Lz4(CompressionMode),
    Zstd(zstd::bulk::Compressor<'static>),
}

impl Encoder {
    pub(super) fn new(compression: Compression, block_size: u32) -> Result<Self, WriteError> {
        let Compression { codec, level } = compression;
        let state = match codec {
            CodecId::Gzip => State::Gzip(gzip(level.unwrap_or(GZIP_LEVEL))?),
            CodecId::Zstd => {
                let level =
                    i32::try_from(level.unwrap_or(ZSTD_LEVEL)).map_err(|error| failed(codec, error))?;
                State::Zstd(zstd::bulk::Compressor::new(level).map_err(|error| failed(codec, error))?)
            }
            CodecId::Lz4 => State::Lz4(match level {
                None => CompressionMode::DEFAULT,
                Some(level) => CompressionMode::HIGHCOMPRESSION(
                    i32::try_from(level).map_err(|error| failed(codec, error))?,
                ),
            }),
            CodecId::Xz => State::Xz(xz(level.unwrap_or(XZ_LEVEL), block_size)?),
            CodecId::Lzo => return Err(failed(codec, "there is no compressor")),
        };
        Ok(Self { state, codec, room: Vec::new() })
    }

    /// Returns the compressed block; none if it would be no shorter.
    pub(super) fn encode(&mut self, plain: &[u8]) -> Result<Option<&[u8]>, WriteError> {
        let codec = self.codec;
        let failed = |error: &dyn std::fmt::Display| failed(codec, error);
        let room = &mut self.room;
        let len = match &mut self.state {
            State::Gzip(compressor) => {
                // One byte less than the block: longer output would save nothing.
                room.resize(plain.len().saturating_sub(1), 0);
                match compressor.zlib_compress(plain, room) {
                    Ok(len) => len,
                    Err(libdeflater::CompressionError::InsufficientSpace) => return Ok(None),
                }
            }
            State::Zstd(compressor) => {
                room.resize(zstd::zstd_safe::compress_bound(plain.len()), 0);
                compressor.compress_to_buffer(plain, room.as_mut_slice()).map_err(|error| failed(&error))?
            }
            State::Lz4(mode) => {
                room.resize(compress_bound(plain.len()).map_err(|error| failed(&error))?, 0);
                compress_to_buffer(plain, Some(*mode), false, room).map_err(|error| failed(&error))?
            }
            State::Xz(filters) => match encode_xz(filters, plain, room).map_err(|error| failed(&error))? {
                Some(len) => len,
                None => return Ok(None),
            },
        };
        Ok(room.get(..len).filter(|stored| stored.len() < plain.len()))
    }
}

fn failed(codec: CodecId, reason: impl std::fmt::Display) -> WriteError {
    WriteError::Codec { codec: codec.name(), reason: reason.to_string() }
}

fn gzip(level: u32) -> Result<libdeflater::Compressor, WriteError> {
    let level = i32::try_from(level).map_err(|error| failed(CodecId::Gzip, error))?;
    let level = libdeflater::CompressionLvl::new(level)
        .map_err(|error| failed(CodecId::Gzip, format!("{error:?}")))?;
    Ok(libdeflater::Compressor::new(level))
}

/// Returns the xz filters for a level. The kernel's decoder has a dictionary of one block, so the encoder
/// must not look further back.
fn xz(level: u32, block_size: u32) -> Result<Filters, WriteError> {
    let mut options = LzmaOptions::new_preset(level).map_err(|error| failed(CodecId::Xz, error))?;
    options.dict_size(block_size);
    let mut filters = Filters::new();
    filters.lzma2(&options);
    Ok(filters)
}

/// Compresses a block into a stream of its own, with the only checksum that the kernel supports. None if the
/// output exceeds `room`.
fn encode_xz(
    filters: &Filters,
    plain: &[u8],
    room: &mut Vec<u8>,
) -> Result<Option<usize>, liblzma::stream::Error> {
    let mut stream = Stream::new_stream_encoder(filters, Check::Crc32)?;
    room.resize(plain.len().saturating_sub(1), 0);
    match stream.process(plain, room, Action::Finish)? {
        Status::StreamEnd => Ok(usize::try_from(stream.total_out()).ok()),
        _ => Ok(None),
    }
}
