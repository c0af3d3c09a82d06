//! Batches: many stored objects in one answer. A server that supports them sends the header [`HEADER`].
//!
//! ```text
//!   GET <repository>/.esker/batch/<name>,<name>,…
//!
//!   0  "ESKERBA1"
//!   8  for each name, in the order of the request:
//!        length of its stored bytes (8, little endian); all ones: not in this batch, request it alone
//!        the stored bytes
//! ```
//!
//! The frame is not trusted: each object is verified by its own hash, and if the frame is invalid, the client
//! requests the objects one by one.

use crate::object::ObjectName;

/// Header in which a server announces how many objects it puts into one answer.
pub const HEADER: &str = "Esker-Batch";
/// Maximum number of objects in a batch: with the longest names a path of 3.5 KiB, which every proxy accepts.
pub const NAMES_MAX: usize = 64;
/// Maximum length of a batch in bytes: a server builds it in memory.
pub const BYTES_MAX: usize = 1 << 20;

const MAGIC: &[u8; 8] = b"ESKERBA1";
const ABSENT: [u8; 8] = [0xff; 8];
const FOLDER: &str = ".esker/batch";

/// Returns the path of a batch of these objects, below the root of the repository.
pub fn path(names: &[ObjectName]) -> String {
    let mut path = FOLDER.to_owned();
    for (at, name) in names.iter().enumerate() {
        path.push(if at == 0 { '/' } else { ',' });
        path.push_str(&name.to_string());
    }
    path
}

/// Parses the object names of a batch's path, whose last part is `last`; none unless [`path`] would write the
/// same.
pub fn names(last: &str) -> Option<Vec<ObjectName>> {
    let mut names = Vec::new();
    for text in last.split(',') {
        let name = ObjectName::parse(text).filter(|name| name.to_string() == text)?;
        if names.len() == NAMES_MAX {
            return None;
        }
        names.push(name);
    }
    Some(names)
}

/// Builder of a batch.
#[derive(Debug)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Creates an empty batch.
    pub fn new() -> Self {
        Self(MAGIC.to_vec())
    }

    /// Returns the maximum length of an object if `after` more objects follow.
    pub fn room(&self, after: usize) -> usize {
        BYTES_MAX.saturating_sub(self.0.len() + ABSENT.len() * (after + 1))
    }

    /// Adds an object.
    pub fn put(&mut self, stored: &[u8]) {
        self.0.extend_from_slice(&(stored.len() as u64).to_le_bytes());
        self.0.extend_from_slice(stored);
    }

    /// Marks an object as not in this batch.
    pub fn leave_out(&mut self) {
        self.0.extend_from_slice(&ABSENT);
    }

    /// Returns the bytes of the answer.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

/// Splits the answer to a request for `count` objects; none unless all bytes are valid.
pub fn split(bytes: &[u8], count: usize) -> Option<Vec<Option<&[u8]>>> {
    let mut rest = bytes.strip_prefix(MAGIC)?;
    // Each object takes at least the bytes of its length, so `count` can't allocate more than the bytes
    // justify.
    let mut parts = Vec::with_capacity(count.min(rest.len() / ABSENT.len()));
    for _ in 0..count {
        let (len, more) = rest.split_first_chunk::<8>()?;
        if *len == ABSENT {
            parts.push(None);
            rest = more;
            continue;
        }
        let (stored, more) = more.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)?;
        parts.push(Some(stored));
        rest = more;
    }
    rest.is_empty().then_some(parts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::{ContentHash, HashAlgorithm};
    use crate::object::ObjectKind;

    fn name(number: usize) -> ObjectName {
        let algorithm = if number.is_multiple_of(2) { HashAlgorithm::Sha1 } else { HashAlgorithm::Shake128 };
        let kind = if number.is_multiple_of(3) { ObjectKind::Chunk } else { ObjectKind::File };
        ObjectName::new(ContentHash::of(algorithm, &number.to_le_bytes()), kind)
    }

    #[test]
    fn names_survive_encoding() {
        let all: Vec<_> = (0..NAMES_MAX).map(name).collect();
        let long = path(&all);
        assert!(long.len() < 3584, "{}", long.len());
        assert_eq!(names(long.strip_prefix(".esker/batch/").unwrap()).unwrap(), all);
        let one = all[0].to_string();
        for bad in
            [String::new(), format!("{one},"), format!(",{one}"), one.to_uppercase(), format!("{one}T")]
        {
            assert_eq!(names(&bad), None, "{bad}");
        }
        assert_eq!(names(&vec![one; NAMES_MAX + 1].join(",")), None);
    }

    #[test]
    fn a_truncated_batch_is_rejected() {
        let mut writer = Writer::new();
        writer.put(b"one");
        writer.leave_out();
        writer.put(b"");
        writer.put(b"four");
        let bytes = writer.finish();
        assert_eq!(split(&bytes, 4).unwrap(), [Some(&b"one"[..]), None, Some(b""), Some(b"four")]);
        assert!(split(&bytes, 3).is_none() && split(&bytes, 5).is_none());
        for cut in 0..bytes.len() {
            assert_eq!(split(&bytes[..cut], 4), None, "cut at {cut}");
        }
        assert_eq!(split(&Writer::new().finish(), usize::MAX), None);
    }

    #[test]
    fn room_reserves_space_for_the_remaining_objects() {
        let mut writer = Writer::new();
        writer.put(&vec![1; writer.room(2)]);
        assert_eq!(writer.room(1), 0);
        writer.leave_out();
        writer.put(&[]);
        assert_eq!(writer.finish().len(), BYTES_MAX);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_parsed_or_rejected(bytes: Vec<u8>, count in 0..100_usize, framed: bool) {
            let bytes = if framed { [MAGIC.as_slice(), &bytes].concat() } else { bytes };
            if let Some(parts) = split(&bytes, count) {
                assert_eq!(parts.len(), count);
                assert_eq!(8 + parts.iter().map(|part| 8 + part.map_or(0, <[u8]>::len)).sum::<usize>(), bytes.len());
            }
        }

        #[test]
        fn any_names_are_parsed_or_rejected(last in "[0-9a-fA-F,.PCHMLX -]{0,200}") {
            if let Some(names) = names(&last) {
                assert_eq!(path(&names), format!(".esker/batch/{last}"));
            }
        }
    }
}
