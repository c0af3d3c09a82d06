//! Translates errors of the store and of catalogs into errors of a tree.

use esker_format::catalog::CatalogError;
use esker_store::{Blame, Cause, StoreError};
use esker_vfs::{ErrorKind, TreeError};

use crate::catalogs::WantedCatalog;

/// Reason why a call can't be answered at once.
#[derive(Debug)]
pub(crate) enum Blocked {
    /// A catalog must be attached first.
    On(WantedCatalog),
    /// The call has failed.
    Failed(TreeError),
}

impl<E: Into<TreeError>> From<E> for Blocked {
    fn from(error: E) -> Self {
        Blocked::Failed(error.into())
    }
}

/// Returns the error for a failure of the store while fetching `object`.
pub(crate) fn of_store(error: StoreError, object: impl Into<String>) -> TreeError {
    let kind = match error.cause() {
        Cause::Full { .. } | Cause::LargerThanCache { .. } => ErrorKind::Full,
        Cause::TimedOut { .. } => ErrorKind::TimedOut,
        // Retrying does not help: the repository, or this copy of it, is incomplete.
        Cause::Missing { .. } => ErrorKind::Damaged,
        _ => match error.blame() {
            Blame::Object => ErrorKind::Damaged,
            Blame::Host | Blame::Proxy => ErrorKind::Unavailable,
            Blame::Disk => ErrorKind::Local,
            Blame::Caller if error.may_pass() => ErrorKind::Unavailable,
            Blame::Caller => ErrorKind::Internal,
        },
    };
    TreeError::on(kind, object).because(error)
}

/// Returns the error for a catalog that is verified, and was published with invalid content.
pub(crate) fn of_catalog(error: CatalogError, catalog: impl Into<String>) -> TreeError {
    TreeError::on(ErrorKind::Damaged, catalog).because(error)
}
