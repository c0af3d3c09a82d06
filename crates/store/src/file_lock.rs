//! A file that one process at a time has locked, and that says which one.
//!
//! The lock is given up by unlocking, not by closing the file: it belongs to what all copies of a descriptor
//! share, and a child that another thread has just forked holds a copy of each until it executes its program.
//! A lock that was only closed would outlast its owner by that moment, and be found taken by nobody.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// A lock on a file, held until it is dropped or the process ends.
#[derive(Debug)]
pub struct FileLock {
    file: File,
}

/// What came of asking for a lock.
#[derive(Debug)]
pub enum Locking {
    /// It is ours.
    Taken(FileLock),
    /// Somebody else has it: this process, if it wrote down its number.
    Held(Option<u32>),
}

impl Locking {
    /// The lock, or the error made from who has it.
    pub fn or_held<E>(self, error: impl FnOnce(Option<u32>) -> E) -> Result<FileLock, E> {
        match self {
            Locking::Taken(lock) => Ok(lock),
            Locking::Held(pid) => Err(error(pid)),
        }
    }
}

impl FileLock {
    /// Takes the lock if it is free, and writes down who has it. The file is made if need be.
    pub fn try_take(path: &Path) -> io::Result<Locking> {
        let file = open(path)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let lock = Self { file };
                lock.sign();
                Ok(Locking::Taken(lock))
            }
            Err(Errno::WOULDBLOCK) => {
                let mut text = String::new();
                // The number is a courtesy for the message.
                let _ = file.take(32).read_to_string(&mut text);
                Ok(Locking::Held(text.trim().parse().ok()))
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Waits until the lock is free and takes it.
    pub(crate) fn wait(path: &Path) -> io::Result<Self> {
        let file = open(path)?;
        flock(&file, FlockOperation::LockExclusive)?;
        Ok(Self { file })
    }

    /// The lock counts without it, so a full disk is no reason to fail.
    fn sign(&self) {
        let mut file = &self.file;
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| file.write_all(std::process::id().to_string().as_bytes()));
    }
}

impl Drop for FileLock {
    fn drop(&mut self) {
        // If that fails, closing does it.
        let _ = flock(&self.file, FlockOperation::Unlock);
    }
}

fn open(path: &Path) -> io::Result<File> {
    File::options().read(true).write(true).create(true).truncate(false).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_in_a_forked_child_does_not_keep_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        let Locking::Taken(first) = FileLock::try_take(&path).unwrap() else {
            panic!("nobody else is there")
        };
        // A second descriptor of the same open file is what a fork leaves to the child.
        let copy = first.file.try_clone().unwrap();
        let me = std::process::id();
        assert!(matches!(FileLock::try_take(&path).unwrap(), Locking::Held(Some(pid)) if pid == me));
        drop(first);
        assert!(matches!(FileLock::try_take(&path).unwrap(), Locking::Taken(_)));
        let waited = FileLock::wait(&path).unwrap();
        assert!(matches!(FileLock::try_take(&path).unwrap(), Locking::Held(_)));
        drop((waited, copy));
    }
}
