//! A folder with the keys of repositories, named as CernVM-FS names them.
//!
//! ```text
//! NAME.masterkey   signs the whitelist            NAME.key   signs manifests
//! NAME.pub         its public half, for clients   NAME.crt   the certificate that carries its public half
//! ```

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use esker_format::master_keys::MasterKeys;
use esker_format::name::RepositoryName;
use esker_format::write::keys::{PrivateKey, Publisher};

use crate::error::AdminError;

/// The keys of one repository in a folder.
#[derive(Clone, Debug)]
pub struct KeyFolder {
    folder: PathBuf,
    name: RepositoryName,
}

const MASTER: &str = "masterkey";
const PUBLIC: &str = "pub";
const PRIVATE: &str = "key";
const CERTIFICATE: &str = "crt";

impl KeyFolder {
    /// The keys of a repository in a folder, which need not exist yet.
    pub fn new(folder: impl Into<PathBuf>, name: &RepositoryName) -> Self {
        Self { folder: folder.into(), name: name.clone() }
    }

    /// The file that clients need.
    pub fn public_key_file(&self) -> PathBuf {
        self.file(PUBLIC)
    }

    /// The file of the certificate.
    pub fn certificate_file(&self) -> PathBuf {
        self.file(CERTIFICATE)
    }

    /// Reads what a publisher signs with.
    pub fn publisher(&self) -> Result<Publisher, AdminError> {
        let key = self.private_key(PRIVATE)?;
        let path = self.file(CERTIFICATE);
        Publisher::new(key, &read(&path)?).map_err(|source| AdminError::Key { path, source })
    }

    /// Reads the master key, which not every publisher has.
    pub fn master(&self) -> Result<PrivateKey, AdminError> {
        self.private_key(MASTER)
    }

    /// Reads the public key.
    pub fn public(&self) -> Result<MasterKeys, AdminError> {
        let path = self.file(PUBLIC);
        let text = read(&path)?;
        MasterKeys::parse(text.as_bytes())
            .map_err(|error| AdminError::PublicKey { path, reason: error.to_string() })
    }

    /// Tells whether any key of the repository is there.
    pub fn has_any(&self) -> bool {
        [MASTER, PUBLIC, PRIVATE, CERTIFICATE].iter().any(|extension| self.file(extension).exists())
    }

    /// Writes all four files; the private ones can be read by their owner only.
    pub fn write(&self, master: &PrivateKey, publisher: &Publisher) -> Result<(), AdminError> {
        fs::create_dir_all(&self.folder).map_err(AdminError::file("making folder", &self.folder))?;
        let signing = AdminError::Signing;
        for (extension, text) in [
            (MASTER, master.to_pem().map_err(signing)?),
            (PRIVATE, publisher.key().to_pem().map_err(signing)?),
        ] {
            let path = self.file(extension);
            esker_store::write_private(&path, text.as_bytes()).map_err(AdminError::file("writing", &path))?;
            restrict(&path, 0o400)?;
        }
        for (extension, text) in [
            (PUBLIC, master.public_pem().map_err(signing)?),
            (CERTIFICATE, publisher.certificate_pem().to_owned()),
        ] {
            let path = self.file(extension);
            esker_store::write_public(&path, text.as_bytes()).map_err(AdminError::file("writing", &path))?;
            restrict(&path, 0o444)?;
        }
        Ok(())
    }

    fn file(&self, extension: &str) -> PathBuf {
        self.folder.join(format!("{}.{extension}", self.name))
    }

    fn private_key(&self, extension: &str) -> Result<PrivateKey, AdminError> {
        let path = self.file(extension);
        PrivateKey::from_pem(&read(&path)?).map_err(|source| AdminError::Key { path, source })
    }
}

fn read(path: &Path) -> Result<String, AdminError> {
    fs::read_to_string(path).map_err(|source| AdminError::NoKey { path: path.to_owned(), source })
}

fn restrict(path: &Path, mode: u32) -> Result<(), AdminError> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
        .map_err(AdminError::file("setting the permissions of", path))
}
