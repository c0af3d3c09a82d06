//! Failures between a server and verified bytes on disk.

use std::error::Error;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use esker_format::compress::DecompressError;
use esker_format::hash::ContentHash;
use esker_format::time::UnixTime;
use esker_format::trust::TrustError;
use serde::{Deserialize, Serialize};

use crate::storage_problem::StorageProblem;
use crate::transport::TlsProblem;

/// Component at fault. Decided where the error is created; fail-over matches on this and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Blame {
    /// The object: every server has the same wrong object.
    Object,
    /// The server.
    Host,
    /// A proxy.
    Proxy,
    /// The local disk or cache folder.
    Disk,
    /// The caller: an invalid URL, or a closed store.
    Caller,
}

/// Phase of a request, for timeouts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Resolving the name of the server.
    Resolve,
    /// Connecting to the server or proxy.
    Connect,
    /// Tunnelling through a proxy, and negotiating TLS.
    Secure,
    /// Waiting for the first byte of the answer.
    FirstByte,
    /// Receiving: the rate was below the low-speed limit.
    Transfer,
    /// The whole attempt.
    Attempt,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Resolve => "resolving the server's name took longer than",
            Phase::Connect => "connecting took longer than",
            Phase::Secure => "agreeing on TLS took longer than",
            Phase::FirstByte => "no answer began within",
            Phase::Transfer => "the transfer was slower than the low-speed limit for",
            Phase::Attempt => "the transfer was not complete after",
        })
    }
}

