//! Takes over repositories of `cvmfs_server`, and gives them back.
//!
//! ```text
//!   server.conf ─► ServerConf ─► rows: parameter, value, setting, outcome ─► settings.json, spool
//!   settings, head ─► server.conf, client.conf
//! ```

mod error;
mod export;
mod parameters;
mod s3_conf;
mod server_conf;
mod upstream;

use std::fs;
use std::path::{Path, PathBuf};

use esker_format::hash::ContentHash;
use esker_format::manifest::Manifest;
use esker_format::name::RepositoryName;
use esker_format::reflog::{self, Reflog};
use esker_format::time::UnixTime;
use esker_repository::{
    DATABASE_MAX, KeyFolder, RepositoryError, Settings, Storage,
    signed::SignedFiles,
    spool::{self, REFLOG_CHECKSUM},
    state,
};
use esker_store::{StoredFiles, persist};
use serde::Serialize;

use crate::info::causes;

pub use error::TakeoverError;
pub use export::ExportedConfig;
pub use parameters::{Outcome, ParameterRow};
pub use server_conf::ServerConf;
pub use upstream::{Upstream, UpstreamBucket};

/// A repository of `cvmfs_server` that is taken over.
#[derive(Debug)]
pub struct Takeover {
    settings: Settings,
    /// Result, for display.
    pub told: TakenOver,
}

/// Description of a takeover.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TakenOver {
    /// Folder or address of the storage.
    pub storage: String,
    /// Spool folder of CernVM-FS, whose locks each publish honours.
    pub spool: Option<PathBuf>,
    /// Published revision.
    pub revision: u64,
    /// Parameters of `server.conf`, in the order of the file.
    pub parameters: Vec<ParameterRow>,
    /// Findings about keys and reflog that need attention.
    pub warnings: Vec<String>,
}

impl Takeover {
    /// Plans the takeover of a repository; changes nothing.
    pub fn plan(
        conf: &ServerConf,
        storage: &Storage,
        name: &RepositoryName,
        keys: &KeyFolder,
        now: UnixTime,
    ) -> Result<Self, TakeoverError> {
        conf.check(name)?;
        storage.require_head()?;
        let sink = &**storage.sink();
        let signed = SignedFiles::read(sink, name)?;
        let mut warnings = Vec::new();
        let head = match signed.verify(name, &keys.public()?, now) {
            Ok(head) => head.manifest().clone(),
            Err(RepositoryError::Untrusted { source, .. })
                if matches!(*source, esker_format::trust::TrustError::WhitelistExpired { .. }) =>
            {
                warnings.push(format!("{source}; sign it with `esker repo resign`"));
                signed.verify(name, &keys.public()?, signed.valid_at(name, now)?)?.manifest().clone()
            }
            Err(error) => return Err(error.into()),
        };
        match keys.publisher_certificate() {
            Ok(certificate) if signed.lists(name, &certificate)? => {}
            Ok(_) => warnings.push("the certificate in the keys folder is not on the whitelist".to_owned()),
            Err(error) => warnings.push(causes(&error)),
        }
        if !keys.master_key_file().exists() {
            let path = keys.master_key_file();
            warnings.push(format!(
                "the master key `{}` is not here; the whitelist can't be signed",
                path.display()
            ));
        }
        let spool = conf.get("CVMFS_SPOOL_DIR").map(PathBuf::from).filter(|spool| spool.is_dir());
        warnings.extend(check_reflog(sink, &head, spool.as_deref()));
        let mut settings = Settings::default();
        let parameters = parameters::take(conf, &head, &mut settings);
        let told =
            TakenOver { storage: storage.describe(), spool, revision: head.revision, parameters, warnings };
        Ok(Self { settings, told })
    }

    /// Writes the settings, and remembers the spool folder.
    pub fn run(&self, storage: &Storage) -> Result<(), TakeoverError> {
        let disk = &*storage.disks().private;
        let _lock = storage.lock()?;
        let state = state::make(storage)?;
        let _state_lock = state::lock(&state)?;
        let remembered = state.join(SPOOL);
        match &self.told.spool {
            Some(spool) => persist(disk, &remembered, spool.as_os_str().as_encoded_bytes())
                .map_err(RepositoryError::file("writing", &remembered))?,
            None if remembered.exists() => {
                disk.remove(&remembered).map_err(RepositoryError::file("removing", &remembered))?;
            }
            None => {}
        }
        Ok(self.settings.write(disk, &Settings::path(&state))?)
    }
}

/// File in the state folder with the path of CernVM-FS's spool folder.
const SPOOL: &str = "cvmfs_spool";

/// Returns the spool folder of CernVM-FS that a takeover remembered.
///
/// A file of another user is ignored, since that user could make this one write anywhere.
pub fn remembered_spool(root: &Path) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt as _;
    use std::os::unix::fs::MetadataExt as _;
    let path = esker_repository::state::folder(root).join(SPOOL);
    let facts = fs::symlink_metadata(&path).ok()?;
    let me = rustix::process::geteuid().as_raw();
    if !facts.is_file() || facts.len() > 4096 || ![0, me].contains(&facts.uid()) || facts.mode() & 0o022 != 0
    {
        return None;
    }
    Some(PathBuf::from(std::ffi::OsString::from_vec(fs::read(path).ok()?)))
}

/// Checks the reflog against the manifest and the checksum in the spool folder.
fn check_reflog(sink: &dyn StoredFiles, head: &Manifest, spool: Option<&Path>) -> Vec<String> {
    let bytes = match sink.read(reflog::PATH, DATABASE_MAX) {
        Ok(Some(bytes)) => bytes,
        Ok(None) => return vec!["there is no reflog; a collect rebuilds it".to_owned()],
        Err(error) => return vec![causes(&error)],
    };
    let mut found = Vec::new();
    if let Err(error) = Reflog::parse(&bytes) {
        found.push(causes(&error));
    }
    let hash = ContentHash::of(head.root_catalog.algorithm(), &bytes);
    let checksum = spool.map(|spool| spool.join(REFLOG_CHECKSUM));
    match checksum.and_then(|path| spool::recorded(&path)) {
        // A collect of CernVM-FS changes the reflog and signs no head.
        Some(text) if text.trim() == hash.to_string() => {}
        Some(_) => found
            .push("the reflog has another checksum than CernVM-FS recorded in its spool folder".to_owned()),
        None if head.reflog.is_some_and(|named| named != hash) => found.push(
            "the reflog is not the one that the head names; the next publish names this one".to_owned(),
        ),
        None => {}
    }
    found
}
