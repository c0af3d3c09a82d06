//! Lists of condemned objects in object storage, which publishers on several machines share without a lock.
//!
//! ```text
//! .esker_condemned.json   number of begins and ends; id, state, progress and revived objects of the list
//! .esker_condemned_ID     the list itself, written once
//!                         ID: hash of the list (40 hex digits)  `_`  random number (16 hex digits)
//! ```
//!
//! The random number tells lists with the same content apart: collects that a timer starts on two machines find the same
//! objects in the same second, and the end of one list must not remove the other.
//!
//! The record changes by compare-and-swap only. One collector deletes at a time: it is named in the record, and renews
//! its lease with every batch, so that another machine takes over only from a collector that has ended.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use esker_format::object::ObjectName;
use esker_store::{LockHolder, Sink, Swap};
use serde::{Deserialize, Serialize};

use crate::back_off::BackOff;
use crate::error::RepositoryError;
use crate::random;

const RECORD: &str = ".esker_condemned.json";
/// More than a list or record of ten million objects has.
const FILE_MAX: u64 = 1 << 30;
/// Attempts to change the record, and to fetch a list that is there.
pub(super) const ATTEMPTS: u32 = 50;
/// Time after which a collector that did not renew its lease has ended.
pub const LEASE: Duration = Duration::from_secs(900);

/// State of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Nothing of it is deleted before the grace time is over.
    Waiting,
    /// Its objects are being deleted.
    Deleting,
}

