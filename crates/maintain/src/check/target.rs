//! The storage that is checked: a folder of this machine, object storage, or a server.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use esker_format::object::ObjectName;
use esker_repository::{RepositoryError, Storage};
use esker_store::{Cause, Listed, Locking, Put, Sink, StoreError, Swap};

use super::mirror::Mirror;

/// The storage that is checked.
pub(super) enum Target<'t> {
    /// A folder or object storage, whose objects are listed.
    Storage(&'t Storage),
    /// A server, which is asked for each object.
    Server(ServerFiles<'t>),
}

impl Target<'_> {
    /// Returns the storage for reading files.
    pub(super) fn sink(&self) -> &dyn Sink {
        match self {
            Self::Storage(storage) => &**storage.sink(),
            Self::Server(files) => files,
        }
    }

    /// Returns true if a file below the root of the repository exists.
    pub(super) fn exists(&self, path: &str) -> Result<bool, RepositoryError> {
        match self {
            Self::Storage(storage) => match storage.sink().folder() {
                Some(folder) => Ok(folder.join(path).exists()),
                None => Ok(storage.sink().list_root()?.iter().any(|name| name == path)),
            },
            Self::Server(files) => files.0.has(path),
        }
    }
}

/// The files of a repository on a server, which can be read only.
pub(super) struct ServerFiles<'t>(pub(super) &'t dyn Mirror);

impl ServerFiles<'_> {
    fn refused(&self) -> StoreError {
        let cause = Cause::Disk {
            doing: "writing to",
            path: PathBuf::from(self.describe()),
            source: io::ErrorKind::ReadOnlyFilesystem.into(),
        };
        StoreError::new("the storage", cause)
    }
}

impl Sink for ServerFiles<'_> {
    fn describe(&self) -> String {
        "the server".to_owned()
    }

    fn folder(&self) -> Option<&Path> {
        None
    }

    fn make_folders(&self) -> Result<(), StoreError> {
        Err(self.refused())
    }

    fn prepare(&self) -> Result<(), StoreError> {
        Err(self.refused())
    }

    fn lock_root(&self) -> Result<Option<Locking>, StoreError> {
        Err(self.refused())
    }

    fn put(&self, _name: &ObjectName, _stored: &[u8]) -> Result<Put, StoreError> {
        Err(self.refused())
    }

    fn put_anew(&self, _name: &ObjectName, _stored: &[u8]) -> Result<Put, StoreError> {
        Err(self.refused())
    }

    fn has(&self, name: &ObjectName, _len: u64) -> Result<bool, StoreError> {
        self.0.has(&name.path()).map_err(|error| store_error(&name.path(), error))
    }

    fn len_of(&self, _name: &ObjectName) -> Result<Option<u64>, StoreError> {
        Err(self.refused())
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.read(path, limit).map_err(|error| store_error(path, error))
    }

    fn read_to(&self, path: &str, to: &mut dyn Write) -> Result<Option<u64>, StoreError> {
        self.0.read_to(path, to).map_err(|error| store_error(path, error))
    }

    fn put_root(&self, _name: &str, _bytes: &[u8]) -> Result<(), StoreError> {
        Err(self.refused())
    }

    fn replace_root(&self, _: &str, _: &[u8], _: Option<&[u8]>) -> Result<Swap, StoreError> {
        Err(self.refused())
    }

    fn remove_root(&self, _name: &str) -> Result<(), StoreError> {
        Err(self.refused())
    }

    fn list_root(&self) -> Result<Vec<String>, StoreError> {
        Err(self.refused())
    }

    fn put_alternative(&self, _name: &ObjectName) -> Result<(), StoreError> {
        Err(self.refused())
    }

    fn list(&self, _visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError> {
        Err(self.refused())
    }

    fn delete(&self, _names: &[ObjectName]) -> Result<(), StoreError> {
        Err(self.refused())
    }

    fn remove_all(&self) -> Result<(), StoreError> {
        Err(self.refused())
    }
}

fn store_error(path: &str, error: RepositoryError) -> StoreError {
    match error {
        RepositoryError::Storage(error) => error,
        other => StoreError::new(path, Cause::Broken(other.to_string())),
    }
}
