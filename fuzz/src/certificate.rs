//! A certificate that parses has the same fingerprint again, and a key that parses is the same key again.

use esker_format::certificate::Certificate;
use esker_format::hash::HashAlgorithm;
use esker_format::master_keys::MasterKeys;

use super::within;

/// Checks any bytes.
pub fn check(bytes: &[u8]) {
    // Decoding the structure of a certificate copies it several times.
    if let Ok(certificate) = within(bytes, 256, || Certificate::parse(bytes)) {
        let again = [b"some text before\n", bytes].concat();
        let again = Certificate::parse(&again);
        // The text before may have become part of a line that was the start of the certificate.
        if bytes.starts_with(b"-----BEGIN") {
            let again = again.expect("text before a certificate changes nothing");
            for algorithm in [HashAlgorithm::Sha1, HashAlgorithm::Rmd160, HashAlgorithm::Shake128] {
                assert_eq!(again.fingerprint(algorithm), certificate.fingerprint(algorithm));
            }
            assert_eq!(again.subject(), certificate.subject());
        }
    }
    if let Ok(mut keys) = within(bytes, 256, || MasterKeys::parse(bytes)) {
        let (count, id) = (keys.len(), keys.id());
        keys.add(bytes).expect("the same keys again");
        assert_eq!((keys.len(), keys.id()), (count, id));
    }
}
