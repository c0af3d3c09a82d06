//! Records of what a view must know to go on for another process, in a journal that outlives both.
//!
//! The kernel has cached names and attributes of one revision, so a view that takes over begins with that revision, and
//! must know of which catalogs the kernel may have entries. A record begins with its kind:
//!
//! ```text
//! r  revision shown      serial 8, number 8, published 8, size of the root catalog 8, hash 21, tag
//! s  catalog used        serial 8, size 8, hash 21, mountpoint
//! b  bound mountpoint    path
//! v  vanished directory  key 16
//! x  a change of the revision has begun, so the kernel may have entries of two
//! ```

use std::sync::Arc;

use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_journal::{Journal, put};
use esker_vfs::NodeKey;

/// Stands for an absent number.
const NONE: u64 = u64::MAX;

/// The revision that a view shows.
pub(crate) struct ShownRevision<'a> {
    pub(crate) serial: u64,
    pub(crate) number: u64,
    pub(crate) published: Option<u64>,
    pub(crate) tag: Option<&'a str>,
    pub(crate) root: ContentHash,
}

/// Replaces the journal by a revision that the view shows from now on. A failure makes the journal invalid, and then no
/// other process takes over.
pub(crate) fn begin(
    journal: &Journal,
    shown: &ShownRevision<'_>,
    seen: impl FnOnce() -> Vec<Vec<u8>>,
    bound: impl FnOnce() -> Vec<Arc<[u8]>>,
    vanished: impl Iterator<Item = NodeKey>,
) {
    let _ = journal.replace(|bytes| {
        let mut record = vec![b'r'];
        for number in [shown.serial, shown.number, shown.published.unwrap_or(NONE), NONE] {
            record.extend_from_slice(&number.to_le_bytes());
        }
        put_hash(&mut record, shown.root);
        record.extend_from_slice(shown.tag.unwrap_or_default().as_bytes());
        put(bytes, &record);
        seen().iter().for_each(|record| put(bytes, record));
        bound().iter().for_each(|path| put(bytes, &of_bound(path)));
        vanished.for_each(|key| put(bytes, &[&b"v"[..], &key.0].concat()));
    });
}

/// Records that answers may come from another revision from now on.
pub(crate) fn begin_change(journal: &Journal) {
    let _ = journal.append(b"x");
}

/// Returns the record of a catalog used in the revision with this serial number.
pub(crate) fn of_seen(path: &[u8], hash: ContentHash, size: Option<u64>, serial: u64) -> Vec<u8> {
    let mut record = vec![b's'];
    record.extend_from_slice(&serial.to_le_bytes());
    record.extend_from_slice(&size.unwrap_or(NONE).to_le_bytes());
    put_hash(&mut record, hash);
    record.extend_from_slice(path);
    record
}

/// Returns the record of a bound mountpoint.
pub(crate) fn of_bound(path: &[u8]) -> Vec<u8> {
    [b"b", path].concat()
}

fn put_hash(record: &mut Vec<u8>, hash: ContentHash) {
    record.push(hash.algorithm().to_flag());
    record.extend_from_slice(hash.digest());
}

/// The rest of a record.
pub(crate) struct Reader<'a>(pub(crate) &'a [u8]);

impl Reader<'_> {
    pub(crate) fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    pub(crate) fn optional(&mut self) -> Option<Option<u64>> {
        self.number().map(|number| (number != NONE).then_some(number))
    }

    pub(crate) fn hash(&mut self) -> Option<ContentHash> {
        let ([flag, digest @ ..], rest) = self.0.split_first_chunk::<21>()?;
        self.0 = rest;
        Some(ContentHash::new(HashAlgorithm::from_flag(*flag)?, *digest))
    }
}
