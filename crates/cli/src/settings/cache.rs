//! Resolves the folder and the size of a cache: of options, the environment or the configuration, or the first
//! suitable one.

use std::path::{Path, PathBuf};

use esker_cache_share::location::{self, CacheLocation};
use esker_cache_share::memory;
use esker_config::{ConfiguredCache, Parameters};
use rustix::fs::{Access, access, statvfs};

use super::args::RepositoryArgs;
use super::configuration::of_parameter;
use super::folders::{MEMORY, Settings};
use crate::error::{Failure, warn};

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

/// Returns the cache and its quota: from the command line or the environment, else as configured if this user may use
/// that, else this user's default.
pub(super) fn resolve(
    parameters: &Parameters,
    args: &RepositoryArgs,
    settings: &Settings,
) -> Result<(CacheLocation, u64), Failure> {
    let configured = parameters.cache().map_err(of_parameter)?;
    let own = args.cache.is_some() || settings.names_cache();
    if let Some(memory) = parameters.memory(memory::of_machine()).map_err(of_parameter)?.filter(|_| !own) {
        let (parameter, origin) = memory.from;
        match in_memory(args.quota.or(memory.bytes), format!("{parameter} ({origin})")) {
            Ok(cache) => return Ok(cache),
            // The mount matters more than the place of its cache.
            Err(failure) => warn(Some(&format!("{}; it is in a folder", failure.message))),
        }
    }
    let Some(configured) = configured.filter(|cache| !own && (settings.root || may_write(&cache.path)))
    else {
        return with_quota(settings, args);
    };
    let ConfiguredCache { path, from: (parameter, origin), quota } = configured;
    let from = format!("{parameter} ({origin})");
    let failed =
        |why: String| Failure::usage(format!("{from}: can't have the cache at {}: {why}", path.display()));
    let made = std::fs::create_dir_all(path.parent().unwrap_or(&path));
    made.map_err(|error| failed(error.to_string()).hint("`esker config check` has details"))?;
    if let Ok(Some(kind)) = location::network_of(&path)
        && !args.cache_on_network
    {
        return Err(failed(format!("it is on a network file system ({kind}), which may hang and is slow"))
            .hint("set it to a folder on a disk of this node, or use --cache-on-network"));
    }
    // A quota without a limit has that of the disk.
    let disk = path.parent().and_then(|folder| statvfs(folder).ok());
    let total = disk.map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize));
    let place = CacheLocation { path, from, total, passed_over: Vec::new() };
    let quota = args.quota.or(quota.map(|quota| quota.min(if total > 0 { total } else { quota })));
    let quota = quota.unwrap_or_else(|| default_quota(&place));
    Ok((place, quota))
}

/// Returns a cache in memory.
fn in_memory(quota: Option<u64>, from: String) -> Result<(CacheLocation, u64), Failure> {
    let quota = quota.unwrap_or_else(memory::default_quota);
    memory::place(quota, from.clone()).map_err(|error| {
        let why = match error.raw_os_error() {
            Some(libc::ENOSYS) => "the kernel is older than Linux 5.2".to_owned(),
            _ => error.to_string(),
        };
        Failure::usage(format!("{from}: there can't be a cache in memory: {why}"))
    })
}

/// Returns the default quota of a cache: enough for usual software, but never most of a small disk or of memory.
pub(crate) fn default_quota(place: &CacheLocation) -> u64 {
    const USUAL: u64 = 10 << 30;
    if place.total == 0 { USUAL } else { USUAL.min(place.total / 2) }
}

/// Returns the default size of a server's cache: never most of a small disk.
pub(crate) fn default_server_size(folder: &Path) -> u64 {
    const USUAL: u64 = 100 << 30;
    match location::disk_size(folder) {
        Ok(total) if total > 0 => USUAL.min(total / 2),
        _ => USUAL,
    }
}

/// True if a folder is writable, or could be made.
fn may_write(path: &Path) -> bool {
    let there = path.ancestors().find(|folder| folder.exists());
    there.is_some_and(|folder| access(folder, Access::WRITE_OK).is_ok())
}

/// Returns lines that say where the cache is, and why not elsewhere.
pub(crate) fn place_lines(place: &CacheLocation) -> Vec<String> {
    let chosen = format!("the cache is {}, because of {}", place.path.display(), place.from);
    let passed = place.passed_over.iter().map(|one| format!("passed over: {one}"));
    std::iter::once(chosen).chain(passed).collect()
}
