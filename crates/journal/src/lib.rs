//! Logs records in a memory file that outlives the process which writes it.
//!
//! ```text
//! 0       magic       8 bytes
//! 8       version     4 bytes, and 4 zeros
//! 16      committed   first and end offset of the records, 4 bytes each, in one write
//! 4 KiB   records     length in 4 bytes, and the record; all numbers little endian
//! ```
//!
//! A process that is killed while it appends leaves bytes that are not committed. A record that could not be written
//! makes the whole journal invalid, since what a successor doesn't know it would do wrong.
#![forbid(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, MemfdFlags, fallocate, memfd_create};

const MAGIC: [u8; 8] = *b"eskrlog\n";
const VERSION: u32 = 1;
const COMMITTED: u64 = 16;
const RECORDS: u32 = 4096;
/// Maximum length of a record in bytes.
pub const RECORD_MAX: usize = 1 << 20;

/// A log in a memory file.
#[derive(Debug)]
pub struct Journal {
    file: File,
    /// Committed range; `None` once a record could not be written.
    range: Mutex<Option<Range>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    start: u32,
    end: u32,
}

impl Journal {
    /// Creates an empty journal.
    pub fn new() -> io::Result<Self> {
        let file = File::from(memfd_create(c"esker-journal", MemfdFlags::CLOEXEC)?);
        file.write_all_at(&MAGIC, 0)?;
        file.write_all_at(&VERSION.to_le_bytes(), MAGIC.len() as u64)?;
        let range = Range { start: RECORDS, end: RECORDS };
        commit(&file, Some(range))?;
        Ok(Self { file, range: Mutex::new(Some(range)) })
    }

    /// Opens the journal of another process.
    pub fn attach(file: OwnedFd) -> io::Result<Self> {
        let invalid = |why: &str| io::Error::new(io::ErrorKind::InvalidData, why);
        let file = File::from(file);
        let mut head = [0; COMMITTED as usize + 8];
        file.read_exact_at(&mut head, 0)?;
        let number =
            |at: usize| head.get(at..).and_then(|b| b.first_chunk()).map_or(0, |b| u32::from_le_bytes(*b));
        if !head.starts_with(&MAGIC) || number(8) != VERSION {
            return Err(invalid("not a journal of this version"));
        }
        let range = Range { start: number(16), end: number(20) };
        if range.start < RECORDS
            || range.end < range.start
            || file.metadata()?.len() < range.end.into() && range.end > RECORDS
        {
            return Err(invalid("the journal is incomplete"));
        }
        Ok(Self { file, range: Mutex::new(Some(range)) })
    }

    /// Returns a second descriptor of the file.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        Ok(self.file.try_clone()?.into())
    }

    /// Returns all records.
    pub fn records(&self) -> io::Result<Vec<Vec<u8>>> {
        let Some(Range { start, end }) = *self.range.lock() else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the journal is incomplete"));
        };
        let mut bytes = vec![0; (end - start) as usize];
        self.file.read_exact_at(&mut bytes, start.into())?;
        let (mut records, mut rest) = (Vec::new(), &bytes[..]);
        while let Some((len, after)) = rest.split_first_chunk() {
            let len = u32::from_le_bytes(*len) as usize;
            let record = after.get(..len).ok_or(io::ErrorKind::InvalidData)?;
            records.push(record.to_vec());
            rest = &after[len..];
        }
        Ok(records)
    }

    /// Appends a record. After a failure the journal stays invalid.
    pub fn append(&self, record: &[u8]) -> io::Result<()> {
        let mut range = self.range.lock();
        let mut bytes = Vec::with_capacity(4 + record.len());
        put(&mut bytes, record);
        let next = range.and_then(|now| Some(Range { end: end(now.end, &bytes)?, ..now }));
        self.write(&mut range, |now| now.end, &bytes, next.filter(|_| record.len() <= RECORD_MAX))
    }

    /// Replaces all records at once by those that `records` appends to its argument, each with [`put`].
    pub fn replace(&self, records: impl FnOnce(&mut Vec<u8>)) -> io::Result<()> {
        let mut range = self.range.lock();
        // Nothing is appended meanwhile, so what the caller collects is complete.
        let mut bytes = Vec::new();
        records(&mut bytes);
        let place = |now: Range| {
            // Before the present records if there is room.
            let before = end(RECORDS, &bytes).is_some_and(|end| end <= now.start);
            if before { RECORDS } else { now.end }
        };
        let before = *range;
        let next = range.and_then(|now| Some(Range { start: place(now), end: end(place(now), &bytes)? }));
        self.write(&mut range, place, &bytes, next)?;
        if let Some(Range { start, end }) = before
            && start < end
        {
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Memory that can't be given back is written again later.
            let _ = fallocate(&self.file, hole, start.into(), (end - start).into());
        }
        Ok(())
    }

    fn write(
        &self,
        range: &mut Option<Range>,
        place: impl FnOnce(Range) -> u32,
        bytes: &[u8],
        next: Option<Range>,
    ) -> io::Result<()> {
        let Some(now) = *range else { return Err(io::ErrorKind::InvalidData.into()) };
        let written = match next {
            Some(next) => {
                self.file.write_all_at(bytes, place(now).into()).and_then(|()| commit(&self.file, Some(next)))
            }
            None => Err(io::ErrorKind::FileTooLarge.into()),
        };
        *range = next.filter(|_| written.is_ok());
        if range.is_none() {
            // If this fails too, the memory file can't be written at all.
            let _ = commit(&self.file, None);
        }
        written
    }
}

