//! PEM: binary structures as text between `-----BEGIN x-----` and `-----END x-----`.

/// The decoded blocks whose label is one of `labels`, in their order. Blocks that are not base64 are left out.
pub(crate) fn blocks(text: &[u8], labels: &[&str]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut lines = text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    while let Some(line) = lines.next() {
        let Some(label) = boundary(line, "BEGIN") else { continue };
        let mut base64 = Vec::new();
        for line in lines.by_ref() {
            if boundary(line, "END").is_some() {
                if labels.iter().any(|wanted| wanted.as_bytes() == label) {
                    found.extend(decode_base64(&base64));
                }
                break;
            }
            base64.extend_from_slice(line);
        }
    }
    found
}

fn boundary<'l>(line: &'l [u8], word: &str) -> Option<&'l [u8]> {
    line.strip_prefix(b"-----")?.strip_prefix(word.as_bytes())?.strip_prefix(b" ")?.strip_suffix(b"-----")
}

fn decode_base64(text: &[u8]) -> Option<Vec<u8>> {
    let digits = text.strip_suffix(b"==").or_else(|| text.strip_suffix(b"=")).unwrap_or(text);
    if !text.len().is_multiple_of(4) || digits.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3);
    for group in digits.chunks(4) {
        let mut bits = 0u32;
        for digit in group {
            bits = bits << 6 | base64_digit(*digit)?;
        }
        // Two digits are one byte, three are two, four are three; the bits left over say nothing.
        let whole = bits << (6 * (4 - group.len()));
        let [_, first, second, third] = whole.to_be_bytes();
        bytes.extend([first, second, third].iter().take(group.len() - 1));
    }
    Some(bytes)
}

fn base64_digit(digit: u8) -> Option<u32> {
    let value = match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    };
    Some(u32::from(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_by_label() {
        let text = b"noise\n-----BEGIN A-----\naGVsbG8=\n-----END A-----\n-----BEGIN B-----\r\naGVs\r\nbG8h\r\n-----END B-----\r\n-----BEGIN A-----\n!!!!\n-----END A-----\n-----BEGIN A-----\naGVs";
        assert_eq!(blocks(text, &["A"]), [b"hello".to_vec()]);
        assert_eq!(blocks(text, &["B"]), [b"hello!".to_vec()]);
        assert_eq!(blocks(text, &["A", "B"]).len(), 2);
    }

    #[test]
    fn base64() {
        for (text, bytes) in
            [("", &b""[..]), ("Zg==", b"f"), ("Zm8=", b"fo"), ("Zm9v", b"foo"), ("/+8=", b"\xff\xef")]
        {
            assert_eq!(decode_base64(text.as_bytes()).as_deref(), Some(bytes), "{text}");
        }
        for text in ["Z", "Zg", "Zg=", "Z===", "Zm9v\n", "Zm 9", "===="] {
            assert_eq!(decode_base64(text.as_bytes()), None, "{text}");
        }
    }
}
