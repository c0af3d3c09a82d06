//! Prefix codes of RFC 1951, built as zlib builds them.
//!
//! zlib chooses one of many optimal codes by its rules for ties, which this module repeats: nodes leave a
//! binary heap ordered by count and then by height, and where a code gets too long the rarest symbols are
//! moved first.

/// Number of literal and length symbols, of which the last two are never used.
pub(super) const LITERALS: usize = 286;
/// Number of distance symbols.
pub(super) const DISTANCES: usize = 30;
/// Number of symbols of the alphabet for code lengths.
pub(super) const LENGTHS: usize = 19;
/// Number of nodes of the largest tree.
const NODES: usize = 2 * LITERALS - 1;
/// Maximum length of a code in bits, for all alphabets.
const LEN_MAX: usize = 15;

/// A prefix code for the symbols of an alphabet.
#[derive(Clone, Copy)]
pub(super) struct Code<const N: usize> {
    /// Length of each symbol's code in bits; 0 for unused symbols.
    pub(super) lens: [u8; N],
    /// Code of each symbol, first bit lowest.
    pub(super) bits: [u16; N],
    /// Number of symbols up to the last used one.
    pub(super) used: usize,
}

impl<const N: usize> Code<N> {
    /// Returns zlib's code for these counts, with no code longer than `len_max` bits.
    pub(super) fn for_counts(counts: &[u16; N], len_max: usize) -> Self {
        let mut code = Self { lens: [0; N], bits: [0; N], used: 0 };
        let mut tree = Tree::new();
        for (symbol, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
            tree.add(symbol, *count);
            code.used = symbol + 1;
        }
        // A code has at least two symbols.
        while tree.heap_len < 2 {
            let symbol = if code.used < 3 { code.used } else { 0 };
            tree.add(symbol, 1);
            code.used = code.used.max(symbol + 1);
        }
        tree.join(N);
        tree.lens(N, len_max, &mut code.lens);
        code.assign();
        code
    }

    /// Returns the code with these lengths.
    pub(super) const fn with_lens(lens: [u8; N]) -> Self {
        let mut code = Self { lens, bits: [0; N], used: N };
        code.assign();
        code
    }

    /// Assigns codes to symbols: by length, then by number (RFC 1951, 3.2.2).
    const fn assign(&mut self) {
        let mut next = [0u16; LEN_MAX + 2];
        let mut symbol = 0;
        while symbol < N {
            if self.lens[symbol] > 0 {
                next[self.lens[symbol] as usize + 1] += 1;
            }
            symbol += 1;
        }
        let mut len = 1;
        while len <= LEN_MAX {
            next[len] = (next[len - 1] + next[len]) << 1;
            len += 1;
        }
        let mut symbol = 0;
        while symbol < N {
            let len = self.lens[symbol] as usize;
            if len > 0 {
                self.bits[symbol] = next[len].reverse_bits() >> (16 - len);
                next[len] += 1;
            }
            symbol += 1;
        }
    }

    /// Returns the number of bits of symbols with these counts.
    pub(super) fn cost(&self, counts: &[u16; N]) -> usize {
        counts.iter().zip(&self.lens).map(|(count, len)| usize::from(*count) * usize::from(*len)).sum()
    }
}

/// Tree of a code during construction.
struct Tree {
    /// Order of nodes: count, then height.
    keys: [u32; NODES],
    parents: [u16; NODES],
    /// Min-heap of nodes without a parent; its indexes start at 1.
    heap: [u16; LITERALS + 1],
    heap_len: usize,
    /// Nodes in the order in which they got a parent, root last.
    order: [u16; NODES],
    order_len: usize,
}

/// Bits of the height in a key, below the count.
const HEIGHT_BITS: u32 = 8;

impl Tree {
    fn new() -> Self {
        Self {
            keys: [0; NODES],
            parents: [0; NODES],
            heap: [0; LITERALS + 1],
            heap_len: 0,
            order: [0; NODES],
            order_len: 0,
        }
    }

    fn add(&mut self, symbol: usize, count: u16) {
        self.heap_len += 1;
        self.heap[self.heap_len] = symbol as u16;
        self.keys[symbol] = u32::from(count) << HEIGHT_BITS;
    }

    fn key(&self, place: usize) -> u32 {
        self.keys[usize::from(self.heap[place])]
    }

    /// Moves the node at index `place` down the heap to its position.
    fn sink(&mut self, mut place: usize) {
        let node = self.heap[place];
        let key = self.keys[usize::from(node)];
        loop {
            let mut below = 2 * place;
            if below > self.heap_len {
                break;
            }
            if below < self.heap_len && self.key(below + 1) <= self.key(below) {
                below += 1;
            }
            if key <= self.key(below) {
                break;
            }
            self.heap[place] = self.heap[below];
            place = below;
        }
        self.heap[place] = node;
    }

    fn settle(&mut self, node: u16) {
        self.order[self.order_len] = node;
        self.order_len += 1;
    }

    /// Joins the two lowest nodes until one is left; new nodes are numbered from `next` on.
    fn join(&mut self, mut next: usize) {
        for place in (1..=self.heap_len / 2).rev() {
            self.sink(place);
        }
        while self.heap_len >= 2 {
            let lowest = self.heap[1];
            self.heap[1] = self.heap[self.heap_len];
            self.heap_len -= 1;
            self.sink(1);
            let second = self.heap[1];
            let (one, other) = (self.keys[usize::from(lowest)], self.keys[usize::from(second)]);
            let height = (one % (1 << HEIGHT_BITS)).max(other % (1 << HEIGHT_BITS)) + 1;
            let count = (one >> HEIGHT_BITS) + (other >> HEIGHT_BITS);
            self.keys[next] = count << HEIGHT_BITS | height;
            for node in [lowest, second] {
                self.parents[usize::from(node)] = next as u16;
                self.settle(node);
            }
            self.heap[1] = next as u16;
            self.sink(1);
            next += 1;
        }
        self.settle(self.heap[1]);
    }

    /// Computes the code lengths of the symbols, which are the nodes below `symbols`.
    fn lens(&self, symbols: usize, len_max: usize, lens: &mut [u8]) {
        let order = &self.order[..self.order_len];
        let mut depths = [0u8; NODES];
        let mut with_len = [0u16; LEN_MAX + 1];
        let mut too_long = 0isize;
        // Parents precede their children here.
        for node in order.iter().rev().skip(1).map(|node| usize::from(*node)) {
            let mut depth = usize::from(depths[usize::from(self.parents[node])]) + 1;
            if depth > len_max {
                depth = len_max;
                too_long += 1;
            }
            depths[node] = depth as u8;
            if node < symbols {
                lens[node] = depth as u8;
                with_len[depth] += 1;
            }
        }
        if too_long == 0 {
            return;
        }
        // Each step puts two symbols that are too long in the place of a shorter one, which moves one level
        // down.
        while too_long > 0 {
            let mut len = len_max - 1;
            while with_len[len] == 0 {
                len -= 1;
            }
            with_len[len] -= 1;
            with_len[len + 1] += 2;
            with_len[len_max] -= 1;
            too_long -= 2;
        }
        let mut rarest = order.iter().map(|node| usize::from(*node)).filter(|node| *node < symbols);
        for len in (1..=len_max).rev() {
            for symbol in rarest.by_ref().take(usize::from(with_len[len])) {
                lens[symbol] = len as u8;
            }
        }
    }
}
