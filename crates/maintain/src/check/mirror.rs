//! Places that have the same objects as a damaged repository.

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;

use esker_format::hash::{ContentHash, Hasher};
use esker_format::object::ObjectName;
use esker_object_storage::connect;
use esker_repository::{DATABASE_MAX, RepositoryError};
use esker_store::{
    Callback, Cause, Engine, EngineOptions, Expected, Fetch, FolderSpool, RealDisk, Servers, Sink, Source,
    Spool, Stored, read_file,
};

/// Bytes that a response to a request for its header may have.
const HEADER_MAX: u64 = 1 << 16;

/// What a place says of an object.
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
pub trait Mirror: Sync {
    /// Reads a file below the root of the repository; none if there is none.
    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, RepositoryError>;

    /// Copies the content of a file by its path below the root of the repository; returns its length, none if the mirror has
    /// no such file.
    fn read_to(&self, path: &str, to: &mut dyn Write) -> Result<Option<u64>, RepositoryError> {
        let Some(bytes) = self.read(path, DATABASE_MAX)? else { return Ok(None) };
        to.write_all(&bytes).map_err(RepositoryError::file("copying", path.as_ref()))?;
        Ok(Some(bytes.len() as u64))
    }

    /// Tells whether a file is there, without reading it.
    fn presence(&self, path: &str) -> Result<Verdict, RepositoryError>;

    /// Reads an object and compares it with its name.
    fn verify(&self, name: &ObjectName) -> Result<Verdict, RepositoryError>;

    /// Returns true if a file is there.
    fn has(&self, path: &str) -> Result<bool, RepositoryError> {
        Ok(matches!(self.presence(path)?, Verdict::Good(_)))
    }
}

/// A mirror in a folder.
#[derive(Clone, Debug)]
pub struct MirrorFolder(pub PathBuf);

impl Mirror for MirrorFolder {
    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, RepositoryError> {
        let path = self.0.join(path);
        read_file(&RealDisk::SERVED, &path, limit).map_err(RepositoryError::file("reading", &path))
    }

    fn presence(&self, path: &str) -> Result<Verdict, RepositoryError> {
        let is_there = std::fs::metadata(self.0.join(path)).is_ok_and(|facts| facts.is_file());
        Ok(if is_there { Verdict::Good(0) } else { Verdict::Missing })
    }

    fn verify(&self, name: &ObjectName) -> Result<Verdict, RepositoryError> {
        let Some(bytes) = self.read(&name.path(), DATABASE_MAX)? else { return Ok(Verdict::Missing) };
        Ok(match ContentHash::of(name.hash.algorithm(), &bytes) == name.hash {
            true => Verdict::Good(bytes.len() as u64),
            false => Verdict::Bad("its bytes have another hash than its name says".to_owned()),
        })
    }
}

/// A mirror in object storage.
pub(super) struct MirrorStorage(pub(super) Arc<dyn Sink>);

impl Mirror for MirrorStorage {
    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, RepositoryError> {
        Ok(self.0.read(path, limit)?)
    }

    fn presence(&self, path: &str) -> Result<Verdict, RepositoryError> {
        let name = path.strip_prefix("data/").and_then(|path| ObjectName::parse(&path.replacen('/', "", 1)));
        let len = match name {
            Some(name) => self.0.len_of(&name)?,
            None => self.0.list_root()?.iter().any(|name| name == path).then_some(0),
        };
        Ok(len.map_or(Verdict::Missing, Verdict::Good))
    }

    fn verify(&self, name: &ObjectName) -> Result<Verdict, RepositoryError> {
        let mut hashing = Hashing(Hasher::new(name.hash.algorithm()));
        let Some(len) = self.0.read_to(&name.path(), &mut hashing)? else { return Ok(Verdict::Missing) };
        Ok(match hashing.0.finish() == name.hash {
            true => Verdict::Good(len),
            false => Verdict::Bad(format!("its {len} bytes have another hash than its name says")),
        })
    }
}

/// Hashes what is written to it.
struct Hashing(Hasher);

impl io::Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.update(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A mirror on a server.
pub struct MirrorServer {
    source: Arc<dyn Source>,
    _engine: Engine,
}

impl MirrorServer {
    /// Returns the mirror at a URL, without asking it.
    pub fn new(url: &str) -> Result<Self, RepositoryError> {
        let engine = Engine::start(EngineOptions::default())?;
        let source = connect(&engine, Servers::direct(url.trim_end_matches('/')))?;
        Ok(Self { source, _engine: engine })
    }
}

impl Mirror for MirrorServer {
    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, RepositoryError> {
        let stored = self.fetch(Fetch::new(path, path, limit))?;
        let failed = RepositoryError::file("fetching", path.as_ref());
        stored.map(|stored| stored.into_bytes().map_err(failed)).transpose()
    }

    fn read_to(&self, path: &str, to: &mut dyn Write) -> Result<Option<u64>, RepositoryError> {
        let fetch = Fetch { spool: Some(temporary_files()), ..Fetch::new(path, path, DATABASE_MAX) };
        let failed = RepositoryError::file("fetching", path.as_ref());
        let copy = |stored: Stored| io::copy(&mut stored.into_reader(), to).map_err(failed);
        self.fetch(fetch)?.map(copy).transpose()
    }

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
    fn fetch(&self, fetch: Fetch) -> Result<Option<Stored>, RepositoryError> {
        match Callback::wait(|done| self.source.fetch(fetch, done)) {
            Err(error) if matches!(error.cause(), Cause::Missing { .. }) => Ok(None),
            other => Ok(Some(other?)),
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

/// Returns the spool for objects that are too large for memory.
fn temporary_files() -> Arc<dyn Spool> {
    Arc::new(FolderSpool(std::env::temp_dir()))
}
