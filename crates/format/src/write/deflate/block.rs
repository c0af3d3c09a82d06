//! Blocks of RFC 1951: collects literals and matches, and writes them in the shortest form.

use super::codes::{Code, DISTANCES, LENGTHS, LITERALS};

/// Number of literals and matches in a full block.
const SYMBOLS_MAX: usize = (1 << 14) - 1;
/// Symbol that ends a block.
const END: usize = 256;
/// Symbol of the shortest match, in the alphabet of literals.
const FIRST_LENGTH: usize = END + 1;
/// Number of match lengths.
const MATCH_LENS: usize = 256;
/// Maximum length in bits of a code of literals and distances, and of code lengths.
const LEN_MAX: usize = 15;
const LENGTHS_LEN_MAX: usize = 7;

/// Code of a stored block; the codes of other types follow.
const STORED: u64 = 0;
const FIXED: u64 = 1;
const DYNAMIC: u64 = 2;

/// Order in which the lengths of the length codes are written.
const LENGTHS_ORDER: [usize; LENGTHS] = [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15];
/// Symbols for repetitions among code lengths: of the last length, and of few or many zeros.
const REPEAT: usize = 16;
const ZEROS: usize = 17;
const MANY_ZEROS: usize = 18;

/// Symbol of a match length, with the extra bits that select the length.
#[derive(Clone, Copy)]
struct LengthSymbol {
    symbol: u16,
    extra_bits: u8,
    extra: u8,
}

/// Symbols of all lengths, indexed by length less 3.
const LENGTH_SYMBOLS: [LengthSymbol; MATCH_LENS] = {
    let mut symbols = [LengthSymbol { symbol: 0, extra_bits: 0, extra: 0 }; MATCH_LENS];
    let mut len = 0;
    let mut symbol = FIRST_LENGTH as u16;
    while len < MATCH_LENS - 1 {
        let number = symbol as usize - FIRST_LENGTH;
        let extra_bits = if number < 8 { 0 } else { (number / 4 - 1) as u8 };
        let mut extra = 0;
        while extra < 1usize << extra_bits && len < MATCH_LENS - 1 {
            symbols[len] = LengthSymbol { symbol, extra_bits, extra: extra as u8 };
            extra += 1;
            len += 1;
        }
        symbol += 1;
    }
    // The longest length has a symbol of its own.
    symbols[MATCH_LENS - 1] = LengthSymbol { symbol: LITERALS as u16 - 1, extra_bits: 0, extra: 0 };
    symbols
};

const FIXED_LITERALS: Code<288> = Code::with_lens({
    let mut lens = [8; 288];
    let mut symbol = 144;
    while symbol < 280 {
        lens[symbol] = if symbol < END { 9 } else { 7 };
        symbol += 1;
    }
    lens
});
const FIXED_DISTANCES: Code<DISTANCES> = Code::with_lens([5; DISTANCES]);

/// Returns the symbol of a distance and the number of its extra bits.
#[inline]
fn distance_symbol(distance: u32) -> (usize, u32) {
    let below = distance - 1;
    match below.checked_ilog2() {
        None | Some(0) => (below as usize, 0),
        Some(log) => ((2 * log + (below >> (log - 1)) % 2) as usize, log - 1),
    }
}

/// A literal, or the length and distance of a match.
#[derive(Clone, Copy)]
struct Symbol {
    /// Literal, or length less 3.
    value: u16,
    /// Distance of a match; 0 for a literal.
    distance: u16,
}

/// A block that is being collected.
pub(super) struct Block {
    symbols: Vec<Symbol>,
    literals: [u16; LITERALS],
    distances: [u16; DISTANCES],
    /// Offset of the block in the input.
    start: usize,
    bits: Bits,
}

/// Bits that have not filled a byte yet.
#[derive(Default)]
struct Bits {
    bits: u64,
    len: u32,
}

impl Bits {
    /// Appends up to 32 bits, lowest first.
    #[inline]
    fn put(&mut self, bits: u64, len: u32, out: &mut Vec<u8>) {
        self.bits |= bits << self.len;
        self.len += len;
        if self.len >= 32 {
            out.extend_from_slice(&(self.bits as u32).to_le_bytes());
            self.bits >>= 32;
            self.len -= 32;
        }
    }

    /// Pads the last byte.
    fn align(&mut self, out: &mut Vec<u8>) {
        let bytes = self.bits.to_le_bytes();
        out.extend_from_slice(&bytes[..self.len.div_ceil(8) as usize]);
        *self = Self::default();
    }
}

