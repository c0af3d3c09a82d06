//! Locks a file for one process, whose id it contains.
//!
//! The lock is released by unlocking, not by closing the file: it belongs to the open file description, and a child
//! that another thread has just forked holds a copy of each descriptor until it executes its program. A lock released
//! by closing would outlast its owner by that moment.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::SystemTime;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::own_file::{has_other_names, open_to_lock};

/// Maximum number of retries after the file was removed meanwhile. More happen only on file systems without
/// stable inode numbers.
const RETRIES_MAX: u32 = 100;

/// A lock on a file, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct FileLock {
    file: File,
}

/// Process that holds a lock, by the content of the lock file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockHolder {
    /// The process id.
    pub pid: Option<u32>,
    /// The host that the process runs on.
    pub host: Option<String>,
    /// The time at which the process took the lock.
    pub since: Option<SystemTime>,
}

impl LockHolder {
    /// Maximum length of the line that names the holder.
    const LEN_MAX: u64 = 320;

    /// Parses `PID` or `PID HOST` from a lock file.
    fn read(file: &File) -> Self {
        let mut text = String::new();
        let is_read = file.take(Self::LEN_MAX).read_to_string(&mut text).is_ok();
        let mut words = text.split_whitespace();
        let pid: Option<u32> = words.next().and_then(|word| word.parse().ok());
        let is_name = |word: &&str| !word.contains(char::is_control);
        let host = words.next().filter(is_name).map(str::to_owned);
        let since = file.metadata().and_then(|facts| facts.modified()).ok();
        Self { host: host.filter(|_| pid.is_some()), since: since.filter(|_| is_read), pid }
    }
}

/// Result of trying to take a lock.
#[derive(Debug)]
pub enum Locking {
    /// This process holds the lock.
    Taken(FileLock),
    /// Another process holds the lock.
    Held(LockHolder),
}

impl Locking {
    /// Returns the lock, or the error made from its holder.
    pub fn or_held<E>(self, error: impl FnOnce(LockHolder) -> E) -> Result<FileLock, E> {
        match self {
            Locking::Taken(lock) => Ok(lock),
            Locking::Held(holder) => Err(error(holder)),
        }
    }
}

impl FileLock {
    /// Takes the lock if it is free, and writes the holder to the file, which is created if missing.
    pub fn try_take(path: &Path) -> io::Result<Locking> {
        let mut again = RETRIES_MAX;
        loop {
            let file = open(path)?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let lock = Self { file };
                    // Nothing is written to a file that is elsewhere, too: a planted one, or the lock of a copy made of hard
                    // links. The name gets a file of its own.
                    if has_other_names(&lock.file)? {
                        if again == 0 {
                            return Err(io::Error::other("it has another name again and again"));
                        }
                        std::fs::remove_file(path)?;
                        again -= 1;
                        continue;
                    }
                    // Some programs remove the file before they unlock: a lock on a removed file excludes no other
                    // process.
                    if again > 0 && lock.is_lost_at(path) {
                        again -= 1;
                        continue;
                    }
                    lock.sign();
                    return Ok(Locking::Taken(lock));
                }
                Err(Errno::WOULDBLOCK) => return Ok(Locking::Held(LockHolder::read(&file))),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits until the lock is free and takes it. For locks that are never held long, and whose file stays.
    pub fn wait(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self { file })
    }

    /// Returns true if the file was removed from `path` or replaced. A file that is out of reach, because its
    /// file system is not mounted or hangs, is not lost.
    pub(crate) fn is_lost_at(&self, path: &Path) -> bool {
        let Ok(ours) = self.file.metadata() else { return false };
        let missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        // The file, or the nearest existing folder above it.
        for place in path.ancestors() {
            match std::fs::symlink_metadata(place) {
                Ok(facts) if place == path && facts.ino() == ours.ino() => return false,
                Ok(facts) => return facts.dev() == ours.dev(),
                Err(error) if missing(&error) => {}
                Err(_) => return false,
            }
        }
        false
    }

