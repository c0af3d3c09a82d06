//! Failures of requests to a bucket.

/// Failure of a request to a bucket, after all retries.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StorageProblem {
    /// The server refuses the credentials or the operation.
    #[error("the server does not allow it: {0}")]
    Denied(String),
    /// The server has no such bucket.
    #[error("the server has no such bucket: {0}")]
    NoBucket(String),
    /// No credentials were found, or they can't be used.
    #[error("there are no credentials for it: {0}")]
    NoCredentials(String),
    /// A setting can't be used.
    #[error("the settings can't be used: {0}")]
    BadSettings(String),
    /// The server can't be reached, or does not complete its answers.
    #[error("the server can't be used: {0}")]
    Unavailable(String),
    /// The server is overloaded, and stayed so while the request was repeated.
    #[error("the server is overloaded: {0}")]
    Overloaded(String),
    /// The server refuses the request for another reason.
    #[error("the server refuses it: {0}")]
    Refused(String),
    /// The server has no atomic conditional puts.
    #[error("it can't replace a head safely while several publishers write: {0}")]
    NotAtomic(String),
    /// The stored bytes are not those of the object.
    #[error("{0}")]
    Damaged(String),
    /// A gateway that objects are sent through refuses it, or can't be used.
    #[error("{0}")]
    Gateway(String),
    /// The caller has neither the storage nor the keys of the repository.
    #[error("only the owner of the repository can do this")]
    OwnerOnly,
    /// The process was interrupted while it waited.
    #[error("interrupted")]
    Interrupted,
}

impl StorageProblem {
    /// Returns the remedy.
    pub fn mend(&self) -> &'static str {
        match self {
            Self::Denied(_) => {
                "check the key and its rights: publishing needs to list, read, write and delete in the bucket"
            }
            Self::NoBucket(_) => {
                "make the bucket first, and check the endpoint, the region and whether the bucket is part of the path"
            }
            Self::NoCredentials(_) => {
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE for a profile of ~/.aws/credentials; for \
                 Google GOOGLE_SERVICE_ACCOUNT; for Azure AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"
            }
            Self::BadSettings(_) => "correct the setting that is named",
            Self::Unavailable(_) => {
                "check the endpoint and the network; what was stored so far is used when the command is run again"
            }
            Self::Overloaded(_) => {
                "run the command again later, or with fewer connections; what was stored so far is used"
            }
            Self::Refused(_) => "check the endpoint, the region and the storage class",
            Self::NotAtomic(_) => {
                "use a server with atomic conditional puts, or name a lock file that all publishers of the repository share"
            }
            Self::Gateway(_) => {
                "the gateway's log says more; what was stored so far is used when the command is run again"
            }
            Self::OwnerOnly => "do this where the repository is published",
            Self::Interrupted => "what was stored so far is used when the command is run again",
            Self::Damaged(_) => "run `esker check` on the repository",
        }
    }

    /// Returns true if the same request may succeed later without intervention.
    pub fn may_pass(&self) -> bool {
        matches!(self, Self::Unavailable(_) | Self::Overloaded(_))
    }
}
