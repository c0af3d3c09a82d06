//! Errors of publishing.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use esker_format::hash::ContentHash;
use esker_format::reflog::ReflogError;
use esker_format::write::history::TagError;
use esker_repository::RepositoryError;
use esker_store::StoreError;

use crate::over_limit::OverLimit;
use crate::shrink::{Shrink, grouped};

/// Reasons why no revision was published. The last revision stays in place in all cases but [`PublishError::Overwrote`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PublishError {
    /// The repository can't be read, or its head can't be replaced.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// Another publisher changed paths that this change touches, too.
    #[error(
        "revision {head} changed {}, after this change was computed from revision {base}",
        listed_paths(.paths, *.count)
    )]
    Conflict {
        /// The first paths that both changed.
        paths: Vec<String>,
        /// Number of all such paths.
        count: u64,
        /// Revision that the change was computed from.
        base: u64,
        /// Revision that is published now.
        head: u64,
        /// True if the changes are those of a transaction, for which [`crate::Choices`] decide.
        is_transaction: bool,
    },
    /// A gateway that compares no revisions published the change over those of other publishers.
    #[error(
        "revision {revision} is published, and the gateway overwrote what others had changed up to revision {before}: {}",
        listed_paths(.paths, *.count)
    )]
    Overwrote {
        /// The first paths that both changed.
        paths: Vec<String>,
        /// Number of all such paths.
        count: u64,
        /// The new revision.
        revision: u64,
        /// Revision with the changes of the others.
        before: u64,
    },
    /// A transaction has no changes where some are to be left out.
    #[error("the transaction changes nothing at `{0}`")]
    Unchanged(String),
    /// The change removes most of the repository and was not confirmed.
    #[error(
        "this removes {} of the repository's {} entries, which is more than half of them",
        grouped(.0.removed),
        grouped(.0.entries)
    )]
    Shrinks(Shrink),
    /// A file or catalog exceeds a limit that is enforced.
    #[error("{first}{}", if *more > 0 { format!("; {more} more files and catalogs exceed limits") } else { String::new() })]
    OverLimit {
        /// The first one.
        first: Box<OverLimit>,
        /// Number of further ones.
        more: u64,
    },
    /// The marker of a grafted file can't be used.
    #[error("the graft `{}` can't be published: {reason}", path.display())]
    Graft {
        /// The marker.
        path: PathBuf,
        /// Reason for the refusal.
        reason: String,
    },
    /// A submission was built on no revision of the repository.
    #[error(
        "the submitted catalogs were built on {}, which is no revision of this repository; begin again on the newest one",
        .base.map_or_else(|| "nothing".to_owned(), |base| base.to_string())
    )]
    UnknownBase {
        /// The revision that the catalogs name.
        base: Option<ContentHash>,
    },
    /// The list of revisions can't be read.
    #[error("the reflog can't be read")]
    Reflog {
        /// Cause of the failure.
        source: ReflogError,
    },
    /// A submission may not be published any more.
    #[error("{0}")]
    Withdrawn(String),
    /// A commit of several submissions failed, and may have replaced the head.
    #[error("{0}")]
    Joint(Arc<PublishError>),
    /// A message has no tag to be stored with.
    #[error(
        "the message can't be stored: a message belongs to a tag, and this repository gives none to its revisions by itself"
    )]
    MessageWithoutTag,
    /// Something in the source folder can't be read.
    #[error("{doing} `{}` in the source failed", path.display())]
    Source {
        /// Operation that failed.
        doing: &'static str,
        /// Path that it failed on.
        path: PathBuf,
        /// Cause of the failure.
        source: io::Error,
    },
    /// A file of the source did not stay the same.
    #[error("`{}` changed while it was being published; publish again when nothing writes to it", .0.display())]
    Changed(PathBuf),
    /// The source contains an entry that can't be published.
    #[error("`{}` can't be published: {reason}", path.display())]
    Refused {
        /// Path of the file.
        path: PathBuf,
        /// Reason for the refusal.
        reason: String,
    },
    /// An extended attribute is longer than the settings allow.
    #[error(
        "`{path}` has the extended attribute `{name}` of {size} bytes, and the setting long_xattrs=refuse refuses more than \
         255"
    )]
    LongXattr {
        /// Path of the entry in the source or the repository.
        path: String,
        /// Name of the attribute.
        name: String,
        /// Length of its value in bytes.
        size: usize,
    },
    /// An entry would make its catalog unreadable.
    #[error("`{name}` in the catalog of `{catalog}` can't be published: {reason}")]
    Row {
        /// The directory of the catalog.
        catalog: String,
        /// The name of the entry.
        name: String,
        /// Reason for the refusal.
        reason: &'static str,
    },
    /// No revision is marked as the one before.
    #[error("there is nothing to undo: the newest revision is the first one, or a rollback itself")]
    NothingToUndo {
        /// Number of the revision that the newest one replaced, if it is known.
        before: Option<u64>,
    },
    /// A transaction of one directory changed others.
    #[error("changes outside of `{within}` can't be published: {}", listed_paths(paths, *count))]
    Outside {
        /// The directory that may change.
        within: String,
        /// The first of the other paths.
        paths: Vec<String>,
        /// Number of all such paths.
        count: u64,
    },
    /// A file with rules of a publisher can't be used.
    #[error("the rules in `{}` can't be used: {reason}", path.display())]
    Rules {
        /// The file.
        path: PathBuf,
        /// Reason why the file can't be published.
        reason: String,
    },
    /// The rules for nested catalogs are invalid.
    #[error("line {line} of `.cvmfsdirtab` can't be used: {reason}")]
    Dirtab {
        /// Number of the line.
        line: usize,
        /// Reason for the refusal.
        reason: String,
    },
    /// A profile can't be used.
    #[error("profile `{}` can't be used: {reason}", path.display())]
    Profile {
        /// The file, or the name it was to get.
        path: PathBuf,
        /// Reason for the refusal.
        reason: String,
    },
    /// No profile has this name.
    #[error("there is no profile `{0}`")]
    NoProfile(String),
}

/// Formats the first paths of a list.
fn listed_paths(paths: &[String], count: u64) -> String {
    let named: Vec<String> = paths.iter().map(|path| format!("`{path}`")).collect();
    listed(&named, count)
}

/// Formats the first items of a list of this many.
pub(crate) fn listed(named: &[String], count: u64) -> String {
    let more = count.saturating_sub(named.len() as u64);
    let more = if more > 0 { format!(" and {more} more paths") } else { String::new() };
    format!("{}{more}", named.join(", "))
}

impl From<StoreError> for PublishError {
    fn from(error: StoreError) -> Self {
        Self::Repository(error.into())
    }
}

impl From<TagError> for PublishError {
    fn from(error: TagError) -> Self {
        Self::Repository(error.into())
    }
}
