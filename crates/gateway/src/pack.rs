//! Object packs: many objects in one body, as publishers send them to a gateway.
//!
//! ```text
//! V2\nS<bytes of all objects>\nN<number of objects>\n--\n
//! C <hash and suffix of the kind> <bytes>\n               one line for each object, in the order of the bytes
//! <bytes of all objects>
//! ```
//!
//! The digest of a payload is the SHA-1 of the text above the bytes. Source: `pack.cc` of CernVM-FS.

use std::fmt::Write as _;

use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::object::ObjectName;

/// Maximum number of objects in a pack, and of bytes in the line of one.
const OBJECTS_MAX: usize = 100_000;
const LINE_MAX: usize = 100;
/// Maximum length of the text above the bytes.
pub const HEADER_MAX: usize = OBJECTS_MAX * LINE_MAX;

/// An object in a pack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedObject {
    /// Name that the bytes must have.
    pub name: ObjectName,
    /// Number of stored bytes.
    pub len: u64,
}

/// The text above the bytes of a pack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PackHeader {
    /// Objects in the order of their bytes.
    pub objects: Vec<PackedObject>,
}

/// The header of a pack can't be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PackError {
    /// The header is not of the form above.
    #[error("the header of the pack is damaged: {0}")]
    Damaged(&'static str),
    /// The pack has a file with a name of its own, which could be any path of the storage.
    #[error("the pack has a file named by the sender, and a gateway stores objects by their hash only")]
    Named,
    /// The header is not the one that was signed.
    #[error("the digest of the pack's header is {found}, and {expected} was announced")]
    Digest {
        /// Announced digest.
        expected: String,
        /// Digest of the received header.
        found: String,
    },
}

impl PackHeader {
    /// Parses a header whose digest was announced.
    pub fn parse(text: &[u8], announced: &str) -> Result<Self, PackError> {
        let found = digest(text);
        if found != announced {
            return Err(PackError::Digest { expected: announced.chars().take(64).collect(), found });
        }
        let text = str::from_utf8(text).map_err(|_| PackError::Damaged("it is not text"))?;
        let mut lines = text.lines();
        if lines.next() != Some("V2") {
            return Err(PackError::Damaged("its version is not 2"));
        }
        let mut number = |letter, reason| {
            let line = lines.next().and_then(|line| line.strip_prefix(letter));
            line.and_then(|digits| digits.parse::<u64>().ok()).ok_or(PackError::Damaged(reason))
        };
        let bytes = number('S', "it has no number of bytes")?;
        let count = number('N', "it has no number of objects")?;
        if count > OBJECTS_MAX as u64 {
            return Err(PackError::Damaged("it has too many objects"));
        }
        if lines.next() != Some("--") {
            return Err(PackError::Damaged("its first part has no end"));
        }
        let objects = lines.map(object).collect::<Result<Vec<_>, _>>()?;
        if objects.len() as u64 != count {
            return Err(PackError::Damaged("the number of objects is another one"));
        }
        let sum = objects.iter().try_fold(0_u64, |sum, object| sum.checked_add(object.len));
        if sum != Some(bytes) {
            return Err(PackError::Damaged("the number of bytes is another one"));
        }
        Ok(Self { objects })
    }

    /// Returns the number of bytes of all objects.
    pub fn bytes(&self) -> u64 {
        self.objects.iter().map(|object| object.len).sum()
    }

    /// Returns the text, and the digest to announce.
    pub fn to_text(&self) -> (String, String) {
        let mut text = format!("V2\nS{}\nN{}\n--\n", self.bytes(), self.objects.len());
        for object in &self.objects {
            let _ = writeln!(text, "C {} {}", object.name, object.len);
        }
        let digest = digest(text.as_bytes());
        (text, digest)
    }
}

fn object(line: &str) -> Result<PackedObject, PackError> {
    let damaged = PackError::Damaged("a line of an object can't be read");
    let mut words = line.split(' ');
    match words.next() {
        Some("C") => {}
        Some("N") => return Err(PackError::Named),
        _ => return Err(damaged),
    }
    let (name, len) =
        (words.next().and_then(ObjectName::parse), words.next().and_then(|len| len.parse().ok()));
    match (name, len, words.next()) {
        (Some(name), Some(len), None) => Ok(PackedObject { name, len }),
        _ => Err(damaged),
    }
}

fn digest(text: &[u8]) -> String {
    ContentHash::of(HashAlgorithm::Sha1, text).hex()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(number: u8, len: u64) -> PackedObject {
        let hash = ContentHash::of(HashAlgorithm::Shake128, &[number]);
        PackedObject { name: ObjectName::new(hash, esker_format::object::ObjectKind::Catalog), len }
    }

    #[test]
    fn a_written_header_is_read_again() {
        for objects in [vec![], vec![packed(1, 0)], vec![packed(1, 7), packed(2, u64::from(u32::MAX))]] {
            let header = PackHeader { objects };
            let (text, digest) = header.to_text();
            assert_eq!(PackHeader::parse(text.as_bytes(), &digest), Ok(header));
        }
    }

    /// The form of a pack of one object, written by hand.
    #[test]
    fn a_header_has_the_form_of_the_reference() {
        let hash = ContentHash::of(HashAlgorithm::Sha1, b"x");
        let name = ObjectName::new(hash, esker_format::object::ObjectKind::File);
        let (text, digest) = PackHeader { objects: vec![PackedObject { name, len: 1 }] }.to_text();
        assert_eq!(text, "V2\nS1\nN1\n--\nC 11f6ad8ec52a2984abaafd7c3b516503785c2072 1\n");
        assert_eq!(digest.len(), 40);
    }

    #[test]
    fn damaged_headers_are_refused() {
        let hash = "11f6ad8ec52a2984abaafd7c3b516503785c2072";
        let refused = |text: &str| {
            let digest = digest(text.as_bytes());
            PackHeader::parse(text.as_bytes(), &digest).expect_err(text)
        };
        for text in [
            "",
            "V1\nS0\nN0\n--\n",
            "V2\nN0\nS0\n--\n",
            "V2\nS0\nN0\n",
            "V2\nS0\nN1\n--\n",
            &format!("V2\nS2\nN1\n--\nC {hash} 1\n"),
            &format!("V2\nS1\nN1\n--\nC {hash} 1 x\n"),
            &format!("V2\nS1\nN1\n--\nD {hash} 1\n"),
            &format!("V2\nS{}\nN2\n--\nC {hash} {}\nC {hash} 1\n", u64::MAX, u64::MAX),
            "V2\nS1\nN1\n--\nC ../../etc/passwd 1\n",
            "V2\nS0\nN100001\n--\n",
        ] {
            assert!(matches!(refused(text), PackError::Damaged(_)), "{text}");
        }
        assert_eq!(refused(&format!("V2\nS1\nN1\n--\nN {hash} 1 Li4vc3RhdHM=\n")), PackError::Named);
        let other = PackHeader::parse(b"V2\nS0\nN0\n--\n", hash);
        assert!(matches!(other, Err(PackError::Digest { .. })), "{other:?}");
    }
}
