//! Publishing without keys: a gateway holds them, stores objects, and publishes the revisions that publishers have built.

use esker_format::hash::ContentHash;
use esker_format::object::ObjectName;
use esker_store::{Put, StoreError};

/// A session with a gateway: the lease of a directory, and the objects that were sent. Calls block; several threads may put
/// objects.
pub trait GatewaySession: Send + Sync {
    /// Returns the address of the gateway, for messages.
    fn describe(&self) -> String;

    /// Sends an object, unless it was sent before. It is stored after [`Self::flush`].
    fn put(&self, name: &ObjectName, stored: &[u8]) -> Result<Put, StoreError>;

    /// Returns true if an object was sent, or need not be: [`Self::commit`] asks for those that are expected to be stored.
    fn has(&self, name: &ObjectName) -> Result<bool, StoreError>;

    /// Waits until the gateway has stored all objects that were put.
    fn flush(&self) -> Result<(), StoreError>;

    /// Returns true if the gateway compares the base of a revision with the head, and refuses what others changed, too.
    fn compares_revisions(&self) -> bool;

    /// Publishes the changes of a revision whose objects are stored.
    fn commit(&self, built: &BuiltRevision<'_>) -> Result<GatewayCommit, GatewayFailure>;
}

/// A revision that a publisher without keys has built and stored.
#[derive(Clone, Copy, Debug)]
pub struct BuiltRevision<'a> {
    /// Root catalog that it was built on.
    pub base: ContentHash,
    /// Its root catalog.
    pub root: ContentHash,
    /// Name of its tag; empty for an automatic one.
    pub tag: &'a str,
    /// Description of the tag.
    pub description: &'a str,
    /// Tags that are removed.
    pub removed_tags: &'a [String],
}

/// Result of a commit by a gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayCommit {
    /// Number of the revision with the changes; none if the gateway's answer was lost.
    pub revision: Option<u64>,
    /// Changed paths outside of the lease, which were not published.
    pub left_out: Vec<String>,
}

/// A gateway can't be used, or refuses a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GatewayFailure {
    /// The gateway can't be reached.
    #[error("it can't be used: {0}")]
    Unavailable(String),
    /// The key is unknown to the gateway, or may not publish to the directory.
    #[error("it does not accept the key: {0}")]
    Denied(String),
    /// The directory is leased to another publisher.
    #[error("`{path}` is leased to another publisher{}", until(remaining))]
    Busy {
        /// The directory.
        path: String,
        /// Time until the lease ends, as the gateway says it; empty if it doesn't.
        remaining: String,
    },
    /// The lease has ended.
    #[error("the lease has ended: {0}")]
    LeaseEnded(String),
    /// Other publishers changed the same paths.
    #[error("other publishers changed the same paths{}", listed(.0))]
    Conflict(Vec<String>),
    /// Objects that were expected to be stored are not.
    #[error("it lacks {0} objects that were stored before")]
    Lacks(u64),
    /// Another refusal.
    #[error("it refuses the request: {0}")]
    Refused(String),
    /// The user interrupted the command.
    #[error("interrupted")]
    Interrupted,
}

fn until(remaining: &str) -> String {
    if remaining.is_empty() { String::new() } else { format!(" for {remaining}") }
}

fn listed(paths: &[String]) -> String {
    if paths.is_empty() { String::new() } else { format!(": {}", paths.join(", ")) }
}
