//! Contents of the files that an upper folder changes, for comparisons.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_repository::published::Published;
use esker_repository::{ChangeKind, RepositoryError, file_content, path};
use rustix::fs::{Mode, OFlags};

use super::Upper;
use crate::choices::Choices;
use crate::error::PublishError;
use crate::path_changes::PathChange;

/// A regular file before or after a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSide {
    /// Size in bytes.
    pub size: u64,
    /// Content; none if it is longer than the limit, or elsewhere.
    pub content: Option<Vec<u8>>,
}

/// A changed path with its contents.
#[derive(Clone, Debug)]
pub struct Compared {
    /// The change.
    pub change: PathChange,
    /// The regular file before; none if there was none.
    pub old: Option<FileSide>,
    /// The regular file after; none if there is none.
    pub new: Option<FileSide>,
}

impl Upper {
    /// Calls `each` for the changed paths in order, with contents of at most `limit` bytes. Returns false if `each` did, which ends it.
    /// Needs what [`Upper::changes`] needs.
    pub fn compare(
        &self,
        repository: &Path,
        limit: u64,
        stop: &AtomicBool,
        each: &mut dyn FnMut(Compared) -> bool,
    ) -> Result<bool, PublishError> {
        let base = self.open_base(repository)?;
        let planned = self.plan(&base, &Choices::default(), stop)?;
        let origin = self.origin.as_ref().unwrap_or(&self.base);
        let origin = Published::with_root(base.sink.clone(), origin.root, origin.size);
        for change in planned.list(&origin, &planned.changes(&base.published, &origin)?)? {
            if stop.load(Ordering::Relaxed) {
                return Err(RepositoryError::Interrupted.into());
            }
            let old = match change.change {
                ChangeKind::Added => None,
                ChangeKind::Changed | ChangeKind::Removed => published_side(&origin, &change.path, limit)?,
            };
            let new = match change.change {
                ChangeKind::Removed => None,
                ChangeKind::Added | ChangeKind::Changed => match self.own_side(&change.path, limit)? {
                    Some(own) => own,
                    None => published_side(&base.published, &change.path, limit)?,
                },
            };
            if !each(Compared { change, old, new }) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Returns what the folder has at a path: none if nothing, and no file if it is none.
    fn own_side(&self, path: &[u8], limit: u64) -> Result<Option<Option<FileSide>>, PublishError> {
        let at = self.folder.join(OsStr::from_bytes(path.strip_prefix(b"/").unwrap_or(path)));
        let failed = || RepositoryError::file("reading", &at);
        let facts = match at.symlink_metadata() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(failed())?,
        };
        if !facts.is_file() {
            return Ok(Some(None));
        }
        let mut side = FileSide { size: facts.len(), content: None };
        if side.size <= limit {
            let mut content = Vec::new();
            // A command may have put something else there meanwhile.
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            let file = rustix::fs::open(&at, flags, Mode::empty());
            let file = File::from(file.map_err(std::io::Error::from).map_err(failed())?);
            file.take(limit).read_to_end(&mut content).map_err(failed())?;
            side = FileSide { size: content.len() as u64, content: Some(content) };
        }
        Ok(Some(Some(side)))
    }
}

/// Returns the regular file of a revision.
fn published_side(revision: &Published, path: &[u8], limit: u64) -> Result<Option<FileSide>, PublishError> {
    let at: &[u8] = if path == b"/" { b"" } else { path };
    let Some(entry) = revision.entry(at)?.filter(|entry| entry.is_file()) else { return Ok(None) };
    let content = file_content(&*revision.objects, &entry, limit, &path::shown(path))?;
    Ok(Some(FileSide { size: entry.size, content }))
}
