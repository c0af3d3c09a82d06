//! Decodes base64.

/// Decodes base64 text with its padding; `None` for any other text.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
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
        // Two digits encode one byte, three encode two, four encode three; the remaining bits are ignored.
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
    fn valid_texts_are_decoded_and_others_rejected() {
        for (text, bytes) in
            [("", &b""[..]), ("Zg==", b"f"), ("Zm8=", b"fo"), ("Zm9v", b"foo"), ("/+8=", b"\xff\xef")]
        {
            assert_eq!(decode(text.as_bytes()).as_deref(), Some(bytes), "{text}");
        }
        for text in ["Z", "Zg", "Zg=", "Z===", "Zm9v\n", "Zm 9", "===="] {
            assert_eq!(decode(text.as_bytes()), None, "{text}");
        }
    }
}
