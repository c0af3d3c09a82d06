//! Files of a rotation in the keys folder: the next key, the old one, and commands in place of keys that tokens have.

use std::fs;
use std::path::{Path, PathBuf};

use esker_format::certificate::Certificate;
use esker_format::hash::{ContentHash, HashAlgorithm};
use esker_format::time::UnixTime;
use esker_format::write::keys::{Publisher, self_signed};
use esker_format::write::signer::Purpose;

use super::{KeyFolder, NEXT_CERTIFICATE};
use crate::disks::Disks;
use crate::error::RepositoryError;

/// The key of a token, for a rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenKey {
    /// Command that signs with it.
    pub signer: String,
    /// File with its certificate.
    pub certificate: PathBuf,
}

/// Extensions of the commands of the next key, of the current key, and of the previous key.
const NEXT_SIGNER: &str = "next.key.signer";
const SIGNER: &str = "key.signer";
const OLD_SIGNER: &str = "old.key.signer";

impl KeyFolder {
    /// Makes the key of a rotation, or uses the one that is there, and returns the certificate that it gets.
    pub fn make_next(
        &self,
        disks: &Disks,
        now: UnixTime,
        days: u32,
        encrypt: bool,
    ) -> Result<Option<Certificate>, RepositoryError> {
        let key = self.next_key(disks, encrypt)?;
        let certificate = self_signed(self.name(), &key, now, days, &mut rand_core::OsRng);
        let certificate = certificate.map_err(RepositoryError::Signing)?;
        self.write_public(disks, "next.crt", &certificate)?;
        self.next_certificate()
    }

    /// Makes the next key the publisher's key, and keeps the old one until the rotation is finished.
    pub fn switch_to_next(&self, disks: &Disks) -> Result<(), RepositoryError> {
        self.switch_signers(disks)?;
        let path = |extension: &str| self.file_of(extension);
        if path("next.key").exists() {
            for (extension, kept) in [("key", "old.key"), ("crt", "old.crt")] {
                let from = path(extension);
                if !path(kept).exists() && from.exists() {
                    self.keep(disks, &from, kept)?;
                }
            }
            rename(disks, &path("next.key"), &path("key"))?;
        }
        if path("next.crt").exists() {
            rename(disks, &path("next.crt"), &path("crt"))?;
        }
        Ok(())
    }

    /// Removes the old key, once the rotation is finished.
    pub fn remove_old(&self, disks: &Disks) -> Result<(), RepositoryError> {
        // The certificate marks a rotation that is not finished, so it goes last.
        self.remove_old_signer(disks)?;
        self.remove(disks, "old.key")?;
        self.remove(disks, "old.crt")
    }

    fn keep(&self, disks: &Disks, from: &PathBuf, extension: &str) -> Result<(), RepositoryError> {
        let text = fs::read_to_string(from)
            .map_err(|source| RepositoryError::NoKey { path: from.clone(), source })?;
        match extension {
            "old.crt" => self.write_public(disks, extension, &text),
            _ => self.write_private(disks, extension, &text),
        }
    }

    /// Takes the key of a token as the next one, after it signed something that its certificate verifies.
    pub fn take_next(&self, disks: &Disks, token: &TokenKey) -> Result<Certificate, RepositoryError> {
        let path = &token.certificate;
        let text = fs::read_to_string(path)
            .map_err(|source| RepositoryError::NoKey { path: path.clone(), source })?;
        let refused = |reason: String| RepositoryError::Certificate { path: path.clone(), reason };
        let certificate = Certificate::parse(text.as_bytes()).map_err(|error| refused(error.to_string()))?;
        let publisher = Publisher::with_signer(self.signer_of(&token.signer), &text)
            .map_err(|error| refused(error.to_string()))?;
        let probe = ContentHash::of(HashAlgorithm::Sha1, b"a rotation");
        publisher.key().sign(Purpose::Manifest, &probe).map_err(RepositoryError::Signing)?;
        self.write_private(disks, NEXT_SIGNER, &format!("{}\n", token.signer.trim()))?;
        self.write_public(disks, NEXT_CERTIFICATE, &text)?;
        Ok(certificate)
    }

    /// Makes the next command the publisher's, keeps the old one or the old key, and removes the latter from its place.
    fn switch_signers(&self, disks: &Disks) -> Result<(), RepositoryError> {
        let path = |extension: &str| self.file_of(extension);
        let is_new_key = path("next.key").exists();
        let is_new_signer = path(NEXT_SIGNER).exists();
        if (is_new_key || is_new_signer) && path(SIGNER).exists() && !path(OLD_SIGNER).exists() {
            self.keep(disks, &path(SIGNER), OLD_SIGNER)?;
        }
        if is_new_signer {
            for (extension, kept) in [("key", "old.key"), ("crt", "old.crt")] {
                if !path(kept).exists() && path(extension).exists() {
                    self.keep(disks, &path(extension), kept)?;
                }
            }
            rename(disks, &path(NEXT_SIGNER), &path(SIGNER))?;
        }
        // A key goes before a command.
        let is_replaced = path(SIGNER).exists() && !path(NEXT_SIGNER).exists() && !is_new_key;
        let is_old = || match (fs::read(path("key")), fs::read(path("old.key"))) {
            (Ok(key), Ok(old)) => key == old,
            _ => false,
        };
        if is_replaced && path(NEXT_CERTIFICATE).exists() && is_old() {
            self.remove(disks, "key")?;
        }
        Ok(())
    }

    /// Removes the command of a token whose key was replaced.
    fn remove_old_signer(&self, disks: &Disks) -> Result<(), RepositoryError> {
        let path = |extension: &str| self.file_of(extension);
        let same = || match (fs::read(path(SIGNER)), fs::read(path(OLD_SIGNER))) {
            (Ok(signer), Ok(old)) => signer == old,
            _ => false,
        };
        if path("key").exists() && same() {
            self.remove(disks, SIGNER)?;
        }
        self.remove(disks, OLD_SIGNER)
    }

    /// Removes a file, if it exists.
    fn remove(&self, disks: &Disks, extension: &str) -> Result<(), RepositoryError> {
        let path = self.file_of(extension);
        match disks.private.remove(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(RepositoryError::file("removing", &path)(error));
            }
            _ => {}
        }
        disks.private.sync_dir(self.folder()).map_err(RepositoryError::file("syncing", self.folder()))
    }
}

/// Renames a key file durably.
fn rename(disks: &Disks, from: &Path, to: &Path) -> Result<(), RepositoryError> {
    disks.private.rename(from, to).map_err(RepositoryError::file("renaming to", to))?;
    let folder = to.parent().unwrap_or(Path::new("."));
    disks.private.sync_dir(folder).map_err(RepositoryError::file("syncing", folder))
}