/// The cause of a [`StoreError`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Cause {
    /// The name of the server has no address.
    #[error("the server name `{host}` can't be resolved: {reason}")]
    Unresolved {
        /// Name of the host.
        host: String,
        /// The resolver's error.
        reason: String,
    },
    /// No connection could be made.
    #[error("the server can't be reached")]
    Unreachable(#[source] io::Error),
    /// A time limit passed.
    #[error("{phase} {} s", limit.as_secs_f32())]
    TimedOut {
        /// Phase that exceeded its limit.
        phase: Phase,
        /// Limit that was exceeded.
        limit: Duration,
    },
    /// The peer's certificate doesn't prove the expected name.
    #[error("no secure connection with `{host}`: {problem}")]
    Insecure {
        /// The name of the server or proxy.
        host: String,
        /// The TLS failure.
        problem: TlsProblem,
    },
    /// The connection broke, or the peer spoke no HTTP.
    #[error("the connection failed before the answer was complete: {0}")]
    Broken(String),
    /// The server reports that the object does not exist.
    #[error("the server has no such object ({status})")]
    Missing {
        /// HTTP status or errno text.
        status: String,
    },
    /// The server refuses the request or fails.
    #[error("the server answered with status {0}")]
    Status(u16),
    /// The server is overloaded and requests a pause.
    #[error("the server answered with status {status} and requests a pause of {} s", after.as_secs())]
    Overloaded {
        /// The HTTP status.
        status: u16,
        /// The requested pause.
        after: Duration,
    },
    /// A proxy answered with an error of its own.
    #[error("the proxy answered with status {status} of its own: {said}")]
    ProxyStatus {
        /// The HTTP status.
        status: u16,
        /// The proxy's description of the error.
        said: String,
    },
    /// The proxy refuses the user name and password, or requires some.
    #[error(
        "the proxy answered with status 407: {}",
        match user {
            Some(user) => format!("it does not accept the password of `{user}`, or does not know this user"),
            None => "it wants a user name and a password; write its address as http://USER:PASSWORD@HOST:PORT".to_owned(),
        }
    )]
    ProxyLogin {
        /// The user name that was sent.
        user: Option<String>,
    },
    /// The server points elsewhere; redirects are not followed.
    #[error("the server redirects to `{location}`; redirects are not followed, so name that server instead")]
    Redirected {
        /// The target URL.
        location: String,
    },
    /// The server requires authentication.
    #[error("the server answered with status 401: it requires a login")]
    Unauthorized {
        /// The value of the field `WWW-Authenticate`.
        challenge: String,
    },
    /// The server answers a range request with the whole file.
    #[error(
        "the server, or a proxy on the way, sends whole files and not the parts that are asked for (HTTP ranges)"
    )]
    WholeFile,
    /// A file that is read in parts has changed since it was opened.
    #[error("the file has changed on the server since it was opened")]
    Changed,
    /// A part of a file doesn't have the digest that the list of digests names.
    #[error("bytes {from} to {to} are not those that the list of digests names")]
    WrongPart {
        /// First byte of the part.
        from: u64,
        /// End of the part.
        to: u64,
    },
    /// A list of digests doesn't have the expected digest.
    #[error("it has the digest {actual}, and not {expected}")]
    WrongList {
        /// Expected digest.
        expected: String,
        /// Actual digest.
        actual: String,
    },
    /// A rule forbids connections to the address.
    #[error(
        "connecting to {host} ({address}) is not allowed to users of this broker; its administrator can allow it with `--connect`"
    )]
    NotAllowed {
        /// Server or proxy, as configured.
        host: String,
        /// Address of the host.
        address: std::net::IpAddr,
    },
    /// The server sent more bytes than the object may have.
    #[error("the answer is larger than the {limit} bytes allowed for this object")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// The stored bytes don't have the hash that names the object.
    #[error(
        "the bytes are damaged: {len} bytes with hash {actual} came instead of {expected}{}",
        if *html { "; they look like an HTML page" } else { "" }
    )]
    Corrupt {
        /// The expected hash.
        expected: ContentHash,
        /// The hash of the received bytes.
        actual: ContentHash,
        /// Number of bytes received.
        len: u64,
        /// True if they look like an HTML page, as of captive portals and error pages.
        html: bool,
    },
    /// The stored bytes have the right hash but don't decompress to an object of the stated size.
    #[error("{0}")]
    Undecodable(DecompressError),
    /// The plain object has another length than the catalog states.
    #[error("the object has {actual} plain bytes where the repository says {expected}")]
    WrongSize {
        /// The size that the repository states.
        expected: u64,
        /// The size of the object.
        actual: u64,
    },
    /// The head of a repository was refused.
    #[error("{0}")]
    Untrusted(TrustError),
    /// The server can't be used, and the saved head is too old for a mount.
    #[error(
        "the server can't be used now, and the head that it last confirmed at {since} is older than the {} days \
         allowed without it",
        max_age.as_secs() / 86_400
    )]
    SavedHeadTooOld {
        /// Time of the last confirmation of the saved head by a server.
        since: UnixTime,
        /// Maximum age of a usable head.
        max_age: Duration,
        /// The failure of the server.
        #[source]
        reason: Box<StoreError>,
    },
    /// A local file operation failed.
    #[error("{doing} `{}` failed", path.display())]
    Disk {
        /// The operation that failed.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// A request to a bucket failed.
    #[error("{doing} `{key}` in {bucket} failed: {problem}")]
    Bucket {
        /// The operation that failed.
        doing: &'static str,
        /// The file, by its path below the root of the repository.
        key: String,
        /// Address of the bucket.
        bucket: String,
        /// The failure.
        problem: StorageProblem,
    },
    /// The cache folder has another owner, so its content can't be trusted.
    #[error("`{}` {problem}", path.display())]
    NotPrivate {
        /// Path of the folder.
        path: PathBuf,
        /// The owner or the mode that makes the folder unsafe.
        problem: String,
    },
    /// The folder is not empty, and nothing in it says that Esker made it.
    #[error("`{}` is not empty and is no cache of this kind: it holds `{}`; name a new or an empty folder", path.display(), entry.display())]
    NotOurs {
        /// Path of the folder.
        path: PathBuf,
        /// Name of an entry that a cache doesn't have.
        entry: OsString,
    },
    /// The cache has no room, and all objects in it are in use.
    #[error(
        "no room for {needed} bytes: {used} bytes of the cache are in use and its hard limit is {limit} bytes"
    )]
    Full {
        /// Number of bytes requested.
        needed: u64,
        /// Number of bytes in the cache.
        used: u64,
        /// Hard limit in bytes.
        limit: u64,
    },
    /// Another process is the writer of this cache folder.
    #[error("the cache `{}` is in use by another process{}", path.display(), owner_text(*pid))]
    Busy {
        /// Path of the cache folder.
        path: PathBuf,
        /// Process id of the writer, if known.
        pid: Option<u32>,
    },
    /// The process that writes the cache does not reply.
    #[error("the cache `{}` is written by another process{}, which does not answer; is it stopped?", path.display(), owner_text(*pid))]
    Silent {
        /// Path of the cache folder.
        path: PathBuf,
        /// Process id of the writer, if the kernel reports it.
        pid: Option<u32>,
    },
    /// The address of the repository is invalid.
    #[error("`{url}` can't be used as an address: {reason}")]
    BadUrl {
        /// Address of the connection.
        url: String,
        /// Invalid part of the address.
        reason: &'static str,
    },
    /// The store was shut down, or dropped a request unanswered.
    #[error("the store was closed before there was an answer")]
    Closed,
    /// The process was interrupted while it waited for the answer.
    #[error("interrupted while waiting for an answer")]
    Interrupted,
    /// The route was marked down before the request was sent; it is queued on another.
    #[error("request cancelled: its route was marked down")]
    RouteDown,
    /// The request was withdrawn because the server answered later ones first; it is sent again.
    #[error("request withdrawn: the server answered later requests first")]
    TakenBack,
    /// A prefetch whose token was cancelled before it was sent.
    #[error("prefetch cancelled")]
    Cancelled,
    /// The objects can't be pinned.
    #[error("can't be pinned: {why}")]
    BadPin {
        /// Reason for the refusal.
        why: String,
    },
    /// No server for external data is configured.
    #[error(
        "external data, and no server for external data is named: set CVMFS_EXTERNAL_URL, or use --external URL"
    )]
    NoExternalServer,
    /// The object is too large for the cache.
    #[error(
        "it has {needed} bytes, and the cache takes objects of up to {limit} bytes; give it a larger quota"
    )]
    LargerThanCache {
        /// Bytes of the object.
        needed: u64,
        /// Maximum size of an object in bytes.
        limit: u64,
    },
    /// Too many prefetches are queued already.
    #[error("{limit} prefetches are queued, and no more are taken")]
    QueueFull {
        /// Maximum number of queued prefetches.
        limit: usize,
    },
    /// A failure in a store of another process.
    #[error("{text}")]
    Remote {
        /// Component at fault.
        blame: Blame,
        /// True if a retry may succeed.
        may_pass: bool,
        /// Text of the error.
        text: String,
    },
}