    /// Writes the holder to the file. The lock counts without it, so a full disk is no failure.
    fn sign(&self) {
        let mut file = &self.file;
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let line = format!("{} {host}", std::process::id());
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| file.write_all(line.as_bytes()));
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // If that fails, closing does it.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

fn open(path: &Path) -> io::Result<File> {
    open_to_lock(path, File::options().read(true).write(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_in_a_forked_child_does_not_keep_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let Locking::Taken(first) = FileLock::try_take(&path).unwrap() else {
            panic!("no other process has it")
        };
        // A fork leaves a second descriptor of the same open file to the child.
        let copy = first.file.try_clone().unwrap();
        let me = std::process::id();
        let Locking::Held(holder) = FileLock::try_take(&path).unwrap() else { panic!("it is taken") };
        assert_eq!(holder.pid, Some(me));
        drop(first);
        assert!(matches!(FileLock::try_take(&path).unwrap(), Locking::Taken(_)));
        let waited = FileLock::wait(&path).unwrap();
        assert!(matches!(FileLock::try_take(&path).unwrap(), Locking::Held(_)));
        drop((waited, copy));
    }

    #[test]
    fn a_lock_names_its_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let before = SystemTime::now() - std::time::Duration::from_secs(2);
        let holder = || match FileLock::try_take(&path).unwrap() {
            Locking::Held(holder) => holder,
            Locking::Taken(_) => panic!("the lock is free"),
        };
        let Locking::Taken(lock) = FileLock::try_take(&path).unwrap() else { panic!("the lock is held") };
        let named = holder();
        assert_eq!(named.pid, Some(std::process::id()));
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        assert_eq!(named.host, Some(host));
        assert!(named.since.is_some_and(|since| since > before), "{named:?}");
        // Earlier versions write the process id alone, and other programs write nothing or something else.
        for (text, pid, host) in
            [("77", Some(77), None), ("", None, None), ("x y", None, None), ("8 \x07", Some(8), None)]
        {
            std::fs::write(&path, text).unwrap();
            let LockHolder { pid: read, host: named, .. } = holder();
            assert_eq!((read, named.as_deref()), (pid, host), "{text:?}");
        }
        drop(lock);
    }

    #[test]
    fn removing_the_file_before_unlocking_admits_one_holder() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let taken = std::sync::atomic::AtomicU64::new(0);
        let order = std::sync::atomic::Ordering::SeqCst;
        let work = || {
            for _ in 0..1000 {
                if let Locking::Taken(lock) = FileLock::try_take(&path).unwrap() {
                    assert_eq!(taken.fetch_add(1, order), 0, "another one has it, too");
                    taken.fetch_sub(1, order);
                    std::fs::remove_file(&path).unwrap();
                    drop(lock);
                }
            }
        };
        std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(work))));
    }

    #[test]
    fn a_lock_with_another_name_gets_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let (path, other) = (folder.path().join("lock"), folder.path().join("other"));
        std::fs::write(&other, "text of another file").unwrap();
        std::fs::hard_link(&other, &path).unwrap();
        let Locking::Taken(held) = FileLock::try_take(&path).unwrap() else { panic!("the lock is free") };
        assert_eq!(std::fs::read_to_string(&other).unwrap(), "text of another file");
        assert!(!held.is_lost_at(&path));
        // A copy that is made meanwhile doesn't free the lock.
        std::fs::remove_file(&other).unwrap();
        std::fs::hard_link(&path, &other).unwrap();
        assert!(matches!(FileLock::try_take(&path).unwrap(), Locking::Held(_)));
        drop(held);
    }

    #[test]
    fn a_lock_detects_the_removal_of_its_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cache/lock");
        std::fs::create_dir(folder.path().join("cache")).unwrap();
        let Locking::Taken(lock) = FileLock::try_take(&path).unwrap() else {
            panic!("no other process has it")
        };
        assert!(!lock.is_lost_at(&path));
        assert!(!lock.is_lost_at(Path::new("/proc/no-such-file")), "another file system");
        std::fs::remove_dir_all(folder.path().join("cache")).unwrap();
        assert!(lock.is_lost_at(&path), "the folder is gone");
        std::fs::create_dir(folder.path().join("cache")).unwrap();
        assert!(lock.is_lost_at(&path), "an empty one is in its place");
        let Locking::Taken(next) = FileLock::try_take(&path).unwrap() else { panic!("it is another file") };
        assert!(lock.is_lost_at(&path) && !next.is_lost_at(&path));
    }
}
