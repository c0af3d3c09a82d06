//! Compares our encoder with zlib itself.

use esker_testkit::soak::Random;

use crate::targets::deflate::{compare, described};

/// Returns content that compresses well, hardly or not at all, and content at the edge of the window.
fn kinds(len: usize, random: &mut Random) -> Vec<Vec<u8>> {
    let mut noise =
        |bits: u32| (0..len).map(|_| (random.draw() as u32 >> (32 - bits)) as u8).collect::<Vec<u8>>();
    let (bytes, letters, bit) = (noise(8), noise(4), noise(1));
    let numbers: Vec<u8> =
        (0..len).flat_map(|number| (number * number % 977).to_string().into_bytes()).take(len).collect();
    let counted: Vec<u8> = (0..len as u32).flat_map(u32::to_le_bytes).take(len).collect();
    // Noise that repeats at the maximum distance of a match, and around it.
    let again =
        |distance: usize| bytes.iter().copied().cycle().take(distance).cycle().take(len).collect::<Vec<u8>>();
    let mut kinds = vec![vec![0; len], vec![b'x'; len], bit, letters, numbers, counted];
    kinds.extend([2, 3, 258, 259, 4096, 4097].map(again));
    kinds.extend((32_504..=32_508).chain(32_766..=32_769).map(again));
    // Three equal bytes at the maximum distance for such a match, and beyond it.
    for gap in [4095, 4096, 4097] {
        let mut rare = bytes.clone();
        for at in (0..len.saturating_sub(3)).step_by(gap) {
            rare[at..at + 3].copy_from_slice(b"abc");
        }
        kinds.push(rare);
    }
    kinds.push(bytes);
    kinds
}

#[test]
fn content_of_every_kind_is_encoded_as_by_zlib() {
    let mut random = Random(7);
    for len in [0, 1, 2, 3, 4, 5, 258, 262, 16_383, 40_000, 65_275, 150_001] {
        for plain in kinds(len, &mut random) {
            compare(&plain);
        }
    }
}

/// The end of a match is common here, and its start rare: a search has to find candidates by both.
#[test]
fn runs_after_rare_bytes_are_encoded_as_by_zlib() {
    let mut random = Random(10);
    for run in [4, 12, 60, 130, 300, 5000] {
        for rare in [2, 40, 256] {
            let mut plain = Vec::new();
            while plain.len() < 150_000 {
                let byte = random.below(rare) as u8;
                plain.extend([byte, byte ^ 0x55, byte ^ 0xaa]);
                plain.resize(plain.len() + 1 + random.below(run), b' ');
            }
            compare(&plain);
        }
    }
}

/// Near the end of the input, searches test fewer bytes, and zlib's buffer moves by another rule.
#[test]
fn every_end_of_input_is_encoded_as_by_zlib() {
    let mut random = Random(8);
    let noise: Vec<u8> = (0..70_000).map(|_| (random.draw() >> 61) as u8).collect();
    for len in (65_265..65_285).chain(65_520..65_545).chain(0..300) {
        compare(&noise[..len]);
        let mut ends_again = noise[..len].to_vec();
        let copied = len.min(40);
        for back in [32_506, 32_505, 32_507] {
            if len > back + copied {
                let start = len - copied - back;
                ends_again.copy_within(start..start + copied, len - copied);
                compare(&ends_again);
            }
        }
    }
}

#[test]
fn random_content_is_encoded_as_by_zlib() {
    let mut random = Random(9);
    for _ in 0..100 {
        let len = 4 * random.below(200);
        let bytes: Vec<u8> = (0..len).map(|_| random.draw() as u8).collect();
        compare(&described(&bytes));
    }
}
