//! A folder with the keys of repositories, named as CernVM-FS names them.
//!
//! ```text
//! NAME.masterkey   signs the whitelist            NAME.key   signs manifests
//! NAME.pub         its public half, for clients   NAME.crt   the certificate that carries its public half
//! ```

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use esker_format::certificate::Certificate;
use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_format::time::UnixTime;
use esker_format::write::keys::{PrivateKey, Publisher, self_signed};
use esker_store::{Disk, make_dirs, persist, remove_unfinished};

use crate::disks::Disks;
use crate::error::AdminError;

/// The keys of one repository in a folder.
#[derive(Clone, Debug)]
pub struct KeyFolder {
    folder: PathBuf,
    /// Folder of the master key, if it differs from that of the other keys.
    master_folder: Option<PathBuf>,
    name: RepositoryName,
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
        Self { folder: folder.into(), master_folder: None, name: name.clone() }
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

    /// Returns the path of the public key that clients need.
    pub fn public_key_file(&self) -> PathBuf {
        self.file(PUBLIC)
    }

    /// Returns the path of the certificate.
    pub fn certificate_file(&self) -> PathBuf {
        self.file(CERTIFICATE)
    }

    /// Reads the certificate and private key of the publisher.
    pub fn publisher(&self) -> Result<Publisher, AdminError> {
        let key = self.private_key(PRIVATE)?;
        let path = self.file(CERTIFICATE);
        Publisher::new(key, &read(&path)?).map_err(|source| AdminError::Key { path, source })
    }

    /// Returns the path of the master key, which may be missing.
    pub fn master_key_file(&self) -> PathBuf {
        self.file(MASTER)
    }

    /// Reads the certificate, if it is in this folder.
    pub(crate) fn certificate(&self) -> Result<Option<Certificate>, AdminError> {
        if !self.has(CERTIFICATE)? {
            return Ok(None);
        }
        let path = self.file(CERTIFICATE);
        let parsed = Certificate::parse(read(&path)?.as_bytes());
        parsed.map(Some).map_err(|error| AdminError::Certificate { path, reason: error.to_string() })
    }

    /// Reads the public key.
    pub fn public(&self) -> Result<MasterKeys, AdminError> {
        let path = self.file(PUBLIC);
        let text = read(&path)?;
        MasterKeys::parse(text.as_bytes())
            .map_err(|error| AdminError::PublicKey { path, reason: error.to_string() })
    }

    /// Creates the missing keys, and returns the keys that sign.
    ///
    /// Existing keys are used and never replaced, so that an interrupted creation continues.
    pub(crate) fn complete(
        &self,
        disks: &Disks,
        now: UnixTime,
        certificate_days: u32,
    ) -> Result<(PrivateKey, Publisher), AdminError> {
        make_dirs(&*disks.served, &self.folder).map_err(AdminError::file("making folder", &self.folder))?;
        if let Some(folder) = &self.master_folder {
            make_dirs(&*disks.private, folder).map_err(AdminError::file("making folder", folder))?;
        }
        self.clear_leftovers(disks)?;
        // Without the master key no whitelist can be signed, and clients would not trust a new one.
        if self.has(PUBLIC)? {
            self.private_key(MASTER)?;
        }
        let random = &mut rand_core::OsRng;
        let master = self.private_key_or_new(disks, MASTER, random)?;
        let public = master.public_pem().map_err(AdminError::Signing)?;
        if !self.has(PUBLIC)? {
            self.write(&*disks.served, PUBLIC, &public, PUBLIC_MODE)?;
        }
        let key = self.private_key_or_new(disks, PRIVATE, random)?;
        if !self.has(CERTIFICATE)? {
            let certificate = self_signed(&self.name, &key, now, certificate_days, random);
            let certificate = certificate.map_err(AdminError::Signing)?;
            self.write(&*disks.served, CERTIFICATE, &certificate, PUBLIC_MODE)?;
        }
        Ok((master, self.publisher()?))
    }

    fn private_key_or_new(
        &self,
        disks: &Disks,
        extension: &str,
        random: &mut rand_core::OsRng,
    ) -> Result<PrivateKey, AdminError> {
        if self.has(extension)? {
            return self.private_key(extension);
        }
        let key = PrivateKey::generate(random).map_err(AdminError::Signing)?;
        let text = key.to_pem().map_err(AdminError::Signing)?;
        self.write(&*disks.private, extension, &text, PRIVATE_MODE)?;
        Ok(key)
    }

    /// Removes temporary files of an interrupted creation; the lock of the repository excludes other creators.
    fn clear_leftovers(&self, disks: &Disks) -> Result<(), AdminError> {
        let ours =
            [MASTER, PUBLIC, PRIVATE, CERTIFICATE].map(|extension| format!("{}.{extension}", self.name));
        for folder in std::iter::once(&self.folder).chain(&self.master_folder) {
            remove_unfinished(&*disks.private, folder, |name| ours.iter().any(|our| our == name))
                .map_err(AdminError::file("removing leftovers in", folder))?;
        }
        Ok(())
    }

    fn write(&self, disk: &dyn Disk, extension: &str, text: &str, mode: u32) -> Result<(), AdminError> {
        let path = self.file(extension);
        persist(disk, &path, text.as_bytes()).map_err(AdminError::file("writing", &path))?;
        disk.set_mode(&path, mode).map_err(AdminError::file("setting the permissions of", &path))
    }

    fn has(&self, extension: &str) -> Result<bool, AdminError> {
        let path = self.file(extension);
        path.try_exists().map_err(AdminError::file("looking for", &path))
    }

    fn file(&self, extension: &str) -> PathBuf {
        let folder = self.master_folder.as_ref().filter(|_| extension == MASTER).unwrap_or(&self.folder);
        folder.join(format!("{}.{extension}", self.name))
    }

    fn private_key(&self, extension: &str) -> Result<PrivateKey, AdminError> {
        read_private_key(&self.file(extension))
    }
}

/// Returns true if a private key exists that other users can read or write, or that another user owns.
pub fn is_exposed(path: &Path) -> bool {
    let me = rustix::process::geteuid().as_raw();
    fs::metadata(path).is_ok_and(|facts| facts.mode() & 0o077 != 0 || ![0, me].contains(&facts.uid()))
}

pub(crate) fn read_private_key(path: &Path) -> Result<PrivateKey, AdminError> {
    let path = path.to_owned();
    PrivateKey::from_pem(&read(&path)?).map_err(|source| AdminError::Key { path, source })
}

fn read(path: &Path) -> Result<String, AdminError> {
    fs::read_to_string(path).map_err(|source| AdminError::NoKey { path: path.to_owned(), source })
}
