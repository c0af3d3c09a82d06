//! Chains of positions whose next bytes have equal hashes.

use super::DISTANCE_MAX;

/// Minimum length of a match, which zlib's hash covers.
pub(super) const MATCH_MIN: usize = 3;

/// Number of bytes loaded at once for hashes.
const WORD_LEN: usize = 8;
/// Bits and shift per byte of zlib's three-byte hash.
const THREE_BITS: u32 = 15;
const THREE_SHIFT: u32 = 5;
/// Bits of the hash of four bytes. With 15 bits, most positions share their hash with another one of the window.
const FOUR_BITS: u32 = 16;
/// Odd multiplier with good distribution.
const FACTOR: u64 = 0x9e37_79b1_85eb_ca87;

/// Number of remembered positions: those in reach of a match, and those linked ahead of the search.
const RING: usize = 1 << 15;
/// Number of positions linked at once.
const BATCH: usize = 128;
/// Number of positions that are linked ahead of a search, because it uses the chains of later positions.
pub(super) const AHEAD: usize = 128;
// The ring has room for all of them beside those in reach of a match.
const _: () = assert!(DISTANCE_MAX + AHEAD + BATCH <= RING);
/// Number of the first position of an input, and of every `RING`th after it; lower numbers are of earlier
/// positions.
const FIRST: u16 = 1 << 15;

/// Maximum number of steps of [`Links::follow`].
const STEPS: usize = 3;

/// Distance to the previous position with an equal hash; more than [`DISTANCE_MAX`] if none is in reach.
pub(super) type Step = u16;

/// Data of a candidate that searches need.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(4))]
pub(super) struct Link {
    /// Step in the chain of four bytes.
    pub(super) four: Step,
    /// Number of earlier positions with the same three-byte hash, wrapping around.
    pub(super) rank: u16,
}

/// Last position with a hash, as a number from 1 on; 0 if none is in reach.
type Number = u16;

/// Data of a three-byte hash.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(4))]
struct Head {
    last: Number,
    /// Number of positions with this hash, wrapping around.
    count: u16,
}

/// Chains of an input.
pub(super) struct Links {
    three_heads: Box<[Head; 1 << THREE_BITS]>,
    four_heads: Box<[Number; 1 << FOUR_BITS]>,
    links: Box<[Link; RING]>,
    threes: Box<[Step; RING]>,
    /// Number of positions linked already.
    linked: usize,
}

fn boxed<T: Clone + Default + std::fmt::Debug, const N: usize>() -> Box<[T; N]> {
    vec![T::default(); N].try_into().expect("the vector was made with this length")
}

impl Links {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self {
            three_heads: boxed(),
            four_heads: boxed(),
            links: boxed(),
            threes: boxed(),
            linked: 0,
        })
    }

    /// Starts an input.
    pub(super) fn begin(&mut self) {
        if self.linked > 0 {
            self.three_heads.fill(Head::default());
            self.four_heads.fill(0);
        }
        self.linked = 0;
    }

    /// Links positions of the input for a search at `at`.
    #[inline]
    pub(super) fn extend(&mut self, plain: &[u8], at: usize) {
        while self.linked < plain.len().min(at + AHEAD) {
            self.link(plain);
        }
    }

    #[inline(always)]
    pub(super) fn link_at(&self, at: usize) -> Link {
        self.links[at % RING]
    }

    /// Returns the distance of the first position beyond `distance` in the chain of four bytes; a smaller one if the
    /// first few steps don't lead there.
    #[inline(always)]
    pub(super) fn follow(&self, at: usize, distance: usize) -> usize {
        let mut reached = 0;
        for _ in 0..STEPS {
            reached += usize::from(self.link_at(at - reached).four);
            if reached > distance {
                break;
            }
        }
        reached
    }

    /// Returns the step in the chain of three bytes, which is zlib's own.
    #[inline(always)]
    pub(super) fn three_at(&self, at: usize) -> Step {
        self.threes[at % RING]
    }

    #[inline(never)]
    fn link(&mut self, plain: &[u8]) {
        let first = self.linked;
        if first > 0 && first.is_multiple_of(RING) {
            for head in self.three_heads.iter_mut() {
                head.last = head.last.saturating_sub(FIRST);
            }
            for head in self.four_heads.iter_mut() {
                *head = head.saturating_sub(FIRST);
            }
        }
        let end = plain.len().min(first + BATCH);
        self.linked = end;
        let mut entry = Entry {
            three_heads: &mut self.three_heads,
            four_heads: &mut self.four_heads,
            links: &mut self.links,
            threes: &mut self.threes,
        };
        let mut at = first;
        for word in plain[first..plain.len().min(end + WORD_LEN - 1)].array_windows() {
            entry.enter(at, u64::from_le_bytes(*word));
            at += 1;
        }
        // The missing hashes of the last positions are not needed for any match.
        while at < end {
            let mut word = [0; WORD_LEN];
            word[..plain.len() - at].copy_from_slice(&plain[at..]);
            entry.enter(at, u64::from_le_bytes(word));
            at += 1;
        }
    }
}

/// Addresses of the tables of [`Links`], loaded once.
struct Entry<'l> {
    three_heads: &'l mut [Head; 1 << THREE_BITS],
    four_heads: &'l mut [Number; 1 << FOUR_BITS],
    links: &'l mut [Link; RING],
    threes: &'l mut [Step; RING],
}

impl Entry<'_> {
    #[inline(always)]
    fn enter(&mut self, at: usize, word: u64) {
        let place = at % RING;
        // No head is above it, and 0 is out of its reach.
        let number = FIRST + place as u16;
        let byte = |number: u32| (word >> (8 * number)) as usize & 0xff;
        let three = (byte(0) << (2 * THREE_SHIFT) ^ byte(1) << THREE_SHIFT ^ byte(2)) % (1 << THREE_BITS);
        let four = (word << 32).wrapping_mul(FACTOR) >> (u64::BITS - FOUR_BITS);
        let before = self.three_heads[three];
        // Counted here and not in the link of the previous position, which would be one more access to memory in sequence.
        let rank = before.count.wrapping_add(1);
        self.three_heads[three] = Head { last: number, count: rank };
        self.threes[place] = number - before.last;
        let four = number - std::mem::replace(&mut self.four_heads[four as usize], number);
        self.links[place] = Link { four, rank };
    }
}
