//! Fetches the head that a repository publishes now, without moving a view to it.

use std::time::Duration;

use esker_format::compress::Compression;
use esker_format::hash::ContentHash;
use esker_format::history::{History, Tag};
use esker_format::name::RepositoryName;
use esker_store::{Callback, HeadKeeper, ObjectRequest, ObjectStore};
use esker_vfs::{ErrorKind, TreeError};

use crate::failure;
use crate::head::Head;
use crate::status::Offline;

/// Maximum size of a history in bytes: some 100 bytes for each tag, so room for millions.
const HISTORY_BYTES_MAX: u64 = 1 << 30;

/// The newest known head, verified.
#[derive(Clone, Debug)]
pub struct Published {
    name: RepositoryName,
    head: Head,
}

impl Published {
    /// Fetches the head now, and waits as long as the source waits.
    ///
    /// A head that is older than the last accepted one, or not trusted, is refused: then this is the last accepted
    /// one, with the error.
    pub fn look(heads: &HeadKeeper) -> Result<Self, TreeError> {
        Ok(Self { name: heads.name().clone(), head: Head::look(heads)? })
    }

    /// Returns the number of the revision.
    pub fn revision(&self) -> u64 {
        self.head.revision
    }

    /// Returns the hash of its root catalog.
    pub fn root_hash(&self) -> ContentHash {
        self.head.root
    }

    /// Returns the time of the publisher's signature, in seconds since the epoch.
    pub fn published(&self) -> Option<u64> {
        self.head.published
    }

    /// Returns the time for which it counts as the newest.
    pub fn ttl(&self) -> Duration {
        self.head.ttl
    }

    /// Returns the error if no newer head could be checked for.
    pub fn offline(&self) -> Option<&Offline> {
        self.head.offline.as_ref()
    }

    /// Returns the tagged revisions, newest first; none if the repository has no history.
    pub fn tags(&self, store: &dyn ObjectStore) -> Result<Vec<Tag>, TreeError> {
        match self.head.history {
            Some(_) => Ok(history(&self.name, store, &self.head)?.tags().to_vec()),
            None => Ok(Vec::new()),
        }
    }
}

/// Fetches the history that a head references.
pub(crate) fn history(
    name: &RepositoryName,
    store: &dyn ObjectStore,
    head: &Head,
) -> Result<History, TreeError> {
    let what = || format!("the history of {name}");
    let object = head.history.ok_or_else(|| {
        TreeError::on(ErrorKind::NotFound, what()).because("the repository has none, so it has no tags")
    })?;
    let mut wanted = ObjectRequest::new(object, Compression::Zlib, what()).limit(HISTORY_BYTES_MAX);
    wanted.alternative_path = head.alternative_path;
    let handle =
        Callback::wait(|done| store.get(wanted, done)).map_err(|error| failure::of_store(error, what()))?;
    let bytes = handle.map().map_err(|error| TreeError::on(ErrorKind::Local, what()).because(error))?;
    let damaged = |reason| TreeError::on(ErrorKind::Damaged, what()).because(reason);
    let history = History::parse(bytes.as_ref()).map_err(|error| damaged(error.to_string()))?;
    if history.name() != name {
        return Err(damaged(format!("it is that of {}", history.name())));
    }
    Ok(history)
}
