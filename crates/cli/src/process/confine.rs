//! Restricts daemons of this program to what their role needs ([`esker_confine`]).

use std::path::{Path, PathBuf};

use esker_cache_share::memory;
use esker_confine::{Confinement, Policy, Prepared, Role};
use esker_node::mount_spec::{MountSpec, RepositorySpec};
use esker_node::runtime::RuntimeDir;
use esker_store::{RealDisk, make_dirs};
use esker_threads::watchdog;
use rustix::thread::CapabilitySet;

use super::privileges;
use crate::error::Failure;
use crate::settings::environment::Environment;

/// Environment variable that switches the confinement off, to find out whether it causes a failure.
pub(crate) const SWITCH: &str = "ESKER_CONFINE";

/// Capabilities of a thread that serves a mount of root: to read and keep caches and folders of other users.
const OF_A_SERVING_THREAD: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH).union(CapabilitySet::FOWNER);

/// Capabilities of the helper of a mount, which unmounts and inspects callers, once the mount is made.
const OF_A_HELPER: CapabilitySet = OF_A_SERVING_THREAD
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::CHOWN);

/// Capability of a replayer of root: reading folders of other users.
const OF_A_REPLAYER: CapabilitySet = CapabilitySet::DAC_READ_SEARCH;

/// Returns true unless the environment switches the confinement off.
pub(crate) fn is_wanted(environment: &Environment) -> bool {
    environment.get(SWITCH).is_none_or(|value| value != "off")
}

/// Restricts this thread and those that it starts. [`tell`] logs the outcome.
pub(crate) fn enforce(prepared: impl FnOnce() -> Prepared, environment: &Environment) {
    if is_wanted(environment) {
        prepared().enforce();
    } else {
        Confinement::off(format!("{SWITCH}=off"));
    }
}

/// Logs what this process is confined to.
pub(crate) fn tell() {
    match Confinement::get() {
        Some(confinement) if confinement.seccomp => tracing::info!("confined: {confinement}"),
        Some(confinement) => tracing::warn!("not confined: {confinement}"),
        None => {}
    }
}

/// Restricts the process that serves a mount, whose only thread calls this.
pub(crate) fn confine_mount(policy: Policy, spec: &MountSpec) -> Result<(), Failure> {
    if !spec.confined {
        Confinement::off(format!("{SWITCH}=off"));
        tell();
        return Ok(());
    }
    let cache = spec.cache().map(Path::to_owned);
    let watched = cache.clone().unwrap_or_else(|| spec.runtime.clone());
    // A mount in the foreground is the first to make it; its registration reports the failure.
    let _ = RuntimeDir::open(&spec.runtime);
    // A disk that doesn't answer is reported, as when the cache is opened.
    let prepared =
        watchdog::unless_disk_hangs(&watched, move || with_cache(policy, cache.as_deref()).prepare());
    let prepared = prepared.map_err(|error| {
        Failure::failed(format!("can't open the cache: {error}"))
            .hint("check the disk, or name another folder with --cache DIR")
    })?;
    // The filter refuses further changes of capabilities.
    privileges::narrow_thread(OF_A_SERVING_THREAD);
    prepared.enforce();
    tell();
    Ok(())
}

/// Restricts the helper of a mount of root. That of another user starts `fusermount3`, which a filter would leave without its
/// privilege.
pub(crate) fn confine_helper(spec: &MountSpec) {
    if spec.confined && rustix::process::geteuid().is_root() {
        // The daemon tells what it is confined to itself.
        let _ = Policy::new(Role::Helper).prepare().enforce();
    }
}

/// Gives up what the helper of a mount needed for mounting; called once the mount is made.
pub(crate) fn mount_is_made() {
    privileges::narrow_thread(OF_A_HELPER);
}

/// Restricts the process that reads ahead through a mount. Its environment is that of the mount's process.
pub(crate) fn confine_replayer(mountpoint: &Path) {
    if std::env::var_os(SWITCH).is_none_or(|value| value != "off") {
        let prepared = Policy::new(Role::Replayer).read(mountpoint).prepare();
        privileges::narrow_thread(OF_A_REPLAYER);
        // Its log is discarded.
        let _ = prepared.enforce();
    }
}

/// Returns the policy of a repository's mount, without its cache.
pub(crate) fn of_repository(repository: &RepositorySpec, runtime: &Path) -> Policy {
    repository.writable().fold(Policy::new(Role::Mount).write(runtime), Policy::write)
}

/// Lets a mount write to its cache, and to memory in its place.
fn with_cache(policy: Policy, cache: Option<&Path>) -> Policy {
    let Some(cache) = cache else { return policy };
    let policy = with_cache_folder(policy, cache);
    match memory::reserve() {
        Ok(spare) => policy.write(spare),
        // Where user namespaces are off there is no memory of one's own.
        Err(_) => policy,
    }
}

/// Returns the policy of a server, which may not read the home of its user for the sake of what is exchanged in it.
pub(crate) fn of_server(role: Role) -> Policy {
    home().into_iter().fold(Policy::new(role), Policy::private)
}

fn home() -> Option<PathBuf> {
    std::env::var_os("HOME").map(PathBuf::from)
}

/// Lets a process write to the folder of its cache, and makes the folder: only what exists can be granted.
pub(crate) fn with_cache_folder(policy: Policy, cache: &Path) -> Policy {
    // Opening the cache reports the failure.
    let _ = make_dirs(&RealDisk::PRIVATE, cache);
    policy.write(writable_for(cache))
}

/// Returns the folder that a cache needs to change. The folder around it may have files of other programs, except in memory
/// that only this process reaches.
fn writable_for(cache: &Path) -> &Path {
    match cache.parent() {
        Some(around) if memory::is_memory(cache) => around,
        _ => cache,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_may_not_change_the_folder_around_it() {
        for (cache, writable) in [
            ("/var/lib/esker", "/var/lib/esker"),
            ("/var/tmp/esker-7", "/var/tmp/esker-7"),
            ("/scratch/cache", "/scratch/cache"),
            ("/data/esker/cache", "/data/esker/cache"),
            ("/proc/self/fd/7/cache", "/proc/self/fd/7"),
        ] {
            assert_eq!(writable_for(Path::new(cache)), Path::new(writable), "{cache}");
        }
    }
}
