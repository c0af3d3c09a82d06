//! Where large files are cut into chunks.
//!
//! A rolling value over the last 32 bytes decides, so that an insertion moves the cuts near it and no others.
//! The rule is the reference's, byte for byte: publishers of one repository have to agree on the cuts, or equal
//! files would be stored twice.

/// The smallest, average and largest size of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkSizes {
    min: u32,
    average: u32,
    max: u32,
}

/// Why sizes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "chunk sizes {min}, {average}, {max} are not usable: 32 ≤ smallest < average < largest ≤ 2^30 must hold"
)]
pub struct ChunkSizesError {
    /// The smallest size asked for.
    pub min: u32,
    /// The average size asked for.
    pub average: u32,
    /// The largest size asked for.
    pub max: u32,
}

/// How many bytes the rolling value remembers: each moves every earlier one up by a bit, out of 32.
const WINDOW: u32 = 32;

/// A chunk passes through memory as a whole, compressed and not.
const SIZE_MAX: u32 = 1 << 30;

impl ChunkSizes {
    /// The sizes of a repository that says nothing else.
    pub const DEFAULT: Self = Self { min: 4 << 20, average: 8 << 20, max: 16 << 20 };

    /// Checks sizes.
    pub const fn new(min: u32, average: u32, max: u32) -> Result<Self, ChunkSizesError> {
        if min >= WINDOW && min < average && average < max && max <= SIZE_MAX {
            Ok(Self { min, average, max })
        } else {
            Err(ChunkSizesError { min, average, max })
        }
    }

    /// The smallest size; files up to it are never cut.
    pub const fn min(&self) -> u32 {
        self.min
    }

    /// The average size, in random data.
    pub const fn average(&self) -> u32 {
        self.average
    }

    /// The largest size.
    pub const fn max(&self) -> u32 {
        self.max
    }
}

/// Finds the cuts of one file, whose bytes arrive in pieces.
#[derive(Clone, Debug)]
pub struct Chunker {
    sizes: ChunkSizes,
    threshold: u32,
    /// Bytes of the current chunk that have been seen.
    len: u32,
    rolling: u32,
}

impl Chunker {
    /// Starts at the beginning of a file.
    pub const fn new(sizes: ChunkSizes) -> Self {
        Self { sizes, threshold: u32::MAX / sizes.average, len: 0, rolling: 0 }
    }

    /// Looks at the next bytes of the file.
    ///
    /// Returns how many of them still belong to the current chunk if the chunk ends there; the caller then
    /// passes what follows, which starts the next chunk. A chunk ends before a byte, so the end of a file is
    /// never reported, and a cut right at the start of `bytes` is reported as zero.
    pub fn next_cut(&mut self, bytes: &[u8]) -> Option<usize> {
        let mut at = 0usize;
        let quiet_end = self.sizes.min - WINDOW;
        if self.len < quiet_end {
            // Bytes that left the window before the first test can't influence it.
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

/// Tells whether the rolling value is near the middle of its range.
///
/// The distance is taken in signed 32-bit arithmetic, in which the smallest number has no counterpart and
/// stays negative, that is, below any threshold.
#[inline(always)]
const fn is_mark(rolling: u32, threshold: u32) -> bool {
    const MIDDLE: u32 = 0x7fff_ffff;
    // Near from above or below; and opposite to the middle, where the distance is the smallest number.
    rolling.wrapping_sub(MIDDLE).wrapping_add(threshold - 1) <= 2 * (threshold - 1)
        || rolling == MIDDLE.wrapping_add(1 << 31)
}

#[cfg(test)]
mod tests;
