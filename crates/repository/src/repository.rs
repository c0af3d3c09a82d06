//! A repository opened for publishing: its storage, head and signing keys.
//!
//! Any number of processes may have it open at once. They exclude each other only while they replace the head
//! ([`crate::commit`]), and a publisher of CernVM-FS as long as its spool folder is claimed.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use esker_format::hash::ContentHash;
use esker_format::manifest;
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_format::reflog;
use esker_format::time::UnixTime;
use esker_format::trust::VerifiedHead;
use esker_format::write::keys::Publisher;
use esker_store::Sink;
use parking_lot::Mutex;

use crate::condemned::CondemnedFolder;
use crate::disks::Disks;
use crate::error::RepositoryError;
use crate::gateway::GatewaySession;
use crate::head::pending;
use crate::key_folder::KeyFolder;
use crate::replica_state::ReplicaState;
use crate::settings::Settings;
use crate::signed::{SMALL_FILE_MAX, SignedFiles};
use crate::spool::Spool;
use crate::state;
use crate::storage::{OpenStorage, RememberedGateway, Storage};

/// Largest size of a database, in bytes, so that a damaged one can't exhaust memory.
pub const DATABASE_MAX: u64 = 8 << 30;
/// Maximum plain size in bytes of a history, whose size nothing states.
pub const HISTORY_MAX: u64 = 1 << 30;

/// A repository in a folder or in object storage, opened by its publisher.
pub struct Repository {
    pub(crate) name: RepositoryName,
    pub(crate) storage: Storage,
    /// The keys that sign; none for a replica, and for a publisher that uses a gateway.
    pub(crate) publisher: Option<Publisher>,
    /// Public keys of a replica, or of a publisher without keys; another one has them in its keys folder.
    master: Option<MasterKeys>,
    /// Session with the gateway that publishes; none if this process signs, or changes nothing.
    session: Option<Arc<dyn GatewaySession>>,
    pub(crate) settings: Settings,
    /// False if the folder has no settings, since another program made the repository.
    pub(crate) has_settings: bool,
    pub(crate) head: VerifiedHead,
    /// Spool of CernVM-FS, if it publishes to the repository too.
    pub(crate) spool: Option<Spool>,
    /// Spool folder of a replica that CernVM-FS copies and collects, too.
    pub(crate) replica_spool: Option<PathBuf>,
    keys: KeyFolder,
    opened: UnixTime,
    /// Time as of which heads are verified: before the expiry of the whitelist, if this is open for reading.
    valid: UnixTime,
    /// Head that was verified last.
    last_head: Mutex<Option<ReadHead>>,
    state: PathBuf,
    /// Number of lists of condemned objects before the head was read.
    collections: u64,
    /// Longest wait for the lock of the head; none waits without limit.
    pub(crate) lock_wait: Option<Duration>,
    /// Called when a commit begins to wait, with the error that it would have been without waiting.
    pub(crate) on_lock_wait: fn(&RepositoryError),
}

/// Longest wait for the lock of the head, which other publishers hold for a short time only.
pub const LOCK_WAIT: Duration = Duration::from_secs(60);

/// Revision that changes are computed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Base {
    /// Number of the revision.
    pub revision: u64,
    /// Hash of its root catalog.
    pub root: ContentHash,
    /// Plain size of the root catalog, if the manifest records it.
    pub size: Option<u64>,
    /// Number of lists of condemned objects when the work on the changes began.
    pub collections: u64,
}

impl Base {
    fn of(head: &VerifiedHead, collections: u64) -> Self {
        let (root, size) = (head.root_catalog().hash, head.root_catalog_size());
        Self { revision: head.revision(), root, size, collections }
    }
}

/// The published head: its content, and its bytes, which must be unchanged when it is replaced.
#[derive(Clone)]
pub struct ReadHead {
    /// The head, verified.
    pub verified: VerifiedHead,
    /// Bytes of the manifest.
    pub bytes: Vec<u8>,
}

