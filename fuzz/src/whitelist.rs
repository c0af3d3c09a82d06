//! A whitelist lists no more than it has lines, and only the one that was published is ever believed.

use esker_format::whitelist::Whitelist;

use super::manifest::{PUBLISHED, WHITELIST, believe, worth_verifying};
use super::within;

/// Checks any bytes.
pub fn check(bytes: &[u8]) {
    let Ok(whitelist) = within(bytes, 64, || Whitelist::parse(bytes)) else { return };
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
    assert!(whitelist.fingerprints.len() + 3 <= lines);
    for fingerprint in &whitelist.fingerprints {
        let text = fingerprint.to_fingerprint();
        let digits = |text: &[u8]| -> Vec<u8> {
            text.iter().filter(|byte| **byte != b':').map(u8::to_ascii_uppercase).collect()
        };
        let wanted = digits(text.as_bytes());
        assert!(digits(bytes).windows(wanted.len()).any(|window| window == wanted), "{text} is in the text");
    }
    // The expiry is the last line of defence against an old whitelist, so it may not depend on anything else.
    assert!(whitelist.is_expired(whitelist.expires));
    if worth_verifying(bytes) {
        let head = believe(PUBLISHED, bytes);
        assert!(head.is_err() || bytes == WHITELIST, "a changed whitelist was believed");
    }
}
