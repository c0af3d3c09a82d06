//! Storage of a publisher without keys: files are read from the web server, objects go to a gateway.

use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use esker_format::object::ObjectName;
use esker_store::{Cause, Listed, Locking, Put, Sink, StorageProblem, StoreError, StoredFiles, Swap};

use crate::gateway::GatewaySession;
use crate::served_files::ServedFiles;

/// A repository on its web server, which is changed through a gateway only.
pub(crate) struct ServedSink {
    files: ServedFiles,
    /// None for reading only.
    session: Option<Arc<dyn GatewaySession>>,
}

impl ServedSink {
    pub(crate) fn new(files: ServedFiles, session: Option<Arc<dyn GatewaySession>>) -> Self {
        Self { files, session }
    }

    fn session(&self, doing: &'static str) -> Result<&dyn GatewaySession, StoreError> {
        self.session.as_deref().ok_or_else(|| self.refused(doing))
    }

    /// Returns the error of what only the owner of the storage can do.
    fn refused(&self, doing: &'static str) -> StoreError {
        let (key, problem) = (".".to_owned(), StorageProblem::OwnerOnly);
        let cause = Cause::Bucket { doing, key, bucket: self.describe(), problem };
        StoreError::new("the storage", cause)
    }
}

impl StoredFiles for ServedSink {
    fn describe(&self) -> String {
        self.files.describe()
    }

    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.files.read(path, limit)
    }

    fn read_to(&self, path: &str, to: &mut dyn Write) -> Result<Option<u64>, StoreError> {
        self.files.read_to(path, to)
    }
}

impl Sink for ServedSink {
    fn folder(&self) -> Option<&Path> {
        None
    }

    fn make_folders(&self) -> Result<(), StoreError> {
        Err(self.refused("making"))
    }

    fn prepare(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn lock_root(&self) -> Result<Option<Locking>, StoreError> {
        Err(self.refused("locking"))
    }

    fn put(&self, name: &ObjectName, stored: &[u8]) -> Result<Put, StoreError> {
        self.session("storing objects in")?.put(name, stored)
    }

    fn put_anew(&self, name: &ObjectName, stored: &[u8]) -> Result<Put, StoreError> {
        self.put(name, stored)
    }

    fn has(&self, name: &ObjectName, len: u64) -> Result<bool, StoreError> {
        match &self.session {
            Some(session) => session.has(name),
            None => Ok(self.len_of(name)? == Some(len)),
        }
    }

    fn len_of(&self, name: &ObjectName) -> Result<Option<u64>, StoreError> {
        self.files.read_to(&name.path(), &mut io::sink())
    }

    fn flush(&self) -> Result<(), StoreError> {
        self.session.as_ref().map_or(Ok(()), |session| session.flush())
    }

    fn put_root(&self, _name: &str, _bytes: &[u8]) -> Result<(), StoreError> {
        Err(self.refused("replacing"))
    }

    fn replace_root(&self, _name: &str, _bytes: &[u8], _expected: Option<&[u8]>) -> Result<Swap, StoreError> {
        Err(self.refused("replacing"))
    }

    fn remove_root(&self, _name: &str) -> Result<(), StoreError> {
        Err(self.refused("removing"))
    }

    fn list_root(&self) -> Result<Vec<String>, StoreError> {
        Err(self.refused("listing"))
    }

    fn put_alternative(&self, _name: &ObjectName) -> Result<(), StoreError> {
        Err(self.refused("replacing"))
    }

    fn list(&self, _visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError> {
        Err(self.refused("listing"))
    }

    fn delete(&self, _names: &[ObjectName]) -> Result<(), StoreError> {
        Err(self.refused("deleting"))
    }

    fn remove_all(&self) -> Result<(), StoreError> {
        Err(self.refused("removing"))
    }
}
