//! First reads of files and of parts of large files, as profiles record them.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::ops::Range;

use esker_format::profile::{ProfileFile, ProfileRead, is_path};

/// Maximum size of files that are recorded as a whole; of larger ones parts of this size are recorded.
const PART: u64 = 1 << 20;
/// Maximum number of recorded reads.
const READS_MAX: usize = 1 << 19;

/// First reads of files and their parts; `K` identifies a file.
#[derive(Debug)]
pub(crate) struct FirstReads<K> {
    seen: HashSet<(K, u64)>,
    reads: Vec<FirstRead<K>>,
}

#[derive(Debug)]
struct FirstRead<K> {
    file: K,
    part: u64,
    /// Nanoseconds of any clock.
    began_ns: u64,
}

/// Files that a command read.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) files: Vec<ProfileFile>,
    pub(crate) reads: Vec<ProfileRead>,
    /// Number of files that a profile can't represent.
    pub(crate) left_out: usize,
}

impl<K> Default for FirstReads<K> {
    fn default() -> Self {
        Self { seen: HashSet::new(), reads: Vec::new() }
    }
}

impl<K: Clone + Eq + Hash> FirstReads<K> {
    /// Records a read of a file.
    pub(crate) fn add(&mut self, file: &K, range: Range<u64>, began_ns: u64) {
        if range.is_empty() {
            return;
        }
        for part in range.start / PART..=(range.end - 1) / PART {
            if self.reads.len() < READS_MAX && self.seen.insert((file.clone(), part)) {
                self.reads.push(FirstRead { file: file.clone(), part, began_ns });
            }
        }
    }

    /// Returns the reads in the order of their times, which count from `start_ns`; without one, from the first of them.
    /// `about` returns the entry of a regular file in a profile, and `None` for files that are left out.
    pub(crate) fn recorded(
        &self,
        start_ns: Option<u64>,
        about: impl Fn(&K) -> Option<ProfileFile>,
    ) -> Recorded {
        let mut reads: Vec<&FirstRead<K>> = self.reads.iter().collect();
        reads.sort_by_key(|read| read.began_ns);
        let start_ns = start_ns.or(reads.first().map(|read| read.began_ns)).unwrap_or_default();
        let mut recorded = Recorded::default();
        let mut numbers: HashMap<&K, Option<usize>> = HashMap::new();
        for read in reads {
            let is_first = !numbers.contains_key(&read.file);
            let number = *numbers.entry(&read.file).or_insert_with(|| {
                recorded.files.push(about(&read.file).filter(|file| is_path(&file.path))?);
                Some(recorded.files.len() - 1)
            });
            let Some(file) = number else {
                recorded.left_out += usize::from(is_first);
                continue;
            };
            let ms = read.began_ns.saturating_sub(start_ns) / 1_000_000;
            let size = recorded.files[file].size;
            let range = read.part * PART..((read.part + 1) * PART).min(size);
            if size <= PART {
                recorded.reads.extend(is_first.then_some(ProfileRead { file, ms, range: None }));
            } else if let Some(ProfileRead { file: last, range: Some(before), .. }) =
                recorded.reads.last_mut()
                && *last == file
                && before.end == range.start
            {
                // A part that follows the previous read is merged with it.
                before.end = range.end;
            } else if !range.is_empty() {
                recorded.reads.push(ProfileRead { file, ms, range: Some(range) });
            }
        }
        recorded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn read(file: usize, ms: u64, range: Option<Range<u64>>) -> ProfileRead {
        ProfileRead { file, ms, range }
    }

    #[test]
    fn first_reads_are_recorded_in_order_and_large_files_in_parts() {
        let mut noted = FirstReads::default();
        let large = 5 * PART + 7;
        for (file, range, ms) in [
            (1, 0..10, 0),
            (2, 0..4096, 1),
            (2, PART - 1..PART + 1, 2),
            (1, 0..10, 3),
            (2, 5 * PART..large, 4),
            (3, 0..PART, 5),
            (2, 0..large, 6),
            (3, 0..0, 7),
        ] {
            noted.add(&file, range, ms * MS);
        }
        let sizes = [0, 10, large, PART];
        let about =
            |file: &usize| Some(ProfileFile { path: format!("/{file}"), size: sizes[*file], program: false });
        let recorded = noted.recorded(Some(0), about);
        assert_eq!(
            recorded.reads,
            [
                read(0, 0, None),
                read(1, 1, Some(0..2 * PART)),
                read(1, 4, Some(5 * PART..large)),
                read(2, 5, None),
                read(1, 6, Some(2 * PART..5 * PART)),
            ]
        );
        assert_eq!((recorded.files.len(), recorded.left_out), (3, 0));
    }

    #[test]
    fn times_count_from_the_first_read() {
        let mut reads = FirstReads::default();
        for (path, offset, bytes, began_ms) in [
            ("/gone", 0, 5, 9),
            ("/large", 0, 4096, 10),
            ("/small", 0, 5, 11),
            ("/large", PART - 1, 2, 13),
            ("/large", 2 * PART, 10, 14),
            ("/gone", PART, 5, 15),
        ] {
            reads.add(&path, offset..offset + bytes, began_ms * MS);
        }
        let about = |path: &&str| {
            let (size, program) = match *path {
                "/large" => (2 * PART + 7, true),
                "/small" => (5, false),
                _ => return None,
            };
            Some(ProfileFile { path: (*path).to_owned(), size, program })
        };
        let Recorded { files, reads, left_out } = reads.recorded(None, about);
        let names: Vec<_> = files.iter().map(|file| (file.path.as_str(), file.program)).collect();
        assert_eq!((names.as_slice(), left_out), (&[("/large", true), ("/small", false)][..], 1));
        let expected = [read(0, 1, Some(0..PART)), read(1, 2, None), read(0, 4, Some(PART..2 * PART + 7))];
        assert_eq!(reads, expected);
    }
}
