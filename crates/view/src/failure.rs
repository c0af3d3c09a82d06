//! What errors of the layers below mean in a tree.

use esker_format::catalog::CatalogError;
use esker_store::{Blame, Cause, StoreError};
use esker_vfs::{ErrorKind, TreeError};

use crate::catalogs::WantedCatalog;

/// Why a call can't be answered at once.
#[derive(Debug)]
pub(crate) enum Blocked {
    /// A catalog must be attached first.
    On(WantedCatalog),
    /// It has failed.
    Failed(TreeError),
}

impl<E: Into<TreeError>> From<E> for Blocked {
    fn from(error: E) -> Self {
        Blocked::Failed(error.into())
    }
}

/// A failure of the store while getting `object`.
pub(crate) fn of_store(error: StoreError, object: impl Into<String>) -> TreeError {
    let kind = match error.cause() {
        Cause::Full { .. } | Cause::LargerThanCache { .. } => ErrorKind::Full,
        Cause::TimedOut { .. } => ErrorKind::TimedOut,
        // Waiting doesn't bring it back: the repository, or this copy of it, has a hole.
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

/// A verified catalog that makes no sense: the publisher wrote it so.
pub(crate) fn of_catalog(error: CatalogError, catalog: impl Into<String>) -> TreeError {
    TreeError::on(ErrorKind::Damaged, catalog).because(error)
}
