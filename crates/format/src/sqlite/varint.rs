//! Variable-length integers: seven bits per byte, most significant first; the ninth byte has eight bits.

/// Decodes an integer; returns it and the bytes after it.
#[inline(always)]
pub(super) fn read(bytes: &[u8]) -> Option<(u64, &[u8])> {
    match bytes.split_first() {
        // Nearly all are short.
        Some((&first, rest)) if first < 0x80 => Some((u64::from(first), rest)),
        Some(_) => read_long(bytes),
        None => None,
    }
}

fn read_long(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    let mut rest = bytes;
    for _ in 0..8 {
        let (&byte, tail) = rest.split_first()?;
        rest = tail;
        value = value << 7 | u64::from(byte & 0x7f);
        if byte < 0x80 {
            return Some((value, rest));
        }
    }
    let (&last, rest) = rest.split_first()?;
    Some((value << 8 | u64::from(last), rest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn write(value: u64) -> Vec<u8> {
        if value >> 56 != 0 {
            let mut bytes: Vec<u8> = (0..8).map(|i| (value >> (8 + 7 * (7 - i))) as u8 | 0x80).collect();
            bytes.push(value as u8);
            return bytes;
        }
        let mut bytes = vec![(value & 0x7f) as u8];
        let mut rest = value >> 7;
        while rest > 0 {
            bytes.insert(0, (rest & 0x7f) as u8 | 0x80);
            rest >>= 7;
        }
        bytes
    }

    #[test]
    fn extreme_values_are_decoded() {
        assert_eq!(read(&[0xff; 9]), Some((u64::MAX, &[][..])));
        assert_eq!(read(&[0xff; 8]), None);
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[0x81, 0x00, 7]), Some((128, &[7][..])));
    }

    proptest! {
        #[test]
        fn written_integers_are_decoded(value: u64, shift in 0u32..64) {
            let value = value >> shift;
            let bytes = write(value);
            prop_assert!(bytes.len() <= 9);
            prop_assert_eq!(read(&bytes), Some((value, &[][..])));
            prop_assert_eq!(read(&bytes[..bytes.len() - 1]), None);
        }
    }
}
