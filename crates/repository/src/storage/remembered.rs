//! The object storage of a repository, remembered in its place so that the name of the repository is enough.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::manifest;
use esker_format::name::RepositoryName;
use esker_object_storage::{Environment, StorageSettings, StorageUrl, open_storage, public_url};
use esker_store::{Sink, changeable_record, make_dirs, persist};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::disks::Disks;
use crate::error::RepositoryError;
use crate::owner_file;
use crate::signed::SMALL_FILE_MAX;

/// Folder of the publisher's state.
pub(super) const FOLDER: &str = ".esker";
const FILE: &str = "storage.json";
const FILE_MAX: u64 = 1 << 16;

/// Address of the object storage of a repository, and its settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RememberedStorage {
    /// Address of the repository.
    pub url: StorageUrl,
    /// Settings of requests.
    pub settings: StorageSettings,
}

#[derive(Serialize, Deserialize)]
struct Stored {
    url: String,
    #[serde(flatten)]
    settings: StorageSettings,
}

impl RememberedStorage {
    /// Returns the storage of the repository of a name: the URL itself if it ends with the name, otherwise `URL/NAME`.
    pub fn of_repository(
        url: &StorageUrl,
        name: &RepositoryName,
        settings: StorageSettings,
    ) -> Result<Self, RepositoryError> {
        let text = url.to_string();
        let is_named = text.rsplit('/').next().is_some_and(|last| last == name.as_str());
        let url = if is_named { url.clone() } else { StorageUrl::parse(&format!("{text}/{name}"))? };
        Ok(Self { url, settings })
    }

    /// Reads the storage that is remembered at a place; none if there is none.
    pub fn read(place: &Path) -> Result<Option<Self>, RepositoryError> {
        Self::read_on(&Disks::default(), place)
    }

    pub(super) fn read_on(disks: &Disks, place: &Path) -> Result<Option<Self>, RepositoryError> {
        let path = path(place);
        let Some(stored) = read_record::<Stored>(disks, &path)? else { return Ok(None) };
        let url = StorageUrl::parse(&stored.url)
            .map_err(|error| RepositoryError::Settings { path, reason: error.to_string() })?;
        Ok(Some(Self { url, settings: stored.settings }))
    }

    /// Returns true if a storage is remembered at a place.
    pub fn is_at(place: &Path) -> bool {
        path(place).is_file()
    }

    /// Returns true if there is a repository.
    pub fn has_head(&self, place: &Path) -> Result<bool, RepositoryError> {
        let sink = self.open(&Disks::default(), place)?;
        Ok(sink.read(manifest::PATH, SMALL_FILE_MAX)?.is_some())
    }

    /// Remembers the storage at a place.
    pub fn write(&self, place: &Path) -> Result<(), RepositoryError> {
        let stored = Stored { url: self.url.to_string(), settings: self.settings.clone() };
        write_record(&path(place), &stored)
    }

    /// Forgets the storage at a place, and removes the folders that are empty then.
    pub fn forget(place: &Path) {
        let state = folder(place);
        // What stays does no harm.
        let _ = std::fs::remove_file(path(place));
        let _ = std::fs::remove_dir(state);
        let _ = std::fs::remove_dir(place);
    }

    /// Opens the storage, with credentials of this process.
    pub fn open(&self, disks: &Disks, place: &Path) -> Result<Arc<dyn Sink>, RepositoryError> {
        self.open_with(disks, place, Environment::of_process())
    }

    /// Opens the storage with credentials of an environment.
    pub fn open_with(
        &self,
        disks: &Disks,
        place: &Path,
        environment: Environment,
    ) -> Result<Arc<dyn Sink>, RepositoryError> {
        let state = Some(folder(place));
        let settings = StorageSettings { state, environment, ..self.settings.clone() };
        Ok(open_storage(&self.url, &settings, disks.served.clone())?)
    }

    /// Returns the URL under which clients read the repository from a public bucket.
    pub fn public_url(&self) -> Option<String> {
        let settings = StorageSettings { environment: Environment::of_process(), ..self.settings.clone() };
        public_url(self.url.bucket()?, &settings)
    }
}

/// Reads a record that says where requests with credentials go; none if there is none.
pub(super) fn read_record<T: DeserializeOwned>(
    disks: &Disks,
    path: &Path,
) -> Result<Option<T>, RepositoryError> {
    let text = owner_file::read(&*disks.private, path, FILE_MAX)?;
    let Some(text) = text else { return Ok(None) };
    let refused = |reason: String| RepositoryError::Settings { path: path.to_owned(), reason };
    // It names the servers that get credentials of this process.
    match changeable_record(path) {
        Ok(None) => {}
        Ok(Some(part)) => {
            return Err(refused(format!(
                "it says where credentials are sent, and users other than this one and root can change {}; run the \
                 command as the owner, or give it to root (chown) and take away the permissions of others (chmod go-w)",
                part.display()
            )));
        }
        Err(source) => return Err(RepositoryError::file("looking at", path)(source)),
    }
    serde_json::from_slice(&text).map(Some).map_err(|error| refused(error.to_string()))
}

/// Writes a record into the folder of the publisher's state, which is made.
pub(super) fn write_record(path: &Path, record: &impl Serialize) -> Result<(), RepositoryError> {
    let disks = Disks::default();
    let state = path.parent().unwrap_or(path);
    make_dirs(&*disks.private, state).map_err(RepositoryError::file("making folder", state))?;
    let text =
        serde_json::to_vec_pretty(record).expect("settings become JSON because all their keys are text");
    persist(&*disks.private, path, &text).map_err(RepositoryError::file("writing", path))
}

fn path(place: &Path) -> PathBuf {
    folder(place).join(FILE)
}

/// Returns the folder of the publisher's state.
pub(super) fn folder(place: &Path) -> PathBuf {
    place.join(FOLDER)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    #[test]
    fn a_storage_that_other_users_can_name_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("a.test");
        let url = StorageUrl::parse("s3://bucket/a.test").unwrap();
        let known = RememberedStorage { url, settings: StorageSettings::default() };
        known.write(&place).unwrap();
        let record = path(&place);
        assert_eq!(RememberedStorage::read(&place).unwrap(), Some(known));
        let refused = |part: &Path| {
            let told = RememberedStorage::read(&place).unwrap_err().to_string();
            assert!(told.contains("credentials") && told.contains(&part.display().to_string()), "{told}");
        };
        let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        mode(&record, 0o660);
        refused(&record);
        mode(&record, 0o600);
        mode(&place, 0o777);
        refused(&place);
        mode(&place, 0o755);
        if rustix::process::geteuid().is_root() {
            for part in [&record, &self::folder(&place), &place] {
                chown(part, Some(61_001), None).unwrap();
                refused(part);
                chown(part, Some(0), None).unwrap();
            }
        }
        assert!(RememberedStorage::read(&place).is_ok());
        fs::rename(&record, place.join("elsewhere")).unwrap();
        symlink("../elsewhere", &record).unwrap();
        RememberedStorage::read(&place).unwrap_err();
    }
}
