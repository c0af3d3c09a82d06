//! Records the files that a command reads, in the order of their first reads.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Mutex;
use std::time::Instant;

use esker_format::profile::{ProfileFile, ProfileRead, is_path};
use esker_vfs::{Node, NodeKey, Reply, Tree};
use esker_view::{Observer, View};

/// Maximum size of files that are recorded as a whole; of larger ones parts of this size are recorded.
const PART: u64 = 1 << 20;
/// Maximum number of recorded reads.
const READS_MAX: usize = 1 << 19;

/// Records the first read of each file, and of each part of a large file.
pub(crate) struct Recorder {
    started: Instant,
    noted: Mutex<Noted>,
}

/// Reads recorded so far.
#[derive(Default)]
struct Noted {
    files: Vec<Node>,
    numbers: HashMap<NodeKey, usize>,
    /// The parts of large files that were read.
    parts: HashSet<(usize, u64)>,
    reads: Vec<ProfileRead>,
}

/// Files that a command read.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    pub(crate) files: Vec<ProfileFile>,
    pub(crate) reads: Vec<ProfileRead>,
    /// Number of files whose names a profile can't represent.
    pub(crate) left_out: usize,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), noted: Mutex::default() }
    }

    /// Returns all recorded reads by path; the view must still be open.
    pub(crate) fn finish(&self, view: &View) -> Recorded {
        let noted = std::mem::take(&mut *lock(&self.noted));
        let mut recorded = Recorded::default();
        let numbers: Vec<Option<usize>> = noted
            .files
            .iter()
            .map(|node| {
                let Some(file) = file(view, node) else {
                    recorded.left_out += 1;
                    return None;
                };
                recorded.files.push(file);
                Some(recorded.files.len() - 1)
            })
            .collect();
        let kept = noted.reads.into_iter().filter_map(|read| {
            numbers.get(read.file).copied().flatten().map(|file| ProfileRead { file, ..read })
        });
        recorded.reads = kept.collect();
        recorded
    }
}

/// Returns a profile's entry for a file; `None` if it can't be made.
fn file(view: &View, node: &Node) -> Option<ProfileFile> {
    let path = String::from_utf8(view.path(node)?).ok().filter(|path| is_path(path))?;
    let attr = Reply::wait(|reply| view.attributes(node, reply)).ok()?;
    Some(ProfileFile { path, size: attr.size, program: attr.permissions & 0o111 != 0 })
}

impl Observer for Recorder {
    fn read(&self, file: &Node, size: u64, range: Range<u64>) {
        let ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        lock(&self.noted).read(file, size, range, ms);
    }
}

impl Noted {
    fn read(&mut self, node: &Node, size: u64, range: Range<u64>, ms: u64) {
        if self.reads.len() >= READS_MAX {
            return;
        }
        let next = self.files.len();
        let file = *self.numbers.entry(node.key).or_insert(next);
        if file == next {
            self.files.push(*node);
        }
        if size <= PART {
            if file == next {
                self.reads.push(ProfileRead { file, ms, range: None });
            }
            return;
        }
        for part in range.start / PART..=(range.end - 1) / PART {
            if self.parts.insert((file, part)) {
                self.part(file, part * PART..((part + 1) * PART).min(size), ms);
            }
        }
    }

    /// Records a part; a part that follows the previous read is merged with it.
    fn part(&mut self, file: usize, part: Range<u64>, ms: u64) {
        if let Some(ProfileRead { file: last, range: Some(range), .. }) = self.reads.last_mut()
            && *last == file
            && range.end == part.start
        {
            range.end = part.end;
        } else {
            self.reads.push(ProfileRead { file, ms, range: Some(part) });
        }
    }
}

fn lock(noted: &Mutex<Noted>) -> std::sync::MutexGuard<'_, Noted> {
    noted.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use esker_vfs::{Ino, Kind, PAYLOAD_LEN, Payload};

    use super::*;

    fn node(number: u8) -> Node {
        Node {
            key: NodeKey([number; 16]),
            ino: Ino(u64::from(number)),
            payload: Payload([0; PAYLOAD_LEN]),
            kind: Kind::File,
        }
    }

    #[test]
    fn first_reads_are_recorded_in_order_and_large_files_in_parts() {
        let mut noted = Noted::default();
        let large = 5 * PART + 7;
        for (number, size, range, ms) in [
            (1, 10, 0..10, 0),
            (2, large, 0..4096, 1),
            (2, large, PART - 1..PART + 1, 2),
            (1, 10, 0..10, 3),
            (2, large, 5 * PART..large, 4),
            (3, PART, 0..PART, 5),
            (2, large, 0..large, 6),
        ] {
            noted.read(&node(number), size, range, ms);
        }
        let read = |file, ms, range| ProfileRead { file, ms, range };
        assert_eq!(
            noted.reads,
            [
                read(0, 0, None),
                read(1, 1, Some(0..2 * PART)),
                read(1, 4, Some(5 * PART..large)),
                read(2, 5, None),
                read(1, 6, Some(2 * PART..5 * PART)),
            ]
        );
        assert_eq!(noted.files.len(), 3);
    }
}
