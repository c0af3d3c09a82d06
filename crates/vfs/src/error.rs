//! Errors of trees, and the only table that maps them to errno values.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// Kind of a failed call on a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The name does not exist.
    NotFound,
    /// A lookup in a node that is not a directory.
    NotADirectory,
    /// A read of a directory as a file.
    IsADirectory,
    /// The call does not apply to this kind of node (readlink on a file).
    Invalid,
    /// The extended attribute does not exist.
    NoAttribute,
    /// The name is longer than the tree allows.
    NameTooLong,
    /// The node belongs to an earlier state of the tree; a new lookup will succeed.
    Stale,
    /// Access is refused.
    Denied,
    /// The bytes are not available now; a later try may succeed (network, server, proxy).
    Unavailable,
    /// The data is wrong, or the tree is damaged; no unverified byte was returned.
    Damaged,
    /// The local cache or disk failed.
    Local,
    /// The local disk or quota is full.
    Full,
    /// No file descriptor was free.
    TooManyFiles,
    /// A time limit passed.
    TimedOut,
    /// The caller was interrupted.
    Interrupted,
    /// This tree does not support the call.
    Unsupported,
    /// The tree violated its own rules.
    Internal,
}

/// All kinds, for exhaustive tests.
#[cfg(test)]
pub(crate) const ALL_KINDS: [ErrorKind; 17] = [
    ErrorKind::NotFound,
    ErrorKind::NotADirectory,
    ErrorKind::IsADirectory,
    ErrorKind::Invalid,
    ErrorKind::NoAttribute,
    ErrorKind::NameTooLong,
    ErrorKind::Stale,
    ErrorKind::Denied,
    ErrorKind::Unavailable,
    ErrorKind::Damaged,
    ErrorKind::Local,
    ErrorKind::Full,
    ErrorKind::TooManyFiles,
    ErrorKind::TimedOut,
    ErrorKind::Interrupted,
    ErrorKind::Unsupported,
    ErrorKind::Internal,
];

/// Returns the errno value of a kind. The match has no default, so every new kind needs a value.
pub const fn errno(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::NotADirectory => libc::ENOTDIR,
        ErrorKind::IsADirectory => libc::EISDIR,
        ErrorKind::Invalid => libc::EINVAL,
        ErrorKind::NoAttribute => libc::ENODATA,
        ErrorKind::NameTooLong => libc::ENAMETOOLONG,
        ErrorKind::Stale => libc::ESTALE,
        ErrorKind::Denied => libc::EACCES,
        // Programs know EIO as a failed read; `esker status` shows the reason.
        ErrorKind::Unavailable
        | ErrorKind::Damaged
        | ErrorKind::Local
        | ErrorKind::TimedOut
        | ErrorKind::Internal => libc::EIO,
        ErrorKind::Full => libc::ENOSPC,
        ErrorKind::TooManyFiles => libc::ENFILE,
        ErrorKind::Interrupted => libc::EINTR,
        ErrorKind::Unsupported => libc::ENOSYS,
    }
}

/// A failed call: the kind of failure, the object and the cause.
#[derive(Clone, Debug)]
pub struct TreeError {
    /// Kind of the failure.
    pub kind: ErrorKind,
    /// Object of the failure: a path or an object name; empty for frequent failures such as a missing name.
    pub object: String,
    /// Underlying error, if there is one.
    pub source: Option<Arc<dyn Error + Send + Sync>>,
}

impl TreeError {
    /// Creates an error of this kind without further details.
    pub const fn new(kind: ErrorKind) -> Self {
        Self { kind, object: String::new(), source: None }
    }

    /// Creates an error of this kind on a named object.
    pub fn on(kind: ErrorKind, object: impl Into<String>) -> Self {
        Self { kind, object: object.into(), source: None }
    }

    /// Adds the cause of the error.
    pub fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// Returns the errno value that programs see.
    pub const fn errno(&self) -> i32 {
        errno(self.kind)
    }

    /// Returns true if the same call may succeed later without a repair.
    pub const fn may_pass(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Unavailable | ErrorKind::TimedOut | ErrorKind::TooManyFiles | ErrorKind::Full
        )
    }

    /// Returns true if the error is worth a log line; a missing name is not.
    pub const fn is_news(&self) -> bool {
        !matches!(
            self.kind,
            ErrorKind::NotFound
                | ErrorKind::NotADirectory
                | ErrorKind::IsADirectory
                | ErrorKind::Invalid
                | ErrorKind::NoAttribute
                | ErrorKind::NameTooLong
                | ErrorKind::Stale
                | ErrorKind::Interrupted
                | ErrorKind::Unsupported
        )
    }

    pub(crate) const fn dropped() -> Self {
        Self::new(ErrorKind::Internal)
    }
}

impl From<ErrorKind> for TreeError {
    fn from(kind: ErrorKind) -> Self {
        Self::new(kind)
    }
}

impl fmt::Display for TreeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.object.is_empty() {
            write!(f, "{}: ", self.object)?;
        }
        f.write_str(match self.kind {
            ErrorKind::NotFound => "no such file or directory",
            ErrorKind::NotADirectory => "not a directory",
            ErrorKind::IsADirectory => "is a directory",
            ErrorKind::Invalid => "the call does not apply to this kind of file",
            ErrorKind::NoAttribute => "no such extended attribute",
            ErrorKind::NameTooLong => "the name is too long",
            ErrorKind::Stale => "belongs to an earlier state of the tree",
            ErrorKind::Denied => "access is refused",
            ErrorKind::Unavailable => "can't be fetched now",
            ErrorKind::Damaged => "is damaged",
            ErrorKind::Local => "the local cache failed",
            ErrorKind::Full => "the local disk or quota is full",
            ErrorKind::TooManyFiles => "too many open files",
            ErrorKind::TimedOut => "timed out",
            ErrorKind::Interrupted => "interrupted",
            ErrorKind::Unsupported => "not offered",
            ErrorKind::Internal => "internal error: the tree gave no answer",
        })
    }
}

impl Error for TreeError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.source.as_deref().map(|e| e as &(dyn Error + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_positive_errno_and_a_text() {
        let mut texts = std::collections::HashSet::new();
        for kind in ALL_KINDS {
            assert!(errno(kind) > 0);
            assert!(texts.insert(TreeError::new(kind).to_string()), "{kind:?} shares its text");
        }
    }

    #[test]
    fn a_dropped_reply_is_answered_with_an_error() {
        let answer = crate::Reply::<()>::wait(drop);
        assert_eq!(answer.expect_err("dropped").kind, ErrorKind::Internal);
    }
}
