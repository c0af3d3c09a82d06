//! Encoder whose output equals that of zlib 1.2 and 1.3 at level 6, byte for byte.
//!
//! An object is named by the hash of its compressed bytes, and tools of the reference implementation compress content
//! again to compare names. So the output has to be that of zlib, not only valid. The format is that of RFC 1950 and
//! RFC 1951; which of the many valid streams zlib chooses follows from its documented parameters for level 6:
//!
//! * the hash of three bytes has 15 bits, and every position of the input is entered;
//! * a search tests at most 128 positions, or 32 once a match of 8 bytes is known, the nearest first, and ends at
//!   128 equal bytes; of several matches of one length the nearest wins;
//! * matches are up to 258 bytes long and up to 32,506 bytes away; those of 3 bytes up to 4,096 bytes;
//! * a match is used unless one that begins a byte later is longer; after 16 equal bytes no such match is searched;
//! * a block ends after 16,383 literals and matches, and is stored, or has fixed or its own codes, whatever is shortest.
//!
//! Only the search for the same result differs. The whole input is in memory, so there is no window to move. The
//! positions with equal hashes are linked ahead of the search, without a branch ([`links`]). A second chain links
//! positions whose first *four* bytes have equal hashes; all matches but the shortest are found there, among fewer
//! candidates. A match that is longer than the best one has the same bytes at *every* offset, so the search may follow
//! the chain of any four of them: it follows that of the last four, unless the chain of the first four is sparser.
//! As each position also has a rank among those with its three-byte hash, the difference of two ranks is the number
//! of candidates that zlib would have tested by then, and so shows whether zlib would have reached this one.

#![allow(
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "nothing is parsed: positions and symbols come of the encoder's own tables, and a wrong one has to panic"
)]

mod block;
mod codes;
mod links;

use block::Block;
use links::{Links, MATCH_MIN};

/// Maximum length of a match in bytes.
const MATCH_MAX: usize = 258;
/// Minimum length of matches that are found in the chains of four bytes.
const LONG_MIN: usize = 4;
/// Length of a match that ends a search.
const NICE_LEN: usize = 128;
/// Length of a match from which on a search tests fewer candidates.
const GOOD_LEN: usize = 8;
/// Length of a match from which on no better match is searched at the next position.
const LAZY_LEN: usize = 16;
/// Maximum number of candidates of a search; a second constant limits searches after a match of [`GOOD_LEN`].
const CANDIDATES: u16 = 128;
const CANDIDATES_GOOD: u16 = CANDIDATES / 4;
/// Maximum number of steps along the chain of last bytes, before the search returns to that of the first ones, which
/// is bounded.
const END_STEPS: u32 = 256;
/// Maximum distance of a match: zlib's window without room for one match and its lookahead.
const DISTANCE_MAX: usize = WINDOW - (MATCH_MAX + MATCH_MIN + 1);
/// Maximum distance of a match of three bytes.
const SHORT_DISTANCE_MAX: usize = 4096;
/// Length of zlib's window in bytes. Its buffer is twice as large.
const WINDOW: usize = 1 << 15;

/// Encoder that produces the streams of zlib at level 6.
pub struct ExactZlib {
    links: Box<Links>,
    block: Box<Block>,
}

impl Default for ExactZlib {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for ExactZlib {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ExactZlib")
    }
}

/// Length and distance of a match in the input.
#[derive(Clone, Copy)]
struct Match {
    len: usize,
    distance: usize,
}

/// Result of a search without a usable match.
const NONE: Match = Match { len: MATCH_MIN - 1, distance: 0 };

impl ExactZlib {
    /// Creates an encoder, which one thread may reuse.
    pub fn new() -> Self {
        Self { links: Links::new(), block: Block::new() }
    }

