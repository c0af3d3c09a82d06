//! What a view must know to go on for another process, in a journal that outlives both.
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
use esker_vfs::{ErrorKind, NodeKey, TreeError};

use crate::catalogs::WantedCatalog;
use crate::revision::{Label, SeenCatalog};
use crate::start::Start;

/// Stands for an absent number.
const NONE: u64 = u64::MAX;

/// What an earlier process recorded of its view.
pub(crate) struct Remembered {
    pub(crate) root: WantedCatalog,
    pub(crate) number: u64,
    published: Option<u64>,
    tag: Option<String>,
    pub(crate) seen: Vec<SeenCatalog>,
    pub(crate) bound: Vec<Arc<[u8]>>,
    pub(crate) vanished: Vec<NodeKey>,
    /// True if that process was changing the revision.
    pub(crate) is_changing: bool,
}

impl Remembered {
    /// Reads a journal; `None` if no view has begun with it.
    pub(crate) fn read(journal: &Journal) -> Result<Option<Self>, TreeError> {
        let failed =
            |error: std::io::Error| TreeError::on(ErrorKind::Local, "the record of the view").because(error);
        let records = journal.records().map_err(failed)?;
        let Some((first, rest)) = records.split_first() else { return Ok(None) };
        let damaged = || failed(std::io::ErrorKind::InvalidData.into());
        let (serial, mut remembered) = Self::revision(first).ok_or_else(damaged)?;
        for record in rest {
            remembered.add(record, serial).ok_or_else(damaged)?;
        }
        Ok(Some(remembered))
    }

    fn revision(record: &[u8]) -> Option<(u64, Self)> {
        let mut from = Reader(record.strip_prefix(b"r")?);
        let serial = from.number()?;
        let (number, published, size) = (from.number()?, from.optional()?, from.optional()?);
        let root = WantedCatalog::new(from.hash()?, size, b"");
        let tag = (!from.0.is_empty()).then(|| String::from_utf8_lossy(from.0).into_owned());
        let (seen, bound, vanished) = Default::default();
        Some((serial, Self { root, number, published, tag, seen, bound, vanished, is_changing: false }))
    }

    fn add(&mut self, record: &[u8], serial: u64) -> Option<()> {
        let (kind, rest) = record.split_first()?;
        let mut from = Reader(rest);
        match kind {
            b's' => {
                let of = from.number()?;
                let (size, hash) = (from.optional()?, from.hash()?);
                if of == serial {
                    self.seen.push(SeenCatalog { path: from.0.into(), hash, size });
                }
            }
            b'b' => self.bound.push(rest.into()),
            b'v' => self.vanished.push(NodeKey(*rest.first_chunk()?)),
            b'x' => self.is_changing = true,
            _ => return None,
        }
        Some(())
    }

    /// Returns the revision to begin with.
    pub(crate) fn start(&self) -> Start {
        Start {
            root: self.root.clone(),
            number: Some(self.number),
            published: self.published,
            tag: self.tag.clone(),
            head: None,
        }
    }
}

/// Replaces the journal by a revision that the view shows from now on. A failure makes the journal invalid, and then no
/// other process takes over.
pub(crate) fn begin(
    journal: &Journal,
    label: &Label,
    root: ContentHash,
    seen: impl FnOnce() -> Vec<SeenCatalog>,
    bound: impl FnOnce() -> Vec<Arc<[u8]>>,
    vanished: impl Iterator<Item = NodeKey>,
) {
    let _ = journal.replace(|bytes| {
        let mut record = vec![b'r'];
        for number in [label.serial, label.number, label.published.unwrap_or(NONE), NONE] {
            record.extend_from_slice(&number.to_le_bytes());
        }
        put_hash(&mut record, root);
        record.extend_from_slice(label.tag.as_deref().unwrap_or_default().as_bytes());
        put(bytes, &record);
        seen().iter().for_each(|seen| put(bytes, &of_seen(seen, label.serial)));
        bound().iter().for_each(|path| put(bytes, &of_bound(path)));
        vanished.for_each(|key| put(bytes, &[&b"v"[..], &key.0].concat()));
    });
}

/// Records that answers may come from another revision from now on.
pub(crate) fn begin_change(journal: &Journal) {
    let _ = journal.append(b"x");
}

/// Returns the record of a catalog used in the revision with this serial number.
pub(crate) fn of_seen(seen: &SeenCatalog, serial: u64) -> Vec<u8> {
    let mut record = vec![b's'];
    record.extend_from_slice(&serial.to_le_bytes());
    record.extend_from_slice(&seen.size.unwrap_or(NONE).to_le_bytes());
    put_hash(&mut record, seen.hash);
    record.extend_from_slice(&seen.path);
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
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn number(&mut self) -> Option<u64> {
        let (number, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*number))
    }

    fn optional(&mut self) -> Option<Option<u64>> {
        self.number().map(|number| (number != NONE).then_some(number))
    }

    fn hash(&mut self) -> Option<ContentHash> {
        let ([flag, digest @ ..], rest) = self.0.split_first_chunk::<21>()?;
        self.0 = rest;
        Some(ContentHash::new(HashAlgorithm::from_flag(*flag)?, *digest))
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_view_is_read_back_as_it_was_recorded() {
        let hash = |byte| ContentHash::new(HashAlgorithm::Rmd160, [byte; 20]);
        let journal = Journal::new().expect("memory");
        assert!(Remembered::read(&journal).expect("empty").is_none());
        let tag = Some("v1".to_owned());
        let label = Label { serial: 3, number: 7, published: Some(9), tag, since: SystemTime::now() };
        let seen = SeenCatalog { path: b"/a"[..].into(), hash: hash(2), size: Some(5) };
        begin(
            &journal,
            &label,
            hash(1),
            || vec![seen.clone()],
            || vec![b"/bound"[..].into()],
            std::iter::once(NodeKey([4; 16])),
        );
        let late = SeenCatalog { path: b"/b"[..].into(), hash: hash(3), size: None };
        journal.append(&of_seen(&late, 3)).expect("appended");
        // From a call that still answers from the revision before.
        journal.append(&of_seen(&late, 2)).expect("appended");
        let read = Remembered::read(&journal).expect("records").expect("a view");
        assert_eq!((read.root.hash, read.number, read.published), (hash(1), 7, Some(9)));
        assert_eq!((read.tag.as_deref(), read.is_changing), (Some("v1"), false));
        let paths: Vec<_> = read.seen.iter().map(|seen| (&*seen.path, seen.hash, seen.size)).collect();
        assert_eq!(paths, [(&b"/a"[..], hash(2), Some(5)), (&b"/b"[..], hash(3), None)]);
        assert_eq!((read.bound, read.vanished), (vec![b"/bound"[..].into()], vec![NodeKey([4; 16])]));
        begin_change(&journal);
        assert!(Remembered::read(&journal).expect("records").expect("a view").is_changing);
        journal.append(b"?").expect("appended");
        assert!(Remembered::read(&journal).is_err(), "an unknown record");
    }
}
