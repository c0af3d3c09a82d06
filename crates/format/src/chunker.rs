//! Content-defined chunking: finds the cuts between chunks of large files.
//!
//! A rolling value over the last 32 bytes decides, so an insertion moves only the cuts near it. The rule
//! equals that of the reference implementation byte for byte: publishers of one repository must agree on the
//! cuts, or equal files would be stored twice.

use serde::{Deserialize, Serialize};

/// Minimum, average and maximum size of a chunk in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "[u32; 3]", into = "[u32; 3]")]
pub struct ChunkSizes {
    min: u32,
    average: u32,
    max: u32,
}

/// Reason why chunk sizes are rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "chunk sizes {min}, {average}, {max} are not usable: 32 ≤ smallest < average < largest ≤ 2^30 must hold"
)]
pub struct ChunkSizesError {
    /// Requested minimum size.
    pub min: u32,
    /// Requested average size.
    pub average: u32,
    /// Requested maximum size.
    pub max: u32,
}

/// Length of the rolling window in bytes: each byte shifts all earlier ones by one of 32 bits.
const WINDOW: u32 = 32;

/// Largest allowed maximum size: a chunk is held in memory as a whole, compressed and uncompressed.
const SIZE_MAX: u32 = 1 << 30;

impl TryFrom<[u32; 3]> for ChunkSizes {
    type Error = ChunkSizesError;

    fn try_from([min, average, max]: [u32; 3]) -> Result<Self, ChunkSizesError> {
        Self::new(min, average, max)
    }
}

impl From<ChunkSizes> for [u32; 3] {
    fn from(sizes: ChunkSizes) -> Self {
        [sizes.min, sizes.average, sizes.max]
    }
}

impl ChunkSizes {
    /// Default sizes of a repository.
    pub const DEFAULT: Self = Self { min: 4 << 20, average: 8 << 20, max: 16 << 20 };

    /// Validates and creates chunk sizes.
    pub const fn new(min: u32, average: u32, max: u32) -> Result<Self, ChunkSizesError> {
        if min >= WINDOW && min < average && average < max && max <= SIZE_MAX {
            Ok(Self { min, average, max })
        } else {
            Err(ChunkSizesError { min, average, max })
        }
    }

    /// Returns the minimum size; files up to it are never cut.
    pub const fn min(&self) -> u32 {
        self.min
    }

    /// Returns the average size for random data.
    pub const fn average(&self) -> u32 {
        self.average
    }

    /// Returns the maximum size.
    pub const fn max(&self) -> u32 {
        self.max
    }
}

/// Finds the cuts of one file, whose bytes arrive in pieces.
#[derive(Clone, Debug)]
pub struct Chunker {
    sizes: ChunkSizes,
    threshold: u32,
    /// Number of bytes of the current chunk so far.
    len: u32,
    rolling: u32,
}

impl Chunker {
    /// Starts at the beginning of a file.
    pub const fn new(sizes: ChunkSizes) -> Self {
        Self { sizes, threshold: u32::MAX / sizes.average, len: 0, rolling: 0 }
    }

    /// Processes the next bytes of the file.
    ///
    /// If the current chunk ends within them, returns how many still belong to it; the caller then passes the
    /// rest, which starts the next chunk. A cut is found at the byte after it: so the end of a file is never
    /// reported, and a cut right at the start of `bytes` is reported as zero.
    pub fn next_cut(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0usize;
        let quiet_end = self.sizes.min - WINDOW;
        if self.len < quiet_end {
            // Bytes that leave the window before the first test can't influence it.
            let skip = usize::try_from(quiet_end - self.len).unwrap_or(usize::MAX).min(bytes.len());
            self.advance(skip);
            at = skip;
        }
        if self.len < self.sizes.min {
            let rest = bytes.get(at..).unwrap_or_default();
            let warm_up = usize::try_from(self.sizes.min - self.len).unwrap_or(usize::MAX).min(rest.len());
            let (warming, _) = rest.split_at(warm_up);
            self.rolling = warming.iter().fold(self.rolling, |rolling, byte| roll(rolling, *byte));
            self.advance(warm_up);
            at += warm_up;
        }
        let rest = bytes.get(at..).unwrap_or_default();
        let room = usize::try_from(self.sizes.max.saturating_sub(self.len)).unwrap_or(usize::MAX);
        let (tested, beyond) = rest.split_at(room.min(rest.len()));
        let mut rolling = self.rolling;
        let hit = tested.iter().position(|byte| {
            rolling = roll(rolling, *byte);
            is_mark(rolling, self.threshold)
        });
        if let Some(hit) = hit {
            self.restart();
            return Some(at + hit);
        }
        self.rolling = rolling;
        self.advance(tested.len());
        if self.len == self.sizes.max && !beyond.is_empty() {
            self.restart();
            return Some(at + tested.len());
        }
        None
    }

    fn advance(&mut self, bytes: usize) {
        self.len +=
            u32::try_from(bytes).expect("a chunk has fewer than 2^32 bytes because sizes are limited");
    }

    const fn restart(&mut self) {
        self.len = 0;
        self.rolling = 0;
    }
}

#[inline(always)]
const fn roll(rolling: u32, byte: u8) -> u32 {
    (rolling << 1) ^ byte as u32
}

/// Returns true if the rolling value is near the middle of its range.
///
/// The distance is computed in signed 32-bit arithmetic, where the smallest number has no counterpart and
/// stays negative, that is, below any threshold.
#[inline(always)]
const fn is_mark(rolling: u32, threshold: u32) -> bool {
    const MIDDLE: u32 = 0x7fff_ffff;
    // Slightly above or below the middle, or opposite to it, where the distance is the smallest number.
    rolling.wrapping_sub(MIDDLE).wrapping_add(threshold - 1) <= 2 * (threshold - 1)
        || rolling == MIDDLE.wrapping_add(1 << 31)
}

#[cfg(test)]
mod tests;