    /// Replaces `stored` by the stream for these bytes.
    pub fn encode(&mut self, plain: &[u8], stored: &mut Vec<u8>) {
        stored.clear();
        // RFC 1950: deflate with a window of 32 KiB, the default level, no dictionary.
        stored.extend_from_slice(&[0x78, 0x9c]);
        self.deflate(plain, stored);
        stored.extend_from_slice(&simd_adler32::adler32(&plain).to_be_bytes());
    }

    fn deflate(&mut self, plain: &[u8], stored: &mut Vec<u8>) {
        let (links, block) = (&mut *self.links, &mut *self.block);
        links.begin();
        block.begin();
        let mut buffer = Buffer::new(plain.len());
        let mut before = NONE;
        let mut is_literal_open = false;
        let mut at = 0;
        while at < plain.len() {
            links.extend(plain, at);
            buffer.advance(at);
            let found = match before.len < LAZY_LEN {
                true => search(links, plain, at, before.len, buffer.start),
                false => NONE,
            };
            if before.len >= MATCH_MIN && found.len <= before.len {
                block.push_match(before.len, before.distance);
                at += before.len - 1;
                (before, is_literal_open) = (NONE, false);
                if block.is_full() {
                    block.write(plain, at, buffer.start, false, stored);
                }
            } else {
                if is_literal_open {
                    block.push_literal(plain[at - 1]);
                    if block.is_full() {
                        block.write(plain, at, buffer.start, false, stored);
                    }
                }
                (before, is_literal_open) = (found, true);
                at += 1;
            }
        }
        if is_literal_open {
            block.push_literal(plain[at - 1]);
        }
        block.write(plain, at, buffer.start, true, stored);
    }
}

/// Start of zlib's buffer in the input.
///
/// The buffer holds two windows and moves by one when it is full. zlib never searches before its start, and
/// its very first position stands for "none".
struct Buffer {
    start: usize,
    moves_at: usize,
    len: usize,
}

impl Buffer {
    fn new(len: usize) -> Self {
        let mut buffer = Self { start: 0, moves_at: 0, len };
        buffer.plan();
        buffer
    }

    /// Computes the next move: zlib keeps room for one match ahead, except at the end of the input.
    fn plan(&mut self) {
        let is_full = self.start + 2 * WINDOW <= self.len;
        self.moves_at = self.start + WINDOW + DISTANCE_MAX + usize::from(is_full);
    }

    /// Moves the buffer as zlib does before it reaches this position.
    #[inline]
    fn advance(&mut self, at: usize) {
        if at >= self.moves_at {
            self.start += WINDOW;
            self.plan();
        }
    }
}

/// Finds the match that zlib would find at a position, given a match of `known` bytes at the position before.
///
/// A match that is no longer than the known one is not used, and may be returned as [`NONE`].
// Kept as one function: if the compiler decides on inlining, it is up to a third slower in some builds.
#[inline(never)]
fn search(links: &Links, plain: &[u8], at: usize, known: usize, buffer_start: usize) -> Match {
    let left = plain.len() - at;
    if left < MATCH_MIN || known >= left {
        return NONE;
    }
    let nearest = usize::from(links.three_at(at));
    // No other candidate may be as far away as the first one.
    if nearest > DISTANCE_MAX || nearest >= at - buffer_start {
        return NONE;
    }
    let reach = DISTANCE_MAX.min(at - buffer_start);
    if left < LONG_MIN {
        // The only match that is long enough has three bytes.
        return search_three(links, plain, at, reach);
    }
    let found = search_long(links, plain, at, known, (nearest, reach));
    if found.len > known || known >= MATCH_MIN {
        return found;
    }
    search_three(links, plain, at, reach)
}

