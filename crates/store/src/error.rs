//! What can go wrong between a server and verified bytes on disk.

use std::error::Error;
use std::fmt;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use esker_format::compress::DecompressError;
use esker_format::hash::ContentHash;
use esker_format::time::UnixTime;
use esker_format::trust::TrustError;

use crate::http::TlsProblem;

/// Who is at fault. Decided where the error is born; fail-over is a match on this and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Blame {
    /// The object itself: whoever is asked, it will be as wrong.
    Object,
    /// The server.
    Host,
    /// A proxy on the way.
    Proxy,
    /// The local disk or cache folder.
    Disk,
    /// Whoever asked: a bad URL, a closed store.
    Caller,
}

/// The part of a request that took too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Resolving the name of the server.
    Resolve,
    /// Connecting.
    Connect,
    /// Having a proxy pass on, and agreeing on TLS.
    Secure,
    /// Waiting for the first byte of the answer.
    FirstByte,
    /// Receiving: fewer bytes came than the low-speed limit asks for.
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
        /// The name.
        host: String,
        /// What the resolver said.
        reason: String,
    },
    /// No connection came about.
    #[error("the server can't be reached")]
    Unreachable(#[source] io::Error),
    /// Something took too long.
    #[error("{phase} {} s", limit.as_secs_f32())]
    TimedOut {
        /// What took too long.
        phase: Phase,
        /// The limit that passed.
        limit: Duration,
    },
    /// Who answers can't prove to be who was to be spoken to.
    #[error("no secure connection with `{host}`: {problem}")]
    Insecure {
        /// The name of the server or proxy.
        host: String,
        /// Why.
        problem: TlsProblem,
    },
    /// The connection broke, or spoke no HTTP.
    #[error("the connection failed before the answer was complete: {0}")]
    Broken(String),
    /// The server says that there is no such object.
    #[error("the server has no such object ({status})")]
    Missing {
        /// How it said so: an HTTP status or an errno text.
        status: String,
    },
    /// The server refuses or fails.
    #[error("the server answered with status {0}")]
    Status(u16),
    /// The server has too much to do, and says when to come back.
    #[error("the server answered with status {status} and wants to be left alone for {} s", after.as_secs())]
    Overloaded {
        /// The HTTP status.
        status: u16,
        /// For how long.
        after: Duration,
    },
    /// A proxy on the way answered with an error of its own.
    #[error("the proxy answered with status {status} of its own: {said}")]
    ProxyStatus {
        /// The HTTP status.
        status: u16,
        /// What it says of the error.
        said: String,
    },
    /// A proxy sends nothing to the user it was told, or to those who tell it none.
    #[error(
        "the proxy answered with status 407: {}",
        match user {
            Some(user) => format!("it does not accept the password of `{user}`, or does not know this user"),
            None => "it wants a user name and a password; write its address as http://USER:PASSWORD@HOST:PORT".to_owned(),
        }
    )]
    ProxyLogin {
        /// The user name that it was told.
        user: Option<String>,
    },
    /// The server points elsewhere; redirects are not followed.
    #[error("the server redirects to `{location}`; redirects are not followed, so name that server instead")]
    Redirected {
        /// Where to.
        location: String,
    },
    /// The server wants to know who asks.
    #[error("the server answered with status 401: it sends that only to those it knows")]
    Unauthorized {
        /// What it wants, as it says it in the field `WWW-Authenticate`.
        challenge: String,
    },
    /// The server sends a whole file where a part of it is asked for.
    #[error(
        "the server, or a proxy on the way, sends whole files and not the parts that are asked for (HTTP ranges)"
    )]
    WholeFile,
    /// A file of which parts are read is not the one any more that was opened.
    #[error("the file has changed on the server since it was opened")]
    Changed,
    /// A part of a file is not what the list of its digests says.
    #[error("bytes {from} to {to} are not those that the list of digests names")]
    WrongPart {
        /// Where the part begins.
        from: u64,
        /// Where it ends.
        to: u64,
    },
    /// A list of digests is not the one that was named.
    #[error("it has the digest {actual}, and not {expected}")]
    WrongList {
        /// Which digest it was to have.
        expected: String,
        /// Which one it has.
        actual: String,
    },
    /// An address that must not be connected to.
    #[error(
        "connecting to {host} ({address}) is not allowed to users of this broker; whoever runs it allows it with `--connect`"
    )]
    NotAllowed {
        /// The server or proxy, as it was named.
        host: String,
        /// Its address.
        address: std::net::IpAddr,
    },
    /// More bytes than the object may have.
    #[error("the answer is larger than the {limit} bytes allowed for this object")]
    TooLarge {
        /// The limit in bytes.
        limit: u64,
    },
    /// The stored bytes have another hash than the one that names them.
    #[error(
        "the bytes are damaged: {len} bytes with hash {actual} came instead of {expected}{}",
        if *html { "; they look like an HTML page" } else { "" }
    )]
    Corrupt {
        /// The hash that was asked for.
        expected: ContentHash,
        /// The hash of what came.
        actual: ContentHash,
        /// How many bytes came.
        len: u64,
        /// Whether they look like a web page, as captive portals and error pages do.
        html: bool,
    },
    /// The stored bytes carry the right hash but don't decompress to what the repository says.
    #[error("{0}")]
    Undecodable(DecompressError),
    /// The plain object has another length than the catalog says.
    #[error("the object has {actual} plain bytes where the repository says {expected}")]
    WrongSize {
        /// What the repository says.
        expected: u64,
        /// What the object has.
        actual: u64,
    },
    /// The head of a repository was refused.
    #[error("{0}")]
    Untrusted(TrustError),
    /// The server can't be used, and the saved head is too old to go on with.
    #[error(
        "the server can't be used now, and the head that it last confirmed at {since} is older than the {} days \
         allowed without it",
        max_age.as_secs() / 86_400
    )]
    SavedHeadTooOld {
        /// When a server last confirmed the saved head.
        since: UnixTime,
        /// Up to which age it may be used.
        max_age: Duration,
        /// Why the server can't be used.
        #[source]
        reason: Box<StoreError>,
    },
    /// A local file operation failed.
    #[error("{doing} `{}` failed", path.display())]
    Disk {
        /// What was attempted.
        doing: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The cache folder belongs to someone else, so its content can't be trusted.
    #[error("`{}` {problem}", path.display())]
    NotPrivate {
        /// The folder.
        path: PathBuf,
        /// Whose it is or who may write.
        problem: String,
    },
    /// The cache has no room and all of what it has is in use.
    #[error(
        "no room for {needed} bytes: {used} bytes of the cache are in use and its hard limit is {limit} bytes"
    )]
    Full {
        /// Bytes asked for.
        needed: u64,
        /// Bytes the cache holds.
        used: u64,
        /// The hard limit.
        limit: u64,
    },
    /// Another process is the writer of this cache folder.
    #[error("the cache `{}` is in use by another process{}", path.display(), owner_text(*pid))]
    Busy {
        /// The cache folder.
        path: PathBuf,
        /// The process, if it left its number.
        pid: Option<u32>,
    },
    /// The process that writes the cache says nothing.
    #[error("the cache `{}` is written by another process{}, which does not answer; is it stopped?", path.display(), owner_text(*pid))]
    Silent {
        /// The cache folder.
        path: PathBuf,
        /// The process, if the kernel knows.
        pid: Option<u32>,
    },
    /// The address of the repository makes no sense.
    #[error("`{url}` can't be used as an address: {reason}")]
    BadUrl {
        /// The address.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// The store was shut down, or dropped a request unanswered.
    #[error("the store was closed before there was an answer")]
    Closed,
    /// The way on which it was queued was left before it was sent; another is taken.
    #[error("it was queued on a way that was left")]
    Left,
    /// It was sent, and taken back for others because the server didn't answer it; it is asked for again.
    #[error("the server answered others and not this one")]
    TakenBack,
    /// A prefetch whose errand ended before it was asked for.
    #[error("it was called off, because nobody needs it any more")]
    CalledOff,
    /// What was to be pinned can't be.
    #[error("can't be pinned: {why}")]
    BadPin {
        /// Why not.
        why: String,
    },
    /// Content that lies outside of the repository, and nobody said where.
    #[error(
        "its content lies outside of the repository, and no server that has it is named: set CVMFS_EXTERNAL_URL, or \
         say --external URL"
    )]
    Elsewhere,
    /// No cache of this size takes the object.
    #[error(
        "it has {needed} bytes, and the cache takes objects of up to {limit} bytes; give it a larger quota"
    )]
    LargerThanCache {
        /// Bytes of the object.
        needed: u64,
        /// The most bytes of an object.
        limit: u64,
    },
    /// Too many prefetches are queued already.
    #[error("{limit} prefetches are queued, and no more are taken")]
    QueueFull {
        /// How many may be.
        limit: usize,
    },
    /// A failure in a store of another process.
    #[error("{text}")]
    Remote {
        /// Its blame.
        blame: Blame,
        /// Whether a retry may help.
        may_pass: bool,
        /// Its text.
        text: String,
    },
}

