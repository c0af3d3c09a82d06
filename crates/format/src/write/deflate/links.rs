//! Chains of positions whose next bytes have equal hashes.

use super::DISTANCE_MAX;

/// Minimum length of a match, which zlib's hash covers.
pub(super) const MATCH_MIN: usize = 3;

/// Number of bytes loaded at once for hashes.
const WORD_LEN: usize = 8;
/// Bits of all hashes, and the shift per byte of zlib's three-byte hash.
const HASH_BITS: u32 = 15;
const THREE_SHIFT: u32 = 5;
/// Odd multiplier with good distribution.
const FACTOR: u64 = 0x9e37_79b1_85eb_ca87;

/// Number of remembered positions: those in reach of a match, and those linked ahead of the search.
const RING: usize = 1 << 15;
/// Number of positions linked at once. The ring has room for them beside those in reach of a match.
const AHEAD: usize = 256;
const _: () = assert!(DISTANCE_MAX + AHEAD <= RING);
/// Number of the first position of an input, and of every `RING`th after it; lower numbers are of earlier
/// positions.
const FIRST: u16 = 1 << 15;

/// Distance to the previous position with an equal hash; more than [`DISTANCE_MAX`] if none is in reach.
pub(super) type Step = u16;

/// Data of a candidate that searches need.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C, align(4))]
pub(super) struct Link {
    /// Step in the chain of five bytes.
    pub(super) five: Step,
    /// Number of earlier positions with the same three-byte hash, wrapping around.
    pub(super) rank: u16,
}

/// Last position with each hash, as a number from 1 on; 0 where none is in reach.
type Heads = Box<[u16; 1 << HASH_BITS]>;

/// Chains of an input.
pub(super) struct Links {
    three_heads: Heads,
    four_heads: Heads,
    five_heads: Heads,
    links: Box<[Link; RING]>,
    threes: Box<[Step; RING]>,
    fours: Box<[Step; RING]>,
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
            five_heads: boxed(),
            links: boxed(),
            threes: boxed(),
            fours: boxed(),
            linked: 0,
        })
    }

    /// Starts an input.
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
        // No head is above it, and 0 is out of its reach.
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
