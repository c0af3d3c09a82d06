//! Signing the whitelist again: for another time, and for other certificates.
//!
//! A certificate is replaced in three steps, and clients accept every revision in between: sign the whitelist with
//! the new one on it too; publish with the new one; sign the whitelist with the new one only.

use std::path::{Path, PathBuf};

use esker_format::hash::ContentHash;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_format::trust::TrustError;
use esker_format::whitelist::{self, Whitelist};
use esker_format::write::head::sign_whitelist;
use esker_store::{LocalSink, Sink as _};
use serde::Serialize;

use crate::create::DAY;
use crate::disks::Disks;
use crate::error::AdminError;
use crate::key_folder::{KeyFolder, read_private_key};
use crate::repository::has_manifest;
use crate::signed::{SignedFiles, is_of};

/// Options for a new signature of the whitelist.
#[derive(Clone, Debug)]
pub struct Resign {
    /// Days for which the new whitelist is valid.
    pub days: u32,
    /// The master key, if it is not in the folder of the other keys.
    pub master: Option<PathBuf>,
    /// True if only the certificate in the keys folder stays on the whitelist.
    pub only_own: bool,
}

/// A whitelist that was signed, or that a dry run would sign.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Resigned {
    /// End of the old whitelist's validity, in seconds since 1970.
    pub expired: i64,
    /// End of the new whitelist's validity, in seconds since 1970.
    pub expires: i64,
    /// Certificates on both whitelists.
    pub kept: Vec<String>,
    /// Certificate that is new on the whitelist.
    pub added: Option<String>,
    /// Certificates removed from the whitelist.
    pub dropped: Vec<String>,
}

impl Resign {
    /// Signs the whitelist of the repository in a folder.
    pub fn run(
        &self,
        root: &Path,
        name: &RepositoryName,
        keys: &KeyFolder,
        now: UnixTime,
    ) -> Result<Resigned, AdminError> {
        self.run_on(&Disks::default(), root, name, keys, now)
    }

    /// Variant of the function above that works on disks given by the caller.
    pub fn run_on(
        &self,
        disks: &Disks,
        root: &Path,
        name: &RepositoryName,
        keys: &KeyFolder,
        now: UnixTime,
    ) -> Result<Resigned, AdminError> {
        let sink = open(disks, root)?;
        let _lock = sink.lock()?.or_held(AdminError::locked(sink.describe()))?;
        let (bytes, resigned) = self.plan(&sink, name, keys, now)?;
        sink.put_root(whitelist::PATH, &bytes)?;
        Ok(resigned)
    }

    /// Returns the whitelist that would be signed; writes nothing.
    pub fn dry_run(
        &self,
        root: &Path,
        name: &RepositoryName,
        keys: &KeyFolder,
        now: UnixTime,
    ) -> Result<Resigned, AdminError> {
        let sink = open(&Disks::default(), root)?;
        self.plan(&sink, name, keys, now).map(|(_, resigned)| resigned)
    }

    fn plan(
        &self,
        sink: &LocalSink,
        name: &RepositoryName,
        keys: &KeyFolder,
        now: UnixTime,
    ) -> Result<(Vec<u8>, Resigned), AdminError> {
        let before = SignedFiles::read(sink, name)?;
        let old = before.whitelist(name)?;
        let public = keys.public()?;
        // Only a whitelist that the owner signed is renewed; it is verified at a time before its expiry, which is the
        // reason for renewing it.
        let still_valid = UnixTime(old.expires.hour().0.saturating_sub(1)).min(now);
        let head = before.verify(name, &public, still_valid)?;

        let own = keys.certificate()?;
        let is_own = |listed: &ContentHash| own.as_ref().is_some_and(|own| is_of(listed, own));
        let (kept, dropped): (Vec<_>, Vec<_>) =
            old.fingerprints.iter().copied().partition(|listed| !self.only_own || is_own(listed));
        let added = own.as_ref().filter(|_| !kept.iter().any(is_own));
        let added = added.map(|own| own.fingerprint(head.hash_algorithm()));
        let new = Whitelist {
            // Clients refuse a whitelist that is older than the one they saw, so a clock that was set back must not count.
            created: Some(old.created.map_or(now, |before| before.max(now))),
            expires: UnixTime(now.0.saturating_add(i64::from(self.days) * DAY)),
            fingerprints: kept.iter().copied().chain(added).collect(),
            ..old.clone()
        };
        let master = self.master.clone().unwrap_or_else(|| keys.master_key_file());
        let bytes = sign_whitelist(&new, head.hash_algorithm(), &read_private_key(&master)?);
        let after = SignedFiles { whitelist: bytes.map_err(AdminError::Signing)?, ..before };
        // A whitelist that no client would accept is not written.
        after.verify(name, &public, now).map_err(|error| explain(error, &master, keys))?;
        let texts = |list: &[ContentHash]| list.iter().map(ContentHash::to_fingerprint).collect();
        let resigned = Resigned {
            expired: old.expires.0,
            expires: new.expires.0,
            kept: texts(&kept),
            added: added.map(|own| own.to_fingerprint()),
            dropped: texts(&dropped),
        };
        Ok((after.whitelist, resigned))
    }
}

/// Explains why the new whitelist does not verify.
fn explain(error: AdminError, master: &Path, keys: &KeyFolder) -> AdminError {
    let AdminError::Untrusted { name, source } = error else { return error };
    match *source {
        TrustError::CertificateNotListed { fingerprint } => AdminError::StillNeeded { fingerprint },
        TrustError::WhitelistSignature { .. } => {
            AdminError::OtherMaster { master: master.to_owned(), public: keys.public_key_file() }
        }
        source => AdminError::Untrusted { name, source: Box::new(source) },
    }
}

fn open(disks: &Disks, root: &Path) -> Result<LocalSink, AdminError> {
    if !has_manifest(&*disks.served, root)? {
        return Err(AdminError::NoRepository(root.display().to_string()));
    }
    Ok(LocalSink::on(root, disks.served.clone()))
}
