//! What can go wrong in a tree, and the one place where that becomes an errno.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

/// The kinds of failure a tree knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// There is no such name.
    NotFound,
    /// A name was looked up in something that is not a directory.
    NotADirectory,
    /// A directory was read as a file.
    IsADirectory,
    /// The call does not apply to this kind of node (readlink on a file).
    Invalid,
    /// There is no such extended attribute.
    NoAttribute,
    /// The name is longer than the tree allows.
    NameTooLong,
    /// The node belongs to a state that is gone; looking it up again will help.
    Stale,
    /// Access is refused.
    Denied,
    /// The bytes could not be had now; trying again later may help (network, server, proxy).
    Unavailable,
    /// The bytes are there but wrong, or the tree is damaged; nothing unverified was given out.
    Damaged,
    /// The local cache or disk failed.
    Local,
    /// The local disk or quota is full.
    Full,
    /// No descriptor was free.
    TooManyFiles,
    /// A time limit passed.
    TimedOut,
    /// The caller was interrupted.
    Interrupted,
    /// Not offered by this tree.
    Unsupported,
    /// The tree broke its own rules.
    Internal,
}

/// Every kind, for tests that must not miss one.
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

/// The errno table. The only one: a new kind does not compile until someone picks its number.
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
        // Programs know EIO as "reading failed"; the reason is in the status of the mount.
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

/// A failed call: what kind, on which object, and the cause.
#[derive(Clone, Debug)]
pub struct TreeError {
    /// What kind of failure.
    pub kind: ErrorKind,
    /// What it happened to: a path, an object name; empty for the commonplace (a name that isn't there).
    pub object: String,
    /// The underlying error, if there is one.
    pub source: Option<Arc<dyn Error + Send + Sync>>,
}

impl TreeError {
    /// An error without more to say than its kind.
    pub const fn new(kind: ErrorKind) -> Self {
        Self { kind, object: String::new(), source: None }
    }

    /// An error on a named object.
    pub fn on(kind: ErrorKind, object: impl Into<String>) -> Self {
        Self { kind, object: object.into(), source: None }
    }

    /// Adds the cause.
    pub fn because(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        self.source = Some(Arc::from(source.into()));
        self
    }

    /// The number programs see.
    pub const fn errno(&self) -> i32 {
        errno(self.kind)
    }

    /// Whether the same call may succeed later without anything being repaired by hand.
    pub const fn may_pass(&self) -> bool {
        matches!(
            self.kind,
            ErrorKind::Unavailable | ErrorKind::TimedOut | ErrorKind::TooManyFiles | ErrorKind::Full
        )
    }

    /// Whether this is worth a log line: a missing name is not news.
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
