//! Encodes and decodes base64.

use base64ct::{Base64, Encoding};

/// Returns bytes as base64 text with its padding.
pub(crate) fn encode(bytes: &[u8]) -> String {
    Base64::encode_string(bytes)
}

/// Decodes base64 text with its padding; `None` for any other text.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    Base64::decode_vec(std::str::from_utf8(text).ok()?).ok()
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
