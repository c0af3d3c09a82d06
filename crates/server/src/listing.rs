//! Lists the served repositories for the info API.

use std::io::Read;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_format::metainfo::ServerStatus;

use crate::file::Folder;
use crate::repositories::{Repositories, manifest_of};

/// Time for which a listing is cached.
const FRESH: Duration = Duration::from_secs(1);
/// Maximum size of a status file in bytes.
const STATUS_MAX: u64 = 64 * 1024;
/// File with the time of a replica's last update.
const LAST_SNAPSHOT: &str = ".cvmfs_last_snapshot";

/// A repository, from its unverified manifest.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Name of the repository in its URL.
    pub(crate) folder: String,
    /// True if the repository is copied from another server.
    pub(crate) replica: bool,
    /// Name in its manifest; none if that can't be read.
    pub(crate) name: Option<String>,
}

/// The cached listing. Creating one reads manifests only.
#[derive(Debug, Default)]
pub(crate) struct Listing(Option<(Instant, Arc<[Entry]>)>);

impl Listing {
    /// Returns the listing, and renews it if it is too old.
    pub(crate) fn now(&mut self, repositories: &Repositories) -> Arc<[Entry]> {
        if let Some((when, entries)) = &self.0
            && when.elapsed() < FRESH
        {
            return entries.clone();
        }
        let entries: Arc<[Entry]> = repositories
            .all()
            .into_iter()
            .map(|(name, folder)| Entry {
                folder: name.as_str().to_owned(),
                replica: is_replica(&folder),
                name: manifest_of(&folder).ok().map(|manifest| manifest.name.unwrap_or_default()),
            })
            .collect();
        self.0 = Some((Instant::now(), entries.clone()));
        entries
    }
}

/// Reads a file of at most `limit` bytes.
pub(crate) fn bytes(folder: &Folder, path: &str, limit: u64) -> std::io::Result<Vec<u8>> {
    let opened = folder.open(path)?;
    let mut bytes = Vec::new();
    opened.file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        return Err(std::io::Error::other(format!("it has more than {limit} bytes")));
    }
    Ok(bytes)
}

/// Returns whether the repository is a replica: only replication writes these marks.
fn is_replica(folder: &Folder) -> bool {
    folder.has(LAST_SNAPSHOT)
        || bytes(folder, ServerStatus::PATH, STATUS_MAX)
            .ok()
            .and_then(|bytes| ServerStatus::parse(&bytes).ok())
            .is_some_and(|status| status.last_snapshot.is_some())
}
