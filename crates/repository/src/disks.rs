//! Disks of a publisher: one for public and one for private files.

use std::fmt;
use std::sync::Arc;

use esker_store::{Disk, RealDisk};

/// Writers for all files of a publisher, through which tests inject failures and crashes.
#[derive(Clone)]
pub struct Disks {
    /// Writer for files that others may read: the repository and public keys.
    pub served: Arc<dyn Disk>,
    /// Writer for files that only their owner may read: private keys and the publisher's state.
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
