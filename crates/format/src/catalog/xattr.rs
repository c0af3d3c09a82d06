//! Encoding of extended attributes in a catalog.
//!
//! ```text
//! version 1          u8 1, u8 count; for each attribute: u8 key length, u8 value length, key, value
//! version 2          u8 2, u8 count; for each attribute: u8 key length, u16 value length, key, value
//! without a version  u32 count;      for each attribute: u16 key length, u32 value length, key, value
//! ```
//!
//! Numbers are little-endian. The reference writes version 2 since 2.14, for lists with a value of more than 255
//! bytes; there may be bytes after the last attribute. The form without a version is that of the publisher cvmfs-bits. It
//! is recognised by its exact length, and only where it isn't one of the others with attributes.

use std::collections::BTreeMap;

/// Longest name of an attribute in versions 1 and 2, and their highest number of attributes.
const BYTE_MAX: usize = u8::MAX as usize;

/// The extended attributes of an entry, sorted by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XattrList {
    attributes: BTreeMap<Box<[u8]>, Box<[u8]>>,
}

/// Reasons why a blob is not a list of extended attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum XattrError {
    /// The blob ends too early.
    #[error("the list of extended attributes is cut off")]
    Truncated,
    /// The version is unknown.
    #[error("the list of extended attributes has the unknown version {0}")]
    Version(u8),
    /// A name is empty or has a zero byte in it.
    #[error("an extended attribute has no usable name")]
    Name,
}

/// Sizes of the length fields of an attribute.
#[derive(Clone, Copy)]
struct Lengths {
    key: usize,
    value: usize,
}

impl XattrList {
    /// Longest name of an attribute that can be encoded, in bytes.
    pub const NAME_MAX: usize = BYTE_MAX;
    /// Longest value of an attribute that can be encoded, in bytes.
    pub const VALUE_MAX: usize = u16::MAX as usize;
    /// Longest value of an attribute that CernVM-FS before 2.14 reads, in bytes.
    pub const SHORT_VALUE_MAX: usize = BYTE_MAX;
    /// Maximum number of attributes that can be encoded.
    pub const COUNT_MAX: usize = BYTE_MAX;

    /// Decodes a blob.
    ///
    /// An error in one attribute is one of the whole list, and the later one of two equal names wins, as in the reference
    /// client.
    pub fn parse(blob: &[u8]) -> Result<Self, XattrError> {
        let versioned = Self::parse_versioned(blob);
        match &versioned {
            Ok(list) if !list.is_empty() => versioned,
            _ => Self::parse_unversioned(blob).or(versioned),
        }
    }

    fn parse_versioned(blob: &[u8]) -> Result<Self, XattrError> {
        let (&[version, count], rest) = blob.split_first_chunk().ok_or(XattrError::Truncated)?;
        let lengths = match version {
            1 => Lengths { key: 1, value: 1 },
            2 => Lengths { key: 1, value: 2 },
            _ => return Err(XattrError::Version(version)),
        };
        // The reference sizes its buffer before it leaves attributes out, so bytes may follow.
        Self::parse_attributes(rest, usize::from(count), lengths).map(|(list, _)| list)
    }

    fn parse_unversioned(blob: &[u8]) -> Result<Self, XattrError> {
        let mut rest = blob;
        let count = number(&mut rest, 4).ok_or(XattrError::Truncated)?;
        let lengths = Lengths { key: 2, value: 4 };
        if rest.len() / (lengths.key + lengths.value) < count {
            return Err(XattrError::Truncated);
        }
        match Self::parse_attributes(rest, count, lengths)? {
            (list, b"") => Ok(list),
            _ => Err(XattrError::Truncated),
        }
    }

    /// Decodes attributes; returns the bytes after them, too.
    fn parse_attributes(
        mut rest: &[u8],
        count: usize,
        lengths: Lengths,
    ) -> Result<(Self, &[u8]), XattrError> {
        let mut attributes = BTreeMap::new();
        for _ in 0..count {
            let key_len = number(&mut rest, lengths.key).ok_or(XattrError::Truncated)?;
            let value_len = number(&mut rest, lengths.value).ok_or(XattrError::Truncated)?;
            let (key, tail) = rest.split_at_checked(key_len).ok_or(XattrError::Truncated)?;
            let (value, tail) = tail.split_at_checked(value_len).ok_or(XattrError::Truncated)?;
            if key.is_empty() || key.contains(&0) {
                return Err(XattrError::Name);
            }
            attributes.insert(key.into(), value.into());
            rest = tail;
        }
        Ok((Self { attributes }, rest))
    }

