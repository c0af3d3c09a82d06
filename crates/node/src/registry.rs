//! Registry of this user's mounts: one file for each, locked by its daemon during its lifetime.
//!
//! The lock is authoritative, the file's content a description: an unlocked file was left by a killed daemon. The
//! daemon removes its file while it holds the lock, and drops the lock by ending.

pub mod users;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_cache_share::FileError;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use crate::control::{self, Request, Response};
use crate::helper_process::Helper;
use crate::mounts::holders::{Held, Holder, Scan};
use crate::mounts::{self, Device, MountLine};
use crate::runtime::{RuntimeDir, RuntimeError};

/// Maximum length of a registry entry in bytes.
const ENTRY_MAX: u64 = 64 * 1024;

/// Maximum number of attempts for a file that vanishes between opening and locking.
const TRIES: usize = 16;

/// Time for which a reader of the registry may hold a lock.
const GLANCE: Duration = Duration::from_millis(5);

/// Facts of a mount that are known without its daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// Mount point.
    #[serde(with = "esker_store::exact_path")]
    pub mountpoint: PathBuf,
    /// Command that has the mount for itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// The repository's name.
    pub repository: String,
    /// Source of the mount.
    pub url: String,
    /// The cache directory.
    #[serde(with = "esker_store::exact_path")]
    pub cache: PathBuf,
    /// The daemon's process id.
    pub pid: u32,
    /// Start of the daemon, in seconds since the epoch.
    pub started: u64,
    /// Process id of the supervisor, which ends after the daemon.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub supervisor: Option<u32>,
    /// Device number of the mount, once it is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<Device>,
    /// True if the daemon has given up the place, and serves a mount that only other namespaces hold.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub departed: bool,
}

impl Entry {
    /// Returns the identity of the mount.
    pub fn held(&self) -> Held<'_> {
        Held { device: self.device, mountpoint: &self.mountpoint, source: &self.url }
    }
}

/// Registering failed.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// The runtime directory can't be used.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// Another daemon serves this mount point.
    #[error("{mountpoint} is mounted already")]
    Taken {
        /// The mount point.
        mountpoint: PathBuf,
    },
}

/// A registered mount; its files are removed when this is dropped.
#[derive(Debug)]
pub struct Registration {
    runtime: RuntimeDir,
    id: String,
    /// File whose lock is held until the process ends or this is dropped.
    file: File,
    /// Process that removes the runtime directory of a confined daemon.
    helper: Option<Arc<Helper>>,
}

