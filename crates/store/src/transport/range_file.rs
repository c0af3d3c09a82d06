//! A file on a server of which parts are read: an image that is larger than the parts that are read of it.
//!
//! Every part is requested with the version of the file at its opening (`If-Range`), so that all parts are of one
//! version, or reading fails.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::callback::Callback;
use crate::error::{Cause, StoreError};
use crate::progress::Progress;
use crate::transport::source::{Check, Fetch, FilePart, FileVersion, Source, Stored};

/// A file on a server.
pub struct RangeFile {
    source: Arc<dyn Source>,
    path: String,
    what: Arc<str>,
    whole: Arc<FileVersion>,
    /// Progress of all parts being read.
    progress: Progress,
}

impl RangeFile {
    /// Requests the first byte of a file, and thereby its length and version. `what` is its name for messages.
    pub fn open(source: Arc<dyn Source>, path: &str, what: impl Into<Arc<str>>) -> Result<Self, StoreError> {
        let what = what.into();
        let fetch = Fetch { part: Some((0..1).into()), ..Fetch::new(path, what.clone(), 1) };
        let stored = wait(&*source, fetch)?;
        let said = || "it doesn't say how long the file is".to_owned();
        let whole = stored.whole().cloned().ok_or_else(|| {
            StoreError::new(what.clone(), Cause::Broken(said())).from_place(source.describe())
        })?;
        Ok(Self::known(source, path, what, whole))
    }

    /// Creates a file whose length and version are known; sends no request.
    pub fn known(source: Arc<dyn Source>, path: &str, what: impl Into<Arc<str>>, whole: FileVersion) -> Self {
        let progress = Progress::default();
        Self { source, path: path.to_owned(), what: what.into(), whole: Arc::new(whole), progress }
    }

    /// Returns the length and version.
    pub fn whole(&self) -> &FileVersion {
        &self.whole
    }

    /// Returns when bytes of any part being read last arrived.
    pub fn progress(&self) -> Option<Instant> {
        self.progress.last()
    }

    /// Reads a part, which must be within the file. A part that fails the check counts as damaged in transit,
    /// and is requested again. Blocks, at most as long as the source retries.
    pub fn read(&self, part: Range<u64>, check: Option<Check>) -> Result<Vec<u8>, StoreError> {
        let len = part.end.saturating_sub(part.start);
        let part = FilePart { range: part, whole: Some(self.whole.clone()) };
        let fetch = Fetch {
            part: Some(part),
            expected: check.into(),
            ..Fetch::new(&*self.path, self.what.clone(), len)
        };
        let progress = fetch.progress.clone();
        self.progress.follow(&progress);
        let stored = wait(&*self.source, fetch);
        self.progress.unfollow(&progress);
        let stored = stored?;
        let failed = |cause| StoreError::new(self.what.clone(), cause).from_place(self.source.describe());
        if stored.len() != len {
            return Err(failed(Cause::Broken(format!("it sent {} bytes of {len}", stored.len()))));
        }
        stored.into_bytes().map_err(|source| failed(unreadable(source)))
    }

    /// Reads a small file as a whole.
    pub fn read_whole(
        source: &dyn Source,
        path: &str,
        what: impl Into<Arc<str>>,
        limit: u64,
        check: Option<Check>,
    ) -> Result<Vec<u8>, StoreError> {
        let what = what.into();
        let stored = wait(source, Fetch { expected: check.into(), ..Fetch::new(path, what.clone(), limit) })?;
        stored.into_bytes().map_err(|error| StoreError::new(what, unreadable(error)))
    }
}

fn unreadable(source: std::io::Error) -> Cause {
    Cause::Disk { doing: "reading back", path: "what was fetched".into(), source }
}

/// Fetches and waits. Every request ends by itself: each attempt has deadlines, and attempts are counted.
fn wait(source: &dyn Source, fetch: Fetch) -> Result<Stored, StoreError> {
    Callback::wait(|done| source.fetch(fetch, done))
}
