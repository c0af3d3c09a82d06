//! A manifest that parses comes back from its own text, and only the one that was published is ever believed.

use esker_format::blacklist::Blacklist;
use esker_format::letter::Letter;
use esker_format::manifest::Manifest;
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_format::trust::{ClaimedHead, Evidence, TrustError, VerifiedHead, verify};

use super::within;

pub(crate) const PUBLISHED: &[u8] = include_bytes!("../seeds/manifest/published");
pub(crate) const WHITELIST: &[u8] = include_bytes!("../seeds/whitelist/published");
const CERTIFICATE: &[u8] = include_bytes!("../../fixtures/full.test/full.test.crt");
const KEY: &[u8] = include_bytes!("../../fixtures/full.test/full.test.pub");

/// Verifies a head of the fixture.
pub(crate) fn believe(manifest: &[u8], whitelist: &[u8]) -> Result<VerifiedHead, TrustError> {
    verify(&Evidence {
        manifest,
        whitelist,
        certificate: CERTIFICATE,
        keys: &MasterKeys::parse(KEY).expect("the key of the fixture"),
        blacklist: &Blacklist::default(),
        name: &RepositoryName::parse("full.test").expect("a name"),
        // The published whitelist is valid for a hundred years from here.
        now: UnixTime(1_800_000_000),
        seen: None,
    })
}

/// Checks any bytes.
pub fn check(bytes: &[u8]) {
    if let Ok(manifest) = within(bytes, 64, || Manifest::parse(bytes)) {
        let text = manifest.to_text();
        assert_eq!(Manifest::parse(text.as_bytes()).as_ref(), Ok(&manifest));
        let claimed = ClaimedHead::parse(bytes);
        assert_eq!(claimed.is_ok(), manifest.certificate.is_some());
        if worth_verifying(bytes) {
            let head = believe(bytes, WHITELIST);
            assert!(head.is_err() || bytes == PUBLISHED, "a changed manifest was believed");
        }
    } else {
        // Refused before anything costs time.
        assert!(matches!(believe(bytes, WHITELIST), Err(TrustError::Manifest(_))));
    }
}

/// Verifying costs a thousand times as much as parsing, so a text that its printed hash does not fit, which can't
/// get far, is verified in one of 64 cases only.
pub(crate) fn worth_verifying(bytes: &[u8]) -> bool {
    let fits = Letter::split(bytes).is_ok_and(|letter| letter.hash == letter.actual_hash());
    fits || bytes.iter().fold(0u8, |sum, byte| sum.wrapping_mul(31).wrapping_add(*byte)) % 64 == 0
}