impl Registration {
    /// Registers a mount point, replacing the entry of a killed daemon.
    pub fn take(runtime: &Path, mountpoint: &Path) -> Result<Self, RegistryError> {
        let id = RuntimeDir::id(mountpoint);
        for attempt in 0..TRIES {
            let runtime = RuntimeDir::open(runtime)?;
            let path = runtime.entry(&id);
            let opened = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&path);
            let file = match opened {
                Ok(file) => file,
                // The last mount has just taken the directory with it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(FileError::on("open", path)(error).into()),
            };
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {}
                Err(rustix::io::Errno::WOULDBLOCK) => {
                    // A reader holds the lock for a moment, a daemon for good.
                    if attempt + 1 < TRIES {
                        std::thread::sleep(GLANCE);
                        continue;
                    }
                    return Err(RegistryError::Taken { mountpoint: mountpoint.into() });
                }
                Err(error) => return Err(FileError::on("lock", path)(error.into()).into()),
            }
            if is_at(&file, &path) {
                return Ok(Self { runtime, id, file, helper: None });
            }
        }
        let error = io::Error::other("other processes keep removing it");
        Err(FileError::on("register a mount in", runtime)(error).into())
    }

    /// Goes on with the registration of another process, whose lock the descriptor has.
    pub(crate) fn resume(runtime: &Path, mountpoint: &Path, file: OwnedFd) -> Result<Self, RegistryError> {
        // The name is another one since the place was given up.
        let name = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).ok();
        let id = name.as_deref().and_then(Path::file_stem).and_then(|id| id.to_str()).map(str::to_owned);
        let id = id.unwrap_or_else(|| RuntimeDir::id(mountpoint));
        Ok(Self { runtime: RuntimeDir::open(runtime)?, id, file: file.into(), helper: None })
    }

    /// Returns the descriptor with the lock.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Writes the description of the mount.
    pub fn describe(&mut self, entry: &Entry) -> Result<(), FileError> {
        let path = self.runtime.entry(&self.id);
        let text = serde_json::to_vec(entry).map_err(io::Error::other);
        text.and_then(|text| {
            self.file.rewind()?;
            self.file.set_len(0)?;
            self.file.write_all(&text)
        })
        .map_err(FileError::on("write", path))
    }

    /// Returns the description, if there is one yet.
    pub(crate) fn described(&self) -> Option<Entry> {
        let mut text = vec![0; usize::try_from(ENTRY_MAX).ok()?];
        let len = self.file.read_at(&mut text, 0).ok()?;
        serde_json::from_slice(text.get(..len)?).ok()
    }

    /// Frees the mount point for another mount: the daemon keeps an entry under a name of its own.
    pub(crate) fn depart(&mut self) -> Result<(), FileError> {
        let left = format!("left by process {}", std::process::id());
        let Some(entry) = self.described() else { return Ok(()) };
        let id = RuntimeDir::id(
            &Path::new(&left).join(entry.mountpoint.strip_prefix("/").unwrap_or(&entry.mountpoint)),
        );
        self.describe(&Entry { departed: true, ..entry })?;
        let (runtime, old) = (&self.runtime, &self.id);
        // The entry is the last one: until then its lock keeps other mounts away from the other files.
        for of in [RuntimeDir::socket, RuntimeDir::upgrades, RuntimeDir::log, RuntimeDir::entry] {
            match fs::rename(of(runtime, old), of(runtime, &id)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(FileError::on("rename", of(runtime, old))(error));
                }
                _ => {}
            }
        }
        self.id = id;
        Ok(())
    }

    /// Has the helper remove the runtime directory, which a confined daemon may not.
    pub(crate) fn leave_through(&mut self, helper: Arc<Helper>) {
        self.helper = Some(helper);
    }

    /// Returns the path of the control socket.
    pub fn socket(&self) -> PathBuf {
        self.runtime.socket(&self.id)
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let (runtime, id) = (&self.runtime, &self.id);
        // After a lazy unmount another mount may have taken the place, and a daemon that takes over comes later.
        if !is_at(&self.file, &runtime.entry(id)) {
            return;
        }
        for path in [runtime.socket(id), runtime.upgrades(id), runtime.log(id), runtime.entry(id)] {
            // It may not exist; other errors can't be handled.
            let _ = fs::remove_file(path);
        }
        match &self.helper {
            Some(helper) => helper.leave(),
            None => self.runtime.leave(),
        }
    }
}

/// A mount found in the registry.
#[derive(Debug)]
pub struct Registered {
    /// Description of the mount.
    pub entry: Entry,
    /// Path of the mount's control socket.
    pub socket: PathBuf,
    /// Path of the supervisor's socket.
    pub upgrades: PathBuf,
    /// Path of the daemon's log.
    pub log: PathBuf,
    /// True if the daemon of the mount is alive.
    pub alive: bool,
    file: File,
}

/// Time limit for a process to end after it has unmounted.
const UNLOCKED: Duration = Duration::from_secs(5);
/// Time within which a daemon ends that nothing keeps.
const USUAL: Duration = Duration::from_secs(1);

/// State of the daemon of a mount that was unmounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Departure {
    /// The daemon is gone.
    Gone,
    /// The place is free, but these mount namespaces hold the mount.
    Elsewhere(Vec<Holder>),
    /// The daemon is still there.
    Here,
}

