//! Place of a repository: a folder, or object storage with a local folder for the publisher's state.
//!
//! ```text
//! PLACE/                          in a folder           in object storage
//!   .cvmfspublished, data/ …      the repository        -
//!   .esker/                       publisher's state     publisher's state
//!   .esker/storage.json           -                     URL and settings of the storage
//!   .esker/gateway.json           without keys: address of the gateway, and of the web server
//! ```
//!
//! A repository is named by its place in both cases, so everything that belongs to a publisher (settings, hooks, open
//! transactions) is found in the same way. Object storage has no lock, unless one is configured: its head is replaced by
//! compare-and-swap.

mod remembered;
mod remembered_gateway;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::manifest::{self, Manifest};
use esker_format::name::RepositoryName;
use esker_format::object::ObjectName;
use esker_store::{FileLock, LocalSink, Sink, make_dirs};

use crate::disks::Disks;
use crate::error::RepositoryError;
use crate::gateway::GatewaySession;
use crate::served_files::ServedFiles;
use crate::served_sink::ServedSink;
use crate::signed::SMALL_FILE_MAX;

pub use remembered::RememberedStorage;
pub use remembered_gateway::RememberedGateway;

/// Folder of objects.
const DATA: &str = "data";

/// Returns the folder of the publisher's state of the repository at a place, which may not exist.
pub(crate) fn state_folder(place: &Path) -> PathBuf {
    place.join(remembered::FOLDER)
}

/// Storage of one repository, opened.
#[derive(Clone)]
pub struct Storage {
    place: PathBuf,
    sink: Arc<dyn Sink>,
    disks: Disks,
    /// True if the repository is changed through a gateway.
    is_served: bool,
}

/// Argument of operations on a repository: its storage, or the path at which it is opened.
pub trait OpenStorage {
    /// Returns the opened storage.
    fn storage(self) -> Result<Storage, RepositoryError>;
}

impl OpenStorage for Storage {
    fn storage(self) -> Result<Storage, RepositoryError> {
        Ok(self)
    }
}

impl OpenStorage for &Storage {
    fn storage(self) -> Result<Storage, RepositoryError> {
        Ok(self.clone())
    }
}

impl OpenStorage for &Path {
    fn storage(self) -> Result<Storage, RepositoryError> {
        Storage::open(self)
    }
}

impl OpenStorage for (&Disks, &Path) {
    fn storage(self) -> Result<Storage, RepositoryError> {
        Storage::open_on(self.0, self.1)
    }
}

impl OpenStorage for &PathBuf {
    fn storage(self) -> Result<Storage, RepositoryError> {
        Storage::open(self)
    }
}

impl fmt::Debug for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Storage").field("at", &self.sink.describe()).finish_non_exhaustive()
    }
}

impl Storage {
    /// Opens the storage of the repository at a place: the one that is remembered there, or else the folder itself.
    pub fn open(place: &Path) -> Result<Self, RepositoryError> {
        Self::open_on(&Disks::default(), place)
    }

    /// Opens the storage of the repository at a place on disks of the caller.
    pub fn open_on(disks: &Disks, place: &Path) -> Result<Self, RepositoryError> {
        if let Some(gateway) = RememberedGateway::read_on(disks, place)? {
            return Ok(Self { disks: disks.clone(), ..Self::served(place, gateway.files()?, None) });
        }
        let sink: Arc<dyn Sink> = match RememberedStorage::read_on(disks, place)? {
            Some(remembered) => remembered.open(disks, place)?,
            None => Arc::new(LocalSink::on(place, disks.served.clone())),
        };
        Ok(Self { disks: disks.clone(), ..Self::new(place, sink) })
    }

    /// Returns the storage of a sink, with the place of the publisher's state.
    pub fn new(place: &Path, sink: Arc<dyn Sink>) -> Self {
        Self { place: place.to_owned(), sink, disks: Disks::default(), is_served: false }
    }

    /// Returns the storage of a publisher without keys: a web server, and the session with a gateway that takes objects.
    pub fn served(place: &Path, files: ServedFiles, session: Option<Arc<dyn GatewaySession>>) -> Self {
        Self { is_served: true, ..Self::new(place, Arc::new(ServedSink::new(files, session))) }
    }

    /// Returns the place of the repository on this machine.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Returns the sink of objects and heads.
    pub fn sink(&self) -> &Arc<dyn Sink> {
        &self.sink
    }

    /// Returns the writers of its files on this machine.
    pub fn disks(&self) -> &Disks {
        &self.disks
    }

    /// Returns true if the repository is changed through a gateway, and read from its web server.
    pub fn is_served(&self) -> bool {
        self.is_served
    }

    /// Returns true if the repository is in a folder.
    pub fn is_folder(&self) -> bool {
        self.sink.folder().is_some()
    }

    /// Returns the sink for data that publishers on several machines share; none if all of them share the state folder.
    pub fn shared(&self) -> Option<Arc<dyn Sink>> {
        (!self.is_folder() && !self.is_served).then(|| self.sink.clone())
    }

