//! Reads ahead in an image: hints to its source, and decompression of the block that follows.
//!
//! An image is written in the order of its directories, and programs read neighbouring files together: of the
//! blocks that the start of a large program needs, two thirds directly follow one that it needed before. So
//! the source gets a hint to load the stored bytes around each block read while it is idle, and the following
//! block is decompressed as long as such predictions turn out right.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::image::Image;

/// Length in bytes, and alignment, of one read-ahead hint to the source.
const AROUND: u64 = 1 << 20;
/// Number of further hints for a reader that moves from one aligned range to the next.
const DEPTH: u64 = 3;
/// Number of recent ranges, and of recent predictions, that are remembered.
const SLOTS: usize = 256;
/// Maximum credit: wrong predictions that are allowed before predictions become rare.
const CREDIT_MAX: u64 = 64;
/// Divisor of the blocks that are still predicted without credit. They show when the pattern changes.
const PROBE: u64 = 16;

/// Lossy set of recently recorded numbers; each number may replace another.
struct RecentSet(Box<[AtomicU64]>);

impl RecentSet {
    fn new() -> Self {
        Self(std::iter::repeat_with(AtomicU64::default).take(SLOTS).collect())
    }

    fn slot(&self, number: u64) -> &AtomicU64 {
        let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        self.0.get(spread as usize).expect("eight bits are less than 256, which is how many there are")
    }

    /// Records a number; returns true if it was recorded already.
    fn note(&self, number: u64) -> bool {
        // 0 marks an empty slot.
        self.slot(number).swap(number.wrapping_add(1), Ordering::Relaxed) == number.wrapping_add(1)
    }

    fn has(&self, number: u64) -> bool {
        self.slot(number).load(Ordering::Relaxed) == number.wrapping_add(1)
    }

    /// Removes a number; returns true if it was recorded.
    fn take(&self, number: u64) -> bool {
        let slot = self.slot(number);
        slot.compare_exchange(number.wrapping_add(1), 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Hints to an image's source which bytes around a block will be read.
pub(crate) struct SourceHints {
    hinted: RecentSet,
    end: u64,
}

impl SourceHints {
    /// Creates the hints for the first `end` bytes of an image.
    pub(crate) fn new(end: u64) -> Self {
        Self { hinted: RecentSet::new(), end }
    }

    /// Records that the block at `start` was read, and hints at the bytes around it.
    pub(crate) fn read(&self, image: &dyn Image, start: u64) {
        // Alignment counts from the start of the file, not of the image.
        let skew = image.origin() % AROUND;
        let number = (start + skew) / AROUND;
        if self.hinted.has(number) {
            return;
        }
        let goes_on = number.checked_sub(1).is_some_and(|before| self.hinted.has(before));
        let last = if goes_on { number + DEPTH } else { number };
        for number in number..=last {
            let from = (number * AROUND).saturating_sub(skew);
            let until = ((number + 1) * AROUND - skew).min(self.end);
            if from < until && !self.hinted.note(number) {
                image.will_read(from, until - from);
            }
        }
    }
}

/// Decides whether to predict the next block, by the success of earlier predictions.
pub(crate) struct Speculation {
    made: RecentSet,
    credit: AtomicU64,
    refused: AtomicU64,
}

impl Speculation {
    pub(crate) fn new() -> Self {
        Self { made: RecentSet::new(), credit: AtomicU64::new(CREDIT_MAX), refused: AtomicU64::new(0) }
    }

    /// Returns true if the block at `start` should be loaded as a prediction.
    pub(crate) fn should_load(&self, start: u64) -> bool {
        let less = |credit: u64| credit.checked_sub(1);
        let paid = self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if !paid && !self.refused.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE) {
            return false;
        }
        self.made.note(start);
        true
    }

    /// Records a demand for the block at `start`. A right prediction pays for itself and for one wrong one.
    pub(crate) fn note_demand(&self, start: u64) {
        if self.made.take(start) {
            let more = |credit: u64| (credit < CREDIT_MAX).then(|| (credit + 2).min(CREDIT_MAX));
            // At its maximum the credit stays as it is.
            let _ = self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Image that records its read-ahead hints.
    #[derive(Default)]
    struct RecordingImage(u64, Mutex<Vec<(u64, u64)>>);

    impl Image for RecordingImage {
        fn name(&self) -> Arc<str> {
            "recording".into()
        }

        fn len(&self) -> u64 {
            100 << 20
        }

        fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn origin(&self) -> u64 {
            self.0
        }

        fn will_read(&self, offset: u64, len: u64) {
            self.1.lock().unwrap().push((offset, len));
        }
    }

    const MIB: u64 = 1 << 20;

    #[test]
    fn the_source_gets_each_hint_once_and_more_for_a_sequential_reader() {
        let (image, hints) = (RecordingImage::default(), SourceHints::new(8 * MIB + 5));
        for start in [5 * MIB + 9, 5 * MIB + 100_000, 2 * MIB] {
            hints.read(&image, start);
        }
        assert_eq!(std::mem::take(&mut *image.1.lock().unwrap()), [(5 * MIB, MIB), (2 * MIB, MIB)]);
        hints.read(&image, 6 * MIB);
        let on = [(6 * MIB, MIB), (7 * MIB, MIB), (8 * MIB, 5)];
        assert_eq!(*image.1.lock().unwrap(), on);
    }

    #[test]
    fn hints_are_aligned_to_the_file_around_the_image() {
        let (image, hints) = (RecordingImage(4096, Mutex::default()), SourceHints::new(8 * MIB));
        hints.read(&image, 0);
        hints.read(&image, MIB - 4096);
        let first = MIB - 4096;
        let on = (0..4).map(|n| (first + n * MIB, MIB));
        let expected: Vec<_> = [(0, first)].into_iter().chain(on).collect();
        assert_eq!(*image.1.lock().unwrap(), expected);
    }

    #[test]
    fn wrong_predictions_become_rare_and_right_ones_bring_them_back() {
        let guesses = Speculation::new();
        let made = (0..1_000).filter(|start| guesses.should_load(*start)).count();
        assert_eq!(made, 64 + (1_000 - 64usize).div_ceil(16));
        let right = |start: u64| {
            let made = guesses.should_load(start);
            guesses.note_demand(start);
            made
        };
        assert!((2_000..3_000).filter(|start| right(*start)).count() > 900);
        guesses.note_demand(9_999);
        assert!(guesses.credit.load(Ordering::Relaxed) <= CREDIT_MAX);
    }
}
