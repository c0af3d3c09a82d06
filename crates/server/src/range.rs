//! Byte ranges, as RFC 9110 section 14 has them.

use std::ops::Range;

/// Maximum number of ranges in one request; with more the whole file is sent.
const RANGES_MAX: usize = 16;

/// Parts of a file to send.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestedRange {
    Whole,
    Parts(Vec<Range<u64>>),
    /// No range is in the file.
    Unsatisfiable,
}

/// Reads the value of a `Range` field for a file of `len` bytes; one that isn't understood is ignored.
pub(crate) fn wanted(value: &str, len: u64) -> RequestedRange {
    let Some(list) = value.strip_prefix("bytes=") else { return RequestedRange::Whole };
    let mut parts = Vec::new();
    let mut asked = 0;
    for element in elements(list) {
        asked += 1;
        match range(element, len) {
            None => return RequestedRange::Whole,
            Some(range) if range.is_empty() => {}
            Some(range) => parts.push(range),
        }
    }
    let total: u64 = parts.iter().map(|part| part.end - part.start).fold(0, u64::saturating_add);
    match parts.len() {
        0 if asked == 0 => RequestedRange::Whole,
        0 => RequestedRange::Unsatisfiable,
        1 => RequestedRange::Parts(parts),
        // Overlapping ranges could multiply the file; if they need more than the file, the whole file is sent.
        more if more > RANGES_MAX || total > len => RequestedRange::Whole,
        _ => RequestedRange::Parts(parts),
    }
}

/// Parses one range; empty if it is outside the file, `None` if it is malformed.
fn range(text: &str, len: u64) -> Option<Range<u64>> {
    let (first, last) = text.split_once('-')?;
    let (first, last) = (first.trim(), last.trim());
    if first.is_empty() {
        let suffix = number(last)?;
        return Some(len.saturating_sub(suffix)..len);
    }
    let first = number(first)?;
    let end = if last.is_empty() { len } else { number(last)?.saturating_add(1) };
    if !last.is_empty() && end <= first {
        return None;
    }
    Some(first.min(len)..end.min(len))
}

/// Parses a number; a too large one becomes the largest.
fn number(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().unwrap_or(u64::MAX))
}

/// Returns the elements of a comma-separated list.
pub(crate) fn elements(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|element| !element.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_parsed() {
        let part = |range: Range<u64>| RequestedRange::Parts(vec![range]);
        for (value, len, expected) in [
            ("bytes=0-0", 10, part(0..1)),
            ("bytes=2-5", 10, part(2..6)),
            ("bytes=2-", 10, part(2..10)),
            ("bytes=-3", 10, part(7..10)),
            ("bytes=-30", 10, part(0..10)),
            ("bytes=5-99999999999999999999999", 10, part(5..10)),
            ("bytes=0-1,4-5, 9-", 10, RequestedRange::Parts(vec![0..2, 4..6, 9..10])),
            ("bytes=0-1,50-60", 10, part(0..2)),
            ("bytes=10-", 10, RequestedRange::Unsatisfiable),
            ("bytes=-0", 10, RequestedRange::Unsatisfiable),
            ("bytes=0-0", 0, RequestedRange::Unsatisfiable),
            ("bytes=-5", 0, RequestedRange::Unsatisfiable),
            ("bytes=0-,0-,0-", 10, RequestedRange::Whole),
            ("bytes=5-4", 10, RequestedRange::Whole),
            ("bytes=", 10, RequestedRange::Whole),
            ("bytes=x", 10, RequestedRange::Whole),
            ("bytes=-", 10, RequestedRange::Whole),
            ("bytes=+1-2", 10, RequestedRange::Whole),
            ("lines=0-1", 10, RequestedRange::Whole),
        ] {
            assert_eq!(wanted(value, len), expected, "{value} of {len}");
        }
        let many: Vec<String> = (0..17).map(|at| format!("{}-{}", at * 10, at * 10)).collect();
        assert_eq!(wanted(&format!("bytes={}", many.join(",")), 1000), RequestedRange::Whole);
    }

    proptest::proptest! {
        #[test]
        fn parsed_ranges_are_within_the_file(value in "bytes=([0-9]{0,3}-[0-9]{0,3},?){0,5}", len in 0u64..500) {
            if let RequestedRange::Parts(parts) = wanted(&value, len) {
                let total: u64 = parts.iter().map(|part| { assert!(part.start < part.end && part.end <= len); part.end - part.start }).sum();
                assert!(total <= len);
            }
        }
    }
}
