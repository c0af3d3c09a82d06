//! Finds repositories in their storage on this machine, and opens them for reading.

use std::path::PathBuf;

use esker_format::master_keys::MasterKeys;
use esker_format::time::UnixTime;
use esker_format::trust::VerifiedHead;
use esker_repository::signed::SignedFiles;
use esker_repository::{RememberedGateway, ReplicaState, Repository, Storage};

use super::{Place, PublisherArgs, now, of_operation, readable};
use crate::error::{Failure, warn};
use crate::settings::address::{is_name, split_tag};
use crate::settings::args::RepositoryArgs;
use crate::settings::configuration;
use crate::settings::repository::ResolvedRepository;
use crate::settings::{MEMORY, Settings};

/// Finds a repository in its storage on this machine: one that is published from here, verified with its publisher's own key,
/// or a replica, verified with the keys that it was made with. A configured repository comes first, unless options name the
/// storage or the keys.
pub(crate) fn published_here(
    named: &str,
    published: &PublisherArgs,
    repository: &RepositoryArgs,
    settings: &Settings,
) -> Result<Option<(Place, ResolvedRepository)>, Failure> {
    let is_asked_for = published.is_given();
    if !is_name(named) {
        return match is_asked_for {
            true => Err(Failure::usage(format!(
                "--storage and --keys are for the NAME of a repository, and {named} is none"
            ))),
            false => Ok(None),
        };
    }
    let name = configuration::full_name(settings, named)?;
    let is_configured = || {
        let parameters = configuration::load(settings, Some(name.as_str()));
        !repository.server.is_empty() || parameters.get("CVMFS_SERVER_URL").is_some()
    };
    if !is_asked_for && is_configured() {
        return Ok(None);
    }
    let found = match published.place(name.as_str(), settings) {
        Ok(found) if is_asked_for || found.is_readable() => found,
        Err(failure) if is_asked_for => return Err(failure),
        _ => return Ok(None),
    };
    let mut repository = repository.clone().without_broker();
    repository.fqrn = Some(name.to_string());
    let readable = readable(&found.root)?;
    if readable.is_private && repository.cache.is_none() {
        repository.cache = Some(PathBuf::from(MEMORY));
    }
    let replica = found.replica()?.filter(|_| repository.public_key.is_empty());
    let resolved = if let Some(replica) = replica {
        ResolvedRepository::of_replica(&readable.url, replica.keys, &repository, settings)?
    } else {
        if repository.public_key.is_empty() {
            repository.public_key.push(found.keys.public_key_file());
        }
        ResolvedRepository::new(&readable.url, &repository, settings)?
    };
    Ok(Some((found, resolved)))
}

/// Finds a repository by its URL, in the configuration, or, if it has no server there, in its storage on this machine.
pub(crate) fn resolve(
    place: &str,
    repository: &RepositoryArgs,
    settings: &Settings,
) -> Result<ResolvedRepository, Failure> {
    let (named, tag) = split_tag(place)?;
    match published_here(named, &PublisherArgs::default(), repository, settings)? {
        Some((_, found)) => Ok(found.tagged(tag)),
        None => ResolvedRepository::new(place, repository, settings),
    }
}

impl Place {
    /// Returns the state of the replica; none for a repository that is no replica.
    pub(crate) fn replica(&self) -> Result<Option<ReplicaState>, Failure> {
        let failed = |error| of_operation(&format!("can't open {}", self.name), &error);
        ReplicaState::read(&self.root).map_err(failed)
    }

    /// Returns true if the storage of the repository and the keys to verify it are here: it is ours, or a replica.
    pub(crate) fn is_readable(&self) -> bool {
        self.is_ours() || self.replica().is_ok_and(|replica| replica.is_some())
    }

    /// Returns the keys that verify the repository: those that a replica was made with, or those of its publisher.
    pub(crate) fn master_keys(&self) -> Result<MasterKeys, Failure> {
        let failed = |error| of_operation(&format!("can't read {}", self.name), &error);
        match self.replica()? {
            Some(replica) => replica.master_keys().map_err(failed),
            None => self.keys.public().map_err(failed),
        }
    }

    /// Returns the time as of which reading commands verify the storage's head, if the whitelist has expired.
    pub(crate) fn valid_at(&self) -> Option<UnixTime> {
        let storage = Storage::open(&self.root).ok()?;
        let signed = SignedFiles::read(&**storage.sink(), &self.name).ok()?;
        signed.valid_at(&self.name, now()).ok().filter(|valid| *valid < now())
    }

    /// Warns if the whitelist of a head has expired.
    pub(crate) fn warn_if_expired(&self, head: &VerifiedHead) {
        let expires = head.whitelist_expires();
        if now().hour() >= expires.hour() {
            let name = &self.name;
            warn(Some(&format!(
                "the whitelist of {name} expired at {expires}; clients refuse the repository until its publisher signs it again \
                 (`esker repo resign {name}`)"
            )));
        }
    }

    /// Opens the repository to look at it, also if its whitelist has expired; warns then.
    pub(crate) fn open_for_reading(&self) -> Result<Repository, Failure> {
        let failed = |error| of_operation(&format!("can't open {}", self.name), &error);
        let is_at_gateway = RememberedGateway::read(&self.root).map_err(failed)?.is_some();
        let repository = if self.replica()?.is_some() {
            Repository::open_replica(&self.root, &self.name, now())
        } else if is_at_gateway {
            self.try_open()
        } else {
            Repository::open_for_reading(&self.root, &self.name, self.keys.clone(), now())
        };
        let repository = repository.map_err(failed)?;
        self.warn_if_expired(repository.head());
        Ok(repository)
    }
}