fn owner_text(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
}

impl Cause {
    /// Returns the component at fault.
    pub fn blame(&self) -> Blame {
        self.judgement().0
    }

    /// Returns true if the same request may succeed later without intervention.
    pub fn may_pass(&self) -> bool {
        self.judgement().1
    }

    /// Returns the component at fault, and whether the same request may succeed later without intervention.
    fn judgement(&self) -> (Blame, bool) {
        match self {
            Self::Unresolved { .. }
            | Self::Unreachable(_)
            | Self::TimedOut { .. }
            | Self::Broken(_)
            | Self::Overloaded { .. }
            | Self::TakenBack
            | Self::SavedHeadTooOld { .. } => (Blame::Host, true),
            Self::Status(status) => (Blame::Host, matches!(status, 408 | 425 | 429 | 500..=599)),
            Self::Untrusted(error) => (Blame::Host, error.is_older()),
            Self::Bucket { problem, .. } => (Blame::Host, problem.may_pass()),
            Self::Insecure { .. }
            | Self::Missing { .. }
            | Self::Redirected { .. }
            | Self::WholeFile
            | Self::Unauthorized { .. } => (Blame::Host, false),
            Self::TooLarge { .. }
            | Self::Corrupt { .. }
            | Self::Undecodable(_)
            | Self::Changed
            | Self::WrongPart { .. }
            | Self::WrongList { .. }
            | Self::WrongSize { .. } => (Blame::Object, false),
            Self::Disk { source, .. } => (Blame::Disk, is_full(source)),
            Self::Full { .. } | Self::Silent { .. } => (Blame::Disk, true),
            Self::NotPrivate { .. } | Self::NotOurs { .. } | Self::LargerThanCache { .. } => {
                (Blame::Disk, false)
            }
            Self::Busy { .. } | Self::RouteDown | Self::QueueFull { .. } => (Blame::Caller, true),
            Self::NotAllowed { .. }
            | Self::BadUrl { .. }
            | Self::Closed
            | Self::Interrupted
            | Self::NoExternalServer
            | Self::Cancelled
            | Self::BadPin { .. } => (Blame::Caller, false),
            Self::ProxyStatus { .. } => (Blame::Proxy, true),
            Self::ProxyLogin { .. } => (Blame::Proxy, false),
            Self::Remote { blame, may_pass, .. } => (*blame, *may_pass),
        }
    }
}

/// Returns whether an I/O error means that the disk or a disk quota is full.
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Failure of a request: the object, the server and the cause. Cheap to clone, because one failed fetch completes all
/// requests that joined it.
#[derive(Clone, Debug)]
pub struct StoreError {
    object: Arc<str>,
    from: Option<Arc<str>>,
    cause: Arc<Cause>,
    /// Component at fault, if the route is a better indication than the cause.
    blame: Option<Blame>,
}

impl StoreError {
    /// Makes a failure of a named object.
    pub fn new(object: impl Into<Arc<str>>, cause: Cause) -> Self {
        Self { object: object.into(), from: None, cause: Arc::new(cause), blame: None }
    }

    /// Adds the location from which the object was requested.
    #[must_use]
    pub fn from_place(mut self, place: impl Into<Arc<str>>) -> Self {
        self.from = Some(place.into());
        self
    }

    /// Returns the same failure for another object name.
    #[must_use]
    pub fn on(mut self, object: impl Into<Arc<str>>) -> Self {
        self.object = object.into();
        self
    }

    /// Returns the object that failed.
    pub fn object(&self) -> &str {
        &self.object
    }

    /// Returns the cause.
    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    /// Returns the component at fault.
    pub fn blame(&self) -> Blame {
        self.blame.unwrap_or_else(|| self.cause.blame())
    }

