//! Shell patterns over bytes: `*`, `?`, `[a-z]`, `[!a-z]` and `\` before a special character.

/// True if all of `name` matches `pattern`.
pub(crate) fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut rest, mut left) = (pattern, name);
    // Position to retry at if the text behind the last star doesn't match: one byte further.
    let mut retry: Option<(&[u8], &[u8])> = None;
    loop {
        if let Some(after) = rest.strip_prefix(b"*") {
            retry = Some((after, left));
            rest = after;
            continue;
        }
        if rest.is_empty() && left.is_empty() {
            return true;
        }
        if let (Some((byte, tail)), Some(after)) = (left.split_first(), one(rest, left.first())) {
            let _ = byte;
            (rest, left) = (after, tail);
            continue;
        }
        match retry {
            Some((after, [_, tail @ ..])) => {
                retry = Some((after, tail));
                (rest, left) = (after, tail);
            }
            _ => return false,
        }
    }
}

/// Returns the pattern after its first element, if that matches the byte.
fn one<'p>(pattern: &'p [u8], byte: Option<&u8>) -> Option<&'p [u8]> {
    let byte = *byte?;
    match pattern.split_first()? {
        (b'?', rest) => Some(rest),
        (b'[', rest) => match class(rest, byte) {
            Some((true, rest)) => Some(rest),
            Some((false, _)) => None,
            // A bracket that is never closed stands for itself.
            None => (byte == b'[').then_some(rest),
        },
        (b'\\', [escaped, rest @ ..]) => (*escaped == byte).then_some(rest),
        (literal, rest) => (*literal == byte).then_some(rest),
    }
}

/// Returns whether the byte is in the class at the start of `pattern` (after its bracket), and the pattern behind the
/// class.
fn class(pattern: &[u8], byte: u8) -> Option<(bool, &[u8])> {
    let (negated, mut rest) = match pattern {
        [b'!' | b'^', rest @ ..] => (true, rest),
        _ => (false, pattern),
    };
    let mut found = false;
    let mut first = true;
    loop {
        rest = match rest {
            [b']', rest @ ..] if !first => return Some((found != negated, rest)),
            [low, b'-', high, rest @ ..] if *high != b']' => {
                found |= (*low..=*high).contains(&byte);
                rest
            }
            [single, rest @ ..] => {
                found |= *single == byte;
                rest
            }
            [] => return None,
        };
        first = false;
    }
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_match_as_in_a_shell() {
        let cases: [(&str, &str, bool); 16] = [
            ("*.so*", "libc.so.6", true),
            ("*.so", "libc.so.6", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("[a-c]x", "bx", true),
            ("[!a-c]x", "bx", false),
            ("[]]", "]", true),
            ("[", "[", true),
            ("\\*", "*", true),
            ("\\*", "x", false),
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("a*b*c", "a1b2b3c", true),
            ("a*b*c", "a1b2b3", false),
            ("**a", "bba", true),
        ];
        for (pattern, name, expected) in cases {
            assert_eq!(matches(pattern.as_bytes(), name.as_bytes()), expected, "{pattern:?} on {name:?}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let name = vec![b'a'; 5000];
        assert!(!matches(b"*a*a*a*a*a*a*a*a*a*b", &name));
    }
}
