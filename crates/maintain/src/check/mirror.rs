//! Servers that have the same objects as a damaged repository.

use std::io::Write;
use std::time::Duration;

use esker_format::object::ObjectName;
use esker_repository::{DATABASE_MAX, RepositoryError, ServedFiles, temporary_files};
use esker_store::{Callback, Cause, Expected, Fetch, Servers, StoreError, StoredFiles};

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
pub struct MirrorServer(ServedFiles);

impl MirrorServer {
    /// Returns the mirror at a URL, without asking it; `patience` is the longest wait for one file.
    pub fn new(url: &str, patience: Option<Duration>) -> Result<Self, StoreError> {
        Ok(Self(ServedFiles::new(Servers::direct(url.trim_end_matches('/')), patience)?))
    }
}

impl StoredFiles for MirrorServer {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.read(path, limit)
    }

    fn read_to(&self, path: &str, to: &mut dyn Write) -> Result<Option<u64>, StoreError> {
        self.0.read_to(path, to)
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
    /// Sends a request. What the server says of the object is a verdict; a server that can't be reached is an error.
    fn judge(&self, fetch: Fetch) -> Result<Verdict, RepositoryError> {
        match Callback::wait(|done| self.0.source().fetch(fetch, done)) {
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
