//! Defines the parts of a signed head that a view uses.

use std::time::{Duration, SystemTime};

use esker_format::hash::ContentHash;
use esker_format::object::ObjectName;
use esker_format::time::UnixTime;
use esker_store::{Callback, Cause, HeadKeeper, Refreshed, StoreError};
use esker_vfs::{ErrorKind, TreeError};

use crate::catalogs::WantedCatalog;
use crate::failure;
use crate::status::Offline;

/// Minimum time between two checks; a TTL of zero would cause checks without a pause.
const TTL_MIN: Duration = Duration::from_secs(1);

/// A verified head.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) root: ContentHash,
    pub(crate) root_size: Option<u64>,
    pub(crate) revision: u64,
    pub(crate) published: Option<u64>,
    pub(crate) ttl: Duration,
    pub(crate) history: Option<ObjectName>,
    /// True if the root catalog is only available under its alternative name.
    pub(crate) alternative_path: bool,
    /// Set if the head is an earlier one because no newer head is available.
    pub(crate) offline: Option<Offline>,
}

impl Head {
    /// Fetches the head, and waits for it.
    pub(crate) fn look(heads: &HeadKeeper) -> Result<Self, TreeError> {
        let what = || format!("the head of {}", heads.name());
        let refreshed = Callback::wait(|done| heads.refresh(done)).map_err(|error| of_head(error, what()))?;
        let head = heads.current().ok_or_else(|| TreeError::on(ErrorKind::Internal, what()))?;
        let offline = match refreshed {
            Refreshed::Offline(offline) => {
                let since = time(offline.since);
                Some(Offline { since, reason: offline.reason.full_text() })
            }
            Refreshed::Unchanged | Refreshed::New(_) => None,
        };
        Ok(Self {
            root: head.root_catalog().hash,
            root_size: head.root_catalog_size(),
            revision: head.revision(),
            published: u64::try_from(head.timestamp().0).ok(),
            ttl: Duration::from_secs(head.ttl().into()).max(TTL_MIN),
            history: head.history(),
            alternative_path: head.alternative_paths(),
            offline,
        })
    }

    pub(crate) fn root_catalog(&self) -> WantedCatalog {
        WantedCatalog {
            hash: self.root,
            size: self.root_size,
            path: Vec::new(),
            alternative_path: self.alternative_path,
        }
    }
}

/// Returns the error for a missing or invalid head. A server without a head may not have the repository, or not yet.
fn of_head(error: StoreError, what: String) -> TreeError {
    match error.cause() {
        Cause::Missing { .. } => TreeError::on(ErrorKind::Unavailable, what).because(error),
        _ => failure::of_store(error, what),
    }
}

fn time(unix: UnixTime) -> SystemTime {
    let seconds = Duration::from_secs(u64::try_from(unix.0).unwrap_or(0));
    SystemTime::UNIX_EPOCH.checked_add(seconds).unwrap_or(SystemTime::UNIX_EPOCH)
}
