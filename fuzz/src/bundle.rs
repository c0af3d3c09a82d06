//! A bundle or profile that parses comes back from its own text, and neither takes more than its bounds.

use esker_format::bundle::{Bundle, FILES_MAX, READS_MAX};
use esker_format::profile::Profile;
use esker_format::write::bundle::BundleDraft;

use super::within;

/// Checks any bytes.
pub fn check(bytes: &[u8]) {
    if let Ok(profile) = within(bytes, 64, || Profile::parse(bytes)) {
        assert_eq!(Profile::parse(&profile.to_json()).expect("our own text"), profile);
    }
    let directory = [b"/d", &b"/n".repeat(bytes.len() % 64)[..]].concat();
    // A relative path of one letter becomes one in that directory.
    let Ok(bundle) = within(bytes, 256, || Bundle::parse(bytes, &directory)) else { return };
    assert!(bundle.files.len() <= FILES_MAX && bundle.reads.len() <= READS_MAX + FILES_MAX);
    let mut draft = BundleDraft::new();
    let mut read = vec![false; bundle.files.len()];
    for step in &bundle.reads {
        let path = &bundle.files[step.file];
        read[step.file] = true;
        assert!(path.starts_with(b"/") && !path.windows(2).any(|pair| pair == b"//"));
        draft.push(path, step.range.clone());
    }
    assert!(read.iter().all(|read| *read), "every file is read");
    let again = Bundle::parse(&draft.finish(), b"").expect("our own text");
    assert_eq!(again, draft.bundle());
}
