//! Cache folder of a command: from its options, or the first suitable one.

use std::path::{Path, PathBuf};

use esker_cache_share::location::CacheLocation;

use crate::error::Failure;
use crate::settings::args::RepositoryArgs;
use crate::settings::{MEMORY, Settings, default_quota, in_memory};

/// Returns the cache folder for a mount that only stores recorded reads there, if there is one.
pub(crate) fn for_recorded_reads(settings: &Settings, args: &RepositoryArgs) -> Option<PathBuf> {
    let on_disk = args.cache.as_deref() != Some(Path::new(MEMORY));
    let place = on_disk.then(|| settings.cache(args.cache.as_deref(), args.cache_on_network).ok())??;
    Some(place.path)
}

/// Returns the cache of a mount and its quota, of the command line or the first suitable folder.
pub(crate) fn with_quota(
    settings: &Settings,
    args: &RepositoryArgs,
) -> Result<(CacheLocation, u64), Failure> {
    if args.cache.as_deref() == Some(Path::new(MEMORY)) {
        return in_memory(args.quota, "--cache ram".to_owned())
            .map_err(|failure| failure.hint("name a folder, like one below /dev/shm"));
    }
    let place = settings.cache(args.cache.as_deref(), args.cache_on_network)?;
    let quota = args.quota.unwrap_or_else(|| default_quota(&place));
    Ok((place, quota))
}
