//! Files that must not be published: private keys, and the repository's own storage and state.
//!
//! They are recognised by device and inode, so that links, bind mounts and the names of paths make no difference.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use esker_repository::{Repository, RepositoryError};

use crate::error::PublishError;
use crate::source::Facts;

/// Private files and folders of a repository: what each is, by device and inode.
#[derive(Debug, Default)]
pub(crate) struct PrivateFiles(HashMap<(u64, u64), &'static str>);

const KEY: &str = "it is a private key of a repository";
const STORAGE: &str = "it is the storage of this repository";
const STATE: &str = "it is the publisher's state of this repository";

impl PrivateFiles {
    /// Finds the private keys in the folders of a repository's keys, and its storage and state. Absent ones are none.
    pub(crate) fn of(repository: &Repository) -> Result<Self, PublishError> {
        let storage = repository.storage().is_folder().then(|| repository.storage().place());
        let (keys, state) = (repository.keys().private_keys()?, repository.state());
        let keys = keys.iter().map(|path| (path.as_path(), KEY));
        let folders = storage.map(|path| (path, STORAGE)).into_iter().chain([(state, STATE)]);
        let mut private = Self::default();
        for (path, what) in keys.chain(folders) {
            if let Some(id) = id_of(path)? {
                private.0.insert(id, what);
            }
        }
        Ok(private)
    }

    /// Refuses a source folder that is in the storage or the state.
    pub(crate) fn check_root(&self, source: &Path) -> Result<(), PublishError> {
        let failed =
            |error| PublishError::Source { doing: "looking at", path: source.to_owned(), source: error };
        let real = source.canonicalize().map_err(failed)?;
        for folder in real.ancestors() {
            if let Some(id) = id_of(folder)?
                && let Some(what) = self.0.get(&id)
            {
                let reason = match folder == real {
                    true => (*what).to_owned(),
                    false => format!("of `{}` that it is in, {what}", folder.display()),
                };
                return Err(PublishError::Refused { path: source.to_owned(), reason });
            }
        }
        Ok(())
    }

    /// Refuses an entry of the source that is private; `path` is its path for the message.
    pub(crate) fn check(&self, facts: &Facts, path: impl FnOnce() -> PathBuf) -> Result<(), PublishError> {
        match self.0.get(&(facts.device, facts.inode)) {
            None => Ok(()),
            Some(what) => {
                let reason = format!(
                    "{what}, and all clients could read it; move it out of the source, or leave it out by --ignore"
                );
                Err(PublishError::Refused { path: path(), reason })
            }
        }
    }
}

fn id_of(path: &Path) -> Result<Option<(u64, u64)>, RepositoryError> {
    match fs::metadata(path) {
        Ok(facts) => Ok(Some((facts.dev(), facts.ino()))),
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Ok(None)
        }
        Err(error) => Err(RepositoryError::file("looking at", path)(error)),
    }
}
