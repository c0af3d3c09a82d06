//! Recognises content that encoders make no smaller, such as archives, images and many model weights.

use esker_format::write::encode::FastZlib;

/// Length in bytes of a sample, and of the smallest content that is looked at. Smaller content loses a few bytes at most.
pub(super) const SAMPLE: usize = 64 << 10;
/// Maximum number of samples of one content.
const SAMPLES_MAX: u64 = 4;
/// Least part of its length that an encoder must save, as a divisor: clients decode what it saves.
const SAVING: usize = 32;

/// Returns true if content of this size seems incompressible: no sample of it gets much smaller. `sample` fills a buffer with the
/// content at an offset; false if it can't.
pub(super) fn is_incompressible(size: u64, mut sample: impl FnMut(u64, &mut [u8]) -> bool) -> bool {
    let mut room = [0; SAMPLE];
    let Some(last) = size.checked_sub(SAMPLE as u64) else { return false };
    let count = SAMPLES_MAX.min(size / SAMPLE as u64);
    let mut encoder = None;
    (0..count).all(|number| {
        // The first at the beginning, the last at the end.
        let offset = last * number / (count - 1).max(1);
        sample(offset, &mut room)
            && is_flat(&room)
            && !shrinks(encoder.get_or_insert_with(FastZlib::new), &room)
    })
}

/// Returns true if content in memory seems incompressible.
pub(super) fn is_incompressible_piece(content: &[u8]) -> bool {
    is_incompressible(content.len() as u64, |offset, room| {
        let at = usize::try_from(offset).unwrap_or(usize::MAX);
        let sample = content.get(at..at.saturating_add(room.len()));
        sample.is_some_and(|sample| {
            room.copy_from_slice(sample);
            true
        })
    })
}

/// Returns true if the bytes of a sample are so evenly distributed that a code for them saves little. This takes a fraction of the
/// time of an encoder, and most content fails it.
fn is_flat(sample: &[u8]) -> bool {
    let mut counts = [0_u32; 256];
    sample.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let len = sample.len() as f64;
    let bits: f64 = counts
        .iter()
        .filter(|count| **count > 0)
        .map(|count| f64::from(*count) / len)
        .map(|share| -share * share.log2())
        .sum();
    bits > 8.0 - 8.0 / SAVING as f64
}

/// Returns true if an encoder makes a sample smaller.
fn shrinks(encoder: &mut FastZlib, sample: &[u8]) -> bool {
    let mut stored = Vec::new();
    encoder.encode(sample, &mut stored);
    stored.len() < sample.len() - sample.len() / SAVING
}

#[cfg(test)]
mod tests {
    use rand::{Rng as _, SeedableRng as _, rngs::StdRng};

    use super::*;

    fn random(len: usize, most: u8) -> Vec<u8> {
        let mut random = StdRng::seed_from_u64(7);
        (0..len).map(|_| random.random_range(0..=most)).collect()
    }

    #[test]
    fn random_content_is_incompressible_and_none_of_which_a_sample_shrinks() {
        let whole = random(1 << 20, 255);
        for len in [1 << 20, SAMPLE, SAMPLE + 1] {
            assert!(is_incompressible_piece(&whole[..len]), "{len}");
        }
        // Too small to matter.
        assert!(!is_incompressible_piece(&whole[..SAMPLE - 1]) && !is_incompressible_piece(&[]));
        // 7 bits a byte.
        assert!(!is_incompressible_piece(&random(1 << 20, 127)));
        // Even bytes that repeat.
        assert!(!is_incompressible_piece(&whole[..16 << 10].repeat(64)));
        for offset in [0, (1 << 20) - SAMPLE] {
            let mut mixed = whole.clone();
            mixed[offset..offset + SAMPLE].fill(b' ');
            assert!(!is_incompressible_piece(&mixed), "{offset}");
        }
    }
}
