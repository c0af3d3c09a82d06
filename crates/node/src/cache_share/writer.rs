//! Interfaces to the process that writes a cache.

use std::path::PathBuf;
use std::sync::Arc;

use esker_store::{Cache, ObjectStore, StoreError};

/// The cache, opened for writing by this process. Dropping the last reference closes it.
pub trait Writer: Send + Sync {
    /// Returns the objects of the repository at these servers (the text form of [`Servers`](esker_store::Servers)).
    fn store(&self, servers: &str) -> Result<Arc<dyn ObjectStore>, StoreError>;

    /// Returns the cache itself, for administration.
    fn cache(&self) -> Option<Cache> {
        None
    }

    /// True if its folder was removed or replaced. May block as long as the disk does.
    fn is_lost(&self) -> bool {
        false
    }

    /// Shuts the cache down cleanly, so that the next writer need not check it. Afterwards the lock is free.
    fn close(&self);
}

/// Opens the cache.
pub trait Opener: Send + Sync {
    /// Opens it for writing; [`Cause::Busy`] while another process has it.
    fn open(&self) -> Result<Arc<dyn Writer>, StoreError>;

    /// Opens a store that needs no disk and keeps no file content, for as long as the disk fails.
    fn open_spare(&self) -> Option<Arc<dyn Writer>> {
        None
    }
}

impl<F: Fn() -> Result<Arc<dyn Writer>, StoreError> + Send + Sync> Opener for F {
    fn open(&self) -> Result<Arc<dyn Writer>, StoreError> {
        self()
    }
}

/// Any opener.
pub type OpenWriter = Box<dyn Opener>;

/// A broker that serves all users of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokerAddress {
    /// Path of its socket.
    pub socket: PathBuf,
    /// Users that may run it: the broker's user decides which bytes a mount shows.
    pub trusted: Vec<u32>,
}