/// Appends a record in the form of the journal.
pub fn put(bytes: &mut Vec<u8>, record: &[u8]) {
    bytes.extend_from_slice(&(record.len() as u32).to_le_bytes());
    bytes.extend_from_slice(record);
}

fn end(start: u32, bytes: &[u8]) -> Option<u32> {
    start.checked_add(u32::try_from(bytes.len()).ok()?)
}

fn commit(file: &File, range: Option<Range>) -> io::Result<()> {
    let Range { start, end } = range.unwrap_or(Range { start: 0, end: 0 });
    let mut both = [0; 8];
    both[..4].copy_from_slice(&start.to_le_bytes());
    both[4..].copy_from_slice(&end.to_le_bytes());
    file.write_all_at(&both, COMMITTED)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Append(Vec<u8>),
        Replace(Vec<Vec<u8>>),
        TakeOver,
    }

    fn step() -> impl Strategy<Value = Step> {
        let record = || proptest::collection::vec(any::<u8>(), 0..300);
        prop_oneof![
            4 => record().prop_map(Step::Append),
            2 => proptest::collection::vec(record(), 0..6).prop_map(Step::Replace),
            1 => Just(Step::TakeOver),
        ]
    }

    proptest! {
        #[test]
        fn a_successor_reads_exactly_what_was_written(steps in proptest::collection::vec(step(), 1..60)) {
            let mut journal = Journal::new().expect("memory");
            let mut expected: Vec<Vec<u8>> = Vec::new();
            for step in steps {
                match step {
                    Step::Append(record) => {
                        journal.append(&record).expect("appended");
                        expected.push(record);
                    }
                    Step::Replace(records) => {
                        journal.replace(|bytes| records.iter().for_each(|record| put(bytes, record))).expect("replaced");
                        expected = records;
                    }
                    Step::TakeOver => journal = Journal::attach(journal.descriptor().expect("a descriptor")).expect("attached"),
                }
                prop_assert_eq!(&journal.records().expect("records"), &expected);
            }
        }
    }

    #[test]
    fn bytes_that_were_not_committed_are_no_record() {
        let journal = Journal::new().expect("memory");
        journal.append(b"whole").expect("appended");
        let at = journal.file.metadata().expect("facts").len();
        journal.file.write_all_at(b"\x05\0\0\0torn", at).expect("written");
        let next = Journal::attach(journal.descriptor().expect("a descriptor")).expect("attached");
        assert_eq!(next.records().expect("records"), [b"whole".to_vec()]);
        next.append(b"after").expect("appended");
        assert_eq!(next.records().expect("records"), [b"whole".to_vec(), b"after".to_vec()]);
    }

    #[test]
    fn a_journal_that_lost_a_record_is_refused() {
        let journal = Journal::new().expect("memory");
        journal.append(&vec![0; RECORD_MAX + 1]).expect_err("too long");
        journal.append(b"a").expect_err("incomplete");
        assert!(journal.records().is_err());
        assert!(Journal::attach(journal.descriptor().expect("a descriptor")).is_err());
        let foreign = memfd_create(c"test", MemfdFlags::CLOEXEC).expect("memory");
        assert!(Journal::attach(foreign).is_err(), "an empty file");
    }
}
