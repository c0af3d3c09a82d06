//! Records the files that a command reads, in the order of their first reads.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use esker_format::profile::ProfileFile;
use esker_vfs::{Node, NodeKey, Reply, Tree};
use esker_view::{Observer, View};

use super::first_reads::{FirstReads, Recorded};

/// Records the first read of each file, and of each part of a large file.
pub(crate) struct Recorder {
    started: Instant,
    noted: Mutex<Noted>,
}

/// Reads recorded so far, and their files.
#[derive(Default)]
struct Noted {
    reads: FirstReads<NodeKey>,
    files: HashMap<NodeKey, Node>,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now(), noted: Mutex::default() }
    }

    /// Returns all recorded reads by path; the view must still be open.
    pub(crate) fn finish(&self, view: &View) -> Recorded {
        let noted = std::mem::take(&mut *self.noted.lock().unwrap_or_else(PoisonError::into_inner));
        noted.reads.recorded(Some(0), |key| file(view, noted.files.get(key)?))
    }
}

/// Returns a profile's entry for a file; `None` if it can't be made.
fn file(view: &View, node: &Node) -> Option<ProfileFile> {
    let path = String::from_utf8(view.path(node)?).ok()?;
    let attr = Reply::wait(|reply| view.attributes(node, reply)).ok()?;
    Some(ProfileFile { path, size: attr.size, program: attr.permissions & 0o111 != 0 })
}

impl Observer for Recorder {
    fn read(&self, file: &Node, _size: u64, range: Range<u64>) {
        let began_ns = u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut noted = self.noted.lock().unwrap_or_else(PoisonError::into_inner);
        noted.files.entry(file.key).or_insert(*file);
        noted.reads.add(&file.key, range, began_ns);
    }
}
