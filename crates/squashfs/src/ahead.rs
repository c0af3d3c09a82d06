//! What is fetched before anybody asks for it.
//!
//! An image is written in the order of its directories, and programs read what lies together: of the blocks that the
//! start of a large program needs, two thirds lie directly behind one that it needed before. So the stored bytes around a
//! block that was read are asked of the source while it is idle, and the block behind it is decompressed as long as
//! such guesses turn out right.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::image::Image;

/// What the source is told of at once, aligned.
const AROUND: u64 = 1 << 20;
/// Of a reader that goes from one such piece to the next, so many more.
const DEPTH: u64 = 3;
/// So many pieces are remembered, and so many guesses.
const SLOTS: usize = 256;
/// Guesses that may turn out wrong before there are fewer.
const CREDIT_MAX: u64 = 64;
/// Without credit one of so many is guessed all the same, to see whether things have changed.
const PROBE: u64 = 16;

/// Numbers that were noted lately: each may push out another.
struct Lately(Box<[AtomicU64]>);

impl Lately {
    fn new() -> Self {
        Self(std::iter::repeat_with(AtomicU64::default).take(SLOTS).collect())
    }

    fn slot(&self, number: u64) -> &AtomicU64 {
        let spread = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56;
        self.0.get(spread as usize).expect("eight bits are less than 256, which is how many there are")
    }

    /// Notes a number; whether it was noted already.
    fn note(&self, number: u64) -> bool {
        // 0 is nothing.
        self.slot(number).swap(number.wrapping_add(1), Ordering::Relaxed) == number.wrapping_add(1)
    }

    fn has(&self, number: u64) -> bool {
        self.slot(number).load(Ordering::Relaxed) == number.wrapping_add(1)
    }

    /// Forgets a number; whether it was noted.
    fn take(&self, number: u64) -> bool {
        let slot = self.slot(number);
        slot.compare_exchange(number.wrapping_add(1), 0, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }
}

/// Tells an image's source what lies around what was read.
pub(crate) struct Around {
    told: Lately,
    end: u64,
}

impl Around {
    /// For the first `end` bytes of an image.
    pub(crate) fn new(end: u64) -> Self {
        Self { told: Lately::new(), end }
    }

    /// A block at `start` was read.
    pub(crate) fn read(&self, image: &dyn Image, start: u64) {
        // What is aligned are places in the file.
        let skew = image.origin() % AROUND;
        let number = (start + skew) / AROUND;
        if self.told.has(number) {
            return;
        }
        let goes_on = number.checked_sub(1).is_some_and(|before| self.told.has(before));
        let last = if goes_on { number + DEPTH } else { number };
        for number in number..=last {
            let from = (number * AROUND).saturating_sub(skew);
            let until = ((number + 1) * AROUND - skew).min(self.end);
            if from < until && !self.told.note(number) {
                image.will_read(from, until - from);
            }
        }
    }
}

/// Decides whether to guess, by what became of earlier guesses.
pub(crate) struct Guesses {
    made: Lately,
    credit: AtomicU64,
    refused: AtomicU64,
}

impl Guesses {
    pub(crate) fn new() -> Self {
        Self { made: Lately::new(), credit: AtomicU64::new(CREDIT_MAX), refused: AtomicU64::new(0) }
    }

    /// Whether to guess that the block at `start` will be wanted.
    pub(crate) fn make(&self, start: u64) -> bool {
        let less = |credit: u64| credit.checked_sub(1);
        let paid = self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok();
        if !paid && !self.refused.fetch_add(1, Ordering::Relaxed).is_multiple_of(PROBE) {
            return false;
        }
        self.made.note(start);
        true
    }

    /// The block at `start` is wanted. A right guess pays for itself and a wrong one.
    pub(crate) fn wanted(&self, start: u64) {
        if self.made.take(start) {
            let more = |credit: u64| (credit < CREDIT_MAX).then(|| (credit + 2).min(CREDIT_MAX));
            // At its most it stays.
            let _ = self.credit.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Notes what it is told.
    #[derive(Default)]
    struct Told(u64, Mutex<Vec<(u64, u64)>>);

    impl Image for Told {
        fn name(&self) -> Arc<str> {
            "told".into()
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
    fn the_source_is_told_once_and_more_of_what_goes_on() {
        let (told, around) = (Told::default(), Around::new(8 * MIB + 5));
        for start in [5 * MIB + 9, 5 * MIB + 100_000, 2 * MIB] {
            around.read(&told, start);
        }
        assert_eq!(std::mem::take(&mut *told.1.lock().unwrap()), [(5 * MIB, MIB), (2 * MIB, MIB)]);
        around.read(&told, 6 * MIB);
        let on = [(6 * MIB, MIB), (7 * MIB, MIB), (8 * MIB, 5)];
        assert_eq!(*told.1.lock().unwrap(), on);
    }

    #[test]
    fn pieces_are_aligned_to_the_file_around_the_image() {
        let (told, around) = (Told(4096, Mutex::default()), Around::new(8 * MIB));
        around.read(&told, 0);
        around.read(&told, MIB - 4096);
        let first = MIB - 4096;
        let on = (0..4).map(|n| (first + n * MIB, MIB));
        let expected: Vec<_> = [(0, first)].into_iter().chain(on).collect();
        assert_eq!(*told.1.lock().unwrap(), expected);
    }

    #[test]
    fn guesses_that_turn_out_wrong_become_few_and_right_ones_bring_them_back() {
        let guesses = Guesses::new();
        let made = (0..1_000).filter(|start| guesses.make(*start)).count();
        assert_eq!(made, 64 + (1_000 - 64usize).div_ceil(16));
        let right = |start: u64| {
            let made = guesses.make(start);
            guesses.wanted(start);
            made
        };
        assert!((2_000..3_000).filter(|start| right(*start)).count() > 900);
        guesses.wanted(9_999);
        assert!(guesses.credit.load(Ordering::Relaxed) <= CREDIT_MAX);
    }
}
