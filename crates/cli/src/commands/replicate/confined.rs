//! The user and the restrictions of a command that follows repositories.

use std::path::{Path, PathBuf};

use esker_confine::{Policy, Role};
use esker_format::name::RepositoryName;
use esker_maintain::remembered_spool;
use esker_repository::{RememberedStorage, Repository};
use esker_run::Manager;
use esker_store::{RealDisk, make_dirs};

use super::Args;
use super::target::replicas;
use crate::error::Failure;
use crate::process::confine;
use crate::process::opener::Openable;
use crate::process::privileges::{self, Account};
use crate::publisher::PublisherArgs;
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
pub(super) fn enter(args: &Args, settings: &Settings) -> Result<(), Failure> {
    let storage = PublisherArgs::in_storage(args.to.as_deref()).storage_folder(settings)?;
    // What can't be made is reported by the replication.
    let _ = make_dirs(&RealDisk::SERVED, &storage);
    let places = places(args, &storage)?;
    let account = owner(&places)?;
    privileges::let_others_read();
    let policy = policy(args, &storage, &places, settings);
    let openable = openable(args, &places, settings);
    serving::become_server(account.as_ref(), policy, openable, &Manager::default(), &settings.environment)?;
    confine::tell();
    Ok(())
}

fn places(args: &Args, storage: &Path) -> Result<Vec<Place>, Failure> {
    let sources = if args.all { replicas(storage)? } else { args.sources.clone() };
    // One that names no repository is refused with its target.
    let names = sources.iter().filter_map(|source| {
        let first = source.split(';').next()?.trim().trim_end_matches('/');
        RepositoryName::parse(first.rsplit('/').next()?).ok()
    });
    let place = |name: RepositoryName| {
        let root = Repository::locate(storage, &name);
        let folder = if root.is_dir() { root.clone() } else { storage.to_owned() };
        Place { name, root, folder }
    };
    Ok(names.map(place).collect())
}

/// Returns the owner of all replicas, for root; `None` to keep the current user.
fn owner(places: &[Place]) -> Result<Option<Account>, Failure> {
    let folders = places.iter().map(|place| &place.folder).filter(|folder| folder.is_dir());
    privileges::common_owner(folders, "follow the replicas of each user with a command of their own")
}

fn policy(args: &Args, storage: &Path, places: &[Place], settings: &Settings) -> Policy {
    let mut policy = confine::of_server(Role::Follow).list(storage).list(&settings.keys);
    for Place { name, root, folder } in places {
        policy = policy.write(folder);
        let spool = settings.spool(name, root).or_else(|| remembered_spool(root));
        policy = spool.into_iter().fold(policy, Policy::write);
        // A lock that the publishers of a bucket share.
        let lock = remembered(root).and_then(|known| known.settings.lock);
        policy = lock.iter().filter_map(|lock| lock.parent()).fold(policy, Policy::write);
    }
    let keys = args.public_key.iter().filter(|path| path.is_dir());
    let copied = args.sources.iter().flat_map(|source| source.split(';'));
    let copied = copied.filter_map(|url| url.trim().strip_prefix("file://")).map(Path::new);
    let policy = copied.fold(keys.fold(policy, Policy::reopen), Policy::reopen);
    with_credentials(policy)
}

fn remembered(root: &Path) -> Option<RememberedStorage> {
    RememberedStorage::read(root).ok().flatten()
}

/// Returns the files that are opened for this process when they are others.
fn openable(args: &Args, places: &[Place], settings: &Settings) -> Openable {
    let files = args.public_key.iter().chain(args.bucket.authorities());
    let openable = files.fold(Openable::of_machine(), |openable, file| openable.file(file));
    let known = places.iter().filter_map(|place| remembered(&place.root)?.settings.ca);
    known.fold(openable, |openable, file| openable.file(&file)).keys(&settings.keys)
}
