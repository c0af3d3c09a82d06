//! Failures of collecting, checking, replicating, removing, importing, and of changing keys.

use esker_maintain::{CheckError, CollectError, KeysError, RemoveError, ReplicateError, TakeoverError};
use esker_repository::RepositoryError;

use super::OperationError;
use crate::error::Kind;

impl OperationError for CheckError {
    fn repository(&self) -> Option<&RepositoryError> {
        match self {
            Self::Repository(error) => Some(error),
            Self::Publish(error) => error.repository(),
            _ => None,
        }
    }

    fn explain(&self) -> (Kind, Option<String>) {
        if let Self::Publish(error) = self { error.explain() } else { (Kind::Usage, None) }
    }
}

/// Errors that are wrong usage, unless the repository is their cause.
macro_rules! usage_errors {
    ($($error:ident),*) => {
        $(impl OperationError for $error {
            fn repository(&self) -> Option<&RepositoryError> {
                if let Self::Repository(error) = self { Some(error) } else { None }
            }
        })*
    };
}

usage_errors!(CollectError, RemoveError, TakeoverError);

impl OperationError for ReplicateError {
    fn repository(&self) -> Option<&RepositoryError> {
        if let Self::Repository(error) = self { Some(error) } else { None }
    }

    fn explain(&self) -> (Kind, Option<String>) {
        (if let Self::NoRepository { .. } = self { Kind::Usage } else { Kind::Failed }, None)
    }
}

impl OperationError for KeysError {
    fn repository(&self) -> Option<&RepositoryError> {
        if let Self::Repository(error) = self { Some(error) } else { None }
    }

    fn explain(&self) -> (Kind, Option<String>) {
        let hint = match self {
            Self::NotOnWhitelist(_) => "`esker key list NAME` lists the certificates",
            Self::StillNeeded { .. } => {
                "publish with the certificate in the keys folder first, then repeat this"
            }
            _ => return (Kind::Usage, None),
        };
        (Kind::Usage, Some(hint.to_owned()))
    }
}
