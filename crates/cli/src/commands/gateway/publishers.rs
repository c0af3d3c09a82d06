//! Keys of publishers, read again while the gateway runs.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use esker_gateway::{Gateway, KeyError, KeyRing};

use crate::error::chain;

/// Files with the keys of publishers.
#[derive(Clone, Debug)]
pub(super) struct Publishers {
    /// Folder of Esker's key files.
    pub(super) folder: PathBuf,
    /// Configuration of access of CernVM-FS's gateway, if it is used.
    pub(super) access: Option<PathBuf>,
    /// Folder with the `NAME.gw` that the configuration of access refers to.
    pub(super) keys: PathBuf,
}

impl Publishers {
    /// Reads all keys. Those of Esker's files are taken where names are the same.
    pub(super) fn read(&self) -> Result<KeyRing, KeyError> {
        let own = KeyRing::read(&self.folder)?;
        let Some(access) = &self.access else { return Ok(own) };
        Ok(KeyRing::of_reference(access, &self.keys)?.with(own))
    }
}

/// Gives a running gateway the keys that changed.
pub(super) struct Renewal {
    publishers: Publishers,
    gateway: Arc<Gateway>,
    /// Reason why the keys could not be read, which is logged once.
    failed: Mutex<Option<String>>,
}

impl Renewal {
    pub(super) fn new(publishers: Publishers, gateway: Arc<Gateway>) -> Self {
        Self { publishers, gateway, failed: Mutex::default() }
    }

    /// Reads the keys again. Keys that can't be read leave those that the gateway has.
    pub(super) fn read_again(&self) {
        let failure = match self.publishers.read() {
            Ok(keys) => {
                let before = self.gateway.keys();
                if keys != *before {
                    tracing::info!("the keys of publishers changed: there are {} now", keys.iter().count());
                    let known = before.repositories();
                    for name in keys.repositories().iter().filter(|name| !known.contains(name)) {
                        match self.gateway.open(name) {
                            Ok(()) => tracing::info!("{name} can be published to"),
                            Err(error) => tracing::warn!("can't publish to {name} yet: {}", chain(&error)),
                        }
                    }
                    self.gateway.set_keys(keys);
                }
                None
            }
            Err(error) => Some(chain(&error)),
        };
        let Ok(mut failed) = self.failed.lock() else { return };
        if let Some(failure) = failure.as_ref().filter(|failure| Some(*failure) != failed.as_ref()) {
            tracing::warn!("keeping the keys of publishers as they were: {failure}");
        }
        *failed = failure;
    }
}
