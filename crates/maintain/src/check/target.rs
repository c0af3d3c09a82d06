//! The storage that is checked: a folder of this machine, object storage, or a server.

use std::io;

use esker_format::hash::Hasher;
use esker_format::object::ObjectName;
use esker_repository::{RepositoryError, Storage};
use esker_store::StoredFiles;

use super::mirror::{Mirror, Verdict};

/// The storage that is checked.
pub(super) enum Target<'t> {
    /// A folder or object storage, whose objects are listed.
    Storage(&'t Storage),
    /// A server, which is asked for each object.
    Server(&'t dyn Mirror),
}

impl Target<'_> {
    /// Returns the storage for reading files.
    pub(super) fn files(&self) -> &dyn StoredFiles {
        match self {
            Self::Storage(storage) => &**storage.sink(),
            Self::Server(server) => *server,
        }
    }

    /// Returns true if a file below the root of the repository exists.
    pub(super) fn exists(&self, path: &str) -> Result<bool, RepositoryError> {
        match self {
            Self::Storage(storage) => match storage.sink().folder() {
                Some(folder) => Ok(folder.join(path).exists()),
                None => Ok(storage.sink().list_root()?.iter().any(|name| name == path)),
            },
            Self::Server(server) => server.has(path),
        }
    }

    /// Reads an object and compares it with its name.
    pub(super) fn verify(&self, name: &ObjectName) -> Result<Verdict, RepositoryError> {
        let storage = match self {
            Self::Storage(storage) => storage,
            Self::Server(server) => return server.verify(name),
        };
        let mut hashing = Hashing(Hasher::new(name.hash.algorithm()));
        let read = storage.sink().read_to(&name.path(), &mut hashing)?;
        let Some(len) = read else { return Ok(Verdict::Missing) };
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
