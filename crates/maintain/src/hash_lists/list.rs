//! The list of one catalog, and its file.
//!
//! ```text
//! magic 8 · revision 8 · time 8 · previous catalog 21 · nested catalogs 8 · objects 8 · records of 21 · SHA-256 of all
//! ```

use esker_format::catalog::{Catalog, CatalogError, EntryKind, Flags};
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::time::UnixTime;
use sha2::{Digest as _, Sha256};

use super::record::Record;

const MAGIC: &[u8; 8] = b"ESKLIST1";
const DIGEST: usize = 32;
/// Stands for "no previous catalog" and "no time".
const NO_RECORD: [u8; Record::LEN] = [0; Record::LEN];
const NO_TIME: i64 = i64::MIN;

/// The objects that a catalog names, and the properties that collecting needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HashList {
    /// Revision of the catalog.
    pub(crate) revision: u64,
    /// Time of the publish.
    pub(crate) modified: Option<UnixTime>,
    /// The version of the same catalog before this one.
    pub(crate) previous: Option<ContentHash>,
    /// Nested catalogs, sorted; bind mountpoints are not among them, since they are roots of their own.
    pub(crate) nested: Vec<Record>,
    /// Files and chunks, sorted.
    pub(crate) objects: Vec<Record>,
}

impl HashList {
    /// Reads the list of a catalog.
    pub(crate) fn of<B: AsRef<[u8]>>(catalog: &Catalog<B>) -> Result<Self, CatalogError> {
        Self::with_sizes(catalog, &mut |_, _| ())
    }

    /// Reads the list of a catalog, and passes each file and chunk with its plain size to `visit`, in no particular
    /// order.
    pub(crate) fn with_sizes<B: AsRef<[u8]>>(
        catalog: &Catalog<B>,
        visit: &mut dyn FnMut(Record, u64),
    ) -> Result<Self, CatalogError> {
        let properties = catalog.properties();
        let mut list = Self {
            revision: properties.revision,
            modified: properties.last_modified,
            previous: properties.previous_revision,
            ..Self::default()
        };
        for row in catalog.scan()? {
            let row = row?;
            let flags = row.flags();
            if flags.has(Flags::EXTERNAL) {
                continue;
            }
            if let Some(hash) = row.hash() {
                let kind = match row.kind() {
                    EntryKind::Directory => ObjectKind::Micro,
                    _ => ObjectKind::File,
                };
                let record = Record::of(&ObjectName::new(hash, kind));
                visit(record, row.size());
                list.objects.push(record);
            }
            if flags.has(Flags::CHUNKED) {
                let chunks = catalog.chunks(&row)?;
                for chunk in chunks.iter() {
                    let record = Record::of(&ObjectName::new(chunk.hash, ObjectKind::Chunk));
                    visit(record, chunk.size);
                    list.objects.push(record);
                }
            }
        }
        let nested = catalog.nested()?.into_iter().filter(|nested| !nested.bind);
        let names = nested.filter_map(|nested| Some(ObjectName::new(nested.hash?, ObjectKind::Catalog)));
        list.nested = names.map(|name| Record::of(&name)).collect();
        for records in [&mut list.nested, &mut list.objects] {
            records.sort_unstable();
            records.dedup();
        }
        Ok(list)
    }

    /// Returns the catalogs below this one.
    pub(crate) fn children(&self) -> impl Iterator<Item = ContentHash> {
        self.nested.iter().filter_map(|record| Some(record.name()?.hash))
    }

    /// Returns the bytes of the file.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let count = self.nested.len() + self.objects.len();
        let mut bytes = Vec::with_capacity(128 + count * Record::LEN);
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&self.revision.to_le_bytes());
        bytes.extend_from_slice(&self.modified.map_or(NO_TIME, |time| time.0).to_le_bytes());
        let previous = self.previous.map(|hash| Record::of(&ObjectName::new(hash, ObjectKind::Catalog)));
        bytes.extend_from_slice(&previous.map_or(NO_RECORD, |record| record.0));
        for records in [&self.nested, &self.objects] {
            bytes.extend_from_slice(&(records.len() as u64).to_le_bytes());
        }
        for record in self.nested.iter().chain(&self.objects) {
            bytes.extend_from_slice(&record.0);
        }
        let digest = Sha256::digest(&bytes);
        bytes.extend_from_slice(&digest);
        bytes
    }

    /// Reads the bytes of a file; none if they are damaged.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (text, digest) = bytes.split_at_checked(bytes.len().checked_sub(DIGEST)?)?;
        if *Sha256::digest(text) != *digest {
            return None;
        }
        let rest = text.strip_prefix(MAGIC)?;
        let (revision, rest) = rest.split_first_chunk::<8>()?;
        let (modified, rest) = rest.split_first_chunk::<8>()?;
        let (previous, rest) = rest.split_first_chunk::<{ Record::LEN }>()?;
        let (nested, rest) = rest.split_first_chunk::<8>()?;
        let (objects, rest) = rest.split_first_chunk::<8>()?;
        let [nested, objects] = [nested, objects].map(|count| u64::from_le_bytes(*count));
        let (records, odd) = rest.as_chunks::<{ Record::LEN }>();
        if !odd.is_empty() || nested.checked_add(objects)? != records.len() as u64 {
            return None;
        }
        let (nested, objects) = records.split_at_checked(usize::try_from(nested).ok()?)?;
        let modified = Some(i64::from_le_bytes(*modified)).filter(|time| *time != NO_TIME);
        let records = |records: &[[u8; Record::LEN]]| records.iter().copied().map(Record).collect();
        Some(Self {
            revision: u64::from_le_bytes(*revision),
            modified: modified.map(UnixTime),
            previous: match *previous {
                NO_RECORD => None,
                bytes => Some(Record(bytes).name()?.hash),
            },
            nested: records(nested),
            objects: records(objects),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_format::hash::HashAlgorithm;

    fn record(number: u8, kind: ObjectKind) -> Record {
        Record::of(&ObjectName::new(ContentHash::of(HashAlgorithm::Sha1, &[number]), kind))
    }

    #[test]
    fn a_list_survives_its_file_and_a_damaged_file_is_refused() {
        let list = HashList {
            revision: 3,
            modified: Some(UnixTime(-5)),
            previous: Some(ContentHash::of(HashAlgorithm::Rmd160, b"before")),
            nested: vec![record(1, ObjectKind::Catalog)],
            objects: vec![record(2, ObjectKind::File), record(3, ObjectKind::Chunk)],
        };
        let bytes = list.encode();
        assert_eq!(HashList::decode(&bytes), Some(list));
        assert_eq!(HashList::decode(&HashList::default().encode()), Some(HashList::default()));
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1;
            assert_eq!(HashList::decode(&damaged), None, "byte {at}");
            assert_eq!(HashList::decode(&bytes[..at]), None, "{at} bytes");
        }
    }
}
