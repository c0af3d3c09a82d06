//! Records of open work, so that a collect keeps the revisions that it is based on.
//!
//! ```text
//! .esker/open/ID.json   in the publisher's state; a transaction's is `.esker_open_ID` in the root of object storage
//! .esker/open/ID.lock   held by a publisher that is under way; a transaction has none
//! ```
//!
//! Nothing else keeps the base of a transaction, which may last for weeks: later publishes replace the head, and a collect
//! drops what was the head. A transaction is recorded from its begin until it is published or dropped, a publisher while
//! it works. (Publishers to object storage are recorded in the state folder on their machine: without a lock another
//! machine couldn't tell whether one has ended. If a collect there took their base, they begin again on the newest revision.)
//!
//! Work is recorded before the list of condemned objects is looked at, and a collector writes its list before it reads the
//! records. So one of the two notices the other: [`OpenWork::begin`] fails, or the collector keeps the base.
//!
//! A record may outlive its work. A publisher's counts while its lock is held. A transaction's counts unless its folder is
//! gone from a folder of transactions that is the same one, by a random number in it: a folder that is not mounted, or that
//! is on another machine, tells nothing. What can't be told is kept, and can be ended by name.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use esker_store::{Disk, FileLock, Locking, Sink, make_dirs, persist, read_file, replace};
use serde::{Deserialize, Serialize};

use crate::condemned::{CondemnedFolder, State};
use crate::disks::Disks;
use crate::error::RepositoryError;
use crate::state;
use crate::storage::Storage;

/// Beginning of the ids of publishers.
pub(crate) const PUBLISHER: &str = "publisher-";
/// Beginning of the names of records in object storage.
const PREFIX: &str = ".esker_open_";
const RECORD: &str = ".json";
pub(crate) const LOCK: &str = ".lock";
const RECORD_MAX: u64 = 1 << 16;
/// File with the number of a folder of transactions.
const NUMBER: &str = ".number";

/// Work on revisions that has not ended. Field names are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenWork {
    /// Id among the open works of the repository: letters, digits and `-`.
    pub id: String,
    /// Description for messages, like `transaction 20261129-183000 of user 1000`.
    pub what: String,
    /// Root catalogs that it is based on.
    pub roots: Vec<String>,
    /// Begin, in seconds since 1970.
    pub started: i64,
    /// Folder of a transaction; none for a publisher.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transaction: Option<TransactionFolder>,
}

/// Folder of a transaction, by which a collect learns whether it is still there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransactionFolder {
    /// The folder, in one of transactions.
    pub path: PathBuf,
    /// Random number of the folder of transactions.
    pub number: String,
}

impl TransactionFolder {
    /// Describes the folder of a transaction, and gives the folder above it a number unless it has one.
    pub fn of(path: &Path) -> Result<Self, RepositoryError> {
        let disk = &*Disks::default().private;
        let file = path.with_file_name(NUMBER);
        Ok(Self { path: path.to_owned(), number: state::number(disk, &file)? })
    }

    /// Returns true if the folder of transactions is there, and has this one no more.
    fn is_gone(&self, disk: &dyn Disk) -> bool {
        let number = read_file(disk, &self.path.with_file_name(NUMBER), state::NUMBER_MAX);
        let is_same = matches!(number, Ok(Some(number)) if number == self.number.as_bytes());
        let folder = std::fs::symlink_metadata(&self.path);
        is_same && matches!(folder, Err(error) if error.kind() == io::ErrorKind::NotFound)
    }
}

impl OpenWork {
    /// Records a transaction durably. Fails if a collect is about to delete a base of it, or one of the objects that it
    /// stored before.
    ///
    /// `collections` is the number of lists of condemned objects before the base was read, if it is known: one that came
    /// and went since may have taken a part of it.
    pub fn begin(
        &self,
        place: &Path,
        stored: &BTreeSet<ObjectName>,
        collections: Option<u64>,
    ) -> Result<(), RepositoryError> {
        let works = OpenWorks::of(&Storage::open(place)?);
        // Of what ended here without a word; a collect on another machine can't tell.
        let _ = works.read();
        works.write(self, true)?;
        let kept = works.check(self, stored, collections);
        if kept.is_err() {
            // The error that matters is the first one; a collect finds out that the work has ended.
            let _ = works.remove(&self.id);
        }
        kept
    }

    /// Removes a record.
    pub fn end(place: &Path, id: &str) -> Result<(), RepositoryError> {
        OpenWorks::of(&Storage::open(place)?).remove(id)
    }

    /// Lists the open works of the repository at a place.
    pub fn list(place: &Path) -> Result<Vec<Self>, RepositoryError> {
        OpenWorks::of(&Storage::open(place)?).read()
    }

    /// Returns the root catalogs that it is based on.
    pub fn root_hashes(&self) -> impl Iterator<Item = ContentHash> {
        self.roots.iter().filter_map(|root| ContentHash::parse(root).ok())
    }
}

/// The open works of one repository.
pub struct OpenWorks {
    disk: Arc<dyn Disk>,
    sink: Arc<dyn Sink>,
    folder: PathBuf,
    /// True if the repository is in object storage.
    is_shared: bool,
    condemned: CondemnedFolder,
}

