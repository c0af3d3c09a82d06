//! Lines whose first byte is a key and whose rest is its value, up to a line that is exactly `--`.

use std::collections::BTreeMap;

/// Parses the lines; the last value of a repeated key wins. A last line without line end is ignored.
pub(crate) fn parse(text: &[u8]) -> BTreeMap<u8, &[u8]> {
    let mut values = BTreeMap::new();
    let mut rest = text;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, after) = rest.split_at_checked(end).unwrap_or((rest, &[]));
        if line == b"--" {
            break;
        }
        if let Some((key, value)) = line.split_first() {
            values.insert(*key, value);
        }
        rest = after.get(1..).unwrap_or_default();
    }
    values
}

/// Parses an unsigned decimal number without sign or blanks.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_keys_and_the_end_mark_are_handled() {
        let values = parse(b"Aone\n\nB\nAtwo\nC\xff\n--\nDlate\n");
        assert_eq!(values, BTreeMap::from([(b'A', &b"two"[..]), (b'B', b""), (b'C', b"\xff")]));
        assert_eq!(parse(b"Aone\nBtwo"), BTreeMap::from([(b'A', &b"one"[..])]));
        assert_eq!(number(b"18446744073709551615"), Some(u64::MAX));
        for text in [&b""[..], b"+1", b"1 ", b"18446744073709551616", b"x"] {
            assert_eq!(number(text), None);
        }
    }
}