    /// Encodes the list, in version 2 if a value is longer than version 1 allows.
    ///
    /// Returns `None` for an empty list, since an entry without attributes has no blob, and for one that exceeds
    /// [`Self::COUNT_MAX`], [`Self::NAME_MAX`] or [`Self::VALUE_MAX`].
    pub fn to_blob(&self) -> Option<Vec<u8>> {
        let count = u8::try_from(self.len()).ok().filter(|count| *count > 0)?;
        let is_long = self.attributes.values().any(|value| value.len() > Self::SHORT_VALUE_MAX);
        let mut blob = vec![if is_long { 2 } else { 1 }, count];
        for (key, value) in &self.attributes {
            blob.push(u8::try_from(key.len()).ok()?);
            let [low, high] = u16::try_from(value.len()).ok()?.to_le_bytes();
            blob.push(low);
            blob.extend(is_long.then_some(high));
            blob.extend_from_slice(key);
            blob.extend_from_slice(value);
        }
        Some(blob)
    }

    /// Returns true if clients show the same attributes for two blobs. They show none for one that can't be decoded.
    pub fn shows_same(one: Option<&[u8]>, other: Option<&[u8]>) -> bool {
        let shown = |blob: Option<&[u8]>| blob.and_then(|blob| Self::parse(blob).ok()).unwrap_or_default();
        one == other || shown(one) == shown(other)
    }

    /// Returns the value of an attribute.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.attributes.get(name).map(|value| &**value)
    }

    /// Iterates over names and values.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.attributes.iter().map(|(key, value)| (&**key, &**value))
    }

    /// Returns the number of attributes.
    pub fn len(&self) -> usize {
        self.attributes.len()
    }

    /// Returns true if there are no attributes.
    pub fn is_empty(&self) -> bool {
        self.attributes.is_empty()
    }
}

impl<K: Into<Box<[u8]>>, V: Into<Box<[u8]>>> FromIterator<(K, V)> for XattrList {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Self {
        Self { attributes: pairs.into_iter().map(|(key, value)| (key.into(), value.into())).collect() }
    }
}