impl Registered {
    /// Waits until the daemon is gone; `false` if it is still there after `patience`.
    pub fn wait_until_gone(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let Ok(pid) = i32::try_from(self.entry.supervisor.unwrap_or(self.entry.pid)) else { return true };
        let Some(pid) = rustix::process::Pid::from_raw(pid) else { return true };
        if !self.locked() {
            return true;
        }
        // The lock is held, so the process id is the daemon's and the descriptor will refer to it.
        let Ok(process) = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()) else {
            return self.wait_for_lock(deadline);
        };
        if !self.locked() {
            return true;
        }
        loop {
            let left = deadline.saturating_duration_since(Instant::now()).min(UNLOCKED);
            let timeout = rustix::event::Timespec::try_from(left).ok();
            let mut wait = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
            match rustix::event::poll(&mut wait, timeout.as_ref()) {
                // A process of which a thread waits for a disk that doesn't answer can't end; but it has let go.
                Ok(0) if !self.locked() => return true,
                Ok(0) if left.is_zero() => return false,
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return true,
                Err(_) => return self.wait_for_lock(deadline),
            }
        }
    }

    fn locked(&self) -> bool {
        !try_lock(&self.file)
    }

    /// Waits by polling the lock, for kernels without process descriptors (before Linux 5.3).
    fn wait_for_lock(&self, deadline: Instant) -> bool {
        while self.locked() {
            if Instant::now() >= deadline {
                return false;
            }
            // There is no waiting for a lock with a deadline.
            std::thread::sleep(Duration::from_millis(5));
        }
        true
    }

    /// Waits until the daemon of a mount that was unmounted is gone, for at most `patience`. One that another mount namespace
    /// keeps gives up its place after a moment.
    pub fn wait_until_free(&self, patience: Duration) -> Departure {
        if self.wait_until_gone(USUAL) {
            return Departure::Gone;
        }
        let others = self.leave_to_others();
        if !others.is_empty() {
            return Departure::Elsewhere(others);
        }
        if self.wait_until_gone(patience) { Departure::Gone } else { Departure::Here }
    }

    /// Has the daemon give up the place of a mount that is gone there, if another mount namespace holds it; returns those
    /// namespaces.
    fn leave_to_others(&self) -> Vec<Holder> {
        let here = mounts::at(&self.entry.mountpoint).ok().flatten();
        if here.is_some_and(|line| line.is_ours()) {
            return Vec::new();
        }
        let holders = Scan::read().holders(&self.entry.held());
        let left = || control::ask(&self.socket, &Request::Leave, UNLOCKED);
        if !holders.is_empty() && matches!(left(), Ok(Response::Done)) { holders } else { Vec::new() }
    }

    /// Removes the files of a killed daemon.
    pub fn forget(&self) {
        if self.alive {
            return;
        }
        let path = self.socket.with_extension("json");
        // A new daemon may have taken the place in the meantime; then it has the lock.
        if try_lock(&self.file) && is_at(&self.file, &path) {
            for path in [&self.socket, &self.upgrades, &self.log, &path] {
                let _ = fs::remove_file(path);
            }
        }
        if let Some(dir) = path.parent() {
            let _ = fs::remove_dir(dir);
        }
    }
}

/// Returns all registered mounts of this user, in the order of their mount points.
pub fn all(runtime: &Path) -> Result<Vec<Registered>, RegistryError> {
    let mut all = read_all(runtime)?;
    all.retain(|one| !one.entry.departed);
    Ok(all)
}

/// Returns the mounts of this user that have given up their place, in the order of these places.
pub fn departed(runtime: &Path) -> Result<Vec<Registered>, RegistryError> {
    let mut all = read_all(runtime)?;
    all.retain(|one| one.entry.departed);
    // Nothing is left to clean up where a killed one was mounted.
    all.iter().for_each(Registered::forget);
    all.retain(|one| one.alive);
    Ok(all)
}

fn read_all(runtime: &Path) -> Result<Vec<Registered>, RegistryError> {
    let Some(runtime) = RuntimeDir::existing(runtime)? else { return Ok(Vec::new()) };
    let read = match fs::read_dir(runtime.path()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        read => read.map_err(FileError::on("read", runtime.path()))?,
    };
    let mut found = Vec::new();
    for file in read {
        let file = file.map_err(FileError::on("read", runtime.path()))?.path();
        let id = file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if file.extension().is_some_and(|extension| extension == "json")
            && let Some(registered) = read_entry(&runtime, id)
        {
            found.push(registered);
        }
    }
    found.sort_by(|a, b| a.entry.mountpoint.cmp(&b.entry.mountpoint));
    Ok(found)
}

/// Returns the registered mount at `mountpoint`.
pub fn find(runtime: &Path, mountpoint: &Path) -> Result<Option<Registered>, RegistryError> {
    let Some(runtime) = RuntimeDir::existing(runtime)? else { return Ok(None) };
    Ok(read_entry(&runtime, &RuntimeDir::id(mountpoint)))
}

/// Returns mounts of Esker that are not registered here: other users', and those of a session whose runtime folder is
/// another one or gone. `lines` were read before `registered`, since a mount in progress is registered first.
pub fn strangers(
    mut lines: Vec<MountLine>,
    runtime: &Path,
    registered: &[Registered],
) -> io::Result<Vec<MountLine>> {
    let is_known = |line: &MountLine| registered.iter().any(|one| one.entry.mountpoint == line.mountpoint);
    // A private mount point is below an overlay.
    lines.retain(|line| line.is_ours() && !line.mountpoint.starts_with(runtime) && !is_known(line));
    if !lines.is_empty() {
        // A mount leaves the kernel's list before the registry.
        let now = mounts::all()?;
        let topmost = |line: &MountLine| now.iter().rfind(|other| other.mountpoint == line.mountpoint);
        lines.retain(|line| topmost(line) == Some(line));
    }
    Ok(lines)
}

