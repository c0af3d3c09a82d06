//! Frame around signed text, which manifests and whitelists share.
//!
//! The text comes first, in lines with line ends. The line `--` ends it. The next line is the hash of the
//! text in text form; the binary signature follows, to the end of the file.

use crate::hash::ContentHash;

/// A signed text, split into its parts but not verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Letter<'a> {
    /// The signed text.
    pub text: &'a [u8],
    /// Hash of the text as printed by the signer, which the signature covers.
    pub printed: &'a [u8],
    /// Parsed value of that hash.
    pub hash: ContentHash,
    /// Signature of the printed hash.
    pub signature: &'a [u8],
}

/// Reasons why bytes are not a signed text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LetterError {
    /// The text has no line `--`, which precedes a signature.
    #[error("it has no signature")]
    Unsigned,
    /// The line after `--` is not a hash.
    #[error("its signature does not start with a hash")]
    NoHash,
    /// Nothing follows the hash.
    #[error("its signature is cut off")]
    NoSignature,
}

const SEPARATOR: &[u8] = b"\n--\n";

impl<'a> Letter<'a> {
    /// Splits a signed text at its first line `--`.
    pub fn split(bytes: &'a [u8]) -> Result<Self, LetterError> {
        let (text, rest) = split_text(bytes).ok_or(LetterError::Unsigned)?;
        let end = rest.iter().position(|byte| *byte == b'\n').ok_or(LetterError::NoHash)?;
        let (printed, rest) = rest.split_at_checked(end).ok_or(LetterError::NoHash)?;
        let hash = ContentHash::from_text_bytes(printed).ok_or(LetterError::NoHash)?;
        let signature = rest.get(1..).unwrap_or_default();
        if signature.is_empty() {
            return Err(LetterError::NoSignature);
        }
        Ok(Self { text, printed, hash, signature })
    }

    /// Returns the actual hash of the text.
    pub fn actual_hash(&self) -> ContentHash {
        ContentHash::of(self.hash.algorithm(), self.text)
    }
}

/// Returns the text before the line `--`, and the bytes after that line.
pub(crate) fn split_text(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = bytes.windows(SEPARATOR.len()).position(|window| window == SEPARATOR)?;
    Some((bytes.get(..=at)?, bytes.get(at + SEPARATOR.len()..)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signed_text_is_split_into_its_parts() {
        let letter =
            Letter::split(b"Ca\nBb\n--\nda39a3ee5e6b4b0d3255bfef95601890afd80709\nsig\n--\n").unwrap();
        assert_eq!(letter.text, b"Ca\nBb\n");
        assert_eq!(letter.printed, b"da39a3ee5e6b4b0d3255bfef95601890afd80709");
        assert_eq!(letter.signature, b"sig\n--\n");
        assert_ne!(letter.actual_hash(), letter.hash);
    }

    #[test]
    fn incomplete_texts_are_rejected() {
        for (bytes, error) in [
            (&b""[..], LetterError::Unsigned),
            (b"--\nda39a3ee5e6b4b0d3255bfef95601890afd80709\nsig", LetterError::Unsigned),
            (b"C\n--\n", LetterError::NoHash),
            (b"C\n--\nda39\nsig", LetterError::NoHash),
            (b"C\n--\nda39a3ee5e6b4b0d3255bfef95601890afd80709", LetterError::NoHash),
            (b"C\n--\nda39a3ee5e6b4b0d3255bfef95601890afd80709\n", LetterError::NoSignature),
        ] {
            assert_eq!(Letter::split(bytes), Err(error), "{bytes:?}");
        }
    }
}
