//! The encoder writes byte for byte what zlib writes: for the input, and for one of several windows that it describes.

use std::cell::RefCell;

use esker_format::write::deflate::ExactZlib;

use super::sys::zlib;

/// The longest input that is described; zlib moves its window every 32 KiB.
const LEN_MAX: usize = 200_000;

thread_local! {
    static ENCODER: RefCell<ExactZlib> = RefCell::new(ExactZlib::new());
}

/// Checks any bytes.
pub fn check(bytes: &[u8]) {
    compare(bytes);
    compare(&described(bytes));
}

/// Compares the two encoders; ours is used again and again, since it keeps its tables.
pub fn compare(plain: &[u8]) {
    let mut stored = Vec::new();
    ENCODER.with_borrow_mut(|encoder| encoder.encode(plain, &mut stored));
    let expected = zlib(plain);
    let differs = stored.iter().zip(&expected).position(|(one, other)| one != other);
    assert!(
        stored == expected,
        "{} bytes became {} where zlib makes {}; the first difference is at {differs:?}",
        plain.len(),
        stored.len(),
        expected.len()
    );
}

/// Reads the bytes as instructions: literals, copies from any distance, and runs of a changing pattern.
pub fn described(bytes: &[u8]) -> Vec<u8> {
    let mut plain: Vec<u8> = Vec::new();
    let mut noise = 1u32;
    for instruction in bytes.chunks_exact(4) {
        let [kind, a, b, c] = *instruction else { continue };
        let wide = usize::from(u16::from_le_bytes([a, b]));
        match kind % 4 {
            0 => plain.extend_from_slice(&[a, b, c]),
            // Around the largest distance, too.
            1 | 2 if !plain.is_empty() => {
                let distance = 1 + if kind < 32 { 32_480 + wide % 64 } else { wide } % plain.len();
                let start = plain.len() - distance;
                (start..start + usize::from(c) + 3).for_each(|at| plain.push(plain[at]));
            }
            _ => {
                let bits = u32::from(c % 8) + 1;
                plain.extend((0..wide % 20_000).map(|_| {
                    noise = noise.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (noise >> (32 - bits)) as u8 ^ b
                }));
            }
        }
        if plain.len() > LEN_MAX {
            break;
        }
    }
    plain
}
