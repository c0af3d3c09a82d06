//! Reading of objects by name, from local storage or through a client's cache.

use std::sync::Arc;

use esker_format::compress::{Compression, decompress};
use esker_format::hash::ContentHash;
use esker_format::object::ObjectName;
use esker_store::Sink;

use crate::error::AdminError;
use crate::signed::read_object;

/// Request for the plain bytes of an object.
#[derive(Clone, Copy, Debug)]
pub struct WantedObject<'a> {
    /// Its name.
    pub name: ObjectName,
    /// Compression of the stored bytes; none for catalogs and the like, which always are compressed.
    pub compression: Option<Compression>,
    /// Its plain size, if that is recorded.
    pub size: Option<u64>,
    /// Most plain bytes that it may have.
    pub limit: u64,
    /// Description for messages.
    pub what: &'a str,
}

/// A place that objects of a repository are read from.
pub trait ObjectSource: Send + Sync {
    /// Returns the plain bytes of an object, verified against its name; the error for a missing object is
    /// [`AdminError::Missing`].
    fn object(&self, wanted: &WantedObject<'_>) -> Result<Vec<u8>, AdminError>;
}

/// Objects in the storage of a publisher.
pub(crate) struct StoredObjects(pub(crate) Arc<dyn Sink>);

impl ObjectSource for StoredObjects {
    fn object(&self, wanted: &WantedObject<'_>) -> Result<Vec<u8>, AdminError> {
        let WantedObject { name, compression, size, limit, what } = *wanted;
        let Some(compression) = compression else { return read_object(&*self.0, &name, size, limit, what) };
        let object = || name.to_string();
        let stored = self.0.read(&name.path(), limit)?;
        let stored = stored.ok_or_else(|| AdminError::Missing { what: what.to_owned(), object: object() })?;
        if ContentHash::of(name.hash.algorithm(), &stored) != name.hash {
            return Err(AdminError::Corrupt { what: what.to_owned(), object: object() });
        }
        decompress(&stored, compression, size, limit)
            .map_err(|source| AdminError::Compressed { what: what.to_owned(), source })
    }
}
