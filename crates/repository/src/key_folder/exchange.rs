//! Copies keys from and to other folders, and adds or removes their passphrase.

use std::fs;
use std::path::{Path, PathBuf};

use esker_format::certificate::Certificate;
use esker_format::master_keys::MasterKeys;
use esker_format::write::keys::{PrivateKey, Publisher};
use esker_store::{make_dirs, persist};
use serde::Serialize;

use super::passphrases::PassphraseFor;
use super::{CERTIFICATE, KeyFolder, MASTER, PRIVATE, PRIVATE_MODE, PUBLIC, PUBLIC_MODE, read};
use crate::disks::Disks;
use crate::error::RepositoryError;

/// Which keys to copy, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyCopy {
    /// Copy private keys too.
    pub private: bool,
    /// Copy the master key too.
    pub master: bool,
    /// Protect copied private keys with a passphrase.
    pub encrypt: bool,
}

/// Key files that were copied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Copied {
    /// Files that were written.
    pub written: Vec<PathBuf>,
    /// Files that were there with the same key.
    pub present: Vec<PathBuf>,
}

impl KeyFolder {
    /// Copies keys from another folder to this one, after checking that they belong together. Other keys are never
    /// replaced.
    pub fn copy_from(&self, other: &KeyFolder, which: KeyCopy) -> Result<Copied, RepositoryError> {
        let mut extensions = vec![PUBLIC, CERTIFICATE];
        extensions.extend(which.private.then_some(PRIVATE));
        extensions.extend(which.master.then_some(MASTER));
        let mut found = Vec::new();
        for extension in extensions {
            if other.has(extension)? {
                found.push((extension, read(&other.file(extension))?));
            }
        }
        if found.is_empty() {
            let source = std::io::ErrorKind::NotFound.into();
            return Err(RepositoryError::NoKey { path: other.file(PUBLIC), source });
        }
        let mut texts = Vec::new();
        for (extension, text) in found {
            let text = match extension {
                MASTER | PRIVATE => other.checked_private(extension, text, which.encrypt)?,
                PUBLIC => {
                    other.public()?;
                    text
                }
                _ => {
                    other.publisher_certificate()?;
                    text
                }
            };
            texts.push((extension, text));
        }
        // All are compared before the first is written.
        let mut copied = Copied::default();
        let mut missing = Vec::new();
        for (extension, text) in texts {
            let path = self.file(extension);
            if !self.has(extension)? {
                missing.push((extension, text));
            } else if self.is_same(extension, &other.file(extension))? {
                copied.present.push(path);
            } else {
                return Err(RepositoryError::KeyConflict { path, reason: "another key is there".to_owned() });
            }
        }
        let disks = Disks::default();
        make_dirs(&*disks.served, &self.folder)
            .map_err(RepositoryError::file("making folder", &self.folder))?;
        for (extension, text) in missing {
            match extension {
                MASTER | PRIVATE => self.write(&*disks.private, extension, &text, PRIVATE_MODE)?,
                _ => self.write(&*disks.served, extension, &text, PUBLIC_MODE)?,
            }
            copied.written.push(self.file(extension));
        }
        Ok(copied)
    }

    /// Checks a private key against its public half, and returns the text to store.
    fn checked_private(
        &self,
        extension: &str,
        text: String,
        encrypt: bool,
    ) -> Result<String, RepositoryError> {
        let path = self.file(extension);
        let key = self.private_key(extension)?;
        let failed = |source| RepositoryError::Key { path: path.clone(), source };
        if extension == PRIVATE && self.has(CERTIFICATE)? {
            Publisher::new(key.clone(), &read(&self.file(CERTIFICATE))?).map_err(failed)?;
        }
        if extension == MASTER && self.has(PUBLIC)? {
            let own = MasterKeys::parse(key.public_pem().map_err(failed)?.as_bytes()).map(|keys| keys.id());
            if own != Ok(self.public()?.id()) {
                return Err(RepositoryError::OtherMaster { master: path, public: self.public_key_file() });
            }
        }
        if !encrypt || PrivateKey::is_encrypted(&text) {
            return Ok(text);
        }
        self.encrypted(extension, &key)
    }

