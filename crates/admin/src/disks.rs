//! The disks that a publisher works on.

use std::fmt;
use std::sync::Arc;

use esker_store::{Disk, RealDisk};

/// Every file that a publisher writes goes through one of these, so that tests can let any operation fail or be
/// lost in a crash.
#[derive(Clone)]
pub struct Disks {
    /// Where files are made that others may read: the repository, public keys.
    pub served: Arc<dyn Disk>,
    /// Where files are made for their owner alone: private keys, what the publisher remembers.
    pub private: Arc<dyn Disk>,
}

impl Default for Disks {
    fn default() -> Self {
        Self { served: Arc::new(RealDisk::SERVED), private: Arc::new(RealDisk::PRIVATE) }
    }
}

impl fmt::Debug for Disks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Disks")
    }
}
