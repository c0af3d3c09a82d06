//! Lock of a replica in object storage, for the processes that replicate to it and collect it.
//!
//! A publisher's commit needs no lock there, because a collect puts a new head in front of it (decision 0123). The head of
//! a replica is signed elsewhere, so its writers exclude each other by a lease instead: a record in the bucket that changes
//! by compare-and-swap. Processes of one machine exclude each other by a file, so that a killed one is succeeded at once;
//! one of another machine waits until the lease was not renewed for a quarter of an hour.

use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use esker_store::{FileLock, LockHolder, Locking, RealDisk, Sink, Swap};
use serde::{Deserialize, Serialize};

use crate::condemned::LEASE;
use crate::error::RepositoryError;
use crate::signed::SMALL_FILE_MAX;
use crate::state;
use crate::storage::Storage;

const RECORD: &str = ".esker_replica_lease.json";
/// File in the state folder that processes of this machine lock.
const LOCK: &str = "lease.lock";

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Record {
    /// State folder of the process that holds the lease; none if it is free.
    owner: Option<String>,
    /// Time at which it was taken, in seconds since 1970.
    since: i64,
}

/// A lease that this process holds until it is dropped.
pub(crate) struct Lease {
    sink: Arc<dyn Sink>,
    /// The record as this process wrote it.
    written: Vec<u8>,
    taken: Instant,
    _lock: FileLock,
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease").field("taken", &self.taken).finish_non_exhaustive()
    }
}

impl Lease {
    /// Takes the lease, unless another process holds it.
    pub(crate) fn try_take(storage: &Storage) -> Result<Result<Self, LockHolder>, RepositoryError> {
        let disk = &RealDisk::PRIVATE;
        let state = state::folder(storage.place());
        let path = state.join(LOCK);
        let lock = match FileLock::try_take(&path).map_err(RepositoryError::file("locking", &path))? {
            Locking::Taken(lock) => lock,
            Locking::Held(holder) => return Ok(Err(holder)),
        };
        let sink = storage.sink().clone();
        let before = sink.read(RECORD, SMALL_FILE_MAX)?;
        // One that can't be read was not written by a process of this kind.
        let known: Record =
            before.as_deref().and_then(|bytes| serde_json::from_slice(bytes).ok()).unwrap_or_default();
        let (owner, since) = (state::id(disk, &state)?, seconds_now());
        let is_held = known.owner.as_ref().is_some_and(|holder| *holder != owner);
        if is_held && since.saturating_sub(known.since) < LEASE.as_secs().cast_signed() {
            return Ok(Err(LockHolder::default()));
        }
        // Taken before the request: the lease is then not over later than others believe.
        let taken = Instant::now();
        let written = bytes(&Record { owner: Some(owner), since });
        Ok(match before.as_deref() == Some(&written[..]) {
            // This machine took it in the same second, and was interrupted.
            true => Ok(Self { sink, written, taken, _lock: lock }),
            false => match sink.replace_root(RECORD, &written, before.as_deref())? {
                Swap::Replaced => Ok(Self { sink, written, taken, _lock: lock }),
                Swap::Moved => Err(LockHolder::default()),
            },
        })
    }

    /// Fails if so much of the lease is over that a request could arrive after its end.
    pub(crate) fn confirm(&self) -> Result<(), RepositoryError> {
        if self.taken.elapsed() > LEASE / 2 {
            return Err(RepositoryError::Slow { storage: self.sink.describe() });
        }
        Ok(())
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // If that fails, the next process of this machine takes it all the same, and those of others when it is over.
        let _ = self.sink.replace_root(RECORD, &bytes(&Record::default()), Some(&self.written));
    }
}

fn bytes(record: &Record) -> Vec<u8> {
    serde_json::to_vec(record).expect("a record becomes JSON because its keys are text")
}

fn seconds_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}
