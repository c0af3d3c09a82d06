//! Servers that have the same objects as a damaged repository.

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_format::object::ObjectName;
use esker_object_storage::connect;
use esker_repository::{DATABASE_MAX, RepositoryError};
use esker_store::{
    Callback, Cause, Engine, EngineOptions, Expected, Fetch, FolderSpool, Servers, Source, Spool, StoreError,
    Stored, StoredFiles,
};

/// Maximum number of bytes of a response to a HEAD request.
const HEADER_MAX: u64 = 1 << 16;

/// State of an object at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has the object; the number of its bytes, if they were read.
    Good(u64),
    /// It does not have the object.
    Missing,
    /// It has the object, which can't be read or has other bytes than its name says.
    Bad(String),
}

/// A place that has the same objects.
pub trait Mirror: StoredFiles {
    /// Tells whether a file is there, without reading it.
    fn presence(&self, path: &str) -> Result<Verdict, RepositoryError>;

    /// Reads an object and compares it with its name.
    fn verify(&self, name: &ObjectName) -> Result<Verdict, RepositoryError>;

    /// Returns true if a file is there.
    fn has(&self, path: &str) -> Result<bool, RepositoryError> {
        Ok(matches!(self.presence(path)?, Verdict::Good(_)))
    }
}

/// A mirror on a server.
pub struct MirrorServer {
    source: Arc<dyn Source>,
    /// Longest wait for one file; none waits as long as bytes arrive.
    patience: Option<Duration>,
    _engine: Engine,
}

impl MirrorServer {
    /// Returns the mirror at a URL, without asking it.
    pub fn new(url: &str, patience: Option<Duration>) -> Result<Self, StoreError> {
        let engine = Engine::start(EngineOptions::default())?;
        let source = connect(&engine, Servers::direct(url.trim_end_matches('/')))?;
        Ok(Self { source, patience, _engine: engine })
    }
}

impl StoredFiles for MirrorServer {
    fn describe(&self) -> String {
        self.source.describe()
    }

    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        let stored = self.fetch(Fetch::new(path, path, limit))?;
        stored.map(|stored| stored.into_bytes().map_err(unread(path))).transpose()
    }

    fn read_to(&self, path: &str, to: &mut dyn Write) -> Result<Option<u64>, StoreError> {
        let fetch = Fetch { spool: Some(temporary_files()), ..Fetch::new(path, path, DATABASE_MAX) };
        let copy = |stored: Stored| io::copy(&mut stored.into_reader(), to).map_err(unread(path));
        self.fetch(fetch)?.map(copy).transpose()
    }
}

impl Mirror for MirrorServer {
    fn presence(&self, path: &str) -> Result<Verdict, RepositoryError> {
        let mut fetch = Fetch::new(path, path, HEADER_MAX);
        fetch.http.header_only = true;
        self.judge(fetch)
    }

    fn verify(&self, name: &ObjectName) -> Result<Verdict, RepositoryError> {
        let fetch = Fetch::new(name.path(), name.to_string(), DATABASE_MAX);
        self.judge(Fetch { expected: Expected::Hash(name.hash), spool: Some(temporary_files()), ..fetch })
    }
}

impl MirrorServer {
    /// Fetches a file; none if the server has none.
    fn fetch(&self, fetch: Fetch) -> Result<Option<Stored>, StoreError> {
        let (what, begun) = (fetch.what.clone(), Instant::now());
        let is_late = || self.patience.is_some_and(|patience| begun.elapsed() >= patience);
        match Callback::wait_unless(|done| self.source.fetch(fetch, done), is_late) {
            Err(error) if matches!(error.cause(), Cause::Missing { .. }) => Ok(None),
            Err(_) if is_late() => {
                let late = format!("it did not arrive within {} s", begun.elapsed().as_secs());
                Err(StoreError::new(what, Cause::Broken(late)))
            }
            other => other.map(Some),
        }
    }

    /// Sends a request. What the server says of the object is a verdict; a server that can't be reached is an error.
    fn judge(&self, fetch: Fetch) -> Result<Verdict, RepositoryError> {
        match Callback::wait(|done| self.source.fetch(fetch, done)) {
            Ok(stored) => Ok(Verdict::Good(stored.len())),
            Err(error) => match error.cause() {
                Cause::Missing { .. } => Ok(Verdict::Missing),
                Cause::Corrupt { len, .. } => {
                    Ok(Verdict::Bad(format!("its {len} bytes have another hash than its name says")))
                }
                Cause::Status(status) => Ok(Verdict::Bad(format!("the server answers status {status}"))),
                _ => Err(error.into()),
            },
        }
    }
}

/// Returns the error for a received file that can't be read back.
fn unread(path: &str) -> impl FnOnce(io::Error) -> StoreError {
    move |source| StoreError::new(path, Cause::Disk { doing: "fetching", path: path.into(), source })
}

/// Returns the spool for objects that are too large for memory.
fn temporary_files() -> Arc<dyn Spool> {
    Arc::new(FolderSpool(std::env::temp_dir()))
}
