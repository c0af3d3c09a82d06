//! Reasons why a request has no answer from upstream.

use std::sync::Arc;

use esker_format::trust::TrustError;
use esker_store::{Cause, StoreError};
use hyper::StatusCode;

/// Failure of a request, shared by all requests that wait for the same thing.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The upstream servers have no such file.
    #[error("the upstream servers have no such file")]
    Missing,
    /// No upstream server gave a valid answer.
    #[error("{0}")]
    Upstream(Arc<StoreError>),
    /// The signature of a head is wrong.
    #[error("{0}")]
    Untrusted(TrustError),
    /// The new head can't be handed out yet, because an object that it names is missing.
    #[error("the new revision {revision} is not complete upstream: {reason}")]
    Incomplete {
        /// Number of the revision.
        revision: u64,
        /// Failure of the object.
        reason: Arc<Failure>,
    },
    /// The proxy's own disk failed.
    #[error("the proxy can't read what it received: {0}")]
    Disk(Arc<std::io::Error>),
    /// Too much is being sent that the cache has no room for.
    #[error("the proxy has no room for further bytes that it can't store")]
    Busy,
    /// The task of the request ended without a result.
    #[error("the request was cancelled")]
    Ended,
}

impl Failure {
    /// Returns the status for the client.
    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Missing => StatusCode::NOT_FOUND,
            Self::Upstream(error) if matches!(error.cause(), Cause::TimedOut { .. }) => {
                StatusCode::GATEWAY_TIMEOUT
            }
            Self::Upstream(error) if matches!(error.cause(), Cause::Bucket { problem, .. } if problem.may_pass()) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Upstream(_) | Self::Untrusted(_) | Self::Incomplete { .. } => StatusCode::BAD_GATEWAY,
            Self::Disk(_) | Self::Busy | Self::Ended => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// Returns true if the cache has no room for the object, or it is larger than the part that one may take.
    pub(crate) fn is_too_large(&self) -> bool {
        matches!(self, Self::Upstream(error) if matches!(error.cause(), Cause::TooLarge { .. } | Cause::Full { .. }))
    }

    /// Returns true if the object may be passed on without being stored.
    pub(crate) fn is_passed_on(&self) -> bool {
        self.is_too_large() || matches!(self, Self::Busy)
    }

    /// Returns the text for the client. The log has the whole reason: addresses of the upstream servers, and paths of this
    /// machine, are nothing for strangers.
    pub(crate) fn told(&self) -> String {
        match self {
            Self::Missing | Self::Untrusted(_) | Self::Busy | Self::Ended => self.to_string(),
            Self::Upstream(error) => {
                let reason = match error.cause() {
                    Cause::TimedOut { .. } => "they don't answer in time",
                    Cause::Unresolved { .. } | Cause::Unreachable(_) => "they can't be reached",
                    Cause::Corrupt { .. } | Cause::Undecodable(_) => "they sent damaged bytes",
                    Cause::Untrusted(error) => {
                        return format!("no upstream server has a valid file: {error}");
                    }
                    Cause::TooLarge { .. } => "the file is too large",
                    Cause::Overloaded { .. } => "they have too many requests",
                    _ => "the log of this proxy has the reason",
                };
                format!("no upstream server gave a valid answer: {reason}")
            }
            Self::Incomplete { revision, reason } => {
                format!("the new revision {revision} is not complete upstream: {}", reason.told())
            }
            Self::Disk(_) => "the proxy can't use the disk of its cache".to_owned(),
        }
    }

    /// Returns true if object storage failed. Where it is, and why it fails, is nothing for clients.
    pub(crate) fn is_of_storage(&self) -> bool {
        match self {
            Self::Upstream(error) => matches!(error.cause(), Cause::Bucket { .. }),
            Self::Incomplete { reason, .. } => reason.is_of_storage(),
            _ => false,
        }
    }

    /// Returns true if the proxy is at fault and not the upstream servers: another proxy would do better.
    pub(crate) fn is_own(&self) -> bool {
        matches!(self, Self::Disk(_) | Self::Busy | Self::Ended)
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error.cause() {
            Cause::Missing { .. } => Self::Missing,
            _ => Self::Upstream(Arc::new(error)),
        }
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::Disk(Arc::new(error))
    }
}