impl Repository {
    /// Finds the folder of a repository: `storage` itself if it is one, otherwise the folder `storage/NAME`.
    pub fn locate(storage: &Path, name: &RepositoryName) -> PathBuf {
        let is_repository = storage.join(manifest::PATH).exists();
        let is_named = storage.file_name().is_some_and(|last| last == name.as_str());
        if is_repository || is_named { storage.to_owned() } else { storage.join(name.as_str()) }
    }

    /// Opens the repository at a place for publishing: verifies its head.
    pub fn open(
        place: impl OpenStorage,
        name: &RepositoryName,
        keys: KeyFolder,
        now: UnixTime,
    ) -> Result<Self, RepositoryError> {
        Self::open_as_of(place.storage()?, name, keys, (now, now))
    }

    /// Opens the repository at a place to look at it, also if its whitelist has expired.
    pub fn open_for_reading(
        place: impl OpenStorage,
        name: &RepositoryName,
        keys: KeyFolder,
        now: UnixTime,
    ) -> Result<Self, RepositoryError> {
        let storage = place.storage()?;
        storage.require_head()?;
        let valid = SignedFiles::read(&**storage.sink(), name)?.valid_at(name, now)?;
        Self::open_as_of(storage, name, keys, (now, valid))
    }

    /// Opens the repository `now`, and verifies heads as of the time `valid`.
    fn open_as_of(
        storage: Storage,
        name: &RepositoryName,
        keys: KeyFolder,
        (now, valid): (UnixTime, UnixTime),
    ) -> Result<Self, RepositoryError> {
        storage.require_head()?;
        storage.prepare()?;
        if let Some(replica) = ReplicaState::read(storage.place())? {
            return Err(RepositoryError::IsReplica {
                place: storage.describe(),
                source_url: replica.servers,
            });
        }
        let publisher = keys.publisher()?;
        let state = state::make(&storage)?;
        let (sink, disk) = (storage.sink().clone(), storage.disks().private.clone());
        // Before the head: a later list may have objects on it that this head still names.
        let collections = CondemnedFolder::of(&storage).collections()?;
        let mut head = read_head(&*sink, name, &keys, &publisher, valid)?;
        // Of a publisher that is at work, which holds the lock, it is not to be taken.
        if pending::path(&state).exists()
            && let Some(_lock) = storage.try_lock()?
        {
            head = read_head(&*sink, name, &keys, &publisher, valid)?;
            pending::finish(&*disk, &state, &*sink, &head.verified)?;
        }
        let publisher = Some(publisher);
        let settings = Settings::read(&*disk, &Settings::path(&state))?;
        let has_settings = settings.is_some();
        let settings = settings.unwrap_or_default();
        let name = name.clone();
        let (spool, opened, lock_wait) = (None, now, Some(LOCK_WAIT));
        Ok(Self {
            name,
            storage,
            publisher,
            master: None,
            session: None,
            settings,
            has_settings,
            head: head.verified.clone(),
            last_head: Mutex::new(Some(head)),
            spool,
            replica_spool: None,
            keys,
            opened,
            valid,
            state,
            collections,
            lock_wait,
            on_lock_wait: |_| {},
        })
    }

    /// Opens the replica at a place for collecting it. It can't be published to: the keys are elsewhere.
    pub fn open_replica(
        place: impl OpenStorage,
        name: &RepositoryName,
        now: UnixTime,
    ) -> Result<Self, RepositoryError> {
        let storage = place.storage()?;
        let replica =
            ReplicaState::of(&storage)?.ok_or_else(|| RepositoryError::NotReplica(storage.describe()))?;
        let master = replica.master_keys()?;
        storage.prepare()?;
        let state = state::make(&storage)?;
        let collections = CondemnedFolder::of(&storage).with_lease().collections()?;
        let head = read_replica_head(&**storage.sink(), name, &master, now)?;
        Ok(Self {
            name: name.clone(),
            storage,
            publisher: None,
            master: Some(master),
            session: None,
            settings: Settings::default(),
            has_settings: false,
            head: head.verified.clone(),
            last_head: Mutex::new(Some(head)),
            spool: None,
            replica_spool: None,
            keys: KeyFolder::new(PathBuf::new(), name),
            opened: now,
            valid: now,
            state,
            collections,
            lock_wait: Some(LOCK_WAIT),
            on_lock_wait: |_| {},
        })
    }