    pub(super) fn encrypted(&self, extension: &str, key: &PrivateKey) -> Result<String, RepositoryError> {
        let path = self.file(extension);
        let passphrases = self.passphrases.as_ref();
        let passphrase = passphrases.ok_or_else(|| RepositoryError::Passphrase {
            path: path.clone(),
            reason: "nothing provides one".to_owned(),
        })?;
        let passphrase = passphrase.of(&path, PassphraseFor::Protecting)?;
        if passphrase.is_empty() {
            return Err(RepositoryError::Passphrase { path, reason: "it is empty".to_owned() });
        }
        key.to_encrypted_pem(&passphrase).map_err(|source| RepositoryError::Key { path, source })
    }

    fn is_same(&self, extension: &str, other: &Path) -> Result<bool, RepositoryError> {
        let (ours, theirs) = (self.file(extension), read(other)?);
        if read(&ours)? == theirs {
            return Ok(true);
        }
        Ok(match extension {
            CERTIFICATE => Certificate::parse(theirs.as_bytes()).ok() == Some(self.publisher_certificate()?),
            PUBLIC => MasterKeys::parse(theirs.as_bytes()).ok() == Some(self.public()?),
            _ => {
                let pem = |key: PrivateKey| key.public_pem();
                let equal = |source| RepositoryError::Key { path: ours.clone(), source };
                let own = pem(self.private_key(extension)?).map_err(equal)?;
                own == pem(self.read_private_key(other)?).map_err(equal)?
            }
        })
    }

    /// Protects private keys of this folder with a passphrase, or removes it. Returns the files that changed.
    pub fn set_encryption(&self, which: KeyCopy) -> Result<Vec<PathBuf>, RepositoryError> {
        let wanted = [(which.private, PRIVATE), (which.master, MASTER)];
        let mut changed = Vec::new();
        for extension in wanted.into_iter().filter(|(wanted, _)| *wanted).map(|(_, extension)| extension) {
            if !self.has(extension)? {
                continue;
            }
            let path = self.file(extension);
            if PrivateKey::is_encrypted(&read(&path)?) == which.encrypt {
                continue;
            }
            let key = self.private_key(extension)?;
            let text = match which.encrypt {
                true => self.encrypted(extension, &key)?,
                false => {
                    key.to_pem().map_err(|source| RepositoryError::Key { path: path.clone(), source })?
                }
            };
            self.write(&*Disks::default().private, extension, &text, PRIVATE_MODE)?;
            changed.push(path);
        }
        Ok(changed)
    }

    /// Sets the command that signs in place of a key, or removes it.
    pub fn set_signer(&self, master: bool, command: Option<&str>) -> Result<PathBuf, RepositoryError> {
        let (key, extension) = if master { (MASTER, "masterkey.signer") } else { (PRIVATE, "key.signer") };
        let path = self.file(extension);
        let disks = Disks::default();
        match command {
            Some(command) if self.has(key)? => {
                let reason =
                    format!("the key `{}` is there, and goes before `{command}`", self.file(key).display());
                Err(RepositoryError::KeyConflict { path, reason })
            }
            Some(command) => {
                make_dirs(&*disks.served, &self.folder)
                    .map_err(RepositoryError::file("making folder", &self.folder))?;
                persist(&*disks.private, &path, format!("{}\n", command.trim()).as_bytes())
                    .map_err(RepositoryError::file("writing", &path))?;
                Ok(path)
            }
            None => match fs::remove_file(&path) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    Err(RepositoryError::file("removing", &path)(error))
                }
                _ => {
                    let folder = path.parent().unwrap_or(&self.folder);
                    disks.private.sync_dir(folder).map_err(RepositoryError::file("syncing", folder))?;
                    Ok(path)
                }
            },
        }
    }
}
