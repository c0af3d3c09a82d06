//! A folder with the keys of repositories, named as CernVM-FS names them.
//!
//! ```text
//! NAME.masterkey   signs the whitelist            NAME.key   signs manifests
//! NAME.pub         its public half, for clients   NAME.crt   the certificate that carries its public half
//! ```
//!
//! In place of a private key there may be a command that signs, in `NAME.masterkey.signer` or `NAME.key.signer`.
//! `NAME.next.key` and `NAME.next.crt` are those of a rotation in progress, `NAME.old.key` and `NAME.old.crt` the
//! ones before it.

mod command_signer;
mod exchange;
mod inventory;
mod passphrases;
mod rotation;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use esker_format::certificate::Certificate;
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_format::write::keys::{KeyError, PrivateKey, Publisher, self_signed};
use esker_format::write::signer::{Signer, VerifiedMaster};
use esker_store::{Disk, changeable_part, make_dirs, open_named, persist, remove_unfinished};

use crate::disks::Disks;
use crate::error::RepositoryError;

pub use exchange::{Copied, KeyCopy};
pub use inventory::KeyFile;
pub use passphrases::{PassphraseFor, Passphrases};
pub use rotation::TokenKey;

use command_signer::CommandSigner;

/// The keys of one repository in a folder.
#[derive(Clone, Debug)]
pub struct KeyFolder {
    folder: PathBuf,
    /// Folder of the master key, if it differs from that of the other keys.
    master_folder: Option<PathBuf>,
    name: RepositoryName,
    /// Command that signs in place of the publisher's key.
    signer: Option<String>,
    /// Command that signs in place of the master key.
    master_signer: Option<String>,
    /// Prepares a command that signs, before it starts.
    prepare: fn(&mut Command),
    passphrases: Option<Passphrases>,
}

const MASTER: &str = "masterkey";
const PUBLIC: &str = "pub";
const PRIVATE: &str = "key";
const CERTIFICATE: &str = "crt";
const PRIVATE_MODE: u32 = 0o400;
const PUBLIC_MODE: u32 = 0o444;

impl KeyFolder {
    /// Returns the keys of a repository in a folder that may not exist yet.
    pub fn new(folder: impl Into<PathBuf>, name: &RepositoryName) -> Self {
        Self {
            folder: folder.into(),
            master_folder: None,
            name: name.clone(),
            signer: None,
            master_signer: None,
            prepare: |_| (),
            passphrases: None,
        }
    }

    /// Sets a command that signs in place of the publisher's key.
    #[must_use]
    pub fn with_signer(self, command: Option<String>) -> Self {
        Self { signer: command.or(self.signer), ..self }
    }

    /// Sets a command that signs in place of the master key.
    #[must_use]
    pub fn with_master_signer(self, command: Option<String>) -> Self {
        Self { master_signer: command.or(self.master_signer), ..self }
    }

    /// Sets a function that prepares signing commands before they start.
    #[must_use]
    pub fn with_prepared_signers(self, prepare: fn(&mut Command)) -> Self {
        Self { prepare, ..self }
    }

    /// Sets the source of passphrases for encrypted keys.
    #[must_use]
    pub fn with_passphrases(self, passphrases: Passphrases) -> Self {
        Self { passphrases: Some(passphrases), ..self }
    }

    /// Returns the name of the repository.
    pub fn name(&self) -> &RepositoryName {
        &self.name
    }

    /// Returns the same folder with another folder for the master key.
    #[must_use]
    pub fn with_master_in(self, folder: impl Into<PathBuf>) -> Self {
        Self { master_folder: Some(folder.into()), ..self }
    }

    /// Returns the folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the existing private keys that other users can read or write, or that belong neither to this user nor
    /// to root.
    pub fn exposed(&self) -> Vec<PathBuf> {
        let keys = [MASTER, PRIVATE].map(|extension| self.file(extension));
        keys.into_iter().filter(|path| is_exposed(path)).collect()
    }

