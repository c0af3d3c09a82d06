//! The user and the restrictions of a command that follows repositories.

use std::path::{Path, PathBuf};

use esker_confine::{Policy, Role};
use esker_format::name::RepositoryName;
use esker_maintain::remembered_spool;
use esker_repository::{RememberedStorage, Repository};
use esker_run::Manager;
use esker_store::{RealDisk, make_dirs};

use super::group::Group;
use crate::error::Failure;
use crate::process::confine;
use crate::process::opener::Openable;
use crate::process::privileges::{self, Account};
use crate::publisher::names_in;
use crate::serving;
use crate::serving::storage::with_credentials;
use crate::settings::Settings;

/// A replica that is here, or will be.
struct Place {
    name: RepositoryName,
    root: PathBuf,
    /// Existing or future folder of the repository.
    folder: PathBuf,
}

/// Becomes the owner of the replicas and confines this process, before it has threads or connections.
pub(super) fn enter(groups: &[Group], settings: &Settings) -> Result<(), Failure> {
    let mut places = Vec::new();
    let mut policy = confine::of_server(Role::Follow).list(&settings.keys);
    let mut openable = Openable::of_machine();
    for group in groups {
        let storage = group.storage().storage_folder(settings)?;
        // What can't be made is reported by the replication.
        let _ = make_dirs(&RealDisk::SERVED, &storage);
        let found = places_of(group, &storage);
        policy = policy.list(&storage);
        if group.grows() {
            policy = policy.write(&storage);
        }
        policy = found.iter().fold(policy, |policy, place| place.allow(policy, settings));
        let keys = group.0.public_key.iter().filter(|path| path.is_dir());
        let copied = group.0.sources.iter().flat_map(|source| source.split(';'));
        let copied = copied.filter_map(|url| url.trim().strip_prefix("file://")).map(Path::new);
        policy = copied.fold(keys.fold(policy, Policy::reopen), Policy::reopen);
        policy = group.0.ca.iter().filter(|path| path.is_dir()).fold(policy, Policy::reopen);
        let bucket = group.bucket();
        let files = group.0.public_key.iter().chain(&group.0.ca).chain(bucket.authorities());
        openable = files.fold(openable, |openable, file| openable.file(file));
        places.extend(found);
        if group.grows() && places.is_empty() {
            places.extend(RepositoryName::parse("any").ok().map(|name| Place {
                name,
                root: storage.clone(),
                folder: storage,
            }));
        }
    }
    let known = places.iter().filter_map(|place| remembered(&place.root)?.settings.ca);
    let openable = known.fold(openable, |openable, file| openable.file(&file)).keys(&settings.keys);
    let account = owner(&places)?;
    privileges::let_others_read();
    let policy = with_credentials(policy);
    serving::become_server(account.as_ref(), policy, openable, &Manager::default(), &settings.environment)?;
    confine::tell();
    Ok(())
}

/// Returns the replicas of a group that are named, or are here.
fn places_of(group: &Group, storage: &Path) -> Vec<Place> {
    let here = || names_in(storage).unwrap_or_default().into_iter();
    // One that names no repository is refused with its target.
    let named = group.0.sources.iter().filter_map(|source| {
        let first = source.split(';').next()?.trim().trim_end_matches('/');
        first.rsplit('/').next().map(str::to_owned)
    });
    let names: Vec<String> = if group.grows() { here().chain(named).collect() } else { named.collect() };
    let names = names.iter().filter_map(|name| RepositoryName::parse(name).ok());
    let place = |name: RepositoryName| {
        let root = Repository::locate(storage, &name);
        let folder = if root.is_dir() { root.clone() } else { storage.to_owned() };
        Place { name, root, folder }
    };
    names.map(place).filter(|place| !group.grows() || place.root.is_dir()).collect()
}

impl Place {
    /// Adds what a replication writes.
    fn allow(&self, policy: Policy, settings: &Settings) -> Policy {
        let Self { name, root, folder } = self;
        let policy = policy.write(folder);
        let spool = settings.spool(name, root).or_else(|| remembered_spool(root));
        let policy = spool.into_iter().fold(policy, Policy::write);
        // A lock that the publishers of a bucket share.
        let lock = remembered(root).and_then(|known| known.settings.lock);
        lock.iter().filter_map(|lock| lock.parent()).fold(policy, Policy::write)
    }
}

/// Returns the owner of all replicas, for root; `None` to keep the current user.
fn owner(places: &[Place]) -> Result<Option<Account>, Failure> {
    let folders = places.iter().map(|place| &place.folder).filter(|folder| folder.is_dir());
    privileges::common_owner(folders, "follow the replicas of each user with a command of their own")
}

fn remembered(root: &Path) -> Option<RememberedStorage> {
    RememberedStorage::read(root).ok().flatten()
}