fn owner_text(pid: Option<u32>) -> String {
    pid.map(|pid| format!(" (process {pid})")).unwrap_or_default()
}

impl Cause {
    /// Who is at fault.
    pub fn blame(&self) -> Blame {
        match self {
            Cause::Unresolved { .. }
            | Cause::Unreachable(_)
            | Cause::TimedOut { .. }
            | Cause::TakenBack
            | Cause::Insecure { .. }
            | Cause::Broken(_)
            | Cause::Missing { .. }
            | Cause::Status(_)
            | Cause::Overloaded { .. }
            | Cause::Redirected { .. }
            | Cause::WholeFile
            | Cause::Unauthorized { .. }
            | Cause::Untrusted(_)
            | Cause::SavedHeadTooOld { .. } => Blame::Host,
            Cause::TooLarge { .. }
            | Cause::Corrupt { .. }
            | Cause::Undecodable(_)
            | Cause::Changed
            | Cause::WrongPart { .. }
            | Cause::WrongList { .. }
            | Cause::WrongSize { .. } => Blame::Object,
            Cause::Disk { .. }
            | Cause::NotPrivate { .. }
            | Cause::Full { .. }
            | Cause::LargerThanCache { .. } => Blame::Disk,
            Cause::Silent { .. } => Blame::Disk,
            Cause::Busy { .. }
            | Cause::NotAllowed { .. }
            | Cause::BadUrl { .. }
            | Cause::Closed
            | Cause::Elsewhere
            | Cause::CalledOff
            | Cause::BadPin { .. }
            | Cause::Left
            | Cause::QueueFull { .. } => Blame::Caller,
            Cause::ProxyStatus { .. } | Cause::ProxyLogin { .. } => Blame::Proxy,
            Cause::Remote { blame, .. } => *blame,
        }
    }