    /// Returns the files with private keys, of whichever repository, in the folders of the keys.
    pub fn private_keys(&self) -> Result<Vec<PathBuf>, RepositoryError> {
        let mut found = Vec::new();
        for folder in [Some(&self.folder), self.master_folder.as_ref()].into_iter().flatten() {
            let failed = || RepositoryError::file("listing", folder);
            let entries = match std::fs::read_dir(folder) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                entries => entries.map_err(failed())?,
            };
            for entry in entries {
                let path = entry.map_err(failed())?.path();
                if path.extension().is_some_and(|extension| extension == MASTER || extension == PRIVATE) {
                    found.push(path);
                }
            }
        }
        Ok(found)
    }

    /// Returns the path of the public key that clients need.
    pub fn public_key_file(&self) -> PathBuf {
        self.file(PUBLIC)
    }

    /// Returns the path of the certificate.
    pub fn certificate_file(&self) -> PathBuf {
        self.file(CERTIFICATE)
    }

    /// Reads the certificate and private key of the publisher.
    pub fn publisher(&self) -> Result<Publisher, RepositoryError> {
        let path = self.file(CERTIFICATE);
        let certificate = read(&path)?;
        if let Some(signer) = self.command(self.signer.as_deref(), PRIVATE, "key.signer")? {
            // A rotation that was interrupted before its last renaming has replaced the command only.
            let is_next = self.signer.is_none()
                && self.has(NEXT_CERTIFICATE)?
                && !self.has("next.key")?
                && !self.has("next.key.signer")?;
            let path = if is_next { self.file(NEXT_CERTIFICATE) } else { path };
            let certificate = read(&path)?;
            let publisher = Publisher::with_signer(Arc::new(signer), &certificate);
            return publisher.map_err(|source| RepositoryError::Key { path, source });
        }
        let key = self.private_key(PRIVATE)?;
        match Publisher::new(key.clone(), &certificate) {
            // A rotation that was interrupted between its two renames has replaced the key only.
            Err(KeyError::Mismatch) if self.has(NEXT_CERTIFICATE)? => {
                let path = self.file(NEXT_CERTIFICATE);
                Publisher::new(key, &read(&path)?).map_err(|source| RepositoryError::Key { path, source })
            }
            other => other.map_err(|source| RepositoryError::Key { path, source }),
        }
    }

    /// Returns the master key in another file, or the one in the folder, or the command in its place.
    pub fn master(&self, file: Option<&Path>) -> Result<Box<dyn Signer>, RepositoryError> {
        if let Some(file) = file {
            return Ok(Box::new(self.read_private_key(file)?));
        }
        match self.command(self.master_signer.as_deref(), MASTER, "masterkey.signer")? {
            Some(signer) => Ok(Box::new(signer)),
            None => Ok(Box::new(self.private_key(MASTER)?)),
        }
    }

    /// Returns the command that signs in place of a key: a given one, else the one in a file if there is no key.
    fn command(
        &self,
        given: Option<&str>,
        key: &str,
        file: &str,
    ) -> Result<Option<CommandSigner>, RepositoryError> {
        let signer = |command: &str| CommandSigner::new(command, self.name.as_str(), self.prepare);
        if let Some(command) = given {
            return Ok(Some(signer(command)));
        }
        if self.has(key)? || !self.has(file)? {
            return Ok(None);
        }
        let path = self.file(file);
        // It is executed, so only this user and root may change it.
        let failed = |source| RepositoryError::NoKey { path: path.clone(), source };
        if let Some(part) = changeable_part(&path).map_err(failed)? {
            let text = format!("it is executed, and other users can change {}", part.display());
            return Err(failed(std::io::Error::new(std::io::ErrorKind::PermissionDenied, text)));
        }
        Ok(Some(signer(read(&path)?.trim())))
    }

    /// Returns the signer that runs a command.
    pub fn signer_of(&self, command: &str) -> Arc<dyn Signer> {
        Arc::new(CommandSigner::new(command, self.name.as_str(), self.prepare))
    }

    /// Returns the path of the master key, which may be missing.
    pub fn master_key_file(&self) -> PathBuf {
        self.file(MASTER)
    }

    /// Reads the certificate.
    pub fn publisher_certificate(&self) -> Result<Certificate, RepositoryError> {
        let path = self.file(CERTIFICATE);
        let parsed = Certificate::parse(read(&path)?.as_bytes());
        parsed.map_err(|error| RepositoryError::Certificate { path, reason: error.to_string() })
    }

    /// Reads the certificate, if it is in this folder.
    pub fn certificate(&self) -> Result<Option<Certificate>, RepositoryError> {
        self.certificate_in(CERTIFICATE)
    }

    /// Reads the new certificate of a rotation in progress.
    pub fn next_certificate(&self) -> Result<Option<Certificate>, RepositoryError> {
        self.certificate_in(NEXT_CERTIFICATE)
    }

    /// Reads the certificate in a file, if it exists.
    pub fn certificate_in(&self, extension: &str) -> Result<Option<Certificate>, RepositoryError> {
        if !self.has(extension)? {
            return Ok(None);
        }
        let path = self.file(extension);
        let parsed = Certificate::parse(read(&path)?.as_bytes());
        parsed.map(Some).map_err(|error| RepositoryError::Certificate { path, reason: error.to_string() })
    }

    /// Reads the public key.
    pub fn public(&self) -> Result<MasterKeys, RepositoryError> {
        let path = self.file(PUBLIC);
        let text = read(&path)?;
        MasterKeys::parse(text.as_bytes())
            .map_err(|error| RepositoryError::PublicKey { path, reason: error.to_string() })
    }

    /// Reads the text of the public key and of the certificate.
    pub fn public_files(&self) -> Result<(String, String), RepositoryError> {
        Ok((read(&self.file(PUBLIC))?, read(&self.file(CERTIFICATE))?))
    }

    /// Creates the missing keys, and returns the keys that sign.
    ///
    /// Existing keys are used and never replaced, so that an interrupted creation continues.
    pub fn complete(
        &self,
        disks: &Disks,
        now: UnixTime,
        certificate_days: u32,
    ) -> Result<(Box<dyn Signer>, Publisher), RepositoryError> {
        make_dirs(&*disks.served, &self.folder)
            .map_err(RepositoryError::file("making folder", &self.folder))?;
        if let Some(folder) = &self.master_folder {
            make_dirs(&*disks.private, folder).map_err(RepositoryError::file("making folder", folder))?;
        }
        self.clear_leftovers(disks)?;
        // Without the master key no whitelist can be signed, and clients would not trust a new one.
        let random = &mut rand_core::OsRng;
        let master: Box<dyn Signer> = if self.has(PUBLIC)? {
            Box::new(VerifiedMaster::new(self.master(None)?, self.public()?))
        } else {
            let master = self.private_key_or_new(disks, MASTER, random)?;
            let public = master.public_pem().map_err(RepositoryError::Signing)?;
            self.write(&*disks.served, PUBLIC, &public, PUBLIC_MODE)?;
            Box::new(master)
        };
        let has_signer = self.signer.is_some() || (!self.has(PRIVATE)? && self.has("key.signer")?);
        if has_signer && self.has(CERTIFICATE)? {
            return Ok((master, self.publisher()?));
        }
        let key = self.private_key_or_new(disks, PRIVATE, random)?;
        if !self.has(CERTIFICATE)? {
            let certificate = self_signed(&self.name, &key, now, certificate_days, random);
            let certificate = certificate.map_err(RepositoryError::Signing)?;
            self.write(&*disks.served, CERTIFICATE, &certificate, PUBLIC_MODE)?;
        }
        Ok((master, self.publisher()?))
    }

    fn private_key_or_new(
        &self,
        disks: &Disks,
        extension: &str,
        random: &mut rand_core::OsRng,
    ) -> Result<PrivateKey, RepositoryError> {
        if self.has(extension)? {
            return self.private_key(extension);
        }
        let key = PrivateKey::generate(random).map_err(RepositoryError::Signing)?;
        let text = key.to_pem().map_err(RepositoryError::Signing)?;
        self.write(&*disks.private, extension, &text, PRIVATE_MODE)?;
        Ok(key)
    }

    /// Removes temporary files of an interrupted creation; the lock of the repository excludes other creators.
    fn clear_leftovers(&self, disks: &Disks) -> Result<(), RepositoryError> {
        let ours =
            [MASTER, PUBLIC, PRIVATE, CERTIFICATE].map(|extension| format!("{}.{extension}", self.name));
        for folder in std::iter::once(&self.folder).chain(&self.master_folder) {
            remove_unfinished(&*disks.private, folder, |name| ours.iter().any(|our| our == name))
                .map_err(RepositoryError::file("removing leftovers in", folder))?;
        }
        Ok(())
    }

    fn write(&self, disk: &dyn Disk, extension: &str, text: &str, mode: u32) -> Result<(), RepositoryError> {
        let path = self.file(extension);
        persist(disk, &path, text.as_bytes()).map_err(RepositoryError::file("writing", &path))?;
        disk.set_mode(&path, mode).map_err(RepositoryError::file("setting the permissions of", &path))
    }

    /// Returns the path of a file of this repository.
    pub fn file_of(&self, extension: &str) -> PathBuf {
        self.file(extension)
    }

    /// Writes a public file of this repository, which everyone may read.
    pub fn write_public(&self, disks: &Disks, extension: &str, text: &str) -> Result<(), RepositoryError> {
        self.write(&*disks.served, extension, text, PUBLIC_MODE)
    }

    /// Writes a private key of this repository.
    pub fn write_private(&self, disks: &Disks, extension: &str, text: &str) -> Result<(), RepositoryError> {
        self.write(&*disks.private, extension, text, PRIVATE_MODE)
    }

    /// Returns the key of a rotation, made now if it is not there.
    pub fn next_key(&self, disks: &Disks, encrypt: bool) -> Result<PrivateKey, RepositoryError> {
        const NEXT: &str = "next.key";
        if self.has(NEXT)? {
            return self.private_key(NEXT);
        }
        let key = PrivateKey::generate(&mut rand_core::OsRng).map_err(RepositoryError::Signing)?;
        let text = match encrypt {
            true => self.encrypted(NEXT, &key)?,
            false => key.to_pem().map_err(RepositoryError::Signing)?,
        };
        self.write(&*disks.private, NEXT, &text, PRIVATE_MODE)?;
        Ok(key)
    }

    fn has(&self, extension: &str) -> Result<bool, RepositoryError> {
        let path = self.file(extension);
        path.try_exists().map_err(RepositoryError::file("looking for", &path))
    }

    fn file(&self, extension: &str) -> PathBuf {
        let folder = self.master_folder.as_ref().filter(|_| extension == MASTER).unwrap_or(&self.folder);
        folder.join(format!("{}.{extension}", self.name))
    }

    fn private_key(&self, extension: &str) -> Result<PrivateKey, RepositoryError> {
        self.read_private_key(&self.file(extension))
    }

    /// Reads a private key, after asking for its passphrase if it needs one.
    pub(crate) fn read_private_key(&self, path: &Path) -> Result<PrivateKey, RepositoryError> {
        let text = read(path)?;
        let failed = |source| RepositoryError::Key { path: path.to_owned(), source };
        match PrivateKey::from_pem(&text) {
            Err(KeyError::Encrypted) => {
                let passphrases = self.passphrases.as_ref().ok_or_else(|| failed(KeyError::Encrypted))?;
                let passphrase = passphrases.of(path, PassphraseFor::Opening)?;
                PrivateKey::from_encrypted_pem(&text, &passphrase).map_err(failed)
            }
            other => other.map_err(failed),
        }
    }
}

/// Extension of the new certificate of a rotation in progress.
pub const NEXT_CERTIFICATE: &str = "next.crt";

/// Returns true if a private key exists that other users can read or write, or that another user owns.
pub fn is_exposed(path: &Path) -> bool {
    let me = rustix::process::geteuid().as_raw();
    fs::metadata(path).is_ok_and(|facts| facts.mode() & 0o077 != 0 || ![0, me].contains(&facts.uid()))
}

fn read(path: &Path) -> Result<String, RepositoryError> {
    let read = open_named(path).and_then(std::io::read_to_string);
    read.map_err(|source| RepositoryError::NoKey { path: path.to_owned(), source })
}
