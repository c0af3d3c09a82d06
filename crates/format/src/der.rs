//! Framing of DER: nested elements of a tag, a length and content.

/// Maximum nesting of elements, deeper than in any certificate.
const DEPTH_MAX: usize = 32;

/// Splits the first element off.
pub(crate) fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    split_content(bytes).map(|(element, _, after)| (element, after))
}

/// Returns the first element, its content, and the bytes after it.
fn split_content(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (&[_tag, length], rest) = bytes.split_first_chunk()?;
    let (header, content) = if length < 0x80 {
        (2, usize::from(length))
    } else {
        // More than four bytes of length would be an element of gigabytes.
        let count = usize::from(length & 0x7f);
        let digits = rest.get(..count).filter(|_| (1..=4).contains(&count))?;
        let content = digits.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        (2 + count, usize::try_from(content).ok()?)
    };
    let (element, after) = bytes.split_at_checked(header.checked_add(content)?)?;
    Some((element, element.get(header..)?, after))
}

/// Returns true if all elements are within those that contain them.
///
/// The certificate decoder allocates by an element's length before it checks that so many bytes exist.
pub(crate) fn fits(bytes: &[u8]) -> bool {
    all_fit(bytes, DEPTH_MAX)
}

fn all_fit(bytes: &[u8], depth: usize) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() {
        let Some((element, content, after)) = split_content(rest) else { return false };
        let constructed = element.first().is_some_and(|tag| tag & 0x20 != 0);
        if constructed && (depth == 0 || !all_fit(content, depth - 1)) {
            return false;
        }
        rest = after;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_are_split() {
        assert_eq!(split(&[0x30, 1, 7, 9]), Some((&[0x30, 1, 7][..], &[9][..])));
        assert_eq!(split(&[0x30, 0x81, 1, 7]), Some((&[0x30, 0x81, 1, 7][..], &[][..])));
        for bytes in [
            &[][..],
            &[0x30],
            &[0x30, 2, 7],
            &[0x30, 0x80, 0, 0],
            &[0x30, 0x85, 0, 0, 0, 0, 1, 7],
            &[0x30, 0x84, 255, 255, 255, 255],
        ] {
            assert_eq!(split(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn inner_elements_must_fit_into_outer_ones() {
        assert!(fits(&[0x30, 5, 0x04, 1, 7, 0x30, 0]));
        // An inner length beyond the outer element, and a missing length.
        assert!(!fits(&[0x30, 3, 0x04, 2, 7, 7]));
        assert!(!fits(&[0x30, 1, 0x04]));
        // The content of a primitive element is not interpreted.
        assert!(fits(&[0x04, 2, 0x30, 9]));
        let deep = (0..40u8).fold(Vec::new(), |inner, _| [vec![0x30, inner.len() as u8], inner].concat());
        assert!(!fits(&deep));
        assert!(fits(&deep[20..]));
    }
}
