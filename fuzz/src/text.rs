//! Names and hashes that parse are written as they were read; lists skip what they don't know; symlinks expand
//! to themselves where there is nothing to expand.

use esker_format::blacklist::Blacklist;
use esker_format::catalog::symlink;
use esker_format::hash::ContentHash;
use esker_format::letter::Letter;
use esker_format::metainfo::{Metainfo, ServerStatus};
use esker_format::name::RepositoryName;
use esker_format::object::ObjectName;
use esker_format::time::UnixTime;

use super::within;

/// Checks any bytes.
pub fn check(bytes: &[u8]) {
    if let Some(hash) = ContentHash::from_text_bytes(bytes) {
        assert_eq!(hash.to_string().as_bytes(), bytes);
    }
    if let Some(hash) = ContentHash::from_fingerprint(bytes) {
        assert_eq!(ContentHash::from_fingerprint(hash.to_fingerprint().as_bytes()), Some(hash));
    }
    if let Some(time) = UnixTime::parse_compact(bytes) {
        assert_eq!(UnixTime::parse_compact(time.to_compact().as_bytes()), Some(time));
    }
    if let Ok(text) = std::str::from_utf8(bytes) {
        if let Ok(name) = RepositoryName::parse(text) {
            assert_eq!(name.as_str(), text);
        }
        if let Some(name) = ObjectName::parse(text) {
            assert_eq!(name.to_string(), text);
            assert!(name.path().starts_with("data/") && !name.path().contains(".."));
        }
    }
    if let Ok(letter) = Letter::split(bytes) {
        let whole = [letter.text, b"--\n", letter.printed, b"\n", letter.signature].concat();
        assert_eq!(whole, bytes);
    }
    let list = within(bytes, 64, || Blacklist::parse(bytes));
    let lines = bytes.iter().filter(|byte| **byte == b'\n').count() + 1;
    assert!(list.fingerprints().len() + list.skipped() <= lines);
    // A JSON value of two bytes becomes one of dozens.
    let _ = within(bytes, 512, || Metainfo::parse(bytes));
    let _ = within(bytes, 512, || ServerStatus::parse(bytes));
    check_symlink(bytes);
}

fn check_symlink(target: &[u8]) {
    let unset = symlink::expand(target, |_| None);
    assert!(unset.len() <= target.len());
    let opened = target.windows(2).position(|pair| pair == b"$(");
    if opened.is_none_or(|at| !target[at..].contains(&b')')) {
        assert_eq!(&*unset, target);
    }
    // No variable may be asked for that is not in the text.
    let _ = symlink::expand(target, |name| {
        assert!(name.is_empty() || target.windows(name.len()).any(|window| window == name));
        Some(b"$(X)".to_vec())
    });
}
