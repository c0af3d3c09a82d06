//! Storage that a publisher writes objects and heads to.
//!
//! An object has its name only once its bytes are durable, so whatever stops a publisher, every visible object is
//! whole. [`Sink::put`] collects, [`Sink::flush`] makes durable and visible, and the head is put last, after
//! everything it refers to was flushed.

mod local;
mod transit;

use std::io::Write;
use std::path::Path;
use std::time::{Duration, SystemTime};

use esker_format::object::ObjectName;

use crate::error::StoreError;
use crate::file_lock::Locking;

pub use local::LocalSink;

/// Result of putting an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    /// The object was new.
    Stored,
    /// The object existed or was pending.
    Present,
}

/// Result of replacing a file in the root of a repository that was expected to have a given content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Swap {
    /// The file had the expected content, and has the new one.
    Replaced,
    /// The file has other content than was expected, and keeps it.
    Moved,
}

/// A stored object, as a listing describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Name of the object.
    pub name: ObjectName,
    /// Stored length in bytes.
    pub len: u64,
    /// Time of the last write, by the clock of the storage.
    pub modified: SystemTime,
}

/// A request by which a client without credentials stores one object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedPut {
    /// URL that the object is put to.
    pub url: String,
    /// Names and values of fields that the request must have.
    pub fields: Vec<(String, String)>,
    /// Path of the file that is stored, if the storage doesn't compare it with the name of the object.
    pub staged: Option<String>,
}

/// The files of a repository, for readers. All calls block.
pub trait StoredFiles: Send + Sync {
    /// Returns the place for messages.
    fn describe(&self) -> String;

    /// Reads a file by its path below the root of the repository; none if there is no such file.
    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, StoreError>;

    /// Copies a file by its path below the root of the repository, piece by piece; returns its length, none if there is
    /// no such file.
    fn read_to(&self, path: &str, to: &mut dyn Write) -> Result<Option<u64>, StoreError>;
}

/// A storage that a repository is published to. All calls block; several threads may put objects.
pub trait Sink: StoredFiles {
    /// Returns the folder of the repository; none if it is in a bucket.
    fn folder(&self) -> Option<&Path>;

    /// Makes the folders of a new repository; those that exist already are fine. A bucket is asked whether it exists.
    fn make_folders(&self) -> Result<(), StoreError>;

    /// Prepares the storage for storing objects: removes what processes left that have ended.
    fn prepare(&self) -> Result<(), StoreError>;

    /// Takes the lock that is needed to replace root files; none if the storage needs no lock, because
    /// [`Self::replace_root`] compares and replaces in one step.
    fn lock_root(&self) -> Result<Option<Locking>, StoreError>;

    /// Stores an object under its name unless it exists. It is durable and visible after [`Self::flush`].
    fn put(&self, name: &ObjectName, stored: &[u8]) -> Result<Put, StoreError>;

    /// Stores an object under its name, also if it exists: the stored one may be about to be deleted.
    fn put_anew(&self, name: &ObjectName, stored: &[u8]) -> Result<Put, StoreError>;

    /// Returns whether an object is pending, or stored with this length and the bytes of its name; a different one is
    /// damaged.
    fn has(&self, name: &ObjectName, len: u64) -> Result<bool, StoreError>;

    /// Returns the stored length of an object, whatever its bytes are; none if there is no such object.
    fn len_of(&self, name: &ObjectName) -> Result<Option<u64>, StoreError>;

    /// Returns the number of requests that may be under way at once; 1 for storage that answers at once.
    fn at_once(&self) -> usize {
        1
    }

    /// Returns those of some objects that are not stored, in their order.
    fn missing(&self, names: &[ObjectName]) -> Result<Vec<ObjectName>, StoreError> {
        let mut missing = Vec::new();
        for name in names {
            if self.len_of(name)?.is_none() {
                missing.push(*name);
            }
        }
        Ok(missing)
    }

    /// Returns requests by which others store objects of these lengths, within a time and without credentials; none if the
    /// storage has no such requests.
    fn signed_puts(
        &self,
        objects: &[(ObjectName, u64)],
        valid: Duration,
    ) -> Result<Option<Vec<SignedPut>>, StoreError> {
        let _ = (objects, valid);
        Ok(None)
    }

    /// Makes all objects put so far durable, and then visible.
    fn flush(&self) -> Result<(), StoreError>;

    /// Replaces a file in the root of the repository, durably and atomically.
    fn put_root(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError>;

    /// Replaces a file in the root of the repository if it has the expected content; none if it is to be missing.
    fn replace_root(&self, name: &str, bytes: &[u8], expected: Option<&[u8]>) -> Result<Swap, StoreError>;

    /// Removes a file in the root of the repository; a missing one is no error.
    fn remove_root(&self, name: &str) -> Result<(), StoreError>;

    /// Returns the names of the files in the root of the repository.
    fn list_root(&self) -> Result<Vec<String>, StoreError>;

    /// Gives a flushed object its alternative name, for repositories whose manifest announces alternative
    /// names.
    fn put_alternative(&self, name: &ObjectName) -> Result<(), StoreError>;

    /// Passes every object to `visit`, in no particular order.
    fn list(&self, visit: &mut dyn FnMut(Listed)) -> Result<(), StoreError>;

    /// Removes objects; missing ones are no error.
    fn delete(&self, names: &[ObjectName]) -> Result<(), StoreError>;

    /// Removes all files of the repository, heads first. Files of others in the same place are removed, too.
    fn remove_all(&self) -> Result<(), StoreError>;
}
