//! Spool folder of CernVM-FS, if it publishes to the same repository: respects its locks, and updates its reflog
//! checksum.
//!
//! During a publish, CernVM-FS sees an open transaction, which excludes its own transactions and garbage collection.
//! After a crash, a marker of Esker without a held lock is stale, and the next publish takes it over.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::hash::ContentHash;
use esker_store::{Disk, FileLock, RealDisk, persist, read_file};

use crate::error::RepositoryError;

/// The spool folder of one repository, `/var/spool/cvmfs/NAME`.
pub struct Spool {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    _publishing: FileLock,
}

/// Name of the marker file of an open transaction.
const TRANSACTION: &str = "in_transaction.lock";
/// Content of a marker that Esker wrote; complete from the moment that the marker exists.
const OURS: &[u8] = b"esker is publishing\n";
/// Prefix of a marker file that is not linked to its name yet.
const UNNAMED: &str = "esker.in_transaction";
/// Name of the file that every publisher locks.
const PUBLISHING: &str = "is_publishing.lock";
/// File with the checksum of the reflog.
pub const REFLOG_CHECKSUM: &str = "reflog.chksum";
/// Longest such file, in bytes.
const CHECKSUM_MAX: u64 = 1 << 10;

impl Spool {
    /// Claims a spool folder; none if there is none.
    pub(crate) fn claim(disk: Arc<dyn Disk>, folder: &Path) -> Result<Option<Self>, RepositoryError> {
        if !folder.is_dir() {
            return Ok(None);
        }
        let transaction = folder.join(TRANSACTION);
        if transaction.exists() && !is_ours(&transaction) {
            return Err(RepositoryError::Transaction(transaction));
        }
        let path = folder.join(PUBLISHING);
        let asked = FileLock::try_take(&path).map_err(RepositoryError::file("locking", &path))?;
        let publishing = asked.or_held(RepositoryError::locked(path.display().to_string()))?;
        let spool = Self { disk, folder: folder.to_owned(), _publishing: publishing };
        match spool.open_transaction(&transaction) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                Err(RepositoryError::Transaction(transaction))
            }
            other => other.map(|()| Some(spool)).map_err(RepositoryError::file("making", &transaction)),
        }
    }

    /// Creates the transaction marker, unless CernVM-FS has one.
    ///
    /// The complete file is linked to its name, so that a killed publisher leaves no marker without content.
    fn open_transaction(&self, marker: &Path) -> io::Result<()> {
        if is_ours(marker) {
            return Ok(());
        }
        let unnamed = self.folder.join(UNNAMED);
        // What another user put there isn't followed.
        match fs::remove_file(&unnamed) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::create_new(&unnamed)?;
        file.write_all(OURS)?;
        file.sync_all()?;
        let linked = fs::hard_link(&unnamed, marker);
        fs::remove_file(&unnamed)?;
        linked
    }

    /// Returns true if the hash of a reflog is recorded.
    pub(crate) fn knows_reflog(&self) -> bool {
        self.folder.join(REFLOG_CHECKSUM).exists()
    }

    /// Records the hash of the new reflog where the reference implementation looks for it.
    pub fn remember_reflog(&self, hash: &ContentHash) -> Result<(), RepositoryError> {
        remember_reflog(&*self.disk, &self.folder, hash)
    }
}

/// Records the hash of a reflog in a spool folder, unless it is recorded already or there is no such folder.
pub fn remember_reflog(disk: &dyn Disk, folder: &Path, hash: &ContentHash) -> Result<(), RepositoryError> {
    let (path, text) = (folder.join(REFLOG_CHECKSUM), hash.to_string());
    if !folder.is_dir() || recorded(&path).is_some_and(|known| known == text) {
        return Ok(());
    }
    persist(disk, &path, text.as_bytes()).map_err(RepositoryError::file("writing", &path))
}

