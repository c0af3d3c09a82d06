//! Names of objects as records of fixed length, ordered as the folders of the storage are.

use esker_format::hash::{ContentHash, DIGEST_LEN, HashAlgorithm};
use esker_format::object::{ObjectKind, ObjectName};

/// The name of an object: its digest, then one byte for the algorithm and the kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Record(pub(crate) [u8; Record::LEN]);

impl Record {
    pub(crate) const LEN: usize = DIGEST_LEN + 1;

    /// Returns the record of a name.
    pub(crate) fn of(name: &ObjectName) -> Self {
        let mut bytes = [0; Self::LEN];
        let (digest, tag) = bytes.split_at_mut(DIGEST_LEN);
        digest.copy_from_slice(name.hash.digest());
        let kind = ObjectKind::ALL.iter().position(|kind| *kind == name.kind).unwrap_or_default();
        tag.fill(name.hash.algorithm().to_flag() << 4 | u8::try_from(kind).unwrap_or_default());
        Self(bytes)
    }

    /// Returns the name; none if the bytes are no record.
    pub(crate) fn name(&self) -> Option<ObjectName> {
        let (digest, tag) = self.0.split_at(DIGEST_LEN);
        let tag = *tag.first()?;
        let algorithm = HashAlgorithm::from_flag(tag >> 4)?;
        let kind = *ObjectKind::ALL.get(usize::from(tag & 15))?;
        Some(ObjectName::new(ContentHash::new(algorithm, digest.try_into().ok()?), kind))
    }

    /// Returns the first byte of the digest, which names the folder of the object.
    pub(crate) const fn folder(&self) -> u8 {
        let [first, ..] = self.0;
        first
    }
}

/// The number of the only root that leads to an object, or that there are several.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Owner(pub(crate) u32);

impl Owner {
    /// Owner of what several roots lead to.
    pub(crate) const SHARED: Self = Self(u32::MAX);

    /// Returns the common owner for an object of two owners.
    pub(crate) fn with(self, other: Self) -> Self {
        if self == other { self } else { Self::SHARED }
    }

    /// Returns the owner with the number of a root.
    pub(crate) fn of(root: usize) -> Self {
        Self(u32::try_from(root).unwrap_or(u32::MAX))
    }
}

/// A record with its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tagged {
    pub(crate) record: Record,
    pub(crate) owner: Owner,
}

impl Tagged {
    pub(crate) const LEN: usize = Record::LEN + 4;

    /// Returns a record that belongs to no root.
    pub(crate) const fn shared(record: Record) -> Self {
        Self { record, owner: Owner::SHARED }
    }

    pub(crate) fn encode(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.record.0);
        into.extend_from_slice(&self.owner.0.to_le_bytes());
    }

    pub(crate) fn decode(bytes: &[u8; Self::LEN]) -> Self {
        let (record, owner) = bytes.split_at(Record::LEN);
        Self {
            record: Record(record.try_into().unwrap_or([0; Record::LEN])),
            owner: Owner(owner.try_into().map_or(u32::MAX, u32::from_le_bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_records_and_their_order_is_that_of_folders() {
        let mut records = Vec::new();
        for algorithm in [HashAlgorithm::Sha1, HashAlgorithm::Rmd160, HashAlgorithm::Shake128] {
            for kind in ObjectKind::ALL {
                let name = ObjectName::new(ContentHash::of(algorithm, kind.suffix().as_bytes()), kind);
                let record = Record::of(&name);
                assert_eq!(record.name(), Some(name));
                let tagged = Tagged { record, owner: Owner(7) };
                let mut bytes = Vec::new();
                tagged.encode(&mut bytes);
                assert_eq!(Tagged::decode(bytes.as_slice().try_into().unwrap()), tagged);
                records.push(record);
            }
        }
        records.sort_unstable();
        let folders: Vec<String> = records.iter().map(|record| record.name().unwrap().path()).collect();
        let mut sorted = folders.clone();
        sorted.sort_by_key(|path| path.get(..7).unwrap().to_owned());
        assert_eq!(folders, sorted);
        assert_eq!(Record([0xff; Record::LEN]).name(), None);
    }
}
