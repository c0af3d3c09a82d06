//! The folder of a replica, and what earlier runs left in it.
//!
//! ```text
//! .esker/replica/lock        held by the one process that replicates
//! .esker/replica/state.json  servers, selection, keys, outcome of the last run; in object storage `.esker_replica.json`
//! .esker/replica/catalogs/   catalogs of the run in progress, by hash
//! ```

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::manifest;
use esker_format::name::RepositoryName;
use esker_format::object::ObjectName;
use esker_repository::{
    DATABASE_MAX, MASTER_REPLICA, ReplicaState, RepositoryError, Storage,
    condemned::CondemnedFolder,
    replica_state::{FOLDER, SHARED, STATE},
    signed::SMALL_FILE_MAX,
    state,
};
use esker_store::{Disk, FileLock, LargeBytes, LargeWriter, Sink, make_dirs, persist, replace};

const LOCK: &str = "lock";
const CATALOGS: &str = "catalogs";

/// The storage of a replica, opened for a run.
pub(super) struct Replica {
    pub(super) storage: Storage,
    pub(super) sink: Arc<dyn Sink>,
    /// Folder of the state; none in a dry run of a replica that does not exist yet.
    pub(super) state: Option<PathBuf>,
    pub(super) remembered: Option<ReplicaState>,
    lock: Option<FileLock>,
}

impl Replica {
    /// Opens a replica for a run, and makes it if it does not exist.
    pub(super) fn open(storage: Storage, name: &RepositoryName) -> Result<Self, RepositoryError> {
        let mut replica = Self::look(storage, name)?;
        // A bucket is asked whether it exists, once.
        let is_made = if replica.storage.is_folder() {
            replica.storage.place().join("data/txn").is_dir()
        } else {
            replica.state.is_some()
        };
        if !is_made {
            replica.storage.make_folders()?;
        }
        replica.storage.prepare()?;
        let state = state::make(&replica.storage)?;
        let folder = state.join(FOLDER);
        let catalogs = folder.join(CATALOGS);
        make_dirs(&**replica.disk(), &catalogs).map_err(RepositoryError::file("making folder", &catalogs))?;
        let path = folder.join(LOCK);
        let locking = FileLock::try_take(&path).map_err(RepositoryError::file("locking", &path))?;
        replica.lock = Some(locking.or_held(RepositoryError::locked(replica.storage.describe()))?);
        // Another run may have ended since the first look.
        replica.remembered = ReplicaState::of(&replica.storage)?;
        replica.state = Some(state);
        Ok(replica)
    }

    /// Opens a replica, which may not exist, to read it.
    ///
    /// Fails if there is another repository, or anything that is no repository.
    pub(super) fn look(storage: Storage, name: &RepositoryName) -> Result<Self, RepositoryError> {
        storage.refuse_others(Some(name))?;
        let state = state::folder(storage.place());
        let remembered = ReplicaState::of(&storage)?;
        if let Some(known) = remembered.as_ref().and_then(ReplicaState::repository)
            && known != name.as_str()
        {
            return Err(RepositoryError::OtherRepository {
                place: storage.describe(),
                name: known.to_owned(),
            });
        }
        let sink = storage.sink().clone();
        let has = |path: &str| Ok::<_, RepositoryError>(sink.read(path, SMALL_FILE_MAX)?.is_some());
        if remembered.is_none() && has(manifest::PATH)? && has(MASTER_REPLICA)? {
            return Err(RepositoryError::NotReplica(storage.describe()));
        }
        Ok(Self { storage, sink, state: Some(state).filter(|state| state.is_dir()), remembered, lock: None })
    }

    /// Returns the manifest; none if there is none yet.
    pub(super) fn manifest(&self) -> Result<Option<Vec<u8>>, RepositoryError> {
        self.root_file(manifest::PATH)
    }

    /// Reads a file in the root of the repository.
    pub(super) fn root_file(&self, path: &str) -> Result<Option<Vec<u8>>, RepositoryError> {
        Ok(self.sink.read(path, SMALL_FILE_MAX)?)
    }

    /// Removes a file in the root of the repository, if it exists.
    pub(super) fn remove_root_file(&self, path: &str) -> Result<(), RepositoryError> {
        Ok(self.sink.remove_root(path)?)
    }

    /// Returns the stored bytes of an object, verified; none if it is missing or damaged.
    pub(super) fn stored(
        &self,
        name: &ObjectName,
        limit: u64,
    ) -> Result<Option<LargeBytes>, RepositoryError> {
        let path = name.path();
        let mut stored = LargeWriter::new(&self.scratch(), limit);
        if self.sink.read_to(&path, &mut stored)?.is_none() {
            return Ok(None);
        }
        let bytes = stored.finish().map_err(RepositoryError::file("reading", path.as_ref()))?;
        Ok((ContentHash::of(name.hash.algorithm(), &bytes) == name.hash).then_some(bytes))
    }

