//! Sink for dry runs, which discards the objects it receives.

use std::io::Write;
use std::path::Path;

use esker_format::object::ObjectName;
use esker_store::{Listed, Locking, Put, Sink, StoreError, StoredFiles, Swap};

/// Reads from a sink, and stores nothing in it.
pub(crate) struct DrySink<'s>(pub(crate) &'s dyn Sink);

impl StoredFiles for DrySink<'_> {
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

impl Sink for DrySink<'_> {
    fn folder(&self) -> Option<&Path> {
        self.0.folder()
    }

    fn make_folders(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn prepare(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn lock_root(&self) -> Result<Option<Locking>, StoreError> {
        Ok(None)
    }

    fn put(&self, name: &ObjectName, stored: &[u8]) -> Result<Put, StoreError> {
        Ok(if self.0.has(name, stored.len() as u64)? { Put::Present } else { Put::Stored })
    }

    fn put_anew(&self, _name: &ObjectName, _stored: &[u8]) -> Result<Put, StoreError> {
        Ok(Put::Stored)
    }

    fn has(&self, name: &ObjectName, len: u64) -> Result<bool, StoreError> {
        self.0.has(name, len)
    }

    fn len_of(&self, name: &ObjectName) -> Result<Option<u64>, StoreError> {
        self.0.len_of(name)
    }

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn put_root(&self, _name: &str, _bytes: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }

    fn replace_root(&self, _: &str, _: &[u8], _: Option<&[u8]>) -> Result<Swap, StoreError> {
        Ok(Swap::Replaced)
    }

    fn remove_root(&self, _name: &str) -> Result<(), StoreError> {
        Ok(())
    }

    fn list_root(&self) -> Result<Vec<String>, StoreError> {
        self.0.list_root()
    }

    fn put_alternative(&self, _name: &ObjectName) -> Result<(), StoreError> {
        Ok(())
    }

    fn list(&self, visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError> {
        self.0.list(visit)
    }

    fn delete(&self, _names: &[ObjectName]) -> Result<(), StoreError> {
        Ok(())
    }

    fn remove_all(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
