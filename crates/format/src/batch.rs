//! Many stored objects in one answer, for servers that offer it (with the header [`HEADER`] on what they answer).
//!
//! ```text
//!   GET <repository>/.esker/batch/<name>,<name>,…
//!
//!   0  "ESKERBA1"
//!   8  for each name, in the order asked:
//!        length of its stored bytes (8, little endian); all ones: not in this batch, ask for it by itself
//!        the stored bytes
//! ```
//!
//! The frame vouches for nothing: each object is verified by its own hash, and whatever is wrong with the frame, the
//! objects can be had one by one.

use crate::object::ObjectName;

/// The header with which a server says how many objects it puts into one answer.
pub const HEADER: &str = "Esker-Batch";
/// Most objects in one: with the longest names a path of 3.5 KiB, which every proxy takes.
pub const NAMES_MAX: usize = 64;
/// Most bytes of one: a server makes it in memory.
pub const BYTES_MAX: usize = 1 << 20;

const MAGIC: &[u8; 8] = b"ESKERBA1";
const ABSENT: [u8; 8] = [0xff; 8];
const FOLDER: &str = ".esker/batch";

/// Where a batch of these objects is, below the root of the repository.
pub fn path(names: &[ObjectName]) -> String {
    let mut path = FOLDER.to_owned();
    for (at, name) in names.iter().enumerate() {
        path.push(if at == 0 { '/' } else { ',' });
        path.push_str(&name.to_string());
    }
    path
}

/// Reads the names of a batch's path, whose last part is `last`; none if it is anything but what [`path`] writes.
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

/// A batch being made.
#[derive(Debug)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// Begins one.
    pub fn new() -> Self {
        Self(MAGIC.to_vec())
    }

    /// How many bytes of an object still fit, if `after` more are to follow.
    pub fn room(&self, after: usize) -> usize {
        BYTES_MAX.saturating_sub(self.0.len() + ABSENT.len() * (after + 1))
    }

    /// Adds an object.
    pub fn put(&mut self, stored: &[u8]) {
        self.0.extend_from_slice(&(stored.len() as u64).to_le_bytes());
        self.0.extend_from_slice(stored);
    }

    /// Says that an object is not here.
    pub fn leave_out(&mut self) {
        self.0.extend_from_slice(&ABSENT);
    }

    /// The bytes of the answer.
    pub fn finish(self) -> Vec<u8> {
        self.0
    }
}

impl Default for Writer {
    fn default() -> Self {
        Self::new()
    }
}

/// Takes the answer to a request for `count` objects apart; none if it is no such answer, to the last byte.
pub fn split(bytes: &[u8], count: usize) -> Option<Vec<Option<&[u8]>>> {
    let mut rest = bytes.strip_prefix(MAGIC)?;
    // Each object takes its length at least, so `count` allocates no more than the bytes allow.
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
    fn names_read_back() {
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
    fn objects_read_back_whole_or_not_at_all() {
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
    fn what_fits_leaves_room_for_the_rest() {
        let mut writer = Writer::new();
        writer.put(&vec![1; writer.room(2)]);
        assert_eq!(writer.room(1), 0);
        writer.leave_out();
        writer.put(&[]);
        assert_eq!(writer.finish().len(), BYTES_MAX);
    }

    proptest::proptest! {
        #[test]
        fn any_bytes_are_answered(bytes: Vec<u8>, count in 0..100_usize, framed: bool) {
            let bytes = if framed { [MAGIC.as_slice(), &bytes].concat() } else { bytes };
            if let Some(parts) = split(&bytes, count) {
                assert_eq!(parts.len(), count);
                assert_eq!(8 + parts.iter().map(|part| 8 + part.map_or(0, <[u8]>::len)).sum::<usize>(), bytes.len());
            }
        }

        #[test]
        fn any_names_are_answered(last in "[0-9a-fA-F,.PCHMLX -]{0,200}") {
            if let Some(names) = names(&last) {
                assert_eq!(path(&names), format!(".esker/batch/{last}"));
            }
        }
    }
}
