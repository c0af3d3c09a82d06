//! Failures of a publisher's commands: the kind, the cause, and the next step.

mod maintain;
mod publish;

use esker_format::trust::TrustError;
use esker_format::write::history::TagError;
use esker_repository::{GatewayFailure, RepositoryError, SettingsError};

use crate::error::{Failure, Kind, chain_after, of_store};

/// An error of an operation on a repository.
pub(crate) trait OperationError: std::error::Error + Sized {
    /// Returns the error of reading the repository or of replacing its head, if it is one.
    fn repository(&self) -> Option<&RepositoryError>;

    /// Returns the kind of failure, and the next step.
    fn explain(&self) -> (Kind, Option<String>) {
        (Kind::Usage, None)
    }
}

/// Converts the error of an operation on a repository; `what` says what was not done.
pub(crate) fn of_operation(what: &str, error: &impl OperationError) -> Failure {
    if let Some(of_storage @ RepositoryError::Storage(error)) = error.repository() {
        let failure = of_store(what, error);
        return match hint(of_storage) {
            Some(hint) => failure.hint(hint),
            None => failure,
        };
    }
    let (kind, hint) = error.repository().map_or_else(|| error.explain(), OperationError::explain);
    let failure = Failure::new(kind, format!("{what}: {}", chain_after(what, error)));
    match hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}

impl OperationError for SettingsError {
    fn repository(&self) -> Option<&RepositoryError> {
        if let Self::Repository(error) = self { Some(error) } else { None }
    }

    fn explain(&self) -> (Kind, Option<String>) {
        let is_unknown = matches!(self, Self::UnknownSetting { .. });
        (Kind::Usage, is_unknown.then(|| "`esker repo set NAME --list` lists the settings".to_owned()))
    }
}

impl OperationError for RepositoryError {
    fn repository(&self) -> Option<&RepositoryError> {
        Some(self)
    }

    fn explain(&self) -> (Kind, Option<String>) {
        (kind(self), hint(self).map(str::to_owned))
    }
}

fn kind(error: &RepositoryError) -> Kind {
    use RepositoryError as E;
    match error {
        E::Interrupted => Kind::Interrupted,
        E::Gateway { failure: GatewayFailure::Denied(_), .. } => Kind::Usage,
        E::Gateway { failure: GatewayFailure::Unavailable(_), .. } => Kind::Network,
        E::Gateway { .. } => Kind::Failed,
        E::Storage(_)
        | E::Locked { .. }
        | E::Moving
        | E::Collected { .. }
        | E::BeingDeleted { .. }
        | E::Slow { .. }
        | E::Contended { .. }
        | E::Transaction(_)
        | E::Signing(_)
        | E::File { .. }
        | E::Encoder(_) => Kind::Failed,
        E::Untrusted { .. }
        | E::Missing { .. }
        | E::Corrupt { .. }
        | E::Compressed { .. }
        | E::Catalog { .. }
        | E::History(_)
        | E::Reflog(_) => Kind::Damaged,
        _ => Kind::Usage,
    }
}

fn hint(error: &RepositoryError) -> Option<&'static str> {
    use RepositoryError as E;
    Some(match error {
        error if error.is_full() => {
            "free some space: `esker collect NAME --grace 0` deletes what only old revisions need, and needs no space for that"
        }
        E::NoRepository(_) => {
            "make one with `esker repo create NAME`, or name its storage with --storage DIR or URL"
        }
        E::OtherRepository { .. } | E::Foreign { .. } => {
            "name an empty folder or prefix, or the folder above, in which each repository has its own"
        }
        E::Gateway { failure: GatewayFailure::Denied(_), .. } => {
            "`esker gateway key list` shows at the gateway what the key may change; name another one with --gateway and --key"
        }
        E::Gateway { failure: GatewayFailure::Unavailable(_), .. } => {
            "check the address and the gateway; objects that were sent are not sent again when this is repeated"
        }
        E::Gateway { failure: GatewayFailure::Busy { .. }, .. } => {
            "wait for it with --wait; --take-over ends the leases of the same key, if their publisher is dead"
        }
        E::Gateway { failure: GatewayFailure::LeaseEnded(_), .. } => {
            "nothing was published; repeat this: objects that were sent are not sent again"
        }
        E::NotThroughGateway(_) => {
            "do this where the repository is published; publish, ingest, transaction, tag add and tag remove work through a \
             gateway, on the branch of the head"
        }
        E::IsReplica { .. } => {
            "change it where it is published; `esker replicate NAME` then brings the change here"
        }
        E::Exists(_) => "publish to it with `esker publish NAME DIR`, or choose another name",
        E::Key { .. }
        | E::NoKey { .. }
        | E::PublicKey { .. }
        | E::Certificate { .. }
        | E::OtherMaster { .. } => "name the folder of the keys with --keys DIR",
        E::Untrusted { source, .. } if matches!(**source, TrustError::WhitelistExpired { .. }) => {
            "sign the whitelist again with `esker repo resign NAME`"
        }
        E::Transaction(_) => {
            "publish or abort it with `cvmfs_server`, or have this wait for that with --wait"
        }
        E::Locked { .. } => "repeat this when it has ended, or with --wait (at most ten minutes: --wait=10m)",
        E::Contended { .. } => {
            "repeat this, or let it try for longer with --wait (at most ten minutes: --wait=10m)"
        }
        E::BeingDeleted { .. } => {
            "repeat this when the collect has ended; if it was interrupted, `esker collect NAME` ends it"
        }
        E::OpenWork { .. } => {
            "`esker collect NAME --dry-run` lists the open work; remove the record if its transaction is gone"
        }
        E::Collected { .. } => "repeat this: the objects are then stored again",
        E::Tag(TagError::BranchWithoutTag(_)) => "name one with --tag NAME",
        E::Tag(TagError::UnknownBranch(_)) => {
            "start it with --from REVISION; `esker tag list NAME --branches` lists those that are there"
        }
        E::Tag(TagError::BranchExists(_)) => "leave out --from to go on with it, or choose another name",
        E::UnknownParts { .. } => {
            "nothing was published; publish with a version that knows them, or with the program that wrote the catalog"
        }
        E::Reflog(_) => "rebuild it from the catalogs with `esker check NAME --repair-reflog`",
        E::NotListed(_) => "the owner of the master key puts it there with `esker repo resign NAME`",
        E::Passphrase { .. } => {
            "run this on a terminal, or name a file with the passphrase in ESKER_KEY_PASSPHRASE_FILE"
        }
        _ => return None,
    })
}
