//! Encodes the names of a directory.

use super::WriteError;
use super::inodes::InodeRef;
use crate::layout::{ENTRY_LEN, Entry, IndexEntry, METADATA_BLOCK, RUN_LEN, RUN_MAX, Run};

/// Encoded names of a directory.
pub(super) struct Names<'n> {
    pub(super) bytes: Vec<u8>,
    /// Runs at which a search may start: their positions and first names.
    pub(super) marks: Vec<(u32, &'n [u8])>,
}

/// Maximum number of marks: an inode counts its index entries with 16 bits. Names after the last mark are
/// searched linearly.
const MARKS_MAX: usize = u16::MAX as usize;

/// A run that is being filled.
struct Open {
    run: Run,
    entries: Vec<u8>,
}

impl Open {
    /// Returns the entry's difference to the run's inode number, if the entry fits into this run.
    fn takes(&self, known: &InodeRef) -> Option<i16> {
        let fits = self.run.count < RUN_MAX && u64::from(self.run.inode_block) == known.place.block();
        let delta = i64::from(known.number) - i64::from(self.run.inode_number);
        i16::try_from(delta).ok().filter(|_| fits)
    }

    fn close(self, out: &mut Vec<u8>) {
        self.run.encode(out);
        out.extend_from_slice(&self.entries);
    }
}

/// Encodes names in the given order.
pub(super) fn encode<'n>(entries: &[(&'n [u8], InodeRef)]) -> Result<Names<'n>, WriteError> {
    let (mut bytes, mut marks) = (Vec::new(), Vec::new());
    let mut marked = 0;
    let mut open: Option<Open> = None;
    for (name, known) in entries {
        let end = bytes.len() + open.as_ref().map_or(0, |open| RUN_LEN + open.entries.len());
        // A new run, which can be a mark, begins as soon as a block would be full since the last mark.
        let is_far = end + RUN_LEN + ENTRY_LEN + name.len() - marked > METADATA_BLOCK;
        let delta = open.as_ref().and_then(|open| open.takes(known)).filter(|_| !is_far);
        let delta = match delta {
            Some(delta) => delta,
            None => {
                if let Some(full) = open.take() {
                    full.close(&mut bytes);
                }
                if is_far {
                    marked = bytes.len();
                    let position = u32::try_from(marked);
                    let position = position.map_err(|_| WriteError::TooMany("names in one directory"))?;
                    if marks.len() < MARKS_MAX {
                        marks.push((position, *name));
                    }
                }
                let block = u32::try_from(known.place.block()).map_err(|_| WriteError::TooMany("inodes"))?;
                let run = Run { count: 0, inode_block: block, inode_number: known.number };
                open = Some(Open { run, entries: Vec::new() });
                0
            }
        };
        if let Some(open) = &mut open {
            open.run.count += 1;
            let entry = Entry {
                inode_offset: known.place.offset(),
                number_delta: delta,
                kind: known.kind,
                name_len: name.len(),
            };
            entry.encode(&mut open.entries);
            open.entries.extend_from_slice(name);
        }
    }
    if let Some(last) = open {
        last.close(&mut bytes);
    }
    Ok(Names { bytes, marks })
}

impl Names<'_> {
    /// Encodes the index; `block_of` returns the block of the directory table that holds a byte of these
    /// names.
    pub(super) fn encode_index(&self, block_of: impl Fn(u32) -> u64) -> Result<Vec<u8>, WriteError> {
        let mut out = Vec::new();
        for (position, name) in &self.marks {
            let block = u32::try_from(block_of(*position)).map_err(|_| WriteError::TooMany("names"))?;
            IndexEntry { position: *position, block, name_len: name.len() }.encode(&mut out);
            out.extend_from_slice(name);
        }
        Ok(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{InodeType, MetaRef};

    fn known(number: u32, block: u64) -> InodeRef {
        InodeRef { place: MetaRef::new(block, 7), number, kind: InodeType::File }
    }

    fn runs(names: &Names<'_>) -> Vec<(usize, u32, Vec<i16>)> {
        let (mut at, mut found) = (0, Vec::new());
        while at < names.bytes.len() {
            let start = at;
            let run = Run::decode(&names.bytes[at..]).expect("a run");
            at += RUN_LEN;
            let mut deltas = Vec::new();
            for _ in 0..run.count {
                let entry = Entry::decode(&names.bytes[at..]).expect("an entry");
                at += ENTRY_LEN + entry.name_len;
                deltas.push(entry.number_delta);
            }
            found.push((start, run.inode_number, deltas));
        }
        found
    }

    #[test]
    fn a_run_ends_where_the_block_changes_or_the_number_difference_overflows() {
        let entries: [(&[u8], InodeRef); 5] = [
            (b"a", known(40_000, 0)),
            (b"b", known(40_002, 0)),
            (b"c", known(1, 0)),
            (b"d", known(2, 9000)),
            (b"e", known(3, 9000)),
        ];
        let names = encode(&entries).expect("names");
        let numbers: Vec<_> = runs(&names).into_iter().map(|(_, number, deltas)| (number, deltas)).collect();
        assert_eq!(numbers, [(40_000, vec![0, 2]), (1, vec![0]), (2, vec![0, 1])]);
        assert!(names.marks.is_empty());
    }

    #[test]
    fn a_run_has_at_most_256_names_and_marks_are_runs() {
        let texts: Vec<String> = (0..5000).map(|number| format!("name-{number:05}")).collect();
        let entries: Vec<(&[u8], InodeRef)> =
            (1..).zip(&texts).map(|(number, text)| (text.as_bytes(), known(number, 0))).collect();
        let names = encode(&entries).expect("names");
        let runs = runs(&names);
        assert!(runs.iter().all(|(_, _, deltas)| deltas.len() <= RUN_MAX as usize));
        assert_eq!(runs.iter().map(|(_, _, deltas)| deltas.len()).sum::<usize>(), texts.len());
        let mut marked = 0;
        for (position, name) in &names.marks {
            let (_, number, _) =
                runs.iter().find(|(start, ..)| start == &(*position as usize)).expect("a mark is a run");
            assert_eq!(texts[*number as usize - 1].as_bytes(), *name);
            assert!(*position as usize - marked <= METADATA_BLOCK);
            marked = *position as usize;
        }
        assert!(
            names.bytes.len() - marked <= METADATA_BLOCK,
            "the rest after the last mark is short as well"
        );
    }
}
