//! A repository in a local folder.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::OFlags;

use crate::done::Done;
use crate::error::{Cause, StoreError};
use crate::pool::Pool;
use crate::source::{Fetch, MEMORY_MAX, Source, Stored};

/// A repository whose files lie in a folder, as a web server would serve them.
pub(crate) struct LocalSource {
    root: PathBuf,
    pool: Arc<Pool>,
}

impl LocalSource {
    pub(crate) fn new(path: &str, pool: Arc<Pool>) -> Result<Self, StoreError> {
        if !path.starts_with('/') {
            let url = format!("file://{path}");
            let reason = "it needs an absolute path: file:///folder/of/repository";
            return Err(StoreError::new("the repository", Cause::BadUrl { url, reason }));
        }
        Ok(Self { root: PathBuf::from(path), pool })
    }
}

impl Source for LocalSource {
    fn fetch(&self, fetch: Fetch, done: Done<Stored>) {
        let path = self.root.join(&fetch.path);
        let place = self.describe();
        self.pool.spawn(fetch.priority.urgency(), move || {
            let read = read(&path, &fetch);
            done.give(read.map_err(|cause| fetch.error(cause).from_place(place)));
        });
    }

    fn describe(&self) -> String {
        format!("file://{}", self.root.display())
    }
}

fn read(path: &Path, fetch: &Fetch) -> Result<Stored, Cause> {
    let failed = |source: io::Error| Cause::Disk { doing: "reading", path: path.to_owned(), source };
    // A pipe that someone put there must not make this thread wait.
    let flags = i32::try_from(OFlags::NONBLOCK.bits()).unwrap_or_default();
    let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(Cause::Missing { status: error.to_string() });
        }
        other => other.map_err(failed)?,
    };
    let facts = file.metadata().map_err(failed)?;
    if !facts.is_file() {
        return Err(failed(io::Error::other("not a regular file")));
    }
    if facts.len() > fetch.limit {
        return Err(Cause::TooLarge { limit: fetch.limit });
    }
    match &fetch.spool {
        Some(spool) if facts.len() > MEMORY_MAX => {
            // Copied, because others may write to the original between its verification and its use.
            let copy = spool.file().map_err(failed)?;
            let len = pieces(file, fetch.limit, |piece| spool.append(&copy, piece).map_err(failed), failed)?;
            Ok(Stored::spooled(copy, len))
        }
        _ => {
            let mut bytes = Vec::new();
            let keep = |piece: &[u8]| {
                bytes.extend_from_slice(piece);
                Ok(())
            };
            pieces(file, fetch.limit, keep, failed)?;
            Ok(Stored::in_memory(bytes))
        }
    }
}

/// Reads to the end, however long the file said it was; returns its length.
fn pieces(
    mut file: File,
    limit: u64,
    mut take: impl FnMut(&[u8]) -> Result<(), Cause>,
    failed: impl Fn(io::Error) -> Cause,
) -> Result<u64, Cause> {
    let mut piece = vec![0; 256 << 10];
    let mut len = 0;
    loop {
        let got = match file.read(&mut piece) {
            Ok(0) => return Ok(len),
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(error)),
        };
        len += got as u64;
        if len > limit {
            return Err(Cause::TooLarge { limit });
        }
        take(&piece[..got])?;
    }
}
