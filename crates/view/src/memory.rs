//! Reads what an earlier process recorded of its view (see the module `records`).

use std::sync::Arc;

use esker_journal::Journal;
use esker_vfs::{ErrorKind, NodeKey, TreeError};

use crate::catalogs::WantedCatalog;
use crate::records::Reader;
use crate::revision::SeenCatalog;
use crate::start::Start;

/// Record of a view by an earlier process, for its successor.
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

#[cfg(test)]
mod tests {
    use esker_format::hash::{ContentHash, HashAlgorithm};

    use super::*;
    use crate::records::{ShownRevision, begin, begin_change, of_seen};

    #[test]
    fn a_view_is_read_back_as_it_was_recorded() {
        let hash = |byte| ContentHash::new(HashAlgorithm::Rmd160, [byte; 20]);
        let journal = Journal::new().expect("memory");
        assert!(Remembered::read(&journal).expect("empty").is_none());
        let shown =
            ShownRevision { serial: 3, number: 7, published: Some(9), tag: Some("v1"), root: hash(1) };
        let seen = SeenCatalog { path: b"/a"[..].into(), hash: hash(2), size: Some(5) };
        begin(
            &journal,
            &shown,
            || vec![of_seen(&seen.path, seen.hash, seen.size, 3)],
            || vec![b"/bound"[..].into()],
            std::iter::once(NodeKey([4; 16])),
        );
        let late = SeenCatalog { path: b"/b"[..].into(), hash: hash(3), size: None };
        journal.append(&of_seen(&late.path, late.hash, late.size, 3)).expect("appended");
        // From a call that still answers from the revision before.
        journal.append(&of_seen(&late.path, late.hash, late.size, 2)).expect("appended");
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