    /// Opens a repository without its keys: verifies the head that its web server has. Without a session with the gateway, nothing
    /// can be published.
    pub fn open_at_gateway(
        place: &Path,
        name: &RepositoryName,
        gateway: &RememberedGateway,
        session: Option<Arc<dyn GatewaySession>>,
        now: UnixTime,
    ) -> Result<Self, RepositoryError> {
        let master = gateway.master_keys()?;
        let storage = Storage::served(place, gateway.files()?, session.clone());
        storage.prepare()?;
        let state = state::make(&storage)?;
        let head = read_served_head(&**storage.sink(), name, &master, now)?;
        let settings = Settings::read(&*storage.disks().private, &Settings::path(&state))?;
        Ok(Self {
            name: name.clone(),
            storage,
            publisher: None,
            master: Some(master),
            session,
            has_settings: settings.is_some(),
            settings: settings.unwrap_or_default(),
            head: head.verified.clone(),
            last_head: Mutex::new(Some(head)),
            spool: None,
            replica_spool: None,
            keys: KeyFolder::new(PathBuf::new(), name),
            opened: now,
            valid: now,
            state,
            collections: 0,
            lock_wait: Some(LOCK_WAIT),
            on_lock_wait: |_| {},
        })
    }

    /// Returns true if the repository is a replica.
    pub fn is_replica(&self) -> bool {
        self.publisher.is_none() && !self.storage.is_served()
    }

    /// Returns the session with the gateway that publishes; none if this process signs.
    pub fn gateway(&self) -> Option<&dyn GatewaySession> {
        self.session.as_deref()
    }

    /// Fails if the keys are at a gateway: only their owner can replace the head in other ways than a publish.
    pub fn require_keys(&self) -> Result<(), RepositoryError> {
        let refused = || RepositoryError::NotThroughGateway(self.name.to_string());
        if self.storage.is_served() { Err(refused()) } else { Ok(()) }
    }

    /// Returns the keys that sign.
    pub fn publisher(&self) -> Result<&Publisher, RepositoryError> {
        self.require_keys()?;
        let source_url =
            || ReplicaState::read(self.storage.place()).ok().flatten().unwrap_or_default().servers;
        let place = self.storage.describe();
        self.publisher.as_ref().ok_or_else(|| RepositoryError::IsReplica { place, source_url: source_url() })
    }

    /// Respects the locks in a spool folder of the reference implementation, and keeps it up to date.
    pub fn share_with_spool(&mut self, folder: &Path) -> Result<(), RepositoryError> {
        self.spool = Spool::claim(self.disks().served.clone(), folder)?;
        if self.spool.is_some() {
            // The reference may have published since the head was read.
            self.head = self.read_head()?.verified;
        }
        if let Some(spool) = self.spool.as_ref().filter(|spool| spool.knows_reflog())
            && let Some(reflog) = self.sink().read(reflog::PATH, DATABASE_MAX)?
        {
            let hash = ContentHash::of(self.head.hash_algorithm(), &reflog);
            // Another one is of a collect of CernVM-FS, which recorded it.
            if self.head.manifest().reflog == Some(hash) {
                spool.remember_reflog(&hash)?;
            }
        }
        Ok(())
    }

    /// Keeps the reflog checksum in a spool folder of the reference implementation up to date, which is all that it needs of
    /// a replica.
    pub fn tell_spool(&mut self, folder: &Path) {
        self.replica_spool = Some(folder.to_owned());
    }

    /// Sets how long a commit waits for the commits of other publishers, none for no limit, and what is called when it
    /// begins to wait.
    pub fn wait_for_lock(&mut self, limit: Option<Duration>, begins: fn(&RepositoryError)) {
        (self.lock_wait, self.on_lock_wait) = (limit, begins);
    }

    /// Returns the folder of the keys; that of a replica is empty.
    pub fn keys(&self) -> &KeyFolder {
        &self.keys
    }

    /// Returns the time at which it was opened.
    pub fn opened(&self) -> UnixTime {
        self.opened
    }

    /// Returns the disks of its files.
    pub fn disks(&self) -> &Disks {
        self.storage.disks()
    }

