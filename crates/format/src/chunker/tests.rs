use proptest::prelude::*;

use super::*;

/// Naive implementation of the rule, one byte after the other.
fn reference(bytes: &[u8], min: usize, average: u32, max: usize) -> Vec<usize> {
    let threshold = i64::from(0xffff_ffffu32 / average);
    let mut cuts = Vec::new();
    let mut last = 0;
    'chunk: loop {
        let mut x = 0u32;
        let mut i = last + min - 32;
        while i < last + min {
            let Some(byte) = bytes.get(i) else { return cuts };
            x = (x << 1) ^ u32::from(*byte);
            i += 1;
        }
        while i < last + max {
            let Some(byte) = bytes.get(i) else { return cuts };
            x = (x << 1) ^ u32::from(*byte);
            let distance = x.wrapping_sub(0x7fff_ffff).cast_signed();
            if i64::from(distance.wrapping_abs()) < threshold {
                cuts.push(i);
                last = i;
                continue 'chunk;
            }
            i += 1;
        }
        if i >= bytes.len() {
            return cuts;
        }
        cuts.push(i);
        last = i;
    }
}

fn cuts(bytes: &[u8], sizes: ChunkSizes, pieces: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut chunker = Chunker::new(sizes);
    let (mut found, mut at) = (Vec::new(), 0);
    for piece in pieces {
        let end = (at + piece).min(bytes.len());
        while let Some(cut) = chunker.next_cut(&bytes[at..end]) {
            at += cut;
            found.push(at);
        }
        at = end;
        if at == bytes.len() {
            break;
        }
    }
    assert_eq!(at, bytes.len());
    found
}

fn noise(len: usize) -> Vec<u8> {
    let mut x = 1u32;
    (0..len)
        .map(|_| {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (x >> 24) as u8
        })
        .collect()
}

#[test]
fn cuts_equal_known_values() {
    let whole = |bytes: &[u8]| cuts(bytes, ChunkSizes::DEFAULT, std::iter::repeat(1 << 20));
    let bytes = noise(64 << 20);
    assert_eq!(bytes[..8], [0x3c, 0x5e, 0x81, 0xb4, 0x0c, 0x5e, 0xc6, 0x8e]);
    let expected = [
        8_059_046, 13_774_758, 28_421_577, 33_356_038, 39_016_113, 51_666_259, 57_505_181, 62_077_536,
        66_526_537,
    ];
    assert_eq!(whole(&bytes), expected);
    assert_eq!(whole(&vec![0; 40 << 20]), [16 << 20, 32 << 20]);
    assert_eq!(whole(&vec![1; 10 << 20]), [4 << 20, 8 << 20]);
}

#[test]
fn the_end_of_a_file_is_not_reported_as_a_cut() {
    for len in [0, 1, (16 << 20) - 1, 16 << 20] {
        assert!(cuts(&vec![0; len], ChunkSizes::DEFAULT, std::iter::repeat(1 << 20)).is_empty(), "{len}");
    }
    let one_more = cuts(&vec![0; (16 << 20) + 1], ChunkSizes::DEFAULT, std::iter::repeat(1 << 20));
    assert_eq!(one_more, [16 << 20]);
}

#[test]
fn chunk_sizes_are_validated() {
    assert!(ChunkSizes::new(32, 33, 34).is_ok());
    for (min, average, max) in [(31, 33, 34), (32, 32, 34), (32, 33, 33), (0, 0, 0), (32, 33, u32::MAX)] {
        assert_eq!(ChunkSizes::new(min, average, max), Err(ChunkSizesError { min, average, max }));
    }
}

/// Generates bytes with frequent cuts: runs of few values between noise.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..3000),
        (proptest::collection::vec((0u8..4, 1usize..200), 0..30)).prop_map(|runs| {
            runs.into_iter().flat_map(|(byte, len)| std::iter::repeat_n(byte, len)).collect()
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]
    #[test]
    fn cuts_equal_those_of_the_reference(
        bytes in bytes(),
        min in 32u32..100,
        more in 1u32..200,
        most in 1u32..300,
        pieces in proptest::collection::vec(0usize..400, 0..20),
    ) {
        let sizes = ChunkSizes::new(min, min + more, min + more + most).unwrap();
        let expected = reference(&bytes, min as usize, min + more, (min + more + most) as usize);
        let found = cuts(&bytes, sizes, pieces.into_iter().chain(std::iter::repeat(1000)));
        prop_assert_eq!(found, expected);
    }
}
