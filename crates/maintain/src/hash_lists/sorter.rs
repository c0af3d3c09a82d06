//! Sorted sets of records that need not fit into memory.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_repository::RepositoryError;
use esker_store::{Disk, Listed, Sink};

use super::record::{Record, Tagged};

/// Records of the buffer: 64 MiB.
pub(crate) const RECORDS: usize = (64 << 20) / Tagged::LEN;
/// Bytes read or written at once of a run.
pub(crate) const READ: usize = 1 << 16;
/// Maximum number of runs that are merged at once.
pub(crate) const FAN_IN: usize = 64;

/// Collects records in any order, and sorts them with a buffer of a given size.
pub(crate) struct Sorter {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    limit: usize,
    buffer: Vec<Tagged>,
    runs: Vec<Run>,
    /// True if the records stay in memory where the disk is full.
    may_stay_in_memory: bool,
}

/// Sorted records in a file without a name, which is gone with its last handle.
#[derive(Clone)]
struct Run {
    file: Arc<File>,
    len: u64,
}

/// A sorted set without duplicates.
pub(crate) struct SortedSet {
    folder: PathBuf,
    memory: Vec<Tagged>,
    run: Option<Run>,
}

impl Sorter {
    /// Makes a sorter that buffers this many records and spills into this folder.
    pub(crate) fn new(disk: Arc<dyn Disk>, folder: &Path, limit: usize) -> Self {
        Self {
            disk,
            folder: folder.to_owned(),
            limit: limit.max(2),
            buffer: Vec::new(),
            runs: Vec::new(),
            may_stay_in_memory: false,
        }
    }

    /// Sets that the records stay in memory, whatever they take, where the disk is full.
    pub(crate) fn with_memory_if_full(self) -> Self {
        Self { may_stay_in_memory: true, ..self }
    }

    /// Adds records.
    pub(crate) fn extend(
        &mut self,
        records: impl IntoIterator<Item = Tagged>,
    ) -> Result<(), RepositoryError> {
        for record in records {
            if self.buffer.len() >= self.limit {
                self.make_room()?;
            }
            self.buffer.push(record);
        }
        Ok(())
    }

    /// Adds records of another sequence.
    pub(crate) fn extend_from(
        &mut self,
        mut records: impl Iterator<Item = Result<Tagged, RepositoryError>>,
    ) -> Result<(), RepositoryError> {
        records.try_for_each(|record| self.extend([record?]))
    }

    /// Adds the objects of a storage that `is_wanted` accepts.
    pub(crate) fn extend_listed(
        &mut self,
        sink: &dyn Sink,
        mut is_wanted: impl FnMut(&Listed) -> bool,
    ) -> Result<(), RepositoryError> {
        let mut failure = None;
        sink.list(&mut |listed| {
            if is_wanted(&listed) && failure.is_none() {
                failure = self.extend([Tagged::shared(Record::of(&listed.name))]).err();
            }
        })?;
        failure.map_or(Ok(()), Err)
    }

    /// Removes duplicates from the buffer, and spills it if that does not make it half empty.
    fn make_room(&mut self) -> Result<(), RepositoryError> {
        self.sort_buffer();
        if self.buffer.len() > self.limit / 2 {
            let spilled = self.spill();
            self.or_in_memory(spilled)?;
        }
        Ok(())
    }

    /// Returns the records to memory if writing failed because the disk is full.
    fn or_in_memory(&mut self, written: Result<(), RepositoryError>) -> Result<(), RepositoryError> {
        match written {
            Err(error) if self.may_stay_in_memory && error.is_full() => {
                for run in std::mem::take(&mut self.runs) {
                    RunReader::new(&run, &self.folder)
                        .try_for_each(|record| record.map(|record| self.buffer.push(record)))?;
                }
                self.sort_buffer();
                self.limit = usize::MAX;
                Ok(())
            }
            other => other,
        }
    }

    fn sort_buffer(&mut self) {
        self.buffer.sort_unstable();
        self.buffer.dedup_by(|next, first| {
            let same = next.record == first.record;
            if same {
                first.owner = first.owner.with(next.owner);
            }
            same
        });
    }

    /// Writes the buffer to a run; a failure leaves it as it was.
    fn spill(&mut self) -> Result<(), RepositoryError> {
        let mut writer = self.run()?;
        for record in &self.buffer {
            writer.push(record)?;
        }
        let run = writer.finish()?;
        self.runs.push(run);
        self.buffer.clear();
        if self.runs.len() >= FAN_IN { self.merge() } else { Ok(()) }
    }

