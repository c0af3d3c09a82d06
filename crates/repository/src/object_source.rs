//! Reading of objects by name, from local storage or through a client's cache.

use std::sync::Arc;

use esker_format::compress::Compression;
use esker_format::object::ObjectName;
use esker_store::{LargeBytes, Sink};

use crate::error::RepositoryError;
use crate::signed::read_wanted;

/// Request for the plain bytes of an object.
#[derive(Clone, Copy, Debug)]
pub struct WantedObject<'a> {
    /// Its name.
    pub name: ObjectName,
    /// Compression of the stored bytes; none for catalogs and the like, which always are compressed.
    pub compression: Option<Compression>,
    /// Its plain size, if that is recorded.
    pub size: Option<u64>,
    /// Maximum number of its plain bytes.
    pub limit: u64,
    /// Description for messages.
    pub what: &'a str,
}

/// A place that objects of a repository are read from.
pub trait ObjectSource: Send + Sync {
    /// Returns the plain bytes of an object, verified against its name; the error for a missing object is
    /// [`RepositoryError::Missing`].
    fn object(&self, wanted: &WantedObject<'_>) -> Result<LargeBytes, RepositoryError>;
}

/// Objects in the storage of a publisher.
pub(crate) struct StoredObjects(pub(crate) Arc<dyn Sink>);

impl ObjectSource for StoredObjects {
    fn object(&self, wanted: &WantedObject<'_>) -> Result<LargeBytes, RepositoryError> {
        read_wanted(&*self.0, wanted)
    }
}