    /// Returns the same failure with another component at fault.
    #[must_use]
    pub(crate) fn blamed(mut self, blame: Blame) -> Self {
        self.blame = Some(blame);
        self
    }

    /// Returns true if a later attempt may succeed.
    pub fn may_pass(&self) -> bool {
        self.cause.may_pass()
    }

    /// Returns true if an interruption of the process ended the wait.
    pub fn is_interruption(&self) -> bool {
        let interrupted = StorageProblem::Interrupted;
        matches!(&*self.cause, Cause::Interrupted)
            || matches!(&*self.cause, Cause::Bucket { problem, .. } if *problem == interrupted)
    }

    /// Returns the location from which the object was requested.
    pub fn place(&self) -> Option<&str> {
        self.from.as_deref()
    }

    /// Returns the text with the texts of all underlying errors.
    pub fn full_text(&self) -> String {
        self.full_text_after("")
    }

    /// Returns the full text without the object and the location if the preceding text `said` names them.
    pub fn full_text_after(&self, said: &str) -> String {
        // Like `/a/file (file 8f12…)`.
        let (path, about) = self.object.split_once(" (").unwrap_or((&self.object, ""));
        let object = if names(said, path) { about.trim_end_matches(')') } else { &*self.object };
        let from = self.from.as_deref().filter(|from| !names(said, from));
        let from = from.map(|from| format!("from {from}"));
        let subject: Vec<&str> =
            [Some(object), from.as_deref()].into_iter().flatten().filter(|part| !part.is_empty()).collect();
        let mut text = subject.join(" ");
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&self.cause.to_string());
        let mut source = self.source();
        while let Some(error) = source {
            text.push_str(": ");
            let boxed = error.downcast_ref::<Box<Self>>().map(|boxed| &**boxed);
            if let Some(store) = error.downcast_ref::<Self>().or(boxed) {
                let further = store.full_text_after(&format!("{said} {text}"));
                text.push_str(&further);
                break;
            }
            text.push_str(&error.to_string());
            source = error.source();
        }
        text
    }
}

/// Returns true if a text contains an object's name, such as a path or a URL, as a whole.
pub fn names(text: &str, object: &str) -> bool {
    let is_part = |letter: char| letter.is_alphanumeric() || matches!(letter, '/' | '_' | '-' | '.');
    !object.is_empty()
        && text.match_indices(object).any(|(at, _)| {
            let (before, after) = (&text[..at], &text[at + object.len()..]);
            let goes_on = after.starts_with(is_part) && !after.starts_with(". ");
            !before.ends_with(is_part) && !goes_on
        })
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.object)?;
        if let Some(from) = &self.from {
            write!(f, " from {from}")?;
        }
        write!(f, ": {}", self.cause)
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        // The text of the cause is part of this error's text, so the chain continues below it.
        self.cause.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_the_text_before_is_not_repeated() {
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        let place = "http://h:80/cvmfs/a.test";
        let error = StoreError::new("/dir/f (file 9bd9)", Cause::Unreachable(refused())).from_place(place);
        let cause = "the server can't be reached: connection refused";
        assert_eq!(error.full_text(), format!("/dir/f (file 9bd9) from {place}: {cause}"));
        assert_eq!(error.full_text_after("a.test:/dir/f"), format!("file 9bd9 from {place}: {cause}"));
        assert_eq!(error.full_text_after("/dir/f2"), error.full_text());
        let opening = format!("can't open a.test at {place}");
        assert_eq!(error.full_text_after(&opening), format!("/dir/f (file 9bd9): {cause}"));
        assert_eq!(error.full_text_after(&format!("{opening}, /dir/f")), format!("file 9bd9: {cause}"));
        let head = StoreError::new("the manifest", Cause::Unreachable(refused())).from_place(place);
        let (since, max_age) = (UnixTime(0), Duration::from_secs(86_400));
        let old = Cause::SavedHeadTooOld { since, max_age, reason: Box::new(head) };
        let text = StoreError::new("the head", old).from_place(place).full_text();
        assert_eq!(text.matches(place).count(), 1, "{text}");
        assert!(text.ends_with(": the manifest: the server can't be reached: connection refused"), "{text}");
    }

    #[test]
    fn a_name_is_not_found_in_a_longer_name() {
        for (text, is_named) in [
            ("can't read /a/b", true),
            ("`/a/b` is there", true),
            ("x.test:/a/b: gone", true),
            ("/a/b. Then", true),
            ("/a/bc", false),
            ("/a/b/c", false),
            ("/x/a/b", false),
            ("/a/b.txt", false),
            ("", false),
        ] {
            assert_eq!(names(text, "/a/b"), is_named, "{text:?}");
        }
        assert!(!names("anything", ""));
    }
}