    /// Returns the folder or URL, for messages.
    pub fn describe(&self) -> String {
        self.sink.describe()
    }

    /// Prepares for storing objects: removes what ended processes left, and makes a missing place of object storage.
    pub fn prepare(&self) -> Result<(), RepositoryError> {
        // First, since the storage notes there what it found out about the server.
        self.make_place()?;
        Ok(self.sink.prepare()?)
    }

    /// Makes the folders of a new repository.
    pub fn make_folders(&self) -> Result<(), RepositoryError> {
        self.sink.make_folders()?;
        self.make_place()
    }

    fn make_place(&self) -> Result<(), RepositoryError> {
        if self.is_folder() {
            return Ok(());
        }
        let state = state_folder(&self.place);
        make_dirs(&*self.disks.private, &state).map_err(RepositoryError::file("making folder", &state))
    }

    /// Takes the lock of the head, or fails if another process has it; none for storage that needs no lock.
    pub fn lock(&self) -> Result<Option<FileLock>, RepositoryError> {
        let held = RepositoryError::locked(self.describe());
        self.sink.lock_root()?.map(|locking| locking.or_held(held)).transpose()
    }

    /// Takes the lock of the head if it is free; none if another process has it.
    pub fn try_lock(&self) -> Result<Option<Option<FileLock>>, RepositoryError> {
        match self.lock() {
            Ok(lock) => Ok(Some(lock)),
            Err(RepositoryError::Locked { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns true if there is a head.
    pub(crate) fn has_head(&self) -> Result<bool, RepositoryError> {
        let Some(folder) = self.sink.folder() else {
            return Ok(self.sink.read(manifest::PATH, SMALL_FILE_MAX)?.is_some());
        };
        let path = folder.join(manifest::PATH);
        match self.disks.served.facts(&path) {
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(RepositoryError::file("looking for", &path)(error)),
        }
    }

    /// Fails if the manifest names another repository than this one, or if the storage has files and no mark of any
    /// repository: both belong to others, who are about to lose them.
    pub fn refuse_others(&self, name: Option<&RepositoryName>) -> Result<(), RepositoryError> {
        let head = self.sink.read(manifest::PATH, SMALL_FILE_MAX)?;
        if let Some(bytes) = head {
            let named = Manifest::parse(&bytes).ok().and_then(|head| head.name);
            return match (named, name) {
                (Some(named), Some(name)) if named != name.as_str() => {
                    Err(RepositoryError::OtherRepository { place: self.describe(), name: named })
                }
                _ => Ok(()),
            };
        }
        let names = match self.sink.folder() {
            None => self.sink.list_root()?,
            Some(folder) => match self.disks.served.list(folder) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                listed => {
                    let listed = listed.map_err(RepositoryError::file("listing", folder))?;
                    listed.iter().map(|name| name.to_string_lossy().into_owned()).collect()
                }
            },
        };
        let is_mark =
            |name: &String| [".cvmfs", remembered::FOLDER].iter().any(|mark| name.starts_with(mark));
        // The folder of objects is made first. A new file system has one for what it finds, and a creator that was
        // interrupted leaves unfinished files.
        let is_of_none = |name: &String| {
            name == DATA || name == "lost+found" || name.starts_with(".new-") && name.contains(".cvmfs")
        };
        let other = names.iter().find(|name| !is_of_none(name));
        match other {
            Some(other) if !names.iter().any(is_mark) => {
                Err(RepositoryError::Foreign { place: self.describe(), found: other.clone() })
            }
            None if names.iter().any(|name| name == DATA) && self.is_foreign_data()? => {
                Err(RepositoryError::Foreign { place: self.describe(), found: DATA.to_owned() })
            }
            _ => Ok(()),
        }
    }

    /// Returns true if the folder of objects has anything but folders of objects.
    fn is_foreign_data(&self) -> Result<bool, RepositoryError> {
        let Some(folder) = self.sink.folder() else { return Ok(false) };
        let data = folder.join(DATA);
        let names = self.disks.served.list(&data).map_err(RepositoryError::file("listing", &data))?;
        let is_ours = |name: &str| name == "txn" || name.len() == 2 && u8::from_str_radix(name, 16).is_ok();
        Ok(!names.iter().all(|name| name.to_str().is_some_and(is_ours)))
    }

    /// Fails if there is no head.
    pub fn require_head(&self) -> Result<(), RepositoryError> {
        if self.has_head()? { Ok(()) } else { Err(RepositoryError::NoRepository(self.describe())) }
    }

    /// Returns the objects of a list that the storage does not have.
    pub fn missing<'o>(
        &self,
        objects: impl IntoIterator<Item = &'o ObjectName>,
    ) -> Result<Vec<ObjectName>, RepositoryError> {
        Ok(self.sink.missing(&objects.into_iter().copied().collect::<Vec<_>>())?)
    }
}
