//! Codec options that an image records.

use super::fields::{Fields, Put};
use super::{CodecId, LayoutError, wrong};

/// Options of a codec; stored only if they differ from the codec's defaults.
///
/// Decoders ignore them, except that an LZ4 image must have the one known version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CodecOptions {
    /// Options of gzip.
    Gzip {
        /// Level from 1 to 9.
        level: u32,
        /// Binary logarithm of the window size, 8 to 15.
        window: u16,
        /// Strategies that the compressor tried, one bit each.
        strategies: u16,
    },
    /// Options of lzo.
    Lzo {
        /// Number of the compression algorithm.
        algorithm: u32,
        /// Level of the best algorithm, 1 to 9.
        level: u32,
    },
    /// Options of xz.
    Xz {
        /// Length of the dictionary in bytes.
        dictionary: u32,
        /// Machine code filters that the compressor tried, one bit each.
        filters: u32,
    },
    /// Options of lz4.
    Lz4 {
        /// True if the high-compression mode was used.
        high: bool,
    },
    /// Options of zstd.
    Zstd {
        /// Level from 1 to 22.
        level: u32,
    },
}

/// The only known version of the LZ4 stream.
const LZ4_VERSION: u32 = 1;
const LZ4_HIGH: u32 = 1;

impl CodecOptions {
    /// Parses the options of `codec`.
    pub fn decode(codec: CodecId, bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut fields = Fields::of("the options of the codec", bytes);
        Ok(match codec {
            CodecId::Gzip => {
                Self::Gzip { level: fields.u32()?, window: fields.u16()?, strategies: fields.u16()? }
            }
            CodecId::Lzo => Self::Lzo { algorithm: fields.u32()?, level: fields.u32()? },
            CodecId::Xz => Self::Xz { dictionary: fields.u32()?, filters: fields.u32()? },
            CodecId::Lz4 => match fields.u32()? {
                LZ4_VERSION => Self::Lz4 { high: fields.u32()? & LZ4_HIGH != 0 },
                version => return Err(wrong("the version of LZ4", version)),
            },
            CodecId::Zstd => Self::Zstd { level: fields.u32()? },
        })
    }

    /// Returns the encoded options, as [`CodecOptions::decode`] reads them. In the image they are one
    /// uncompressed metadata block.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        match *self {
            Self::Gzip { level, window, strategies } => {
                out.u32(level);
                out.u16(window);
                out.u16(strategies);
            }
            Self::Lzo { algorithm: first, level: second }
            | Self::Xz { dictionary: first, filters: second } => {
                out.u32(first);
                out.u32(second);
            }
            Self::Lz4 { high } => {
                out.u32(LZ4_VERSION);
                out.u32(if high { LZ4_HIGH } else { 0 });
            }
            Self::Zstd { level } => out.u32(level),
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_survive_encoding() {
        let all = [
            (CodecId::Gzip, CodecOptions::Gzip { level: 9, window: 15, strategies: 1 }),
            (CodecId::Lzo, CodecOptions::Lzo { algorithm: 4, level: 8 }),
            (CodecId::Xz, CodecOptions::Xz { dictionary: 131_072, filters: 1 }),
            (CodecId::Lz4, CodecOptions::Lz4 { high: true }),
            (CodecId::Zstd, CodecOptions::Zstd { level: 15 }),
        ];
        for (codec, options) in all {
            assert_eq!(CodecOptions::decode(codec, &options.encode()), Ok(options));
        }
        assert!(CodecOptions::decode(CodecId::Lz4, &[2, 0, 0, 0, 0, 0, 0, 0]).is_err());
        assert!(CodecOptions::decode(CodecId::Zstd, &[2, 0]).is_err());
    }
}
