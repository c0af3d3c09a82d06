//! A repository opened for publishing: its folder, head and signing keys.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::manifest;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_format::trust::VerifiedHead;
use esker_format::write::keys::Publisher;
use esker_store::{Disk, FileLock, LocalSink, Sink as _, remove_unfinished};

use crate::content_index::{self, ContentIndex};
use crate::disks::Disks;
use crate::error::AdminError;
use crate::file_index;
use crate::key_folder::KeyFolder;
use crate::profiles::{self, Profiles};
use crate::settings::Settings;
use crate::signed::SignedFiles;
use crate::spool::Spool;

/// Folder of the publisher's state, below the root of the repository.
const STATE: &str = ".esker";
/// Largest size of a database, in bytes, so that a damaged one can't exhaust memory.
pub(crate) const DATABASE_MAX: u64 = 8 << 30;

/// A repository in a local folder, opened by its publisher.
pub struct Repository {
    pub(crate) name: RepositoryName,
    pub(crate) disks: Disks,
    pub(crate) sink: Arc<LocalSink>,
    pub(crate) publisher: Publisher,
    pub(crate) settings: Settings,
    pub(crate) head: VerifiedHead,
    /// Spool of CernVM-FS, if it publishes to the repository too.
    pub(crate) spool: Option<Spool>,
    keys: KeyFolder,
    opened: UnixTime,
    state: PathBuf,
    _lock: FileLock,
}

impl Repository {
    /// Finds the folder of a repository: `storage` itself if it is one, else the folder of its name in there.
    pub fn locate(storage: &Path, name: &RepositoryName) -> PathBuf {
        let is_repository = storage.join(manifest::PATH).exists();
        let is_named = storage.file_name().is_some_and(|last| last == name.as_str());
        if is_repository || is_named { storage.to_owned() } else { storage.join(name.as_str()) }
    }

    /// Opens the repository in a folder for publishing: verifies its head and takes the lock.
    pub fn open(
        root: &Path,
        name: &RepositoryName,
        keys: KeyFolder,
        now: UnixTime,
    ) -> Result<Self, AdminError> {
        Self::open_on(&Disks::default(), root, name, keys, now)
    }

    /// The same on disks of the caller's.
    pub fn open_on(
        disks: &Disks,
        root: &Path,
        name: &RepositoryName,
        keys: KeyFolder,
        now: UnixTime,
    ) -> Result<Self, AdminError> {
        if !has_manifest(&*disks.served, root)? {
            return Err(AdminError::NoRepository(root.display().to_string()));
        }
        let sink = Arc::new(LocalSink::on(root, disks.served.clone()));
        let lock = sink.lock()?.or_held(AdminError::locked(sink.describe()))?;
        let publisher = keys.publisher()?;
        let head = read_head(&sink, name, &keys, &publisher, now)?;
        let state = make_state(disks, root)?;
        let settings = Settings::read(&*disks.private, &Settings::path(&state))?;
        let settings = settings.unwrap_or_default();
        let (name, disks) = (name.clone(), disks.clone());
        let (spool, opened) = (None, now);
        Ok(Self { name, disks, sink, publisher, settings, head, spool, keys, opened, state, _lock: lock })
    }

    /// Respects the locks in a spool folder of the reference implementation, and keeps it up to date.
    pub fn share_with_spool(&mut self, folder: &Path) -> Result<(), AdminError> {
        self.spool = Spool::claim(self.disks.served.clone(), folder)?;
        if self.spool.is_some() {
            // Our own lock did not keep the reference from publishing since the head was read.
            self.head = read_head(&self.sink, &self.name, &self.keys, &self.publisher, self.opened)?;
        }
        Ok(())
    }

    /// Returns the name of the repository.
    pub fn name(&self) -> &RepositoryName {
        &self.name
    }

    /// Returns the published head.
    pub fn head(&self) -> &VerifiedHead {
        &self.head
    }

    /// Returns the settings for publishing.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes how this publish is done, without keeping it.
    pub fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }

    /// Returns the content index.
    pub(crate) fn content_index(&self) -> ContentIndex {
        ContentIndex::new(self.disks.private.clone(), &self.state)
    }

    /// Returns the profiles from which bundles are made.
    pub fn profiles(&self) -> Profiles<'_> {
        Profiles::new(self.disks.private.clone(), &self.state, self.name.as_str())
    }

    /// Returns the folder of the publisher's state.
    pub(crate) fn state(&self) -> &Path {
        &self.state
    }
}

/// Reads the head, which has to be signed by a publisher that clients believe, as we have to be.
fn read_head(
    sink: &LocalSink,
    name: &RepositoryName,
    keys: &KeyFolder,
    publisher: &Publisher,
    now: UnixTime,
) -> Result<VerifiedHead, AdminError> {
    let signed = SignedFiles::read(sink, name)?;
    let head = signed.verify(name, &keys.public()?, now)?;
    if !signed.lists(name, publisher.certificate())? {
        return Err(AdminError::NotListed(keys.certificate_file()));
    }
    Ok(head)
}

pub(crate) fn has_manifest(disk: &dyn Disk, root: &Path) -> Result<bool, AdminError> {
    let path = root.join(manifest::PATH);
    match disk.facts(&path) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(AdminError::file("looking for", &path)(error)),
    }
}

/// Returns the folder of the publisher's state, which may be missing.
pub(crate) fn state_folder(root: &Path) -> PathBuf {
    root.join(STATE)
}

/// Creates the folder of the publisher's state, and removes unfinished files of an interrupted publish.
///
/// Web servers run as other users and need no access to it.
pub(crate) fn make_state(disks: &Disks, root: &Path) -> Result<PathBuf, AdminError> {
    let state = state_folder(root);
    let disk = &*disks.private;
    disk.make_dir(&state).map_err(AdminError::file("making folder", &state))?;
    let folders =
        [file_index::FOLDER, content_index::FOLDER, profiles::FOLDER].map(|folder| state.join(folder));
    for folder in [state.clone()].into_iter().chain(folders) {
        match remove_unfinished(disk, &folder, |_| true) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(AdminError::file("removing leftovers in", &folder)(error));
            }
            _ => {}
        }
    }
    Ok(state)
}