/// Returns true for a file that is being written or removed, which is no entry.
fn read_entry(runtime: &RuntimeDir, id: &str) -> Option<Registered> {
    let path = runtime.entry(id);
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NOFOLLOW).open(&path).ok()?;
    let mut text = Vec::new();
    (&file).take(ENTRY_MAX).read_to_end(&mut text).ok()?;
    let entry = serde_json::from_slice(&text).ok()?;
    let alive = !try_lock(&file);
    let (socket, upgrades, log) = (runtime.socket(id), runtime.upgrades(id), runtime.log(id));
    Some(Registered { entry, socket, upgrades, log, alive, file })
}

/// Returns true if no other process has the lock.
fn try_lock(file: &File) -> bool {
    let free = flock(file, FlockOperation::NonBlockingLockShared).is_ok();
    if free {
        // Unlocking a lock of our own can't fail.
        let _ = flock(file, FlockOperation::Unlock);
    }
    free
}

fn is_at(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(open), Ok(named)) => (open.dev(), open.ino()) == (named.dev(), named.ino()),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(mountpoint: &Path) -> Entry {
        Entry {
            mountpoint: mountpoint.into(),
            command: None,
            repository: "a.test".into(),
            url: "file:///a.test".into(),
            cache: "/cache".into(),
            pid: std::process::id(),
            started: 1,
            supervisor: None,
            device: None,
            departed: false,
        }
    }

    #[test]
    fn a_mount_point_is_registered_once_and_leaves_nothing() {
        let base = tempfile::tempdir().expect("a directory");
        let runtime = base.path().join("run");
        let point = Path::new("/somewhere");
        let mut first = Registration::take(&runtime, point).expect("free");
        assert!(all(&runtime).expect("list").is_empty(), "an entry without content counts as a mount");
        first.describe(&entry(point)).expect("write");
        let error = Registration::take(&runtime, point).expect_err("taken");
        assert!(matches!(error, RegistryError::Taken { .. }), "{error}");
        let found = find(&runtime, point).expect("read").expect("there");
        assert!(found.alive);
        assert_eq!(found.entry, entry(point));
        drop(first);
        assert!(!runtime.exists());
        assert!(find(&runtime, point).expect("read").is_none());
    }

    #[test]
    fn a_mount_that_gives_up_its_place_keeps_an_entry() {
        let base = tempfile::tempdir().expect("a directory");
        let runtime = base.path().join("run");
        let point = Path::new("/somewhere");
        let mut first = Registration::take(&runtime, point).expect("free");
        let device = Some(Device { major: 0, minor: 7 });
        first.describe(&Entry { device, ..entry(point) }).expect("write");
        let socket = first.socket();
        fs::write(&socket, "").expect("a file");
        first.depart().expect("renamed");
        let second = Registration::take(&runtime, point).expect("the place is free");
        assert!(!second.socket().exists() && first.socket().exists());
        let left = departed(&runtime).expect("list");
        assert_eq!(left.len(), 1);
        assert_eq!(left[0].entry, Entry { device, departed: true, ..entry(point) });
        assert!(all(&runtime).expect("list").is_empty());
        // A daemon that takes over finds its name.
        let descriptor = first.descriptor().try_clone_to_owned().expect("a descriptor");
        let resumed = Registration::resume(&runtime, point, descriptor).expect("resumed");
        assert_eq!((&resumed.id, resumed.described()), (&first.id, first.described()));
        drop((second, resumed));
        assert!(!runtime.exists(), "all files of both are gone");
    }

    #[test]
    fn the_entry_of_a_killed_daemon_is_replaced() {
        let base = tempfile::tempdir().expect("a directory");
        let runtime = base.path().join("run");
        let point = Path::new("/somewhere");
        let dir = RuntimeDir::open(&runtime).expect("created");
        let text = serde_json::to_vec(&entry(point)).expect("JSON");
        fs::write(dir.entry(&RuntimeDir::id(point)), text).expect("write");
        let found = find(&runtime, point).expect("read").expect("there");
        assert!(!found.alive);
        assert!(found.wait_until_gone(Duration::ZERO));
        let again = Registration::take(&runtime, point).expect("free");
        found.forget();
        assert!(again.runtime.entry(&again.id).exists(), "forgetting removed the successor's entry");
        drop(again);
        assert!(!runtime.exists());
    }
}
