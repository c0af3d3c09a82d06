//! Refusals of a gateway. Their texts are the reasons that publishers get.

use crate::database::DatabaseError;
use crate::intake::IntakeError;
use crate::keys::AccessError;
use crate::lease::Refused;
use crate::lease_path::LeasePathError;
use crate::target::PublishFailure;
use crate::wire::VERSION_MIN;

/// A request is refused, or failed.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The key may not do this.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The key has sent too many requests in this second.
    #[error("the key has sent too many requests in a second")]
    TooManyRequests,
    /// The key has as many leases as it may have.
    #[error("the key has {0} leases, and may have no more")]
    TooManyLeases(u32),
    /// A question has too many names.
    #[error("at most {0} objects can be asked for at once")]
    TooManyNames(usize),
    /// The publisher speaks an old protocol.
    #[error("incompatible request version: {0}, min version: {VERSION_MIN}")]
    Version(u64),
    /// The text names no directory of a repository.
    #[error(transparent)]
    Path(#[from] LeasePathError),
    /// An operator disabled the repository.
    #[error("repo_disabled")]
    Disabled,
    /// A thread of the gateway panicked.
    #[error("the gateway failed; its log says why")]
    Failed,
    /// Other publishers came before.
    #[error("other publishers wait for the directory")]
    Queued,
    /// The lease refuses the operation.
    #[error(transparent)]
    Lease(#[from] Refused),
    /// The hash of the new root catalog can't be read.
    #[error("miscellaneous: new_root_hash is no hash of a catalog")]
    Root,
    /// Another request of the same lease is carried out.
    #[error("a commit of this lease is under way")]
    UnderWay,
    /// A payload can't be stored.
    #[error(transparent)]
    Intake(#[from] IntakeError),
    /// The changes can't be published.
    #[error(transparent)]
    Publish(#[from] PublishFailure),
    /// The database can't be used.
    #[error(transparent)]
    Database(#[from] DatabaseError),
}