impl Block {
    pub(super) fn new() -> Box<Self> {
        Box::new(Self {
            symbols: Vec::with_capacity(SYMBOLS_MAX),
            literals: [0; LITERALS],
            distances: [0; DISTANCES],
            start: 0,
            bits: Bits::default(),
        })
    }

    /// Starts a stream.
    pub(super) fn begin(&mut self) {
        self.bits = Bits::default();
        self.clear(0);
    }

    fn clear(&mut self, start: usize) {
        self.symbols.clear();
        self.literals = [0; LITERALS];
        self.distances = [0; DISTANCES];
        self.literals[END] = 1;
        self.start = start;
    }

    pub(super) fn is_full(&self) -> bool {
        self.symbols.len() == SYMBOLS_MAX
    }

    #[inline]
    pub(super) fn push_literal(&mut self, byte: u8) {
        self.literals[usize::from(byte)] += 1;
        self.symbols.push(Symbol { value: u16::from(byte), distance: 0 });
    }

    #[inline]
    pub(super) fn push_match(&mut self, len: usize, distance: usize) {
        let value = len - super::MATCH_MIN;
        self.literals[usize::from(LENGTH_SYMBOLS[value].symbol)] += 1;
        self.distances[distance_symbol(distance as u32).0] += 1;
        self.symbols.push(Symbol { value: value as u16, distance: distance as u16 });
    }

    /// Writes the block, which ends at position `at` of the input, and starts the next one there.
    ///
    /// zlib can only store bytes that are still in its buffer, which starts at `buffer_start`.
    pub(super) fn write(
        &mut self,
        plain: &[u8],
        end: usize,
        buffer_start: usize,
        is_last: bool,
        out: &mut Vec<u8>,
    ) {
        let literals = Code::for_counts(&self.literals, LEN_MAX);
        let distances = Code::for_counts(&self.distances, LEN_MAX);
        let header = Header::new(&literals, &distances);
        let extra = self.extra_bits();
        let dynamic = header.cost() + literals.cost(&self.literals) + distances.cost(&self.distances) + extra;
        let fixed = self.fixed_cost() + extra;
        // In bytes, with the three bits at the start of each block.
        let (dynamic, fixed) = ((dynamic + 3).div_ceil(8), (fixed + 3).div_ceil(8));
        let content = &plain[self.start..end];
        // Every symbol takes less than eight bytes.
        out.reserve((8 * self.symbols.len()).min(fixed + 8) + content.len().min(1 << 16));
        let last = u64::from(is_last);
        if content.len() + 4 <= dynamic.min(fixed) && self.start >= buffer_start {
            self.bits.put(STORED << 1 | last, 3, out);
            self.bits.align(out);
            // Never exceeds two bytes: content that codes don't compress has hardly any matches.
            let len = content.len() as u16;
            out.extend_from_slice(&len.to_le_bytes());
            out.extend_from_slice(&(!len).to_le_bytes());
            out.extend_from_slice(content);
        } else if fixed <= dynamic {
            self.bits.put(FIXED << 1 | last, 3, out);
            self.put_symbols(&FIXED_LITERALS, &FIXED_DISTANCES, out);
        } else {
            self.bits.put(DYNAMIC << 1 | last, 3, out);
            header.put(&mut self.bits, out);
            self.put_symbols(&literals, &distances, out);
        }
        if is_last {
            self.bits.align(out);
        }
        self.clear(end);
    }

    /// Returns the number of extra bits of all lengths and distances.
    fn extra_bits(&self) -> usize {
        let lengths: usize =
            (8..28).map(|number| (number / 4 - 1) * usize::from(self.literals[FIRST_LENGTH + number])).sum();
        let distances: usize =
            (4..DISTANCES).map(|symbol| (symbol / 2 - 1) * usize::from(self.distances[symbol])).sum();
        lengths + distances
    }

    fn fixed_cost(&self) -> usize {
        let literals = self.literals.iter().zip(&FIXED_LITERALS.lens);
        let distances = self.distances.iter().zip(&FIXED_DISTANCES.lens);
        literals.chain(distances).map(|(count, len)| usize::from(*count) * usize::from(*len)).sum()
    }

