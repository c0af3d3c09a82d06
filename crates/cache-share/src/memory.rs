//! A cache in memory: a folder like any other, of a file system that only this process sees and that ends with it.

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_kernel_mount::private_memory;

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

/// Creates the folder of a cache in memory; returns its quota. `from` names the origin of the setting in messages.
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

/// Memory that is reserved for a confined process, which may write only where it could when it was confined.
static RESERVED: OnceLock<OwnedFd> = OnceLock::new();

/// Makes the file system for a cache that replaces one on a failing disk, and returns its path.
pub fn reserve() -> io::Result<PathBuf> {
    let root = match RESERVED.get() {
        Some(root) => root.as_raw_fd(),
        None => {
            let made = private_memory(total(LEAST))?;
            RESERVED.get_or_init(|| made).as_raw_fd()
        }
    };
    Ok(PathBuf::from(format!("{OWN}/{root}")))
}

/// A folder in memory, which is removed on drop.
pub(crate) struct SpareFolder {
    pub(crate) path: PathBuf,
    pub(crate) quota: u64,
    /// File system of this folder alone; none if it is in the reserved one.
    own: Option<OwnedFd>,
}

/// Creates a folder for a cache of minimum size.
pub(crate) fn spare() -> io::Result<SpareFolder> {
    // A new name each time: a late user of an old folder must not find the next one at the same number.
    static MADE: AtomicU64 = AtomicU64::new(0);
    let own = if RESERVED.get().is_some() { None } else { Some(private_memory(total(LEAST))?) };
    let root = own.as_ref().or(RESERVED.get()).ok_or(io::ErrorKind::NotFound)?;
    let path = format!("{OWN}/{}/spare-{}", root.as_raw_fd(), MADE.fetch_add(1, Ordering::Relaxed));
    Ok(SpareFolder { path: path.into(), quota: LEAST, own })
}

impl Drop for SpareFolder {
    fn drop(&mut self) {
        if self.own.is_none() {
            // The memory is released as soon as no reader has a file open.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

/// True if a cache is in its process's memory.
pub fn is_memory(cache: &Path) -> bool {
    cache.starts_with(OWN)
}
