//! Signing the whitelist again: for another time, and for other certificates.
//!
//! A certificate is replaced in three steps, and clients accept every revision in between: sign the whitelist with
//! the new one on it too; publish with the new one; sign the whitelist with the new one only.

use std::path::{Path, PathBuf};

use crate::keys::KeysError;
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_format::trust::TrustError;
use esker_format::whitelist::{self, Whitelist};
use esker_format::write::head::sign_whitelist;
use esker_repository::{
    KeyFolder, OpenStorage, RepositoryError, Storage,
    settings::DAY,
    signed::{SignedFiles, is_of},
};
use esker_store::{Sink, Swap};
use serde::Serialize;

/// Options for a new signature of the whitelist.
#[derive(Clone, Debug)]
pub struct Resign {
    /// Days for which the new whitelist is valid.
    pub days: u32,
    /// The master key, if it is not in the folder of the other keys.
    pub master: Option<PathBuf>,
    /// True if only the certificate in the keys folder stays on the whitelist.
    pub only_own: bool,
    /// Certificates to take off the whitelist.
    pub drop: Vec<ContentHash>,
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
    /// Certificate of a rotation under way, if it is new on the whitelist.
    pub added_next: Option<String>,
    /// Certificates removed from the whitelist.
    pub dropped: Vec<String>,
}

/// A whitelist to sign.
pub(crate) struct Draft {
    /// Signed files that are published.
    pub(crate) before: SignedFiles,
    pub(crate) whitelist: Whitelist,
    pub(crate) algorithm: HashAlgorithm,
    pub(crate) told: Resigned,
}

impl Resign {
    /// Signs the whitelist of the repository at a place.
    pub fn run(
        &self,
        place: impl OpenStorage,
        name: &RepositoryName,
        keys: &KeyFolder,
        now: UnixTime,
    ) -> Result<Resigned, KeysError> {
        let storage = open(place)?;
        let sink = &**storage.sink();
        let _lock = storage.lock()?;
        let (bytes, before, resigned) = self.plan(sink, name, keys, now)?;
        match sink.replace_root(whitelist::PATH, &bytes, Some(&before))? {
            Swap::Replaced => Ok(resigned),
            Swap::Moved => Err(RepositoryError::Moving.into()),
        }
    }

    /// Returns the whitelist that would be signed; writes nothing.
    pub fn dry_run(
        &self,
        place: impl OpenStorage,
        name: &RepositoryName,
        keys: &KeyFolder,
        now: UnixTime,
    ) -> Result<Resigned, KeysError> {
        let storage = open(place)?;
        self.draft(&**storage.sink(), name, keys, now).map(|draft| draft.told)
    }

    fn plan(
        &self,
        sink: &dyn Sink,
        name: &RepositoryName,
        keys: &KeyFolder,
        now: UnixTime,
    ) -> Result<(Vec<u8>, Vec<u8>, Resigned), KeysError> {
        let Draft { before, whitelist, algorithm, told } = self.draft(sink, name, keys, now)?;
        let master = keys.master(self.master.as_deref())?;
        let bytes = sign_whitelist(&whitelist, algorithm, &*master).map_err(RepositoryError::Signing)?;
        let (old, after) = (before.whitelist.clone(), SignedFiles { whitelist: bytes, ..before });
        let file = self.master.clone().unwrap_or_else(|| keys.master_key_file());
        // A whitelist that no client would accept is not written.
        after.verify(name, &keys.public()?, now).map_err(|error| explain(error, &file, keys))?;
        Ok((after.whitelist, old, told))
    }

    /// Returns the whitelist to sign.
    pub(crate) fn draft(
        &self,
        sink: &dyn Sink,
        name: &RepositoryName,
        keys: &KeyFolder,
        now: UnixTime,
    ) -> Result<Draft, KeysError> {
        let before = SignedFiles::read(sink, name)?;
        let old = before.whitelist(name)?;
        let public = keys.public()?;
        // Only a whitelist that the owner signed is renewed; it is verified at a time before its expiry, which is the
        // reason for renewing it.
        let still_valid = UnixTime(old.expires.hour().0.saturating_sub(1)).min(now);
        let algorithm = before.verify(name, &public, still_valid)?.hash_algorithm();

        let is_dropped = |fingerprint: &ContentHash| self.drop.contains(fingerprint);
        if let Some(unknown) = self.drop.iter().find(|dropped| !old.fingerprints.contains(dropped)) {
            return Err(KeysError::NotOnWhitelist(unknown.to_fingerprint()));
        }
        let own = [keys.certificate()?, keys.next_certificate()?];
        let is_own = |listed: &ContentHash| own.iter().flatten().any(|own| is_of(listed, own));
        let (kept, dropped): (Vec<_>, Vec<_>) = old
            .fingerprints
            .iter()
            .copied()
            .partition(|listed| !is_dropped(listed) && (!self.only_own || is_own(listed)));
        let [added, added_next] = own.map(|own| {
            let own = own.filter(|own| !old.fingerprints.iter().any(|listed| is_of(listed, own)));
            own.map(|own| own.fingerprint(algorithm))
        });
        let whitelist = Whitelist {
            // Clients refuse a whitelist that is older than the one they saw, so a clock that was set back must not count.
            created: Some(old.created.map_or(now, |before| before.max(now))),
            expires: UnixTime(now.0.saturating_add(i64::from(self.days) * DAY)),
            fingerprints: kept.iter().copied().chain(added).chain(added_next).collect(),
            ..old.clone()
        };
        let signer = before.signer(name)?;
        if !whitelist.fingerprints.iter().any(|listed| is_of(listed, &signer)) {
            return Err(KeysError::StillNeeded {
                fingerprint: signer.fingerprint(algorithm).to_fingerprint(),
            });
        }
        let text = |hash: &ContentHash| hash.to_fingerprint();
        let told = Resigned {
            expired: old.expires.0,
            expires: whitelist.expires.0,
            kept: kept.iter().map(text).collect(),
            added: added.as_ref().map(text),
            added_next: added_next.as_ref().map(text),
            dropped: dropped.iter().map(text).collect(),
        };
        Ok(Draft { before, whitelist, algorithm, told })
    }
}

/// Explains why the new whitelist does not verify.
pub(crate) fn explain(error: RepositoryError, master: &Path, keys: &KeyFolder) -> KeysError {
    let RepositoryError::Untrusted { name, source } = error else { return error.into() };
    match *source {
        TrustError::CertificateNotListed { fingerprint } => KeysError::StillNeeded { fingerprint },
        TrustError::WhitelistSignature { .. } => {
            RepositoryError::OtherMaster { master: master.to_owned(), public: keys.public_key_file() }.into()
        }
        source => RepositoryError::Untrusted { name, source: Box::new(source) }.into(),
    }
}

/// Opens the storage of a repository that exists.
pub(crate) fn open(place: impl OpenStorage) -> Result<Storage, RepositoryError> {
    let storage = place.storage()?;
    storage.require_head()?;
    Ok(storage)
}
