//! The gateway through which a publisher without keys changes a repository, remembered in its place.

use std::path::{Path, PathBuf};

use esker_format::master_keys::MasterKeys;
use esker_store::{Authorities, Servers};
use serde::{Deserialize, Serialize};

use super::remembered::{folder, read_record, write_record};
use crate::disks::Disks;
use crate::error::RepositoryError;
use crate::served_files::ServedFiles;

const FILE: &str = "gateway.json";

/// A gateway, and the server that the repository is read from. Field names are an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RememberedGateway {
    /// Address of the gateway.
    pub gateway: String,
    /// File of the key that the publisher shares with the gateway.
    pub key: PathBuf,
    /// URL of the repository on its web server, which has every new revision at once.
    pub server: String,
    /// Files of public keys that may sign the repository.
    pub public_keys: Vec<PathBuf>,
    /// Additional certificates of authorities, files or folders.
    pub authorities: Vec<String>,
}

impl RememberedGateway {
    /// Reads the gateway that is remembered at a place; none if there is none.
    pub fn read(place: &Path) -> Result<Option<Self>, RepositoryError> {
        Self::read_on(&Disks::default(), place)
    }

    pub(super) fn read_on(disks: &Disks, place: &Path) -> Result<Option<Self>, RepositoryError> {
        read_record(disks, &path(place))
    }

    /// Returns true if a gateway is remembered at a place.
    pub fn is_at(place: &Path) -> bool {
        path(place).is_file()
    }

    /// Remembers the gateway at a place.
    pub fn write(&self, place: &Path) -> Result<(), RepositoryError> {
        write_record(&path(place), self)
    }

    /// Returns the authorities that are trusted for the gateway and the server.
    pub fn trusted(&self) -> Authorities {
        Authorities { paths: self.authorities.clone(), ..Authorities::default() }
    }

    /// Returns the files of the repository on its server.
    pub fn files(&self) -> Result<ServedFiles, RepositoryError> {
        let servers = Servers { authorities: self.trusted(), ..Servers::direct(&self.server) };
        Ok(ServedFiles::new(servers, None)?)
    }

    /// Reads the public keys.
    pub fn master_keys(&self) -> Result<MasterKeys, RepositoryError> {
        let mut keys: Option<MasterKeys> = None;
        for path in &self.public_keys {
            let refused = |reason: String| RepositoryError::PublicKey { path: path.clone(), reason };
            let text = std::fs::read(path).map_err(|error| refused(error.to_string()))?;
            let added = match &mut keys {
                Some(keys) => keys.add(&text),
                None => MasterKeys::parse(&text).map(|first| keys = Some(first)),
            };
            added.map_err(|error| refused(error.to_string()))?;
        }
        keys.ok_or_else(|| RepositoryError::PublicKey {
            path: FILE.into(),
            reason: "none is named".to_owned(),
        })
    }
}

fn path(place: &Path) -> PathBuf {
    folder(place).join(FILE)
}
