//! Manages the recorded profiles of a publisher.
//!
//! ```text
//! profiles/NAME.json   a recorded profile
//! bundles.json         the triggers for which bundles were written, so that they can be taken back
//! ```

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::profile::{self, Profile, ProfileError};
use esker_repository::{Repository, RepositoryError, state};

use crate::error::PublishError;
use esker_store::{Disk, make_dirs, persist, read_file};

const SUFFIX: &str = ".json";
const TRIGGERS: &str = "bundles.json";
/// Maximum number of profiles of one repository.
const PROFILES_MAX: usize = 256;
/// The longest name of a profile.
const NAME_MAX: usize = 64;
/// Maximum total size in bytes of the paths of all triggers.
const TRIGGERS_BYTES_MAX: u64 = 256 << 20;

/// A profile with the name that its publisher gave it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedProfile {
    /// Name of the profile.
    pub name: String,
    /// The recorded reads.
    pub profile: Profile,
}

impl NamedProfile {
    /// Reads a profile from the text of a file `NAME.profile.json` or `NAME.json`.
    pub fn from_file(path: &Path, text: &[u8]) -> Result<Self, PublishError> {
        let refused = |reason: String| PublishError::Profile { path: path.to_owned(), reason };
        let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
        let stem = file.strip_suffix(SUFFIX).unwrap_or(file);
        let name = stem.strip_suffix(".profile").unwrap_or(stem).to_owned();
        if !is_name(&name) {
            let reason = format!("its name has to be up to {NAME_MAX} letters, digits, `_`, `.` and `-`");
            return Err(refused(reason));
        }
        let profile = Profile::parse(text).map_err(|error| refused(told(&error)))?;
        Ok(Self { name, profile })
    }
}

fn told(error: &ProfileError) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), |source| format!("{error}: {source}"))
}

fn is_name(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric());
    let rest = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-'));
    first && rest && name.len() <= NAME_MAX
}

/// Profiles of a repository, in a folder that its publisher keeps open.
pub struct Profiles<'r> {
    disk: Arc<dyn Disk>,
    state: &'r Path,
    repository: &'r str,
}

impl<'r> Profiles<'r> {
    /// Returns the profiles of a repository, from which bundles are made.
    pub fn of(repository: &'r Repository) -> Self {
        let disk = repository.disks().private.clone();
        Self { disk, state: repository.state(), repository: repository.name().as_str() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.state.join(state::PROFILES).join(format!("{name}{SUFFIX}"))
    }

    /// Returns the names of the profiles.
    pub fn names(&self) -> Result<Vec<String>, PublishError> {
        let folder = self.state.join(state::PROFILES);
        let listed = match self.disk.list(&folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            listed => listed.map_err(RepositoryError::file("reading folder", &folder))?,
        };
        let name = |file: std::ffi::OsString| file.to_str()?.strip_suffix(SUFFIX).map(str::to_owned);
        let mut names: Vec<String> =
            listed.into_iter().filter_map(name).filter(|name| is_name(name)).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Reads one profile.
    pub fn get(&self, name: &str) -> Result<NamedProfile, PublishError> {
        let path = self.file(name);
        let limit = profile::BYTES_MAX as u64;
        let text = read_file(&*self.disk, &path, limit).map_err(RepositoryError::file("reading", &path))?;
        match text {
            Some(text) if is_name(name) => NamedProfile::from_file(&path, &text),
            _ => Err(PublishError::NoProfile(name.to_owned())),
        }
    }

    /// Stores a profile for all later publishes, and replaces one of the same name.
    pub fn add(&self, added: &NamedProfile) -> Result<(), PublishError> {
        self.check(added)?;
        let path = self.file(&added.name);
        let names = self.names()?;
        if names.len() >= PROFILES_MAX && !names.contains(&added.name) {
            let reason = format!("there are {PROFILES_MAX} profiles already");
            return Err(PublishError::Profile { path, reason });
        }
        let folder = self.state.join(state::PROFILES);
        make_dirs(&*self.disk, &folder).map_err(RepositoryError::file("making folder", &folder))?;
        let _lock = state::lock(self.state)?;
        let written = persist(&*self.disk, &path, &added.profile.to_json());
        Ok(written.map_err(RepositoryError::file("writing", &path))?)
    }

    /// Refuses a profile of another repository.
    pub(crate) fn check(&self, added: &NamedProfile) -> Result<(), PublishError> {
        let of = added.profile.repository.as_str();
        if of == self.repository {
            return Ok(());
        }
        let reason = format!("it was recorded in `{of}`");
        Err(PublishError::Profile { path: PathBuf::from(&added.name), reason })
    }

    /// Removes a profile; the next publish removes its bundles.
    pub fn remove(&self, name: &str) -> Result<(), PublishError> {
        if !self.names()?.iter().any(|known| known == name) {
            return Err(PublishError::NoProfile(name.to_owned()));
        }
        let path = self.file(name);
        self.disk.remove(&path).map_err(RepositoryError::file("removing", &path))?;
        let folder = self.state.join(state::PROFILES);
        Ok(self.disk.sync_dir(&folder).map_err(RepositoryError::file("writing folder", &folder))?)
    }

    /// Returns the triggers for which bundles were written.
    ///
    /// A lost or damaged list counts as empty: bundles that are still wanted are found without it.
    pub(crate) fn triggers(&self) -> BTreeSet<String> {
        let text = read_file(&*self.disk, &self.state.join(TRIGGERS), TRIGGERS_BYTES_MAX).ok().flatten();
        text.and_then(|text| serde_json::from_slice(&text).ok()).unwrap_or_default()
    }

    /// Remembers further triggers, for which bundles are about to be written. Needs the lock of the head.
    pub(crate) fn remember_also(&self, triggers: &BTreeSet<String>) -> Result<(), RepositoryError> {
        self.remember(&self.triggers().union(triggers).cloned().collect())
    }

    /// Remembers the triggers for which bundles are, or may have been, written. Needs the lock of the head.
    pub(crate) fn remember(&self, triggers: &BTreeSet<String>) -> Result<(), RepositoryError> {
        if *triggers == self.triggers() {
            return Ok(());
        }
        let path = self.state.join(TRIGGERS);
        let _lock = state::lock(self.state)?;
        let text = serde_json::to_vec(triggers).expect("a list of texts becomes JSON because it has no keys");
        persist(&*self.disk, &path, &text).map_err(RepositoryError::file("writing", &path))
    }
}
