//! Creates a repository: keys, whitelist, and a first revision with an empty root.

use esker_format::catalog::{Counters, PathKey};
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::manifest::{self, Manifest};
use esker_format::name::RepositoryName;
use esker_format::object::{ObjectKind, ObjectName};
use esker_format::reflog;
use esker_format::time::UnixTime;
use esker_format::whitelist::{self, Whitelist};
use esker_format::write::catalog::{CatalogHeader, CatalogWriter};
use esker_format::write::head::{sign_manifest, sign_whitelist};
use esker_format::write::keys::Publisher;
use esker_format::write::reflog::ReflogDraft;
use esker_format::write::signer::Signer;
use esker_store::{Sink, Swap};

use crate::encode::Encoder;
use crate::entry;
use crate::error::RepositoryError;
use crate::key_folder::KeyFolder;
use crate::settings::{DAY, Settings, TTL};
use crate::signed::SMALL_FILE_MAX;
use crate::state;
use crate::storage::OpenStorage;

/// Properties of a repository to create.
#[derive(Clone, Debug)]
pub struct NewRepository {
    /// Name of the repository.
    pub name: RepositoryName,
    /// Hash algorithm, which can't be changed later.
    pub algorithm: HashAlgorithm,
    /// Settings for publishing.
    pub settings: Settings,
    /// Seconds after which clients check for a newer revision.
    pub ttl: u32,
    /// True if old revisions may be collected.
    pub garbage_collectable: bool,
    /// Days for which the whitelist is valid.
    pub whitelist_days: u32,
}

/// Default validity of whitelists in days.
pub const WHITELIST_DAYS: u32 = 30;
/// Maximum validity of a whitelist in days: a hundred years. From the year 10000 on no reader understands when
/// it ends.
pub const WHITELIST_DAYS_MAX: u32 = 36_500;
const CERTIFICATE_DAYS: u32 = 365;

impl NewRepository {
    /// Returns a description with the default settings.
    pub fn new(name: RepositoryName) -> Self {
        Self {
            name,
            algorithm: HashAlgorithm::Sha1,
            settings: Settings::of_new_repository(),
            ttl: TTL,
            garbage_collectable: true,
            whitelist_days: WHITELIST_DAYS,
        }
    }

    /// Makes the repository at a place. Keys that are in the key folder already are used, others are made.
    pub fn create(
        &self,
        place: impl OpenStorage,
        keys: &KeyFolder,
        now: UnixTime,
    ) -> Result<(), RepositoryError> {
        let storage = place.storage()?;
        storage.refuse_others(None)?;
        // Read before anything else, so that only one of two creators at once replaces it.
        let whitelist = storage.sink().read(whitelist::PATH, SMALL_FILE_MAX)?;
        if storage.has_head()? {
            return Err(RepositoryError::Exists(storage.describe()));
        }
        storage.make_folders()?;
        let _lock = storage.lock()?;
        let (master, publisher) = keys.complete(storage.disks(), now, CERTIFICATE_DAYS)?;
        let state = state::make(&storage)?;
        self.settings.write(&*storage.disks().private, &Settings::path(&state))?;
        let sink = &**storage.sink();
        match self.put_first_revision(sink, (&*master, &publisher), whitelist.as_deref(), now)? {
            Swap::Replaced => Ok(()),
            Swap::Moved => Err(RepositoryError::Exists(storage.describe())),
        }
    }

    fn put_first_revision(
        &self,
        sink: &dyn Sink,
        (master, publisher): (&dyn Signer, &Publisher),
        whitelist_before: Option<&[u8]>,
        now: UnixTime,
    ) -> Result<Swap, RepositoryError> {
        let mut encoder = Encoder::for_metadata();
        let mut room = Vec::new();
        let mut put = |plain: &[u8], kind| -> Result<ObjectName, RepositoryError> {
            let stored = encoder.encode(plain, &mut room)?;
            let name = ObjectName::new(ContentHash::of(self.algorithm, stored), kind);
            sink.put(&name, stored)?;
            Ok(name)
        };
        let catalog = self.empty_catalog(now);
        let root = put(&catalog, ObjectKind::Catalog)?;
        let certificate = put(publisher.certificate_pem().as_bytes(), ObjectKind::Certificate)?;
        let metainfo = put(METAINFO.as_bytes(), ObjectKind::Metainfo)?;
        sink.flush()?;
        let mut reflog = ReflogDraft::new(self.name.clone());
        [root, certificate, metainfo].into_iter().for_each(|object| reflog.add(object, now));
        let reflog = reflog.finish();
        let whitelist = Whitelist {
            created: Some(now),
            expires: UnixTime(now.0.saturating_add(i64::from(self.whitelist_days) * DAY)),
            name: self.name.to_string(),
            pkcs7: false,
            ca_chain: false,
            fingerprints: vec![publisher.certificate().fingerprint(self.algorithm)],
        };
        let whitelist =
            sign_whitelist(&whitelist, self.algorithm, master).map_err(RepositoryError::Signing)?;
        if sink.replace_root(whitelist::PATH, &whitelist, whitelist_before)? == Swap::Moved {
            return Ok(Swap::Moved);
        }
        sink.put_root(reflog::PATH, &reflog)?;
        sink.put_root(MASTER_REPLICA, b"This repository may be replicated.\n")?;
        let manifest = Manifest {
            root_catalog: root.hash,
            root_catalog_size: catalog.len() as u64,
            root_path: manifest::ROOT_PATH.to_owned(),
            ttl: self.ttl,
            revision: 0,
            garbage_collectable: self.garbage_collectable,
            alternative_paths: false,
            micro_catalog: None,
            name: Some(self.name.to_string()),
            certificate: Some(certificate.hash),
            history: None,
            timestamp: now,
            metainfo: Some(metainfo.hash),
            reflog: Some(ContentHash::of(self.algorithm, &reflog)),
        };
        let manifest = sign_manifest(&manifest, publisher.key()).map_err(RepositoryError::Signing)?;
        Ok(sink.replace_root(manifest::PATH, &manifest, None)?)
    }

    fn empty_catalog(&self, now: UnixTime) -> Vec<u8> {
        let mut writer = CatalogWriter::new();
        let root = entry::new_directory(b"", now, &self.settings);
        writer.push(PathKey::of(b""), PathKey::NONE, root);
        let header = CatalogHeader { last_modified: now, ttl: Some(self.ttl), ..CatalogHeader::default() };
        writer.finish(&header, Counters::default()).bytes
    }
}

/// Name of the marker file that allows others to replicate the repository.
pub const MASTER_REPLICA: &str = ".cvmfs_master_replica";

/// Initial metainfo of a repository: the conventional fields, all empty.
const METAINFO: &str = r#"{
  "administrator": "",
  "email": "",
  "organisation": "",
  "description": "",
  "url": "",
  "recommended-stratum0": "",
  "recommended-stratum1s": [],
  "custom": {}
}
"#;
