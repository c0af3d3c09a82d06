//! Escapes what a URL or a field of a request can't hold.

use std::fmt::Write as _;

/// Escapes bytes for a path of a URL or a field; leaves the same characters as the reference client.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    let mut escaped = String::with_capacity(bytes.len());
    for byte in bytes {
        if byte.is_ascii_alphanumeric() || b"/:.@+-_~[],".contains(byte) {
            escaped.push(char::from(*byte));
        } else {
            // Writing to a string can't fail.
            let _ = write!(escaped, "%{byte:02X}");
        }
    }
    escaped
}
