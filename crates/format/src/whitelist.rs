//! The whitelist, `.cvmfswhitelist`: the publisher certificates that the owner of a repository accepts.
//!
//! ```text
//! YYYYMMDDhhmmss     creation time
//! EYYYYMMDDhhmmss    expiry; minutes and seconds are ignored
//! Nname
//! Vpkcs7             optional: the signature is a PKCS#7 structure elsewhere
//! Wcachain           optional: certificates need a chain to a trusted authority too
//! fingerprints       one per line
//! ```

use crate::hash::ContentHash;
use crate::letter;
use crate::time::UnixTime;

/// Path of the whitelist below the root of the repository.
pub const PATH: &str = ".cvmfswhitelist";

/// Content of a whitelist, parsed but not verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whitelist {
    /// Creation time, if it can be parsed.
    pub created: Option<UnixTime>,
    /// Expiry time.
    pub expires: UnixTime,
    /// Name of the repository, as written.
    pub name: String,
    /// True if the whitelist requires verification with PKCS#7.
    pub pkcs7: bool,
    /// True if the whitelist requires certificates to be checked against certificate authorities.
    pub ca_chain: bool,
    /// Fingerprints of accepted certificates.
    pub fingerprints: Vec<ContentHash>,
}

/// Reasons why a whitelist can't be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhitelistError {
    /// The whitelist is empty.
    #[error("the whitelist is empty")]
    Empty,
    /// The first line is not a time.
    #[error("the whitelist does not start with a time of 14 digits")]
    Created,
    /// The second line is not a time.
    #[error("the second line of the whitelist is not `E` and a time of 14 digits")]
    Expires,
    /// The third line is not a name.
    #[error("the third line of the whitelist is not `N` and the name of a repository")]
    Name,
}

impl Whitelist {
    /// Parses the lines up to the signature.
    pub fn parse(bytes: &[u8]) -> Result<Self, WhitelistError> {
        if bytes.is_empty() {
            return Err(WhitelistError::Empty);
        }
        let text = letter::split_text(bytes).map_or(bytes, |(text, _)| text);
        let mut lines = text.split(|byte| *byte == b'\n').peekable();
        let created = lines.next().filter(|line| line.len() == 14).ok_or(WhitelistError::Created)?;
        let expires = lines
            .next()
            .and_then(|line| UnixTime::parse_compact(line.strip_prefix(b"E")?))
            .ok_or(WhitelistError::Expires)?;
        let name = lines.next().and_then(|line| line.strip_prefix(b"N")).ok_or(WhitelistError::Name)?;
        let pkcs7 = lines.next_if_eq(&&b"Vpkcs7"[..]).is_some();
        let ca_chain = lines.next_if_eq(&&b"Wcachain"[..]).is_some();
        Ok(Self {
            created: UnixTime::parse_compact(created),
            expires,
            name: String::from_utf8_lossy(name).into_owned(),
            pkcs7,
            ca_chain,
            fingerprints: lines.filter_map(ContentHash::from_fingerprint).collect(),
        })
    }

    /// Returns true if the whitelist has expired at `now`. Minutes and seconds are ignored, and it expires at
    /// the start of its last hour.
    pub fn is_expired(&self, now: UnixTime) -> bool {
        now.hour() >= self.expires.hour()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXAMPLE: &str = "20241018080107\n\
        E20241117080107\n\
        Ntest.example.org\n\
        58:C3:41:E0:97:9A:5C:C9:AB:02:80:AC:AC:CE:9B:36:4B:29:83:50 # publisher\n\
        # comment\n\
        58:C3:41:E0:97:9A:5C:C9:AB:02:80:AC:AC:CE:9B:36:4B:29:83:50-RMD160\n\
        --\n\
        58c341e0979a5cc9ab0280acacce9b364b298350\nsignature";

    #[test]
    fn an_example_is_parsed() {
        let whitelist = Whitelist::parse(EXAMPLE.as_bytes()).unwrap();
        assert_eq!(whitelist.name, "test.example.org");
        assert_eq!(whitelist.created, UnixTime::parse_compact(b"20241018080107"));
        assert_eq!(whitelist.fingerprints.len(), 2);
        assert!(!whitelist.pkcs7 && !whitelist.ca_chain);
        let both = EXAMPLE.replace("org\n", "org\nVpkcs7\nWcachain\n");
        let both = Whitelist::parse(both.as_bytes()).unwrap();
        assert!(both.pkcs7 && both.ca_chain);
        assert_eq!(both.fingerprints, whitelist.fingerprints);
        let chain = EXAMPLE.replace("org\n", "org\nWcachain\n");
        assert!(Whitelist::parse(chain.as_bytes()).unwrap().ca_chain);
    }

    #[test]
    fn expiry_ignores_minutes_and_seconds() {
        let whitelist = Whitelist::parse(EXAMPLE.as_bytes()).unwrap();
        let at = |text: &str| whitelist.is_expired(UnixTime::parse_compact(text.as_bytes()).unwrap());
        assert!(!at("20241117075959"));
        assert!(at("20241117080000"));
        assert!(at("20241117080106"));
        assert!(at("20250101000000"));
        assert!(!at("20241001000000"));
    }

    #[test]
    fn invalid_lines_are_rejected() {
        for (from, to, error) in [
            ("20241018080107\n", "2024101808010\n", WhitelistError::Created),
            ("E20241117080107", "20241117080107", WhitelistError::Expires),
            ("E20241117080107", "E20241317080107", WhitelistError::Expires),
            ("Ntest", "test", WhitelistError::Name),
        ] {
            assert_eq!(Whitelist::parse(EXAMPLE.replace(from, to).as_bytes()), Err(error));
        }
        assert_eq!(Whitelist::parse(b""), Err(WhitelistError::Empty));
    }

    proptest! {
        #[test]
        fn any_change_of_a_whitelist_is_parsed_or_rejected(at in 0..EXAMPLE.len(), byte: u8) {
            let mut bytes = EXAMPLE.as_bytes().to_vec();
            bytes[at] = byte;
            if let Ok(whitelist) = Whitelist::parse(&bytes) {
                prop_assert!(whitelist.fingerprints.len() <= 3);
            }
        }
    }
}