/// The record of a repository in object storage.
#[derive(Clone)]
pub(super) struct SharedRecord {
    sink: Arc<dyn Sink>,
    /// True if all processes that change a list or delete its objects hold a lease.
    has_lease: bool,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Record {
    /// Number of lists that were begun, and of those that were ended.
    pub(super) collections: u64,
    pub(super) list: Option<ListRecord>,
    /// A list that is being stored, and may be left over.
    #[serde(default)]
    storing: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct ListRecord {
    pub(super) id: String,
    pub(super) state: State,
    pub(super) done: u64,
    pub(super) revived: BTreeSet<String>,
    /// Collector that deletes, and the time of its last sign of life.
    #[serde(default)]
    owner: Option<String>,
    #[serde(default)]
    renewed: i64,
}

/// Outcome of naming a stored list in the record.
enum Named {
    /// The record names it, in place of this one.
    Now(Option<ListRecord>),
    /// Another collector stored its list meanwhile, or deletes objects.
    TooLate,
}

impl SharedRecord {
    pub(super) fn new(sink: Arc<dyn Sink>) -> Self {
        Self { sink, has_lease: false }
    }

    /// Sets that all processes which change the record hold a lease.
    pub(super) fn with_lease(self) -> Self {
        Self { has_lease: true, ..self }
    }

    pub(super) fn read(&self) -> Result<Record, RepositoryError> {
        Ok(self.read_bytes()?.1)
    }

    fn read_bytes(&self) -> Result<(Option<Vec<u8>>, Record), RepositoryError> {
        let bytes = self.sink.read(RECORD, FILE_MAX)?;
        let record = bytes.as_deref().map(serde_json::from_slice).transpose();
        Ok((bytes, record.map_err(|_| self.unreadable())?.unwrap_or_default()))
    }

    /// Returns the error for a damaged record, or for a list that it names and that is not there.
    pub(super) fn unreadable(&self) -> RepositoryError {
        let text = "it is damaged; remove it from the storage, and collect again";
        let path = format!("{}/{RECORD}", self.sink.describe());
        RepositoryError::file("reading", path.as_ref())(io::Error::new(io::ErrorKind::InvalidData, text))
    }

    /// Reads a list; none if it ended meanwhile.
    pub(super) fn read_list(&self, id: &str) -> Result<Option<Vec<u8>>, RepositoryError> {
        Ok(self.sink.read(&list_name(id), FILE_MAX)?)
    }

    /// Changes the record, again if another process changed it meanwhile. An unchanged record is not written.
    fn change<T>(
        &self,
        mut change: impl FnMut(&mut Record) -> Result<T, RepositoryError>,
    ) -> Result<T, RepositoryError> {
        let mut back_off = BackOff::default();
        for _ in 0..ATTEMPTS {
            let (before, mut record) = self.read_bytes()?;
            let outcome = change(&mut record)?;
            let after = serde_json::to_vec(&record).expect("a record becomes JSON because its keys are text");
            if before.as_deref() == Some(&after[..]) {
                return Ok(outcome);
            }
            if self.sink.replace_root(RECORD, &after, before.as_deref())? == Swap::Replaced {
                return Ok(outcome);
            }
            back_off.pause();
        }
        Err(RepositoryError::Moving)
    }

    /// Stores the list with this hash under a new id, and names it in the record.
    pub(super) fn begin(&self, hash: &str, bytes: &[u8]) -> Result<(), RepositoryError> {
        let id = new_id(hash);
        // A waiting list may be replaced: before its objects are deleted, everything is marked again.
        let is_busy =
            |record: &Record| record.list.as_ref().is_some_and(|list| list.state == State::Deleting);
        // A collect on another machine was faster.
        let faster = || RepositoryError::locked(self.sink.describe())(LockHolder::default());
        let left = self.change(|record| {
            if is_busy(record) {
                return Err(faster());
            }
            // The own id is there if the answer to an attempt was lost.
            Ok(record.storing.replace(id.clone()).filter(|left| *left != id))
        })?;
        left.map_or(Ok(()), |left| self.sink.remove_root(&list_name(&left)))?;
        self.sink.put_root(&list_name(&id), bytes)?;
        let named = self.change(|record| {
            if record.list_of(&id).is_some() {
                // By an attempt whose answer was lost, too.
                return Ok(Named::Now(None));
            }
            if is_busy(record) || record.storing.as_deref() != Some(&id) {
                return Ok(Named::TooLate);
            }
            record.storing = None;
            let (state, done, renewed) = (State::Waiting, 0, 0);
            let (revived, owner) = Default::default();
            let list = ListRecord { id: id.clone(), state, done, revived, owner, renewed };
            record.collections = record.collections.saturating_add(1);
            Ok(Named::Now(record.list.replace(list)))
        })?;
        match named {
            Named::Now(before) => {
                before.map_or(Ok(()), |before| Ok(self.sink.remove_root(&list_name(&before.id))?))
            }
            Named::TooLate => {
                self.sink.remove_root(&list_name(&id))?;
                Err(faster())
            }
        }
    }

    /// Takes objects off a list. Without a lease, one that is being deleted can't be taken off any more.
    pub(super) fn revive(&self, id: &str, objects: &BTreeSet<ObjectName>) -> Result<(), RepositoryError> {
        self.change(|record| {
            // Without the list its objects may be gone, which the caller finds out.
            let Some(list) = record.list_of(id) else { return Ok(()) };
            let before = list.revived.len();
            let mut revived = list.revived.clone();
            revived.extend(objects.iter().map(ToString::to_string));
            if revived.len() > before && list.state == State::Deleting && !self.has_lease {
                return Err(RepositoryError::BeingDeleted { objects: (revived.len() - before) as u64 });
            }
            list.revived = revived;
            Ok(())
        })
    }

    /// Notes that deletion begins, and returns the objects that stay.
    pub(super) fn begin_deleting(
        &self,
        id: &str,
        owner: &str,
    ) -> Result<BTreeSet<ObjectName>, RepositoryError> {
        let place = self.sink.describe();
        self.change(|record| {
            let list = record.list_of(id).ok_or(RepositoryError::Moving)?;
            list.claim(owner, seconds_now(), &place)?;
            list.state = State::Deleting;
            Ok(list.revived.iter().filter_map(|name| ObjectName::parse(name)).collect())
        })
    }

    /// Notes that the objects up to a position are deleted.
    pub(super) fn advance(&self, id: &str, owner: &str, done: u64) -> Result<(), RepositoryError> {
        let place = self.sink.describe();
        self.change(|record| {
            let list = record.list_of(id).ok_or(RepositoryError::Moving)?;
            list.claim(owner, seconds_now(), &place)?;
            list.done = done;
            Ok(())
        })
    }

    /// Ends a list, and removes it.
    pub(super) fn end(&self, id: &str) -> Result<(), RepositoryError> {
        self.change(|record| {
            if record.list_of(id).is_some() {
                record.list = None;
                record.collections = record.collections.saturating_add(1);
            }
            Ok(())
        })?;
        Ok(self.sink.remove_root(&list_name(id))?)
    }
}

impl Record {
    fn list_of(&mut self, id: &str) -> Option<&mut ListRecord> {
        self.list.as_mut().filter(|list| list.id == id)
    }
}

impl ListRecord {
    /// Claims the list for a collector, unless another one deletes its objects.
    fn claim(&mut self, owner: &str, now: i64, place: &str) -> Result<(), RepositoryError> {
        let is_taken = self.owner.as_deref().is_some_and(|known| known != owner);
        if is_taken && now.saturating_sub(self.renewed) < LEASE.as_secs().cast_signed() {
            return Err(RepositoryError::locked(place.to_owned())(LockHolder::default()));
        }
        (self.owner, self.renewed) = (Some(owner.to_owned()), now);
        Ok(())
    }
}

/// Returns the time of this machine's clock, for leases.
fn seconds_now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

fn new_id(hash: &str) -> String {
    format!("{hash}_{:016x}", random::number())
}

/// Returns the hash of the list with this id.
pub(super) fn hash_of(id: &str) -> &str {
    id.split_once('_').map_or(id, |(hash, _)| hash)
}

fn list_name(id: &str) -> String {
    format!(".esker_condemned_{id}")
}
