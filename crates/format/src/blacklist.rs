//! Blacklist: certificates and revisions that the administrator of a client rejects.
//!
//! One fingerprint per line, or `<name N` for every revision of a repository below `N`. Other lines are
//! skipped, as in the reference client, but counted.

use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use crate::hash::ContentHash;
use crate::keyed_lines::number;
use crate::name::RepositoryName;

/// Certificates and revisions to reject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blacklist {
    fingerprints: Vec<ContentHash>,
    floors: Vec<(Vec<u8>, u64)>,
    skipped: usize,
}

impl Blacklist {
    /// Reads a blacklist.
    pub fn parse(text: &[u8]) -> Self {
        let mut list = Self::default();
        list.add(text);
        list
    }

    /// Adds the lines of another blacklist.
    pub fn add(&mut self, text: &[u8]) {
        for line in text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii) {
            if let Some(floor) = parse_floor(line) {
                self.floors.push(floor);
            } else if let Some(fingerprint) = ContentHash::from_fingerprint(line) {
                self.fingerprints.push(fingerprint);
            } else if !line.is_empty() && !line.starts_with(b"#") {
                self.skipped += 1;
            }
        }
    }

    /// Returns the rejected certificates.
    pub fn fingerprints(&self) -> &[ContentHash] {
        &self.fingerprints
    }

    /// Returns the first revision of a repository that is not rejected.
    pub fn floor(&self, name: &RepositoryName) -> Option<u64> {
        let own = self.floors.iter().filter(|(listed, _)| listed == name.as_str().as_bytes());
        own.map(|(_, floor)| *floor).max()
    }

    /// Returns the number of lines that were neither fingerprint, revision, comment nor empty.
    pub const fn skipped(&self) -> usize {
        self.skipped
    }
}

impl fmt::Display for Blacklist {
    /// Writes what [`Blacklist::parse`] reads again, without the lines that it skipped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fingerprints.iter().try_for_each(|one| writeln!(f, "{}", one.to_fingerprint()))?;
        let name = |name| String::from_utf8_lossy(name).into_owned();
        self.floors.iter().try_for_each(|(listed, floor)| writeln!(f, "<{} {floor}", name(listed)))
    }
}

impl FromStr for Blacklist {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Self::parse(text.as_bytes()))
    }
}

/// Parses `<name N`.
fn parse_floor(line: &[u8]) -> Option<(Vec<u8>, u64)> {
    let rest = line.strip_prefix(b"<")?;
    let end = rest.iter().position(|byte| matches!(byte, b' ' | b'\t'))?;
    let (name, value) = rest.split_at_checked(end)?;
    Some((name.to_vec(), number(value.trim_ascii())?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fingerprints_and_revisions_are_parsed_and_other_lines_counted() {
        let text = b"# refused\n\
            58:C3:41:E0:97:9A:5C:C9:AB:02:80:AC:AC:CE:9B:36:4B:29:83:50 # stolen\n\
            <full.test 7\n<full.test \t 3\n<other.test 9 x\n<other.test>\nnonsense\n\n\
            58:C3:41:E0:97:9A:5C:C9:AB:02:80:AC:AC:CE:9B:36:4B:29:83:51-SHAKE128\n";
        let list = Blacklist::parse(text);
        assert_eq!(list.fingerprints().len(), 2);
        assert_eq!(list.floor(&RepositoryName::parse("full.test").unwrap()), Some(7));
        assert_eq!(list.floor(&RepositoryName::parse("other.test").unwrap()), None);
        assert_eq!(list.skipped(), 3);
        let again = Blacklist::parse(list.to_string().as_bytes());
        assert_eq!((again.fingerprints, again.floors, again.skipped), (list.fingerprints, list.floors, 0));
    }
}