    /// Returns the storage of the repository.
    pub fn storage(&self) -> &Storage {
        &self.storage
    }

    /// Returns the place of its objects and signed files.
    pub fn sink(&self) -> &dyn Sink {
        &**self.storage.sink()
    }

    /// Returns false if the folder has no settings, since another program made the repository.
    pub fn has_settings(&self) -> bool {
        self.has_settings
    }

    /// Returns the name of the repository.
    pub fn name(&self) -> &RepositoryName {
        &self.name
    }

    /// Returns the published head.
    pub fn head(&self) -> &VerifiedHead {
        &self.head
    }

    /// Returns the base for changes: the revision that was published when this was opened.
    pub fn begin(&self) -> Base {
        Base::of(&self.head, self.collections)
    }

    /// Returns whether objects may have been collected since work on a base began.
    pub fn collected_since(&self, base: &Base) -> Result<bool, RepositoryError> {
        let condemned = self.condemned();
        Ok(condemned.read()?.is_some() || condemned.collections()? != base.collections)
    }

    /// Reads and verifies the head that is published now. A commit asks several times, so one that this repository has verified is
    /// not verified again.
    pub fn read_head(&self) -> Result<ReadHead, RepositoryError> {
        if let Some(known) = self.last_head.lock().clone()
            && self.sink().read(manifest::PATH, SMALL_FILE_MAX)?.as_ref() == Some(&known.bytes)
        {
            return Ok(known);
        }
        let head = self.verify_head()?;
        *self.last_head.lock() = Some(head.clone());
        Ok(head)
    }

    fn verify_head(&self) -> Result<ReadHead, RepositoryError> {
        match (&self.publisher, &self.master) {
            (Some(publisher), _) => read_head(self.sink(), &self.name, &self.keys, publisher, self.valid),
            (None, Some(master)) if self.storage.is_served() => {
                read_served_head(self.sink(), &self.name, master, self.opened)
            }
            (None, Some(master)) => read_replica_head(self.sink(), &self.name, master, self.opened),
            (None, None) => Err(RepositoryError::NotReplica(self.storage.describe())),
        }
    }

    /// Returns the place of the list of condemned objects.
    pub fn condemned(&self) -> CondemnedFolder {
        let folder = CondemnedFolder::of(&self.storage);
        if self.is_replica() { folder.with_lease() } else { folder }
    }

    /// Returns the settings for publishing.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns the settings for changes that apply to this publish only.
    pub fn settings_mut(&mut self) -> &mut Settings {
        &mut self.settings
    }

    /// Returns the folder of the publisher's state.
    pub fn state(&self) -> &Path {
        &self.state
    }
}

/// Reads and verifies the head, whose publisher must be on the whitelist.
fn read_head(
    sink: &dyn Sink,
    name: &RepositoryName,
    keys: &KeyFolder,
    publisher: &Publisher,
    now: UnixTime,
) -> Result<ReadHead, RepositoryError> {
    let signed = SignedFiles::read(sink, name)?;
    let verified = signed.verify(name, &keys.public()?, now)?;
    if !signed.lists(name, publisher.certificate())? {
        return Err(RepositoryError::NotListed(keys.certificate_file()));
    }
    Ok(ReadHead { verified, bytes: signed.manifest })
}

/// Reads and verifies the head of a publisher without keys, as clients do.
fn read_served_head(
    sink: &dyn Sink,
    name: &RepositoryName,
    master: &MasterKeys,
    now: UnixTime,
) -> Result<ReadHead, RepositoryError> {
    let signed = SignedFiles::read(sink, name)?;
    Ok(ReadHead { verified: signed.verify(name, master, now)?, bytes: signed.manifest })
}

/// Reads and verifies the head of a replica. Its whitelist may have expired: a replica has to free space all the same.
fn read_replica_head(
    sink: &dyn Sink,
    name: &RepositoryName,
    master: &MasterKeys,
    now: UnixTime,
) -> Result<ReadHead, RepositoryError> {
    let signed = SignedFiles::read(sink, name)?;
    let verified = signed.verify(name, master, signed.valid_at(name, now)?)?;
    Ok(ReadHead { verified, bytes: signed.manifest })
}
