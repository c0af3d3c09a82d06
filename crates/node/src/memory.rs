//! A cache in memory: a folder like any other, of a file system that only this process sees and that ends with it.

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use esker_fuse::mount::private_memory;

use crate::cache_location::CacheLocation;

/// Fewer bytes hold no catalogs of usual repositories.
const LEAST: u64 = 40 << 20;
/// What a process finds its descriptors by. They mean something else to every other.
const OWN: &str = "/proc/self/fd";

/// The quota of one for which nobody named one, as the reference has it: a 32nd of the machine's memory.
pub fn default_quota() -> u64 {
    of_machine() / 32
}

/// Bytes of memory of this machine.
pub fn of_machine() -> u64 {
    let told = rustix::system::sysinfo();
    (told.totalram as u64).saturating_mul(u64::from(told.mem_unit))
}

/// Makes the place of a cache with such a quota, and the quota that it may have. `from` is what asked for it, for people.
pub fn place(quota: u64, from: String) -> io::Result<(CacheLocation, u64)> {
    let quota = quota.max(LEAST);
    let total = total(quota);
    // It stays open until the process ends, whatever becomes of the place, and so does what is in it.
    let root = private_memory(total)?.into_raw_fd();
    let path = PathBuf::from(format!("{OWN}/{root}/cache"));
    Ok((CacheLocation { path, from, total, passed_over: Vec::new() }, quota))
}

/// What is in use may exceed the quota, and what isn't kept lies beside it.
fn total(quota: u64) -> u64 {
    quota.saturating_add(quota / 2).saturating_add(128 << 20)
}

/// A folder for a cache with the least quota, which is there as long as the descriptor is open.
pub(crate) fn while_open() -> io::Result<(OwnedFd, PathBuf, u64)> {
    // Another name each time: who is late with one that is gone must not find the next at the same number.
    static MADE: AtomicU64 = AtomicU64::new(0);
    let root = private_memory(total(LEAST))?;
    let path = format!("{OWN}/{}/spare-{}", root.as_raw_fd(), MADE.fetch_add(1, Ordering::Relaxed));
    Ok((root, path.into(), LEAST))
}

/// Whether a cache is in its process's memory.
pub fn is_memory(cache: &Path) -> bool {
    cache.starts_with(OWN)
}
