//! Encoding of extended attributes in a catalog.
//!
//! ```text
//! 0  version (1)
//! 1  number of attributes
//! 2  key length, value length, key, value   (for each attribute)
//! ```
//!
//! Lengths are single bytes, so 255 is the maximum of each.

const VERSION: u8 = 1;

/// Name and value of an attribute.
type Attribute = (Box<[u8]>, Box<[u8]>);

/// The extended attributes of an entry, in the order of the blob.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct XattrList {
    attributes: Vec<Attribute>,
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

impl XattrList {
    /// Decodes a blob.
    pub fn parse(blob: &[u8]) -> Result<Self, XattrError> {
        let (&[version, count], mut rest) = blob.split_first_chunk().ok_or(XattrError::Truncated)?;
        if version != VERSION {
            return Err(XattrError::Version(version));
        }
        let mut attributes: Vec<Attribute> = Vec::new();
        for _ in 0..count {
            let (&[key_len, value_len], tail) = rest.split_first_chunk().ok_or(XattrError::Truncated)?;
            let (key, tail) = tail.split_at_checked(usize::from(key_len)).ok_or(XattrError::Truncated)?;
            let (value, tail) = tail.split_at_checked(usize::from(value_len)).ok_or(XattrError::Truncated)?;
            if key.is_empty() || key.contains(&0) {
                return Err(XattrError::Name);
            }
            // The later one of two equal names wins, as in the reference client.
            match attributes.iter_mut().find(|(known, _)| **known == *key) {
                Some((_, known)) => *known = value.into(),
                None => attributes.push((key.into(), value.into())),
            }
            rest = tail;
        }
        Ok(Self { attributes })
    }

    /// Encodes the list; none if it is empty, since an entry without attributes has no blob.
    pub fn to_blob(&self) -> Option<Vec<u8>> {
        let count = u8::try_from(self.attributes.len()).ok().filter(|count| *count > 0)?;
        let mut blob = vec![VERSION, count];
        for (key, value) in &self.attributes {
            blob.push(u8::try_from(key.len()).ok()?);
            blob.push(u8::try_from(value.len()).ok()?);
            blob.extend_from_slice(key);
            blob.extend_from_slice(value);
        }
        Some(blob)
    }

    /// Returns the value of an attribute.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.iter().find_map(|(key, value)| (key == name).then_some(value))
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
    fn invalid_blobs_are_rejected() {
        for (blob, error) in [
            (&b""[..], XattrError::Truncated),
            (b"\x01", XattrError::Truncated),
            (b"\x02\x00", XattrError::Version(2)),
            (b"\x01\x01\x00\x00", XattrError::Name),
            (b"\x01\x01\x00\x01x", XattrError::Name),
            (b"\x01\x01\x02\x00a\0", XattrError::Name),
            (b"\x01\x01\x02\x00a", XattrError::Truncated),
            (b"\x01\x01\x01\x02ab", XattrError::Truncated),
        ] {
            assert_eq!(XattrList::parse(blob), Err(error), "{blob:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_decode_and_encode_again_or_fail(blob: Vec<u8>) {
            if let Ok(list) = XattrList::parse(&blob) {
                match list.to_blob() {
                    Some(packed) => {
                        prop_assert!(blob.starts_with(&packed) || blob.get(1) > packed.get(1));
                        prop_assert_eq!(XattrList::parse(&packed), Ok(list));
                    }
                    None => prop_assert!(list.is_empty()),
                }
            }
        }
    }
}
