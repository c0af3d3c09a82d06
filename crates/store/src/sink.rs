//! Storage that a publisher writes objects and heads to.
//!
//! An object has its name only once its bytes are durable, so whatever stops a publisher, every visible object is
//! whole. [`Sink::put`] collects, [`Sink::flush`] makes durable and visible, and the head is put last, after
//! everything it refers to was flushed.

mod local;
mod transit;

use esker_format::object::ObjectName;

use crate::error::StoreError;

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

/// A storage that a repository is published to. All calls block; several threads may put objects.
pub trait Sink: Send + Sync {
    /// Returns the place for messages.
    fn describe(&self) -> String;

    /// Stores an object under its name unless it exists. It is durable and visible after [`Self::flush`].
    fn put(&self, name: &ObjectName, stored: &[u8]) -> Result<Put, StoreError>;

    /// Stores an object under its name, also if it exists: the stored one may be about to be deleted.
    fn put_anew(&self, name: &ObjectName, stored: &[u8]) -> Result<Put, StoreError>;

    /// Returns whether an object is pending, or stored with this length and the bytes of its name; a different one is
    /// damaged.
    fn has(&self, name: &ObjectName, len: u64) -> Result<bool, StoreError>;

    /// Makes all objects put so far durable, and then visible.
    fn flush(&self) -> Result<(), StoreError>;

    /// Reads a file by its path below the root of the repository; none if there is no such file.
    fn read(&self, path: &str, limit: u64) -> Result<Option<Vec<u8>>, StoreError>;

    /// Replaces a file in the root of the repository, durably and atomically.
    fn put_root(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError>;

    /// Replaces a file in the root of the repository if it has the expected content; none if it is to be missing.
    fn replace_root(&self, name: &str, bytes: &[u8], expected: Option<&[u8]>) -> Result<Swap, StoreError>;

    /// Gives a flushed object its alternative name, for repositories whose manifest announces alternative
    /// names.
    fn put_alternative(&self, name: &ObjectName) -> Result<(), StoreError>;

    /// Passes the name and stored length of every object to `visit`, in no particular order.
    fn list(&self, visit: &mut dyn FnMut(ObjectName, u64)) -> Result<(), StoreError>;
}
