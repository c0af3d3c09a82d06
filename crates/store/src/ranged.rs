//! A file on a server, of which parts are read: an image that is larger than what anybody reads of it.
//!
//! Every part is asked for together with the version that was there when the file was opened (`If-Range`), so that what is
//! read is always of one version, or an error.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::done::Done;
use crate::error::{Cause, StoreError};
use crate::progress::Progress;
use crate::source::{Check, Fetch, Source, Stored};

/// A version of a file, as its server tells it from others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Version {
    /// A strong entity tag, with its quotes.
    Tag(String),
    /// When it was changed last, as the server writes it.
    Time(String),
}

/// What is known of a whole file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whole {
    /// Its length.
    pub len: u64,
    /// Its version; none where a server doesn't tell versions apart.
    pub version: Option<Version>,
}

/// A file on a server.
pub struct RangedFile {
    source: Arc<dyn Source>,
    path: String,
    what: Arc<str>,
    whole: Arc<Whole>,
    /// When bytes of any part that is being read last came.
    progress: Progress,
}

impl RangedFile {
    /// Asks for the first byte of a file, and thereby how long it is and which version. `what` is its name for messages.
    pub fn open(source: Arc<dyn Source>, path: &str, what: impl Into<Arc<str>>) -> Result<Self, StoreError> {
        let what = what.into();
        let fetch = Fetch { part: Some(0..1), ..Fetch::new(path, what.clone(), 1) };
        let stored = wait(&*source, fetch)?;
        let said = || "it doesn't say how long the file is".to_owned();
        let whole = stored.whole().cloned().ok_or_else(|| {
            StoreError::new(what.clone(), Cause::Broken(said())).from_place(source.describe())
        })?;
        Ok(Self::known(source, path, what, whole))
    }

    /// The file of which so much is known already; asks nobody.
    pub fn known(source: Arc<dyn Source>, path: &str, what: impl Into<Arc<str>>, whole: Whole) -> Self {
        let progress = Progress::default();
        Self { source, path: path.to_owned(), what: what.into(), whole: Arc::new(whole), progress }
    }

    /// What is known of it.
    pub fn whole(&self) -> &Whole {
        &self.whole
    }

    /// Returns when bytes of any part that is being read last came.
    pub fn progress(&self) -> Option<Instant> {
        self.progress.last()
    }

    /// Reads a part, which must lie within the file. What fails the check counts as damaged on the way, and is asked for
    /// again. Waits, at most as long as the source's patience lasts.
    pub fn read(&self, part: Range<u64>, check: Option<Check>) -> Result<Vec<u8>, StoreError> {
        let len = part.end.saturating_sub(part.start);
        let whole = Some(self.whole.clone());
        let fetch =
            Fetch { part: Some(part), whole, check, ..Fetch::new(&*self.path, self.what.clone(), len) };
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
        let stored = wait(source, Fetch { check, ..Fetch::new(path, what.clone(), limit) })?;
        stored.into_bytes().map_err(|error| StoreError::new(what, unreadable(error)))
    }
}

fn unreadable(source: std::io::Error) -> Cause {
    Cause::Disk { doing: "reading back", path: "what was fetched".into(), source }
}

/// Fetches and waits. Every request ends by itself: each attempt has deadlines, and attempts are counted.
fn wait(source: &dyn Source, fetch: Fetch) -> Result<Stored, StoreError> {
    Done::wait(|done| source.fetch(fetch, done))
}
