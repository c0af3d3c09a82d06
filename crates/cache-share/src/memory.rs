//! A cache in memory: a folder like any other, of a file system that only this process sees and that ends with it.

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use esker_fuse::mount::private_memory;

use crate::location::CacheLocation;

/// Minimum size of a cache in memory, in bytes: less doesn't hold the catalogs of usual repositories.
const LEAST: u64 = 40 << 20;
/// Folder of a process's own descriptors. It has other files for every other process.
const OWN: &str = "/proc/self/fd";

/// Returns the default quota of a cache in memory, as in the reference client: a 32nd of the machine's memory.
pub fn default_quota() -> u64 {
    of_machine() / 32
}

/// Returns the bytes of memory of this machine.
pub fn of_machine() -> u64 {
    let told = rustix::system::sysinfo();
    (told.totalram as u64).saturating_mul(u64::from(told.mem_unit))
}

/// Creates the folder of a cache in memory; returns its quota. `from` is the source of the setting, for users.
pub fn place(quota: u64, from: String) -> io::Result<(CacheLocation, u64)> {
    let quota = quota.max(LEAST);
    let total = total(quota);
    // The descriptor and its content stay until the process ends.
    let root = private_memory(total)?.into_raw_fd();
    let path = PathBuf::from(format!("{OWN}/{root}/cache"));
    Ok((CacheLocation { path, from, total, passed_over: Vec::new() }, quota))
}

/// Returns the memory limit: objects in use may exceed the quota, and uncached ones add to it.
fn total(quota: u64) -> u64 {
    quota.saturating_add(quota / 2).saturating_add(128 << 20)
}

/// Creates a folder for a cache of minimum size, which exists as long as the descriptor is open.
pub(crate) fn while_open() -> io::Result<(OwnedFd, PathBuf, u64)> {
    // A new name each time: a late user of an old folder must not find the next one at the same number.
    static MADE: AtomicU64 = AtomicU64::new(0);
    let root = private_memory(total(LEAST))?;
    let path = format!("{OWN}/{}/spare-{}", root.as_raw_fd(), MADE.fetch_add(1, Ordering::Relaxed));
    Ok((root, path.into(), LEAST))
}

/// True if a cache is in its process's memory.
pub fn is_memory(cache: &Path) -> bool {
    cache.starts_with(OWN)
}
