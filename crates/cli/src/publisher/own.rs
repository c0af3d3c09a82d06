//! Finds repositories that are published from this machine, to read them from their storage.

use std::path::PathBuf;

use super::{PublisherArgs, readable};
use crate::error::Failure;
use crate::settings::address::{is_name, split_tag};
use crate::settings::args::RepositoryArgs;
use crate::settings::configuration;
use crate::settings::repository::ResolvedRepository;
use crate::settings::{MEMORY, Settings};

/// Finds a repository that is published from this machine: in its storage, verified with its publisher's own key. A
/// configured repository comes first, unless options name the storage or the keys.
pub(crate) fn published_here(
    named: &str,
    published: &PublisherArgs,
    repository: &RepositoryArgs,
    settings: &Settings,
) -> Result<Option<ResolvedRepository>, Failure> {
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
        Ok(found) if is_asked_for || found.is_ours() => found,
        Err(failure) if is_asked_for => return Err(failure),
        _ => return Ok(None),
    };
    let mut repository = repository.clone().without_broker();
    repository.fqrn = Some(name.to_string());
    if repository.public_key.is_empty() {
        repository.public_key.push(found.keys.public_key_file());
    }
    let readable = readable(&found.root)?;
    if readable.is_private && repository.cache.is_none() {
        repository.cache = Some(PathBuf::from(MEMORY));
    }
    ResolvedRepository::new(&readable.url, &repository, settings).map(Some)
}

/// Finds a repository by its URL, in the configuration, or, if it has no server there, in its storage on this machine.
pub(crate) fn resolve(
    place: &str,
    repository: &RepositoryArgs,
    settings: &Settings,
) -> Result<ResolvedRepository, Failure> {
    let (named, tag) = split_tag(place)?;
    match published_here(named, &PublisherArgs::default(), repository, settings)? {
        Some(found) => Ok(found.tagged(tag)),
        None => ResolvedRepository::new(place, repository, settings),
    }
}
