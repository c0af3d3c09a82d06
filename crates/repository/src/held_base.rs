//! Keeps the base of a publisher from collects while it works.

use esker_store::FileLock;

use crate::error::RepositoryError;
use crate::open_work::{LOCK, OpenWork, OpenWorks, PUBLISHER};
use crate::random;
use crate::repository::{Base, Repository};

/// Keeps the base of a publisher while this exists.
pub struct HeldBase {
    works: OpenWorks,
    id: String,
    lock: Option<FileLock>,
}

impl Repository {
    /// Returns the open works of the repository.
    pub fn open_works(&self) -> OpenWorks {
        OpenWorks::of(&self.storage)
    }

    /// Keeps the base of a change from collects; in object storage from those that have the same state folder. A base that a
    /// collect is about to take all the same is noticed by the commit, which begins again.
    pub fn hold(&self, base: &Base) -> Result<HeldBase, RepositoryError> {
        self.hold_all([base])
    }

    /// Keeps the bases of several changes from collects, as `hold` does.
    pub fn hold_all<'b>(
        &self,
        bases: impl IntoIterator<Item = &'b Base>,
    ) -> Result<HeldBase, RepositoryError> {
        let works = self.open_works();
        works.make_folder()?;
        let id = format!("{PUBLISHER}{:016x}", random::number());
        let path = works.path(&id, LOCK);
        let locking = FileLock::try_take(&path).map_err(RepositoryError::file("locking", &path))?;
        let lock = locking.or_held(RepositoryError::locked(path.display().to_string()))?;
        let work = OpenWork {
            id: id.clone(),
            what: format!("a publisher, process {}", std::process::id()),
            roots: bases.into_iter().map(|base| base.root.to_string()).collect(),
            started: self.opened().0,
            transaction: None,
        };
        let held = HeldBase { works, id, lock: Some(lock) };
        held.works.write(&work, false)?;
        Ok(held)
    }
}

impl Drop for HeldBase {
    fn drop(&mut self) {
        // A record that stays has a lock that is free.
        let _ = self.works.remove(&self.id);
        drop(self.lock.take());
    }
}