impl OpenWorks {
    pub fn of(storage: &Storage) -> Self {
        let state = state::folder(storage.place());
        Self {
            disk: storage.disks().private.clone(),
            sink: storage.sink().clone(),
            folder: state.join(state::OPEN),
            is_shared: storage.shared().is_some(),
            condemned: CondemnedFolder::of(storage),
        }
    }

    pub fn path(&self, id: &str, end: &str) -> PathBuf {
        self.folder.join(format!("{id}{end}"))
    }

    /// Returns true if the record with this id is in the bucket, where other machines see it.
    fn is_in_bucket(&self, id: &str) -> bool {
        self.is_shared && !id.starts_with(PUBLISHER)
    }

    pub(crate) fn make_folder(&self) -> Result<(), RepositoryError> {
        make_dirs(&*self.disk, &self.folder).map_err(RepositoryError::file("making folder", &self.folder))
    }

    pub fn write(&self, work: &OpenWork, durably: bool) -> Result<(), RepositoryError> {
        let text = serde_json::to_vec_pretty(work).expect("a record becomes JSON: its keys are text");
        if self.is_in_bucket(&work.id) {
            return Ok(self.sink.put_root(&format!("{PREFIX}{}", work.id), &text)?);
        }
        self.make_folder()?;
        let path = self.path(&work.id, RECORD);
        // Another process removes unfinished files under this lock.
        let _lock = self.folder.parent().map(state::lock).transpose()?;
        let write = if durably { persist } else { replace };
        write(&*self.disk, &path, &text).map_err(RepositoryError::file("writing", &path))
    }

    pub fn remove(&self, id: &str) -> Result<(), RepositoryError> {
        if self.is_in_bucket(id) {
            return Ok(self.sink.remove_root(&format!("{PREFIX}{id}"))?);
        }
        // The lock last: without it, the record would be taken for one of ended work.
        for end in [RECORD, LOCK] {
            state::remove(&*self.disk, &self.path(id, end))?;
        }
        Ok(())
    }

    /// Fails if a collect deleted a base or an object that the work stored before, or may delete it without knowing of the
    /// work.
    fn check(
        &self,
        work: &OpenWork,
        stored: &BTreeSet<ObjectName>,
        collections: Option<u64>,
    ) -> Result<(), RepositoryError> {
        let list = self.condemned.read()?;
        let now = self.condemned.collections()?;
        if collections.is_some_and(|before| before != now) {
            return Err(RepositoryError::Collected { objects: 1 });
        }
        // Of one that waits, the collector reads the records before it deletes anything.
        let deleting = list.as_ref().filter(|list| list.state() == State::Deleting);
        let roots = work.root_hashes().map(|root| ObjectName::new(root, ObjectKind::Catalog));
        let mut missing = 0;
        for object in roots.chain(stored.iter().copied()) {
            let is_condemned = deleting.map_or(Ok(false), |list| list.contains(&object))?;
            missing += u64::from(is_condemned || self.sink.len_of(&object)?.is_none());
        }
        if missing > 0 { Err(RepositoryError::Collected { objects: missing }) } else { Ok(()) }
    }

    /// Returns the ids of all records, also of ended work.
    fn ids(&self) -> Result<BTreeSet<String>, RepositoryError> {
        let mut ids = BTreeSet::new();
        if self.is_shared {
            let names = self.sink.list_root()?;
            ids.extend(names.iter().filter_map(|name| name.strip_prefix(PREFIX)).map(str::to_owned));
        }
        let names = match self.disk.list(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ids),
            other => other.map_err(RepositoryError::file("listing", &self.folder))?,
        };
        let id = |name: &std::ffi::OsString| Some(name.to_str()?.strip_suffix(RECORD)?.to_owned());
        // Unfinished files begin with a dot.
        let is_here = |id: &String| !id.starts_with('.') && !self.is_in_bucket(id);
        ids.extend(names.iter().filter_map(id).filter(is_here));
        Ok(ids)
    }

    /// Reads the records of open work, and removes those of ended work.
    pub fn read(&self) -> Result<Vec<OpenWork>, RepositoryError> {
        let mut open = Vec::new();
        for id in self.ids()? {
            let path = self.path(&id, RECORD);
            let text = if self.is_in_bucket(&id) {
                self.sink.read(&format!("{PREFIX}{id}"), RECORD_MAX)?
            } else {
                read_file(&*self.disk, &path, RECORD_MAX).map_err(RepositoryError::file("reading", &path))?
            };
            // It has ended since the records were listed.
            let Some(text) = text else { continue };
            let work: OpenWork = serde_json::from_slice(&text)
                .map_err(|error| RepositoryError::OpenWork { id: id.clone(), reason: error.to_string() })?;
            if self.has_ended(&id, &work)? {
                self.remove(&id)?;
            } else {
                open.push(OpenWork { id, ..work });
            }
        }
        Ok(open)
    }

    fn has_ended(&self, id: &str, work: &OpenWork) -> Result<bool, RepositoryError> {
        if let Some(transaction) = &work.transaction {
            return Ok(transaction.is_gone(&*self.disk));
        }
        let path = self.path(id, LOCK);
        let locking = FileLock::try_take(&path).map_err(RepositoryError::file("locking", &path))?;
        Ok(matches!(locking, Locking::Taken(_)))
    }
}