    /// Whether asking the same again, later, may succeed without anything being repaired by hand.
    pub fn may_pass(&self) -> bool {
        match self {
            Cause::Unresolved { .. }
            | Cause::Unreachable(_)
            | Cause::TimedOut { .. }
            | Cause::Broken(_)
            | Cause::Overloaded { .. }
            | Cause::SavedHeadTooOld { .. }
            | Cause::Full { .. }
            | Cause::Busy { .. }
            | Cause::Silent { .. }
            | Cause::ProxyStatus { .. }
            | Cause::Left
            | Cause::TakenBack
            | Cause::QueueFull { .. } => true,
            Cause::Untrusted(error) => error.is_older(),
            Cause::Status(status) => matches!(status, 408 | 425 | 429 | 500..=599),
            Cause::Disk { source, .. } => is_full(source),
            Cause::Remote { may_pass, .. } => *may_pass,
            Cause::Missing { .. }
            | Cause::Insecure { .. }
            | Cause::Redirected { .. }
            | Cause::ProxyLogin { .. }
            | Cause::WholeFile
            | Cause::Unauthorized { .. }
            | Cause::Changed
            | Cause::WrongPart { .. }
            | Cause::WrongList { .. }
            | Cause::TooLarge { .. }
            | Cause::Corrupt { .. }
            | Cause::Undecodable(_)
            | Cause::WrongSize { .. }
            | Cause::LargerThanCache { .. }
            | Cause::NotAllowed { .. }
            | Cause::NotPrivate { .. }
            | Cause::BadUrl { .. }
            | Cause::Closed
            | Cause::Elsewhere
            | Cause::CalledOff
            | Cause::BadPin { .. } => false,
        }
    }
}

/// Whether an I/O error means that the disk or a disk quota is full.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A failure to get something: on which object, from where, and why. Cheap to clone, because one failed
/// fetch answers everyone who waits for it.
#[derive(Clone, Debug)]
pub struct StoreError {
    object: Arc<str>,
    from: Option<Arc<str>>,
    cause: Arc<Cause>,
    /// Where the way on which it failed says more than the cause.
    blame: Option<Blame>,
}

impl StoreError {
    /// A failure on a named object.
    pub fn new(object: impl Into<Arc<str>>, cause: Cause) -> Self {
        Self { object: object.into(), from: None, cause: Arc::new(cause), blame: None }
    }

    /// Adds where the object was to come from.
    #[must_use]
    pub fn from_place(mut self, place: impl Into<Arc<str>>) -> Self {
        self.from = Some(place.into());
        self
    }

    /// The same failure, told to someone who knows the object by another name.
    #[must_use]
    pub fn on(mut self, object: impl Into<Arc<str>>) -> Self {
        self.object = object.into();
        self
    }

    /// What the failure happened to.
    pub fn object(&self) -> &str {
        &self.object
    }

    /// Why.
    pub fn cause(&self) -> &Cause {
        &self.cause
    }

    /// Who is at fault.
    pub fn blame(&self) -> Blame {
        self.blame.unwrap_or_else(|| self.cause.blame())
    }

    /// The same failure, for which somebody is known to be at fault.
    #[must_use]
    pub(crate) fn blamed(mut self, blame: Blame) -> Self {
        self.blame = Some(blame);
        self
    }

    /// Whether asking again later may succeed.
    pub fn may_pass(&self) -> bool {
        self.cause.may_pass()
    }

    /// Returns where the object was to come from.
    pub fn place(&self) -> Option<&str> {
        self.from.as_deref()
    }

    /// Returns the text with the texts of all underlying errors.
    pub fn full_text(&self) -> String {
        self.full_text_after("")
    }

    /// Returns the full text without the object and the place that `said`, which comes before it, names already.
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

/// Tells whether a text names an object, such as a path or a URL, as a whole.
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
        // The text of the cause is part of ours, so the chain goes on below it.
        self.cause.source()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_already_is_not_named_again() {
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
    fn a_longer_name_is_another_one() {
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