impl Drop for Spool {
    fn drop(&mut self) {
        // Another publisher may have aborted this transaction and opened its own meanwhile.
        let marker = self.folder.join(TRANSACTION);
        if is_ours(&marker) {
            let _ = fs::remove_file(marker);
        }
        // The reference removes the file before it gives up the lock. If we can't, the lock is free all the same.
        let _ = self.disk.remove(&self.folder.join(PUBLISHING));
    }
}

/// Returns the text of a recorded checksum; none if there is none, or something else in its place.
pub fn recorded(path: &Path) -> Option<String> {
    String::from_utf8(read_file(&RealDisk::PRIVATE, path, CHECKSUM_MAX).ok()??).ok()
}

/// Returns true if Esker wrote a transaction marker.
fn is_ours(marker: &Path) -> bool {
    // Neither a pipe nor a link of another user is waited for or followed.
    read_file(&RealDisk::PRIVATE, marker, OURS.len() as u64)
        .is_ok_and(|text| text.is_some_and(|text| text == OURS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_format::hash::HashAlgorithm;

    #[test]
    fn a_spool_has_the_locks_and_checksums_of_the_reference() {
        let folder = tempfile::tempdir().unwrap();
        let claim = |folder: &Path| Spool::claim(Arc::new(esker_store::RealDisk::SERVED), folder);
        assert!(claim(&folder.path().join("none")).unwrap().is_none());
        let spool = claim(folder.path()).unwrap().unwrap();
        assert!(
            matches!(claim(folder.path()), Err(RepositoryError::Locked { holder, .. }) if holder.pid.is_some())
        );
        let hash = ContentHash::of(HashAlgorithm::Rmd160, b"reflog");
        spool.remember_reflog(&hash).unwrap();
        assert_eq!(std::fs::read_to_string(folder.path().join(REFLOG_CHECKSUM)).unwrap(), hash.to_string());
        drop(spool);
        std::fs::write(folder.path().join(TRANSACTION), b"").unwrap();
        assert!(matches!(claim(folder.path()), Err(RepositoryError::Transaction(_))));
        assert!(!folder.path().join(PUBLISHING).exists());
    }

    #[test]
    fn pipes_and_links_in_a_spool_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let pipe = |name: &str| {
            let kind = rustix::fs::FileType::Fifo;
            rustix::fs::mknodat(rustix::fs::CWD, at(name), kind, 0o600.into(), 0).unwrap();
        };
        pipe(TRANSACTION);
        let claimed = Spool::claim(Arc::new(RealDisk::SERVED), folder.path());
        assert!(matches!(claimed, Err(RepositoryError::Transaction(_))));
        pipe(REFLOG_CHECKSUM);
        assert_eq!(recorded(&at(REFLOG_CHECKSUM)), None);
        std::fs::write(at("elsewhere"), "text").unwrap();
        std::os::unix::fs::symlink("elsewhere", at("link")).unwrap();
        assert_eq!((recorded(&at("link")), recorded(&at("elsewhere"))), (None, Some("text".to_owned())));
    }

    #[test]
    fn the_reference_sees_a_transaction() {
        let folder = tempfile::tempdir().unwrap();
        let claim = || Spool::claim(Arc::new(esker_store::RealDisk::SERVED), folder.path());
        let marker = folder.path().join(TRANSACTION);
        let spool = claim().unwrap().unwrap();
        let left = fs::read(&marker).unwrap();
        let opened = File::create_new(&marker);
        assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::AlreadyExists, "as the reference finds out");
        assert!(matches!(claim(), Err(RepositoryError::Locked { .. })));
        drop(spool);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);

        // One that was killed leaves it, and the next one takes it over.
        fs::write(&marker, left).unwrap();
        drop(claim().unwrap().unwrap());
        assert!(!marker.exists());

        // CernVM-FS aborts the transaction and opens another one.
        let spool = claim().unwrap().unwrap();
        fs::remove_file(&marker).unwrap();
        File::create_new(&marker).unwrap();
        drop(spool);
        assert!(marker.exists());
        assert!(matches!(claim(), Err(RepositoryError::Transaction(_))));
    }
}
