//! The spool folder of the reference implementation, if it publishes to the same repository: its locks are
//! respected, and what it remembers of the reflog is kept up to date.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::hash::ContentHash;
use esker_store::{Disk, FileLock, persist};

use crate::error::AdminError;

/// The spool folder of one repository, `/var/spool/cvmfs/NAME`.
pub(crate) struct Spool {
    disk: Arc<dyn Disk>,
    folder: PathBuf,
    _publishing: FileLock,
}

/// Its existence says that a transaction is open.
const TRANSACTION: &str = "in_transaction.lock";
/// Whoever publishes has a lock on it.
const PUBLISHING: &str = "is_publishing.lock";
const REFLOG_CHECKSUM: &str = "reflog.chksum";

impl Spool {
    /// Claims a spool folder; none if there is none.
    pub(crate) fn claim(disk: Arc<dyn Disk>, folder: &Path) -> Result<Option<Self>, AdminError> {
        if !folder.is_dir() {
            return Ok(None);
        }
        let transaction = folder.join(TRANSACTION);
        if transaction.exists() {
            return Err(AdminError::Transaction(transaction));
        }
        let path = folder.join(PUBLISHING);
        let asked = FileLock::try_take(&path).map_err(AdminError::file("locking", &path))?;
        let publishing = asked.or_held(AdminError::locked(path.display().to_string()))?;
        Ok(Some(Self { disk, folder: folder.to_owned(), _publishing: publishing }))
    }

    /// Tells the reference about the reflog that was just put.
    pub(crate) fn remember_reflog(&self, hash: &ContentHash) -> Result<(), AdminError> {
        let path = self.folder.join(REFLOG_CHECKSUM);
        persist(&*self.disk, &path, hash.to_string().as_bytes()).map_err(AdminError::file("writing", &path))
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        // The reference removes the file before it gives up the lock. If we can't, the lock is free all the same.
        let _ = self.disk.remove(&self.folder.join(PUBLISHING));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use esker_format::hash::HashAlgorithm;

    #[test]
    fn locks_and_checksums() {
        let folder = tempfile::tempdir().unwrap();
        let claim = |folder: &Path| Spool::claim(Arc::new(esker_store::RealDisk::SERVED), folder);
        assert!(claim(&folder.path().join("none")).unwrap().is_none());
        let spool = claim(folder.path()).unwrap().unwrap();
        assert!(matches!(claim(folder.path()), Err(AdminError::Locked { pid: Some(_), .. })));
        let hash = ContentHash::of(HashAlgorithm::Rmd160, b"reflog");
        spool.remember_reflog(&hash).unwrap();
        assert_eq!(std::fs::read_to_string(folder.path().join(REFLOG_CHECKSUM)).unwrap(), hash.to_string());
        drop(spool);
        std::fs::write(folder.path().join(TRANSACTION), b"").unwrap();
        assert!(matches!(claim(folder.path()), Err(AdminError::Transaction(_))));
    }
}
