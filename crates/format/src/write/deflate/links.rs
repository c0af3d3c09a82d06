//! Chains of positions whose next bytes have equal hashes.

use super::DISTANCE_MAX;

/// The shortest match, which is what zlib's hash covers.
pub(super) const MATCH_MIN: usize = 3;

/// Bytes that hashes are made of at once.
const WORD_LEN: usize = 8;
/// Bits of all hashes, and by how many zlib's hash of three bytes shifts for each of them.
const HASH_BITS: u32 = 15;
const THREE_SHIFT: u32 = 5;
/// An odd number whose multiples spread well.
const FACTOR: u64 = 0x9e37_79b1_85eb_ca87;

/// Positions that are remembered: those that a match can reach, and those linked ahead of the search.
const RING: usize = 1 << 15;
/// Positions linked at once. The ring has room for them beside those that a match can reach.
const AHEAD: usize = 256;
const _: () = assert!(DISTANCE_MAX + AHEAD <= RING);
/// The number of the first position of an input, and of every `RING`th after it; numbers below are of those before.
const FIRST: u16 = 1 << 15;

/// How far back the last position with an equal hash is; more than [`DISTANCE_MAX`] if there is none in reach.
pub(super) type Step = u16;

/// What searches need of a candidate.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(4))]
pub(super) struct Link {
    /// The step in the chain of five bytes.
    pub(super) five: Step,
    /// How many positions with the same hash of three bytes there were before, wrapping around.
    pub(super) rank: u16,
}

/// The last position with each hash, as a number from 1 on; 0 where there is none in reach.
type Heads = Box<[u16; 1 << HASH_BITS]>;

/// The chains of an input.
pub(super) struct Links {
    three_heads: Heads,
    four_heads: Heads,
    five_heads: Heads,
    links: Box<[Link; RING]>,
    threes: Box<[Step; RING]>,
    fours: Box<[Step; RING]>,
    /// Positions that are linked already.
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
            five_heads: boxed(),
            links: boxed(),
            threes: boxed(),
            fours: boxed(),
            linked: 0,
        })
    }

    /// Begins an input.
    pub(super) fn begin(&mut self) {
        if self.linked > 0 {
            self.heads().for_each(|heads| heads.fill(0));
        }
        self.linked = 0;
    }

    fn heads(&mut self) -> impl Iterator<Item = &mut Heads> {
        [&mut self.three_heads, &mut self.four_heads, &mut self.five_heads].into_iter()
    }

    /// Links positions of the input at least up to `at`.
    #[inline]
    pub(super) fn extend(&mut self, plain: &[u8], at: usize) {
        while at >= self.linked {
            self.link(plain);
        }
    }

    #[inline(always)]
    pub(super) fn link_at(&self, at: usize) -> Link {
        self.links[at % RING]
    }

    /// Returns the step in the chain of three bytes, which is zlib's own.
    #[inline(always)]
    pub(super) fn three_at(&self, at: usize) -> Step {
        self.threes[at % RING]
    }

    /// Returns the step in the chain of four bytes.
    #[inline(always)]
    pub(super) fn four_at(&self, at: usize) -> Step {
        self.fours[at % RING]
    }

    #[inline(never)]
    fn link(&mut self, plain: &[u8]) {
        let first = self.linked;
        if first > 0 && first.is_multiple_of(RING) {
            for heads in self.heads() {
                for head in heads.iter_mut() {
                    *head = head.saturating_sub(FIRST);
                }
            }
        }
        let end = plain.len().min(first + AHEAD);
        self.linked = end;
        let mut entry = Entry {
            three_heads: &mut self.three_heads,
            four_heads: &mut self.four_heads,
            five_heads: &mut self.five_heads,
            links: &mut self.links,
            threes: &mut self.threes,
            fours: &mut self.fours,
        };
        let mut at = first;
        for word in plain[first..plain.len().min(end + WORD_LEN - 1)].array_windows() {
            entry.enter(at, u64::from_le_bytes(*word));
            at += 1;
        }
        // What the last positions lack is in no match.
        while at < end {
            let mut word = [0; WORD_LEN];
            word[..plain.len() - at].copy_from_slice(&plain[at..]);
            entry.enter(at, u64::from_le_bytes(word));
            at += 1;
        }
    }
}

/// The tables of [`Links`] with their addresses at hand.
struct Entry<'l> {
    three_heads: &'l mut [u16; 1 << HASH_BITS],
    four_heads: &'l mut [u16; 1 << HASH_BITS],
    five_heads: &'l mut [u16; 1 << HASH_BITS],
    links: &'l mut [Link; RING],
    threes: &'l mut [Step; RING],
    fours: &'l mut [Step; RING],
}

impl Entry<'_> {
    #[inline(always)]
    fn enter(&mut self, at: usize, word: u64) {
        let place = at % RING;
        // No head is above it, and 0 is out of reach of it.
        let number = FIRST + place as u16;
        let step = |head: &mut u16| number - std::mem::replace(head, number);
        let byte = |number: u32| (word >> (8 * number)) as usize & 0xff;
        let three = (byte(0) << (2 * THREE_SHIFT) ^ byte(1) << THREE_SHIFT ^ byte(2)) % (1 << HASH_BITS);
        let four = (word << 32).wrapping_mul(FACTOR) >> (u64::BITS - HASH_BITS);
        let five = (word << 24).wrapping_mul(FACTOR) >> (u64::BITS - HASH_BITS);
        let three = step(&mut self.three_heads[three]);
        self.threes[place] = three;
        self.fours[place] = step(&mut self.four_heads[four as usize]);
        let five = step(&mut self.five_heads[five as usize]);
        let rank = self.links[at.wrapping_sub(usize::from(three)) % RING].rank.wrapping_add(1);
        self.links[place] = Link { five, rank };
    }
}