    fn run(&self) -> Result<RunWriter<'_>, RepositoryError> {
        let file = nameless(&*self.disk, &self.folder).map_err(spilling(&self.folder))?;
        Ok(RunWriter { sorter: self, file, len: 0, buffer: Vec::with_capacity(READ + Tagged::LEN) })
    }

    /// Merges all runs into one, and joins equal records; a failure leaves the runs as they were.
    fn merge(&mut self) -> Result<(), RepositoryError> {
        let mut readers: Vec<_> = self.runs.iter().map(|run| RunReader::new(run, &self.folder)).collect();
        let mut heap = BinaryHeap::new();
        for (number, reader) in readers.iter_mut().enumerate() {
            heap.extend(reader.next().transpose()?.map(|record| Reverse((record, number))));
        }
        let mut writer = self.run()?;
        let mut joined: Option<Tagged> = None;
        while let Some(Reverse((record, number))) = heap.pop() {
            if let Some(reader) = readers.get_mut(number) {
                heap.extend(reader.next().transpose()?.map(|record| Reverse((record, number))));
            }
            match &mut joined {
                Some(last) if last.record == record.record => last.owner = last.owner.with(record.owner),
                joined => joined.replace(record).map_or(Ok(()), |last| writer.push(&last))?,
            }
        }
        joined.map_or(Ok(()), |last| writer.push(&last))?;
        let merged = writer.finish()?;
        self.runs = vec![merged];
        Ok(())
    }

    /// Returns the set of all records.
    pub(crate) fn finish(mut self) -> Result<SortedSet, RepositoryError> {
        self.sort_buffer();
        if !self.runs.is_empty() && !self.buffer.is_empty() {
            let spilled = self.spill();
            self.or_in_memory(spilled)?;
        }
        if self.runs.len() > 1 {
            let merged = self.merge();
            self.or_in_memory(merged)?;
        }
        Ok(SortedSet { folder: self.folder, memory: self.buffer, run: self.runs.pop() })
    }

    /// Returns the number of spilled runs.
    #[cfg(test)]
    fn spilled(&self) -> usize {
        self.runs.len()
    }
}

/// Makes a file that has no name, or has lost it already.
fn nameless(disk: &dyn Disk, folder: &Path) -> io::Result<File> {
    if let Some(file) = disk.create_nameless(folder)? {
        return Ok(file);
    }
    static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    let path = folder.join(format!("run-{}-{number}", std::process::id()));
    let file = disk.create_spool(&path)?;
    disk.remove(&path)?;
    Ok(file)
}

fn spilling(folder: &Path) -> impl FnOnce(io::Error) -> RepositoryError {
    RepositoryError::file("sorting in", folder)
}

struct RunWriter<'s> {
    sorter: &'s Sorter,
    file: File,
    len: u64,
    buffer: Vec<u8>,
}

impl RunWriter<'_> {
    fn push(&mut self, record: &Tagged) -> Result<(), RepositoryError> {
        record.encode(&mut self.buffer);
        if self.buffer.len() >= READ {
            self.write()?;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), RepositoryError> {
        let written = self.sorter.disk.write(&self.file, &self.buffer);
        written.map_err(spilling(&self.sorter.folder))?;
        self.len += self.buffer.len() as u64;
        self.buffer.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<Run, RepositoryError> {
        self.write()?;
        Ok(Run { file: Arc::new(self.file), len: self.len })
    }
}

/// Reads the records of a run.
struct RunReader {
    run: Run,
    folder: PathBuf,
    at: u64,
    buffer: Vec<u8>,
    used: usize,
}

impl RunReader {
    fn new(run: &Run, folder: &Path) -> Self {
        Self { run: run.clone(), folder: folder.to_owned(), at: 0, buffer: Vec::new(), used: 0 }
    }

    fn fill(&mut self) -> io::Result<()> {
        let left = self.run.len.saturating_sub(self.at);
        let whole = READ - READ % Tagged::LEN;
        self.buffer.resize(usize::try_from(left).map_or(whole, |left| left.min(whole)), 0);
        self.run.file.read_exact_at(&mut self.buffer, self.at)?;
        self.at += self.buffer.len() as u64;
        self.used = 0;
        Ok(())
    }
}

impl Iterator for RunReader {
    type Item = Result<Tagged, RepositoryError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.used == self.buffer.len()
            && let Err(error) = self.fill()
        {
            return Some(Err(spilling(&self.folder)(error)));
        }
        let next = self.buffer.get(self.used..)?.first_chunk()?;
        self.used += Tagged::LEN;
        Some(Ok(Tagged::decode(next)))
    }
}

