//! Commands on several repositories.

use std::path::Path;

use esker_format::manifest;
use esker_format::name::RepositoryName;
use esker_repository::{RememberedStorage, ReplicaState};

use super::PublisherArgs;
use crate::error::{Failure, Kind, warn};
use crate::settings::Settings;

/// Returns the names of the repositories in a storage folder, sorted.
pub(crate) fn names_in(folder: &Path) -> Result<Vec<String>, Failure> {
    let is_repository =
        |folder: &Path| folder.join(manifest::PATH).exists() || RememberedStorage::is_at(folder);
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .map_err(|error| Failure::failed(format!("can't list {}: {error}", folder.display())))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| RepositoryName::parse(name).is_ok() && is_repository(&folder.join(name)))
        .collect();
    names.sort_unstable();
    Ok(names)
}

/// Returns the names of the repositories in the storage folder that are no replicas.
pub(crate) fn publishable(place: &PublisherArgs, settings: &Settings) -> Result<Vec<String>, Failure> {
    let folder = place.storage_folder(settings)?;
    let mut names = names_in(&folder)?;
    // One whose state can't be read fails by its name.
    names.retain(|name| !matches!(ReplicaState::read(&folder.join(name)), Ok(Some(_))));
    Ok(names)
}

/// Calls `work` for each repository; one that fails doesn't hold up the others. `what` says of those that failed what they
/// are.
pub(crate) fn for_each<N>(
    repositories: &[N],
    what: &str,
    mut work: impl FnMut(&N) -> Result<(), Failure>,
) -> Result<(), Failure> {
    if let [only] = repositories {
        return work(only);
    }
    let mut failures = Vec::new();
    for repository in repositories {
        match work(repository) {
            Ok(()) => {}
            // The user, or the reader of the output, has gone.
            Err(failure) if failure.kind == Kind::Interrupted || failure.code() == 0 => return Err(failure),
            Err(failure) => {
                warn(Some(&failure.message));
                failures.push(failure.kind);
            }
        }
    }
    let Some(last) = failures.last() else { return Ok(()) };
    let kind = if failures.contains(&Kind::Damaged) { Kind::Damaged } else { *last };
    Err(Failure::new(kind, format!("{} of {} repositories {what}", failures.len(), repositories.len())))
}