/// Searches for a match of four bytes or more that is longer than the known one.
///
/// A longer match must have the bytes at every offset up to its end. So the candidates are found in the chain of its
/// first four bytes as well as in that of its last four ones, and the search follows the one with fewer candidates.
#[inline(always)]
fn search_long(
    links: &Links,
    plain: &[u8],
    at: usize,
    known: usize,
    (nearest, reach): (usize, usize),
) -> Match {
    let here = links.link_at(at);
    let max = (plain.len() - at).min(MATCH_MAX);
    let nice = NICE_LEN.min(max);
    let candidates = if known >= GOOD_LEN { CANDIDATES_GOOD } else { CANDIDATES };
    let first = load_u32(plain, at);
    let mut best = Match { len: known.max(LONG_MIN - 1), distance: 0 };
    // Last four bytes that a better match must have.
    let mut last = load_u32(plain, at + best.len - 3);
    // Offset in the match of the bytes whose chain is followed.
    let mut offset = 0;
    let mut distance = usize::from(here.four);
    // Distance from which on the chain of the first bytes was not followed.
    let mut resume = distance;
    if known >= LONG_MIN {
        let end = usize::from(links.link_at(at + known - 3).four);
        if end > distance {
            (offset, distance) = (known - 3, end);
        }
    }
    let mut steps_left = END_STEPS;
    while distance < reach || distance == nearest {
        let candidate = at - distance;
        let step = usize::from(links.link_at(candidate + offset).four);
        if load_u32(plain, candidate) == first {
            // Equal bytes have equal hashes, so both ranks are of the same chain.
            if here.rank.wrapping_sub(links.link_at(candidate).rank) > candidates {
                break;
            }
            if load_u32(plain, candidate + best.len - 3) == last {
                let len = common_len(plain, candidate, at, max);
                if len > best.len {
                    best = Match { len, distance };
                    if len >= nice {
                        break;
                    }
                    last = load_u32(plain, at + len - 3);
                    resume = distance + usize::from(links.link_at(candidate).four);
                    let end = links.follow(at + len - 3, distance);
                    (offset, distance) = if end > resume { (len - 3, end) } else { (0, resume) };
                    continue;
                }
            }
        }
        distance += step;
        if offset > 0 {
            steps_left -= 1;
            if steps_left == 0 {
                (offset, distance, steps_left) = (0, resume, END_STEPS);
            }
        }
    }
    if best.distance == 0 { NONE } else { best }
}

/// Finds a match of three bytes.
#[inline(always)]
fn search_three(links: &Links, plain: &[u8], at: usize, reach: usize) -> Match {
    let three = |at: usize| [plain[at], plain[at + 1], plain[at + 2]];
    let first = three(at);
    let mut distance = usize::from(links.three_at(at));
    let mut candidates = CANDIDATES;
    while candidates > 0 && distance <= SHORT_DISTANCE_MAX && distance < reach {
        let candidate = at - distance;
        if three(candidate) == first {
            return Match { len: MATCH_MIN, distance };
        }
        distance += usize::from(links.three_at(candidate));
        candidates -= 1;
    }
    NONE
}

#[inline(always)]
fn load_u32(bytes: &[u8], at: usize) -> u32 {
    match bytes.get(at..at + 4) {
        Some(&[a, b, c, d]) => u32::from_le_bytes([a, b, c, d]),
        _ => 0,
    }
}

/// Returns how many bytes are equal at two positions, up to `max`, which must be within the input.
#[inline(always)]
fn common_len(bytes: &[u8], earlier: usize, later: usize, max: usize) -> usize {
    let (earlier, later) = (&bytes[earlier..earlier + max], &bytes[later..later + max]);
    let (words, rest) = earlier.as_chunks::<8>();
    let (other_words, other_rest) = later.as_chunks::<8>();
    let mut len = 0;
    for (word, other) in words.iter().zip(other_words) {
        let differing = u64::from_le_bytes(*word) ^ u64::from_le_bytes(*other);
        if differing != 0 {
            return len + differing.trailing_zeros() as usize / 8;
        }
        len += 8;
    }
    for (byte, other) in rest.iter().zip(other_rest) {
        if byte != other {
            break;
        }
        len += 1;
    }
    len
}