    /// Returns the list of condemned objects of a collect.
    pub(super) fn condemned(&self) -> Option<CondemnedFolder> {
        self.state.as_ref()?;
        Some(CondemnedFolder::of(&self.storage).with_lease())
    }

    /// Returns the disk of the replica's state.
    pub(super) fn disk(&self) -> &Arc<dyn Disk> {
        &self.storage.disks().private
    }

    /// Returns true if the replica is unchanged since a run that completed all subtrees of these paths.
    pub(super) fn is_complete(&self, paths: &[String]) -> Result<bool, RepositoryError> {
        let Some(known) = self.remembered.as_ref().filter(|known| known.paths == paths) else {
            return Ok(false);
        };
        let manifest = self.manifest()?;
        Ok(manifest.is_some() && known.complete == manifest.as_deref().map(fingerprint))
    }

    /// Stores what the replica remembers.
    pub(super) fn remember(&mut self, remembered: ReplicaState) -> Result<(), RepositoryError> {
        let Some(state) = &self.state else { return Ok(()) };
        let path = state.join(FOLDER).join(STATE);
        let text = serde_json::to_vec_pretty(&remembered).expect("a state becomes JSON: its keys are text");
        if let Some(sink) = self.storage.shared() {
            sink.put_root(SHARED, &text)?;
        }
        persist(&**self.disk(), &path, &text).map_err(RepositoryError::file("writing", &path))?;
        self.remembered = Some(remembered);
        Ok(())
    }

    /// Returns true if this process may write to the replica.
    pub(super) fn is_locked(&self) -> bool {
        self.lock.is_some()
    }

    /// Returns the folder of staged catalogs; none in a dry run.
    fn staging(&self) -> Option<PathBuf> {
        let state = self.state.as_ref().filter(|_| self.is_locked())?;
        Some(state.join(FOLDER).join(CATALOGS))
    }

    /// Keeps the stored bytes of a catalog until the head is switched.
    pub(super) fn stage(&self, catalog: &ContentHash, stored: &[u8]) -> Result<(), RepositoryError> {
        let Some(folder) = self.staging() else { return Ok(()) };
        let path = folder.join(catalog.to_string());
        replace(&**self.disk(), &path, stored).map_err(RepositoryError::file("writing", &path))
    }

    /// Returns the stored bytes of a staged catalog; none if it is not staged, or damaged.
    pub(super) fn staged(&self, catalog: &ContentHash) -> Result<Option<LargeBytes>, RepositoryError> {
        let Some(folder) = self.staging() else { return Ok(None) };
        let path = folder.join(catalog.to_string());
        let failed = RepositoryError::file("reading", &path);
        let stored = match self.disk().open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
            Ok(file) => file,
        };
        let mut bytes = LargeWriter::new(&self.scratch(), DATABASE_MAX);
        let copied = io::copy(&mut &stored, &mut bytes).and_then(|_| bytes.finish()).map_err(failed)?;
        Ok((ContentHash::of(catalog.algorithm(), &copied) == *catalog).then_some(copied))
    }

    /// Removes all staged catalogs.
    pub(super) fn clear_staging(&self) {
        let Some(folder) = self.staging() else { return };
        // What stays is used by the next run, or removed by it.
        for name in self.disk().list(&folder).unwrap_or_default() {
            let _ = self.disk().remove(&folder.join(name));
        }
    }

    /// Returns the folder for sorted runs and spooled bodies.
    pub(super) fn scratch(&self) -> PathBuf {
        match &self.state {
            Some(state) if self.is_locked() => state.join(FOLDER),
            _ => std::env::temp_dir(),
        }
    }

    /// Returns which of these objects are condemned; none if nothing is.
    pub(super) fn condemned_of(
        &self,
        objects: impl Iterator<Item = Result<ObjectName, RepositoryError>>,
    ) -> Result<BTreeSet<ObjectName>, RepositoryError> {
        let list = self.condemned().map(|folder| folder.read()).transpose()?.flatten();
        let Some(list) = list else { return Ok(BTreeSet::new()) };
        let mut found = BTreeSet::new();
        for object in objects {
            let object = object?;
            if list.contains(&object)? {
                found.insert(object);
            }
        }
        Ok(found)
    }
}

/// Returns the SHA-1 of a manifest as text.
pub(super) fn fingerprint(manifest: &[u8]) -> String {
    ContentHash::of(HashAlgorithm::Sha1, manifest).hex()
}