    fn put_symbols<const N: usize>(
        &mut self,
        literals: &Code<N>,
        distances: &Code<DISTANCES>,
        out: &mut Vec<u8>,
    ) {
        let bits = &mut self.bits;
        // Symbol and extra bits of each length, combined.
        let lengths: [(u32, u32); MATCH_LENS] = std::array::from_fn(|value| {
            let LengthSymbol { symbol, extra_bits, extra } = LENGTH_SYMBOLS[value];
            let len = u32::from(literals.lens[usize::from(symbol)]);
            let code = u32::from(literals.bits[usize::from(symbol)]);
            (code | u32::from(extra) << len, len + u32::from(extra_bits))
        });
        for symbol in &self.symbols {
            let value = usize::from(symbol.value);
            if symbol.distance == 0 {
                bits.put(u64::from(literals.bits[value]), u32::from(literals.lens[value]), out);
                continue;
            }
            let (code, len) = lengths[value];
            bits.put(u64::from(code), len, out);
            let (number, extra_bits) = distance_symbol(u32::from(symbol.distance));
            let len = u32::from(distances.lens[number]);
            let extra = (u64::from(symbol.distance) - 1) % (1 << extra_bits);
            bits.put(u64::from(distances.bits[number]) | extra << len, len + extra_bits, out);
        }
        bits.put(u64::from(literals.bits[END]), u32::from(literals.lens[END]), out);
    }
}

/// Header of a block with its own codes: the lengths of these codes.
struct Header {
    literals: usize,
    distances: usize,
    code: Code<LENGTHS>,
    counts: [u16; LENGTHS],
    /// Number of length codes written.
    lengths: usize,
    runs: Vec<Run>,
}

/// A symbol of the header with its extra bits.
#[derive(Clone, Copy)]
struct Run {
    symbol: usize,
    extra: usize,
    extra_bits: u32,
}

impl Run {
    const fn single(len: u8) -> Self {
        Self { symbol: len as usize, extra: 0, extra_bits: 0 }
    }
}

impl Header {
    fn new(literals: &Code<LITERALS>, distances: &Code<DISTANCES>) -> Self {
        let mut runs = Vec::with_capacity(LITERALS + DISTANCES);
        push_runs(&literals.lens[..literals.used], &mut runs);
        push_runs(&distances.lens[..distances.used], &mut runs);
        let mut counts = [0; LENGTHS];
        runs.iter().for_each(|run: &Run| counts[run.symbol] += 1);
        let code = Code::for_counts(&counts, LENGTHS_LEN_MAX);
        let is_used = |place: &usize| code.lens[LENGTHS_ORDER[*place]] > 0;
        let lengths = (3..LENGTHS).rev().find(is_used).unwrap_or(3) + 1;
        Self { literals: literals.used, distances: distances.used, code, counts, lengths, runs }
    }

    /// Returns the length of the header in bits.
    fn cost(&self) -> usize {
        let extra: usize = self.runs.iter().map(|run| run.extra_bits as usize).sum();
        5 + 5 + 4 + 3 * self.lengths + self.code.cost(&self.counts) + extra
    }

    fn put(&self, bits: &mut Bits, out: &mut Vec<u8>) {
        bits.put((self.literals - FIRST_LENGTH) as u64, 5, out);
        bits.put((self.distances - 1) as u64, 5, out);
        bits.put((self.lengths - 4) as u64, 4, out);
        for symbol in &LENGTHS_ORDER[..self.lengths] {
            bits.put(u64::from(self.code.lens[*symbol]), 3, out);
        }
        for run in &self.runs {
            bits.put(u64::from(self.code.bits[run.symbol]), u32::from(self.code.lens[run.symbol]), out);
            bits.put(run.extra as u64, run.extra_bits, out);
        }
    }
}

/// Encodes the lengths of a code as symbols and repetitions, as zlib does.
fn push_runs(lens: &[u8], runs: &mut Vec<Run>) {
    for same in lens.chunk_by(|one, next| one == next) {
        let (len, mut left) = (same[0], same.len());
        if len > 0 {
            runs.push(Run::single(len));
            left -= 1;
        }
        while left >= 3 {
            let (symbol, min, max, extra_bits) = match (len, left) {
                (1.., _) => (REPEAT, 3, 6, 2),
                (0, ..=10) => (ZEROS, 3, 10, 3),
                (0, _) => (MANY_ZEROS, 11, 138, 7),
            };
            let count = left.min(max);
            runs.push(Run { symbol, extra: count - min, extra_bits });
            left -= count;
        }
        runs.extend(std::iter::repeat_n(Run::single(len), left));
    }
}
