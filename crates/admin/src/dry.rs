//! Sink for dry runs, which discards the objects it receives.

use esker_format::object::ObjectName;
use esker_store::{Put, Sink, StoreError, Swap};

/// Reads from a sink, and stores nothing in it.
pub(crate) struct DrySink<'s>(pub(crate) &'s dyn Sink);

impl Sink for DrySink<'_> {
    fn describe(&self) -> String {
        self.0.describe()
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

    fn flush(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.0.read(path, limit)
    }

    fn put_root(&self, _name: &str, _bytes: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }

    fn replace_root(&self, _: &str, _: &[u8], _: Option<&[u8]>) -> Result<Swap, StoreError> {
        Ok(Swap::Replaced)
    }

    fn put_alternative(&self, _name: &ObjectName) -> Result<(), StoreError> {
        Ok(())
    }

    fn list(&self, visit: &mut dyn FnMut(ObjectName, u64)) -> Result<(), StoreError> {
        self.0.list(visit)
    }
}
