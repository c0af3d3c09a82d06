//! Errors of keys and whitelists.

use esker_repository::RepositoryError;

/// Reasons why a key was not replaced, or a whitelist not signed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeysError {
    /// The repository can't be read, or its head can't be replaced.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// A request for a signature, or the answer to one, can't be used.
    #[error("the signing request can't be used: {0}")]
    SignRequest(String),
    /// A rotation of keys can't continue.
    #[error("the rotation of the publisher's key can't continue: {0}")]
    Rotation(String),
    /// A fingerprint is not on the whitelist.
    #[error("the whitelist does not have the certificate {0}")]
    NotOnWhitelist(String),
    /// A certificate can't be removed from the whitelist.
    #[error(
        "the published revision is signed with the certificate {fingerprint}, which has to stay until there is another revision"
    )]
    StillNeeded {
        /// Fingerprint of the certificate.
        fingerprint: String,
    },
}
