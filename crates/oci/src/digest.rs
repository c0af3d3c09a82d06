//! Digests, and streams that are verified against them.

use std::fmt;
use std::io::{self, Read};

use sha2::{Digest as _, Sha256, Sha512};

use crate::OciError;

/// Digest of a content, which also names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Digest {
    Sha256(String),
    Sha512(String),
}

impl Digest {
    pub(crate) fn parse(text: &str) -> Result<Self, OciError> {
        let hex = |digits: &str, len| {
            digits.len() == len && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        match text.split_once(':') {
            Some(("sha256", digits)) if hex(digits, 64) => Ok(Self::Sha256(digits.to_owned())),
            Some(("sha512", digits)) if hex(digits, 128) => Ok(Self::Sha512(digits.to_owned())),
            _ => Err(OciError::refused(format!("{text:?}"), "it is no digest of sha256 or sha512")),
        }
    }

    /// Returns the algorithm and the digits, which name a blob's file in a layout.
    pub(crate) fn parts(&self) -> (&'static str, &str) {
        match self {
            Self::Sha256(digits) => ("sha256", digits),
            Self::Sha512(digits) => ("sha512", digits),
        }
    }

    pub(crate) fn check(&self, what: &str, bytes: &[u8]) -> Result<(), OciError> {
        let mut checked = VerifiedReader::new(bytes, self);
        io::copy(&mut checked, &mut io::sink()).map_err(OciError::io(format!("read {what}")))?;
        checked.finish(what)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (algorithm, digits) = self.parts();
        write!(f, "{algorithm}:{digits}")
    }
}

enum Hasher {
    Sha256(Sha256),
    Sha512(Sha512),
}

/// A stream that is hashed while it is read.
pub(crate) struct VerifiedReader<R> {
    inner: R,
    hasher: Hasher,
    expected: Digest,
}

impl<R: Read> VerifiedReader<R> {
    pub(crate) fn new(inner: R, expected: &Digest) -> Self {
        let hasher = match expected {
            Digest::Sha256(_) => Hasher::Sha256(Sha256::new()),
            Digest::Sha512(_) => Hasher::Sha512(Sha512::new()),
        };
        Self { inner, hasher, expected: expected.clone() }
    }

    /// Reads the rest of the stream and compares its digest.
    pub(crate) fn finish(mut self, what: &str) -> Result<(), OciError> {
        io::copy(&mut self, &mut io::sink()).map_err(OciError::io(format!("read {what}")))?;
        let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let found = match self.hasher {
            Hasher::Sha256(hasher) => Digest::Sha256(hex(&hasher.finalize())),
            Hasher::Sha512(hasher) => Digest::Sha512(hex(&hasher.finalize())),
        };
        if found == self.expected {
            return Ok(());
        }
        let (expected, found) = (self.expected.to_string(), found.to_string());
        Err(OciError::Digest { what: what.to_owned(), expected, found })
    }
}

impl<R: Read> Read for VerifiedReader<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let len = self.inner.read(room)?;
        let bytes = room.get(..len).unwrap_or_default();
        match &mut self.hasher {
            Hasher::Sha256(hasher) => hasher.update(bytes),
            Hasher::Sha512(hasher) => hasher.update(bytes),
        }
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_with_another_digest_is_rejected() {
        let empty = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        let digest = Digest::parse(empty).expect("a digest");
        assert_eq!(digest.to_string(), empty);
        digest.check("nothing", b"").expect("the same");
        assert!(digest.check("something", b"x").expect_err("another").to_string().contains(empty));
        let upper = empty.to_uppercase();
        for wrong in ["", "sha256:", "sha1:e3b0", "sha256:../../etc/passwd", upper.as_str()] {
            Digest::parse(wrong).expect_err(wrong);
        }
    }
}
