//! First reads of files and of parts of large files, as profiles record them.

use std::collections::{BTreeMap, HashSet};

use esker_format::profile::{ProfileFile, ProfileRead, is_path};
use esker_node::trace::{Operation, TracedCall};

/// Maximum size of files that are recorded as a whole; of larger ones parts of this size are recorded.
const PART: u64 = 1 << 20;
/// Maximum number of recorded reads.
const READS_MAX: usize = 1 << 19;

/// First reads of files and their parts, in order.
#[derive(Debug, Default)]
pub(super) struct FirstReads {
    seen: HashSet<(usize, String, u64)>,
    reads: Vec<FirstRead>,
}

#[derive(Debug)]
struct FirstRead {
    mount: usize,
    path: String,
    part: u64,
    began_ns: u64,
}

impl FirstReads {
    /// Records a read of a mount.
    pub(super) fn add(&mut self, mount: usize, call: &TracedCall) {
        if call.operation != Operation::Read || call.errno != 0 || call.bytes == 0 {
            return;
        }
        for part in call.offset / PART..=(call.offset + call.bytes - 1) / PART {
            if self.reads.len() < READS_MAX && self.seen.insert((mount, call.path.clone(), part)) {
                let (path, began_ns) = (call.path.clone(), call.began_ns);
                self.reads.push(FirstRead { mount, path, part, began_ns });
            }
        }
    }

    /// Returns the files and reads of a mount; `about` returns the size of a regular file, and whether it is a program.
    pub(super) fn of_mount(
        &self,
        mount: usize,
        about: impl Fn(&str) -> Option<(u64, bool)>,
    ) -> (Vec<ProfileFile>, Vec<ProfileRead>) {
        let mut reads: Vec<&FirstRead> = self.reads.iter().filter(|read| read.mount == mount).collect();
        reads.sort_by_key(|read| read.began_ns);
        let start = reads.first().map_or(0, |read| read.began_ns);
        let mut files: Vec<ProfileFile> = Vec::new();
        let mut numbers: BTreeMap<&str, Option<usize>> = BTreeMap::new();
        let mut made: Vec<ProfileRead> = Vec::new();
        for read in reads {
            let number = numbers.entry(&read.path).or_insert_with(|| {
                let (size, program) = about(&read.path).filter(|_| is_path(&read.path))?;
                files.push(ProfileFile { path: read.path.clone(), size, program });
                let file = files.len() - 1;
                if size <= PART {
                    made.push(ProfileRead { file, ms: (read.began_ns - start) / 1_000_000, range: None });
                }
                Some(file)
            });
            let Some(file) = *number else { continue };
            let size = files.get(file).map_or(0, |file| file.size);
            let range = read.part * PART..((read.part + 1) * PART).min(size);
            if size <= PART || range.is_empty() {
                continue;
            }
            // A part that follows the previous read is merged with it.
            if let Some(ProfileRead { file: last, range: Some(before), .. }) = made.last_mut()
                && *last == file
                && before.end == range.start
            {
                before.end = range.end;
            } else {
                let ms = (read.began_ns - start) / 1_000_000;
                made.push(ProfileRead { file, ms, range: Some(range) });
            }
        }
        (files, made)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::call;
    use super::*;

    #[test]
    fn small_files_are_read_once_and_large_ones_in_parts() {
        let mut reads = FirstReads::default();
        let read = |path: &str, offset, bytes, began_ms: u64| TracedCall {
            offset,
            bytes,
            began_ns: began_ms * 1_000_000,
            ..call(path, Operation::Read)
        };
        for one in [
            read("/large", 0, 4096, 10),
            read("/small", 0, 5, 11),
            read("/small", 0, 5, 12),
            read("/large", PART - 1, 2, 13),
            read("/large", 2 * PART, 10, 14),
            read("/gone", 0, 5, 15),
        ] {
            reads.add(0, &one);
        }
        reads.add(1, &read("/other", 0, 1, 1));
        let about = |path: &str| match path {
            "/large" => Some((2 * PART + 7, true)),
            "/small" => Some((5, false)),
            _ => None,
        };
        let (files, made) = reads.of_mount(0, about);
        let names: Vec<_> = files.iter().map(|file| (file.path.as_str(), file.program)).collect();
        assert_eq!(names, [("/large", true), ("/small", false)]);
        let expected = [
            ProfileRead { file: 0, ms: 0, range: Some(0..PART) },
            ProfileRead { file: 1, ms: 1, range: None },
            ProfileRead { file: 0, ms: 3, range: Some(PART..2 * PART + 7) },
        ];
        assert_eq!(made, expected);
    }
}