/// Iterator over the records of a set, in order.
pub(crate) type SetIter<'s> = Box<dyn Iterator<Item = Result<Tagged, RepositoryError>> + 's>;

impl SortedSet {
    /// Returns the records in order.
    pub(crate) fn iter(&self) -> SetIter<'_> {
        match &self.run {
            Some(run) => Box::new(RunReader::new(run, &self.folder)),
            None => Box::new(self.memory.iter().copied().map(Ok)),
        }
    }

    /// Returns the number of records.
    pub(crate) fn len(&self) -> u64 {
        self.run.as_ref().map_or(self.memory.len() as u64, |run| run.len / Tagged::LEN as u64)
    }
}

/// Returns the records of the first sequence that are not in the second; both are sorted.
pub(crate) fn minus(
    first: impl Iterator<Item = Result<Tagged, RepositoryError>>,
    second: impl Iterator<Item = Result<Tagged, RepositoryError>>,
) -> impl Iterator<Item = Result<Tagged, RepositoryError>> {
    let mut second = second.fuse().peekable();
    first.filter_map(move |tagged| {
        let Ok(wanted) = tagged else { return Some(tagged) };
        while let Some(Ok(next)) = second.peek()
            && next.record < wanted.record
        {
            second.next();
        }
        match second.peek() {
            Some(Ok(next)) if next.record == wanted.record => None,
            Some(Err(_)) => second.next(),
            _ => Some(tagged),
        }
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use esker_store::RealDisk;
    use rand::rngs::StdRng;
    use rand::{Rng as _, SeedableRng as _};

    use super::super::record::Owner;
    use super::*;

    fn record(number: u16, owner: u32) -> Tagged {
        let mut bytes = [0; Record::LEN];
        bytes[..2].copy_from_slice(&number.to_be_bytes());
        Tagged { record: Record(bytes), owner: Owner(owner) }
    }

    fn collected(records: impl Iterator<Item = Result<Tagged, RepositoryError>>) -> Vec<Tagged> {
        records.collect::<Result<_, _>>().unwrap()
    }

    #[test]
    fn sets_with_tiny_buffers_equal_maps() {
        let folder = tempfile::tempdir().unwrap();
        let mut random = StdRng::seed_from_u64(1);
        for (limit, count) in [(2, 500), (7, 3000), (64, 3000), (100_000, 3000)] {
            let mut sets = Vec::new();
            for _ in 0..2 {
                let mut sorter = Sorter::new(Arc::new(RealDisk::PRIVATE), folder.path(), limit);
                let mut model: BTreeMap<Record, Owner> = BTreeMap::new();
                for _ in 0..count {
                    let record = record(random.random_range(0..2000), random.random_range(0..2));
                    sorter.extend([record]).unwrap();
                    model
                        .entry(record.record)
                        .and_modify(|owner| *owner = owner.with(record.owner))
                        .or_insert(record.owner);
                }
                assert_eq!(sorter.spilled() > 0, limit < 100_000, "the limit of {limit} spills");
                let set = sorter.finish().unwrap();
                let model: Vec<Tagged> =
                    model.into_iter().map(|(record, owner)| Tagged { record, owner }).collect();
                assert_eq!(collected(set.iter()), model);
                assert_eq!(set.len(), model.len() as u64);
                sets.push((set, model));
            }
            let [(first, first_model), (second, second_model)] = &sets[..] else { unreachable!() };
            let model: Vec<Tagged> = first_model
                .iter()
                .filter(|record| second_model.iter().all(|other| other.record != record.record))
                .copied()
                .collect();
            assert_eq!(collected(minus(first.iter(), second.iter())), model);
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "no run is left");
    }

    #[test]
    fn a_buffer_of_duplicates_does_not_spill() {
        let folder = tempfile::tempdir().unwrap();
        let mut sorter = Sorter::new(Arc::new(RealDisk::PRIVATE), folder.path(), 16);
        for number in 0..10_000 {
            sorter.extend([record(number % 5, 0)]).unwrap();
        }
        assert_eq!(sorter.spilled(), 0);
        assert_eq!(sorter.finish().unwrap().len(), 5);
    }
}
