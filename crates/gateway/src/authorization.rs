//! Signatures of requests by the key that a publisher and the gateway share.
//!
//! ```text
//! Authorization: KEY-ID base64(lower-case hex of HMAC-SHA1(secret, input))
//! ```
//!
//! The input is the body of a request for a lease, the leading JSON of a payload, the token of a lease, or the path of the
//! URL: each kind of request has one. Source: `gateway/` of CernVM-FS.

use std::fmt::Write as _;

use base64ct::{Base64, Encoding as _};
use hmac::{Hmac, Mac as _};
use sha1::Sha1;

/// Number of bytes of a signature.
const LEN: usize = 20;

/// Signature of a request, with the name of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorization {
    /// Name of the key.
    pub key: String,
    signature: [u8; LEN],
}

impl Authorization {
    /// Signs an input.
    pub fn sign(key: &str, secret: &[u8], input: &[u8]) -> Self {
        let signature = mac(secret, input).finalize().into_bytes().into();
        Self { key: key.to_owned(), signature }
    }

    /// Parses the value of the header; none if it has another form.
    pub fn parse(header: &str) -> Option<Self> {
        let mut words = header.split_ascii_whitespace();
        let (key, text) = (words.next()?, words.next()?);
        if words.next().is_some() {
            return None;
        }
        let mut digits = [0; LEN * 2];
        let digits = Base64::decode(text, &mut digits).ok()?;
        let mut signature = [0; LEN];
        if digits.len() != LEN * 2 {
            return None;
        }
        for (byte, pair) in signature.iter_mut().zip(digits.chunks_exact(2)) {
            // A sign is no digit, which `from_str_radix` would allow.
            let pair = str::from_utf8(pair).ok().filter(|pair| !pair.starts_with('+'))?;
            *byte = u8::from_str_radix(pair, 16).ok()?;
        }
        Some(Self { key: key.to_owned(), signature })
    }

    /// Returns the value of the header.
    pub fn header(&self) -> String {
        let mut digits = String::with_capacity(LEN * 2);
        for byte in self.signature {
            let _ = write!(digits, "{byte:02x}");
        }
        format!("{} {}", self.key, Base64::encode_string(digits.as_bytes()))
    }

    /// Returns true if the signature is that of an input. The time that it takes tells nothing about the right one.
    pub fn is_of(&self, secret: &[u8], input: &[u8]) -> bool {
        mac(secret, input).verify_slice(&self.signature).is_ok()
    }
}

fn mac(secret: &[u8], input: &[u8]) -> Hmac<Sha1> {
    Hmac::new_from_slice(secret)
        .expect("a secret of any length is allowed by the definition of HMAC")
        .chain_update(input)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the reference's gateway accepted for key `k1` with secret `s1`.
    #[test]
    fn a_signature_is_that_of_the_reference() {
        let body = br#"{"path" : "t.test.io/a/b", "api_version" : "2", "hostname" : "h1"}"#;
        let header = "k1 NWQ3MTZkYmNlOGUwMmEwZjZkZjg0MTIxZjViZWM0ZTY5OWMxMGFjNQ==";
        let signed = Authorization::sign("k1", b"s1", body);
        assert_eq!(signed.header(), header);
        let parsed = Authorization::parse(header).unwrap();
        assert_eq!(parsed, signed);
        assert!(parsed.is_of(b"s1", body));
        assert!(!parsed.is_of(b"s2", body) && !parsed.is_of(b"s1", b"") && !parsed.is_of(b"", body));
    }

    #[test]
    fn other_forms_are_refused() {
        for header in [
            "",
            "k1",
            "k1 NWQ3MTZkYmNlOGUwMmEwZjZkZjg0MTIxZjViZWM0ZTY5OWMxMGFjNQ== x",
            "k1 XXX",
            "k1 XRcbzY4CoPbfhBIfW+xOaZwQrMU=",
            "k1 KzUrNSs1KzUrNSs1KzUrNSs1KzUrNSs1KzUrNSs1KzUrNSs1KzUrNQ==",
        ] {
            assert_eq!(Authorization::parse(header), None, "{header}");
        }
    }
}