/// Takes a little-endian number of `len` bytes from the start of `rest`; none if it has fewer.
fn number(rest: &mut &[u8], len: usize) -> Option<usize> {
    let (bytes, tail) = rest.split_at_checked(len)?;
    *rest = tail;
    bytes
        .iter()
        .rev()
        .try_fold(0_usize, |number, byte| number.checked_mul(256)?.checked_add(usize::from(*byte)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_known_blob_is_decoded() {
        let list = XattrList::parse(b"\x01\x02\x08\x03user.foobar\x06\x00user.a").unwrap();
        assert_eq!(list.get(b"user.foo"), Some(&b"bar"[..]));
        assert_eq!(list.get(b"user.a"), Some(&b""[..]));
        assert_eq!(list.get(b"user.b"), None);
        assert_eq!(list.len(), 2);
        let twice = XattrList::parse(b"\x01\x03\x01\x01ax\x01\x01by\x01\x01az").unwrap();
        assert_eq!(twice.to_blob().unwrap(), b"\x01\x02\x01\x01az\x01\x01by");
    }

    #[test]
    fn version_2_and_the_form_without_a_version_are_decoded() {
        let pairs = |blob: &[u8]| -> Vec<(Vec<u8>, Vec<u8>)> {
            let list = XattrList::parse(blob).unwrap();
            list.iter().map(|(key, value)| (key.to_vec(), value.to_vec())).collect()
        };
        let pair = |key: &str, value: &[u8]| (key.as_bytes().to_vec(), value.to_vec());
        let long = [b'v'; 300];
        let (a, b) = (pair("a", b"x"), pair("b", &long));
        let version_2 = [&b"\x02\x02\x01\x01\x00ax\x01\x2c\x01b"[..], &long].concat();
        assert_eq!(pairs(&version_2), [a.clone(), b.clone()]);
        assert_eq!(XattrList::parse(&version_2).unwrap().to_blob().unwrap(), version_2);
        // Short values only, and bytes after the last attribute.
        assert_eq!(pairs(b"\x02\x01\x01\x01\x00axjunk"), std::slice::from_ref(&a));
        assert_eq!(pairs(b"\x01\x01\x01\x01axjunk"), std::slice::from_ref(&a));
        // The later one of equal names wins.
        assert_eq!(pairs(b"\x02\x02\x01\x01\x00ay\x01\x01\x00ax"), std::slice::from_ref(&a));
        // Without a version, one, two and three attributes look like version 1, version 2 and version 3.
        let bits = |entries: &[(&str, &[u8])]| {
            let mut blob = (entries.len() as u32).to_le_bytes().to_vec();
            for (key, value) in entries {
                blob.extend((key.len() as u16).to_le_bytes());
                blob.extend((value.len() as u32).to_le_bytes());
                blob.extend(key.bytes());
                blob.extend(*value);
            }
            blob
        };
        assert_eq!(pairs(&bits(&[("a", b"x")])), std::slice::from_ref(&a));
        assert_eq!(pairs(&bits(&[("b", &long), ("a", b"x")])), [a.clone(), b.clone()]);
        assert_eq!(pairs(&bits(&[("a", b"y"), ("b", &long), ("a", b"x")])), [a, b]);
        let names: Vec<String> = (0..258).map(|number| format!("n{number}")).collect();
        let many: Vec<(&str, &[u8])> = names.iter().map(|name| (name.as_str(), &b""[..])).collect();
        for count in [256, 257, 258] {
            assert_eq!(pairs(&bits(&many[..count])).len(), count);
        }
        assert_eq!(pairs(&bits(&[])), []);
        // A byte too many, an empty name, and a count that the blob has no room for.
        let whole = bits(&[("a", b"x"), ("b", b"y"), ("c", b"z")]);
        assert_eq!(XattrList::parse(&[&whole[..], b"j"].concat()), Err(XattrError::Version(3)));
        assert_eq!(
            XattrList::parse(&bits(&[("", b"x"), ("b", b""), ("c", b"")])),
            Err(XattrError::Version(3))
        );
        assert_eq!(XattrList::parse(b"\xff\xff\xff\xffabcdef"), Err(XattrError::Version(255)));
        // A count that wrapped to zero shows nothing.
        assert_eq!(pairs(b"\x01\x00\x01\x01ax"), []);
        assert_eq!(pairs(b"\x02\x00\x01\x01\x00ax"), []);
    }

    #[test]
    fn only_lists_with_a_long_value_are_written_as_version_2() {
        for (len, version) in
            [(0, Some(1)), (255, Some(1)), (256, Some(2)), (65_535, Some(2)), (65_536, None)]
        {
            let list: XattrList = [(&b"user.a"[..], vec![7; len])].into_iter().collect();
            let blob = list.to_blob();
            assert_eq!(blob.as_ref().map(|blob| blob[0]), version, "{len}");
            if let Some(blob) = blob {
                assert_eq!(XattrList::parse(&blob), Ok(list), "{len}");
            }
        }
    }

    #[test]
    fn lists_that_show_the_same_are_the_same() {
        let same = |one: &[u8], other: &[u8]| XattrList::shows_same(Some(one), Some(other));
        assert!(same(b"\x01\x02\x01\x01ax\x01\x01by", b"\x02\x02\x01\x01\x00by\x01\x01\x00axjunk"));
        assert!(!same(b"\x01\x01\x01\x01ax", b"\x01\x01\x01\x01ay"));
        assert!(XattrList::shows_same(Some(b"\x09unknown"), None));
        assert!(!XattrList::shows_same(Some(b"\x01\x01\x01\x01ax"), None));
    }

    #[test]
    fn invalid_blobs_are_rejected() {
        for (blob, error) in [
            (&b""[..], XattrError::Truncated),
            (b"\x01", XattrError::Truncated),
            (b"\x03\x00", XattrError::Version(3)),
            (b"\x01\x01\x00\x00", XattrError::Name),
            (b"\x01\x01\x00\x01x", XattrError::Name),
            (b"\x01\x01\x02\x00a\0", XattrError::Name),
            (b"\x01\x01\x02\x00a", XattrError::Truncated),
            (b"\x01\x01\x01\x02ab", XattrError::Truncated),
            (b"\x02\x01\x01\x02\x00ab", XattrError::Truncated),
            (b"\x02\x01\x01\x01", XattrError::Truncated),
            (b"\x02\x01\x00\x01\x00x", XattrError::Name),
            // The second attribute of two spoils the first.
            (b"\x02\x02\x01\x01\x00ax\x01\x09\x00b", XattrError::Truncated),
        ] {
            assert_eq!(XattrList::parse(blob), Err(error), "{blob:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_and_encode_again_or_fail(blob: Vec<u8>) {
            if let Ok(list) = XattrList::parse(&blob) {
                match list.to_blob() {
                    Some(packed) => prop_assert_eq!(XattrList::parse(&packed), Ok(list)),
                    None => prop_assert!(list.is_empty()),
                }
            }
        }

        #[test]
        fn lists_survive_encoding(pairs in proptest::collection::btree_map("[a-z.]{1,9}", proptest::collection::vec(any::<u8>(), 0..400), 1..5)) {
            let list: XattrList =
                pairs.iter().map(|(key, value)| (key.as_bytes(), value.as_slice())).collect();
            prop_assert_eq!(XattrList::parse(&list.to_blob().unwrap()), Ok(list));
        }
    }
}
