//! Replaces the publisher's key and certificate without a moment in which clients refuse the repository.
//!
//! ```text
//! rotate    NAME.next.key, NAME.next.crt are made ─► whitelist with both is signed ─► they become NAME.key, NAME.crt
//! publish   the head is signed with the new key
//! finish    whitelist without the old certificate is signed ─► NAME.old.key, NAME.old.crt are removed
//! ```
//!
//! A key in a token has a command in NAME.key.signer in place of NAME.key, and the same for `next` and `old`.
//!
//! Every step can be repeated: a rotation that was interrupted goes on where it was.

use esker_format::certificate::Certificate;
use esker_format::hash::ContentHash;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_repository::{
    KeyFolder, OpenStorage, Repository, RepositoryError, TokenKey,
    head::sign_head,
    signed::{SignedFiles, is_of},
};
use serde::Serialize;

use super::error::KeysError;
use crate::resign::{Resign, Resigned};

/// Replacement of the publisher's key.
#[derive(Clone, Debug)]
pub struct Rotate {
    /// Days for which the new certificate is valid.
    pub certificate_days: u32,
    /// Options for signing whitelists.
    pub resign: Resign,
    /// Protect the new key with a passphrase.
    pub encrypt: bool,
    /// The new key, if a token has it; none makes one in a file.
    pub token: Option<TokenKey>,
}

/// Result of a step of a rotation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Rotated {
    /// Fingerprint of the new certificate.
    pub new: String,
    /// Fingerprint of the old certificate.
    pub old: Option<String>,
    /// The whitelist that was signed in this step.
    pub whitelist: Option<Resigned>,
    /// True if the master key is elsewhere, and the whitelist has to be signed there.
    pub needs_signature: bool,
    /// True if this step signed the head again.
    pub signed_head: bool,
    /// True if the rotation is finished.
    pub finished: bool,
}

impl Rotated {
    /// Records the outcome of signing the whitelist, which needs another machine if the master key is there.
    fn record(&mut self, signing: Result<Resigned, KeysError>, keys: &KeyFolder) -> Result<(), KeysError> {
        match signing {
            Ok(resigned) => self.whitelist = Some(resigned),
            Err(KeysError::Repository(RepositoryError::NoKey { path, .. }))
                if path == keys.master_key_file() =>
            {
                self.needs_signature = true;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }
}

impl Rotate {
    /// Makes a new key, and signs with it if the whitelist can be signed here.
    pub fn start(
        &self,
        place: impl OpenStorage,
        name: &RepositoryName,
        keys: &KeyFolder,
        now: UnixTime,
    ) -> Result<Rotated, KeysError> {
        let storage = place.storage()?;
        let disks = storage.disks();
        let next = keys.next_certificate()?;
        let old = keys.certificate_in("old.crt")?;
        if next.is_none() && old.is_some() {
            let text = "the one before is not finished; publish, and then finish it";
            return Err(KeysError::Rotation(text.to_owned()));
        }
        let signed = SignedFiles::read(&**storage.sink(), name)?;
        let algorithm = signed.whitelist(name)?.fingerprints.first().map(ContentHash::algorithm);
        let algorithm = algorithm.unwrap_or(esker_format::hash::HashAlgorithm::Sha1);
        let next = match (next, &self.token) {
            (Some(next), _) => next,
            (None, Some(token)) => keys.take_next(disks, token)?,
            (None, None) => keys
                .make_next(disks, now, self.certificate_days, self.encrypt)?
                .ok_or_else(|| KeysError::Rotation("the new certificate is gone".to_owned()))?,
        };
        let mut told = Rotated {
            new: next.fingerprint(algorithm).to_fingerprint(),
            old: keys.certificate()?.map(|own| own.fingerprint(algorithm).to_fingerprint()),
            whitelist: None,
            needs_signature: false,
            signed_head: false,
            finished: false,
        };
        if !signed.lists(name, &next)? {
            told.record(self.resign.run(&storage, name, keys, now), keys)?;
            if told.needs_signature {
                return Ok(told);
            }
        }
        // A publish must not begin with the one key and end with the other.
        let _lock = storage.lock()?;
        keys.switch_to_next(disks)?;
        Ok(told)
    }

    /// Takes the old certificate off the whitelist and removes the old key, once the head is signed with the new one.
    pub fn finish(
        &self,
        place: impl OpenStorage,
        name: &RepositoryName,
        keys: &KeyFolder,
        open: impl FnOnce() -> Result<Repository, RepositoryError>,
        now: UnixTime,
    ) -> Result<Rotated, KeysError> {
        let old = keys.certificate_in("old.crt")?;
        let (Some(old), None) = (old, keys.next_certificate()?) else {
            let text = "there is none to finish; a rotation starts with `esker key rotate NAME`";
            return Err(KeysError::Rotation(text.to_owned()));
        };
        let own = keys.publisher_certificate()?;
        let storage = place.storage()?;
        let signed = SignedFiles::read(&**storage.sink(), name)?;
        let signed_head = Certificate::parse(&signed.certificate).ok().as_ref() == Some(&old);
        if signed_head {
            sign_head(&open()?, now, None)?;
        }
        let listed: Vec<ContentHash> =
            signed.whitelist(name)?.fingerprints.into_iter().filter(|listed| is_of(listed, &old)).collect();
        let algorithm =
            listed.first().map_or(esker_format::hash::HashAlgorithm::Sha1, ContentHash::algorithm);
        let mut told = Rotated {
            new: own.fingerprint(algorithm).to_fingerprint(),
            old: Some(old.fingerprint(algorithm).to_fingerprint()),
            whitelist: None,
            needs_signature: false,
            signed_head,
            finished: false,
        };
        if !listed.is_empty() {
            let resign = Resign { drop: listed, ..self.resign.clone() };
            told.record(resign.run(&storage, name, keys, now), keys)?;
            if told.needs_signature {
                return Ok(told);
            }
        }
        keys.remove_old(storage.disks())?;
        told.finished = true;
        Ok(told)
    }
}
