//! Interfaces to the process that writes a cache.

use std::path::PathBuf;
use std::sync::Arc;

use esker_store::{Cache, ObjectStore, StoreError};
use serde::{Deserialize, Serialize};

/// The cache, opened for writing by this process. Dropping the last reference closes it.
pub trait Writer: Send + Sync {
    /// Returns the objects of the repository at these servers (the text form of [`Servers`](esker_store::Servers)).
    fn store(&self, servers: &str) -> Result<Arc<dyn ObjectStore>, StoreError>;

    /// Returns the cache for administration.
    fn cache(&self) -> Option<Cache> {
        None
    }

    /// Returns true if the folder was removed or replaced. May block as long as the disk does.
    fn is_lost(&self) -> bool {
        false
    }

    /// Shuts the cache down cleanly, so that the next writer need not check it. Afterwards the lock is free.
    fn close(&self);
}

/// Opener of a cache.
pub trait Opener: Send + Sync {
    /// Opens the cache for writing; returns [`Cause::Busy`] while another process holds the lock.
    fn open(&self) -> Result<Arc<dyn Writer>, StoreError>;

    /// Opens a store without a disk and file contents, for use while the disk fails.
    fn open_spare(&self) -> Option<Arc<dyn Writer>> {
        None
    }
}

impl<F: Fn() -> Result<Arc<dyn Writer>, StoreError> + Send + Sync> Opener for F {
    fn open(&self) -> Result<Arc<dyn Writer>, StoreError> {
        self()
    }
}

/// Opener of any type.
pub type OpenWriter = Box<dyn Opener>;

/// A broker that serves all users of the node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BrokerAddress {
    /// Path of the broker's socket.
    #[serde(with = "esker_store::exact_path")]
    pub socket: PathBuf,
    /// Users that may run the broker, which determines the bytes that a mount shows.
    pub trusted: Vec<u32>,
    /// True if the user named it. One that is only looked for, because there may be one, is not waited for and not missed until
    /// it has served.
    pub is_named: bool,
}
