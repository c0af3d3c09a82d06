//! The servers that a repository is copied from.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use esker_format::object::ObjectName;
use esker_repository::{DATABASE_MAX, RepositoryError};
use esker_store::{
    Callback, Cause, Check, Expected, Fetch, FolderSpool, LargeBytes, Priority, Source, StoreError, Urgency,
};

/// The servers of one repository.
#[derive(Clone)]
pub(super) struct Origin {
    pub(super) source: Arc<dyn Source>,
    /// Source for objects, which retries failed requests.
    pub(super) objects: Arc<dyn Source>,
    pub(super) stop: Arc<AtomicBool>,
    /// Folder for bodies that are too large for memory.
    pub(super) spool: PathBuf,
}

impl Origin {
    /// Reads a file in the root of the repository, past caches; none if there is none. A response that fails the check
    /// counts as damage, so that the next server is tried.
    pub(super) fn root_file(
        &self,
        path: &str,
        limit: u64,
        check: Option<Check>,
    ) -> Result<Option<Vec<u8>>, RepositoryError> {
        let mut fetch = Fetch { expected: check.into(), ..Fetch::new(path, path, limit) };
        fetch.http.fresh = true;
        Ok(self.read(&*self.source, fetch)?.map(LargeBytes::into_vec))
    }

    /// Reads the stored bytes of an object at a path, verified by its name; none if no server has it.
    pub(super) fn object(
        &self,
        name: &ObjectName,
        path: String,
        limit: u64,
    ) -> Result<Option<LargeBytes>, RepositoryError> {
        self.read(&*self.objects, Fetch { path, limit, ..self.fetch(name, None, Urgency::Demand) })
    }

    fn read(&self, source: &dyn Source, fetch: Fetch) -> Result<Option<LargeBytes>, RepositoryError> {
        let path = fetch.path.clone();
        // A server may never answer.
        let is_stopped = || self.stop.load(Ordering::Relaxed);
        match Callback::wait_unless(|answered| source.fetch(fetch, answered), is_stopped) {
            Ok(stored) => {
                let unread = RepositoryError::file("fetching", path.as_ref());
                LargeBytes::of_stored(stored, &self.spool).map(Some).map_err(unread)
            }
            Err(error) if is_missing(&error) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the request for an object.
    pub(super) fn fetch(&self, name: &ObjectName, plain_size: Option<u64>, urgency: Urgency) -> Fetch {
        Fetch {
            object: Some(*name),
            expected: Expected::Hash(name.hash),
            plain_size,
            priority: Priority::new(urgency),
            spool: Some(Arc::new(FolderSpool(self.spool.clone()))),
            ..Fetch::new(name.path(), name.to_string(), DATABASE_MAX)
        }
    }
}

/// Returns true if all servers say that a file does not exist.
pub(super) fn is_missing(error: &StoreError) -> bool {
    matches!(error.cause(), Cause::Missing { .. })
}
