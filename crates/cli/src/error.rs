//! Failures of commands: kinds, exit codes, and messages on stderr.

use std::fmt::Display;
use std::process::ExitCode;

use esker_format::trust::TrustError;
use esker_node::repository::NotAsked;
use esker_store::{Blame, Cause, StoreError, names};
use esker_vfs::{ErrorKind, TreeError};

use crate::output::tell;

/// Kind of a failure, which is its exit code for scripts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// The command failed.
    Failed = 1,
    /// Wrong usage or configuration.
    Usage = 2,
    /// The network or a server.
    Network = 3,
    /// Damaged or untrusted data.
    Damaged = 4,
    /// The user interrupted the command.
    Interrupted = 130,
}

impl Kind {
    /// Returns the kind for an exit code of another `esker` process.
    pub(crate) fn from_code(code: u8) -> Self {
        match code {
            2 => Kind::Usage,
            3 => Kind::Network,
            4 => Kind::Damaged,
            130 => Kind::Interrupted,
            _ => Kind::Failed,
        }
    }
}

/// A failed command: the operation, its object and the cause, and the next step.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// Exit code, if it differs from that of the kind (`run` returns that of a shell).
    code: Option<u8>,
    /// True if the reader of stdout has closed it: no message, and no failure.
    quiet: bool,
}

impl Failure {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), hint: None, code: None, quiet: false }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(Kind::Failed, message)
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Kind::Usage, message)
    }

    /// Adds the next step.
    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds a hint before the existing ones.
    pub(crate) fn hint_first(mut self, hint: impl Into<String>) -> Self {
        let hint = hint.into();
        self.hint = Some(self.hint.map_or(hint.clone(), |further| format!("{hint}\n{further}")));
        self
    }

    pub(crate) fn with_code(mut self, code: u8) -> Self {
        self.code = Some(code);
        self
    }

    pub(crate) fn code(&self) -> u8 {
        if self.quiet { 0 } else { self.code.unwrap_or(self.kind as u8) }
    }

    /// Writes the message to stderr and returns the exit code.
    pub(crate) fn report(&self) -> ExitCode {
        if !self.quiet {
            let mut text = format!("esker: {}\n", self.message);
            if let Some(hint) = &self.hint {
                for line in hint.lines() {
                    text.push_str("  ");
                    text.push_str(line);
                    text.push('\n');
                }
            }
            tell(&text);
        }
        ExitCode::from(self.code())
    }
}

/// Prints a warning.
pub(crate) fn warn(warning: Option<&str>) {
    if let Some(warning) = warning {
        tell(&format!("esker: warning: {warning}\n"));
    }
}

/// Makes the failure of writing to stdout. A closed pipe is success.
impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        let quiet = error.kind() == std::io::ErrorKind::BrokenPipe;
        Self { quiet, ..Self::failed(format!("can't write to standard output: {error}")) }
    }
}

/// Returns an error and its causes in one line, outermost first, without repeating a cause.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    chain_after("", error)
}

/// Returns the texts of an error and its causes for a message that starts with `said`.
///
/// Neither a cause nor an object is named twice.
pub(crate) fn chain_after(said: &str, error: &dyn std::error::Error) -> String {
    let mut text = without_named(said, error.to_string());
    let mut next = error.source();
    while let Some(cause) = next {
        let words = cause.to_string();
        if !text.contains(&words) {
            let words = without_named(&format!("{said}: {text}"), words);
            text.push_str(": ");
            text.push_str(&words);
        }
        next = cause.source();
    }
    text
}

/// Removes the path from `PATH: why` and from ``doing `PATH` failed``, if `said` names it.
fn without_named(said: &str, words: String) -> String {
    if let Some((path, why)) = words.split_once(": ") {
        let path = path.trim_matches(['`', '"']);
        if path.contains('/') && !path.contains(' ') && names(said, path) {
            return why.to_owned();
        }
    }
    let quoted = words.split_once('`').and_then(|(doing, rest)| {
        let (path, failed) = rest.split_once('`')?;
        let is_operation = doing.split(' ').next().is_some_and(|verb| verb.ends_with("ing"));
        let is_named = path.contains('/') && names(said, path);
        (is_operation && is_named && failed.starts_with(" failed")).then(|| format!("{doing}it{failed}"))
    });
    quoted.unwrap_or(words)
}

/// Converts a failure of the store: its origin decides the kind.
pub(crate) fn of_store(what: &str, error: &StoreError) -> Failure {
    let kind = match (error.blame(), error.cause()) {
        (_, Cause::BadUrl { .. }) => Kind::Usage,
        _ if error.is_interruption() => Kind::Interrupted,
        // Another server might have the right data, but this one's is not to be trusted.
        (_, Cause::Untrusted(_)) => Kind::Damaged,
        (Blame::Host | Blame::Proxy, _) => Kind::Network,
        (Blame::Object, _) => Kind::Damaged,
        (Blame::Disk | Blame::Caller, _) => Kind::Failed,
    };
    let failure = Failure::new(kind, format!("{what}: {}", error.full_text_after(what)));
    match error.cause() {
        Cause::Untrusted(TrustError::TwoRoots { .. }) => failure.hint(
            "tell the owner of the repository; if the owner has recreated it, use --forget-history",
        ),
        Cause::Untrusted(TrustError::RevisionJump { .. }) => failure
            .hint("ask the owner of the repository whether that is its revision; if it is, use --forget-history"),
        Cause::Untrusted(TrustError::OlderWhitelist { .. }) => failure
            .hint("its server or a proxy is out of date, or sends a certificate that the owner removed from the whitelist"),
        Cause::Untrusted(TrustError::OlderRevision { .. } | TrustError::OlderTimestamp { .. }) => failure
            .hint("if the repository was recreated, use --forget-history; otherwise its server is out of date"),
        Cause::Untrusted(TrustError::WhitelistExpired { .. }) => failure.hint(
            "see whether the clock of this machine is right; if it is, tell the owner of the repository, who can sign \
             it again with `esker repo resign NAME`",
        ),
        Cause::Insecure { problem, .. } => failure.hint(problem.mend()),
        Cause::Bucket { problem, .. } => failure.hint(problem.mend()),
        Cause::Unreachable(error) if error.get_ref().is_some_and(|error| error.is::<NotAsked>()) => {
            failure.hint("leave out --offline once: what was never fetched isn't in this cache")
        }
        Cause::Busy { .. } => {
            failure.hint("its writer can't be reached, perhaps because it runs on another node: name a cache on a local disk with --cache DIR")
        }
        Cause::Missing { .. } if kind == Kind::Network => {
            failure.hint("check the URL and the name, since the server answers; if both are right, tell its administrator")
        }
        Cause::Full { .. } | Cause::LargerThanCache { .. } => failure.hint("raise the limit with --quota SIZE, or unmount what holds the space"),
        _ => match kind {
            Kind::Network => failure.hint("see whether the server is up and reachable from here, and whether the URL is right"),
            Kind::Damaged => failure.hint("check the public key and the URL; if both are right, tell the owner of the repository"),
            _ => failure,
        },
    }
}

/// Converts a failure of a tree; the store's error in it, if there is one, has more details.
pub(crate) fn of_tree(what: &str, error: &TreeError) -> Failure {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(this) = cause {
        if let Some(error) = this.downcast_ref::<StoreError>() {
            return of_store(what, error);
        }
        cause = this.source();
    }
    let kind = match error.kind {
        ErrorKind::Unavailable | ErrorKind::TimedOut => Kind::Network,
        ErrorKind::Damaged => Kind::Damaged,
        _ => Kind::Failed,
    };
    Failure::new(kind, format!("{what}: {}", chain_after(what, error)))
}

/// Adds the object to a failure: "can't read FILE: cause".
pub(crate) trait Context<T> {
    fn context(self, kind: Kind, what: impl Display) -> Result<T, Failure>;
}

impl<T, E: std::error::Error> Context<T> for Result<T, E> {
    fn context(self, kind: Kind, what: impl Display) -> Result<T, Failure> {
        self.map_err(|error| {
            let what = what.to_string();
            let why = chain_after(&what, &error);
            Failure::new(kind, format!("{what}: {why}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use esker_format::time::UnixTime;

    use super::*;

    #[derive(Debug)]
    struct Step {
        text: &'static str,
        source: Option<Box<Step>>,
    }

    impl Display for Step {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str(self.text)
        }
    }

    impl std::error::Error for Step {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            self.source.as_deref().map(|source| source as _)
        }
    }

    #[test]
    fn an_error_names_a_path_once() {
        let said = |what: &str, steps: &[&'static str]| {
            let mut error: Option<Box<Step>> = None;
            for text in steps.iter().rev() {
                error = Some(Box::new(Step { text, source: error.take() }));
            }
            let error = *error.expect("a step");
            Err::<(), Step>(error).context(Kind::Failed, what).expect_err("an error").message
        };
        for (what, steps, expected) in [
            ("can't read /a/b", &["/a/b: no such file"][..], "can't read /a/b: no such file"),
            ("can't open `/a/b`", &["`/a/b`: gone", "why"], "can't open `/a/b`: gone: why"),
            ("x failed", &["writing `/a/b` failed", "/a/b: full"], "x failed: writing `/a/b` failed: full"),
            (
                "can't make /a/b",
                &["creating `/a/b` failed", "full"],
                "can't make /a/b: creating it failed: full",
            ),
            ("can't make /a/b", &["creating `/a/bc` failed"], "can't make /a/b: creating `/a/bc` failed"),
            ("can't make /a/b", &["/a/b/c: no room"], "can't make /a/b: /a/b/c: no room"),
            ("can't use a", &["a: no"], "can't use a: a: no"),
        ] {
            assert_eq!(said(what, steps), expected);
        }
    }

    /// An expired whitelist is reported only after keys and URL were found right.
    #[test]
    fn an_expired_whitelist_is_not_blamed_on_keys() {
        let (expired, now) = (UnixTime(1), UnixTime(2));
        let cause = Cause::Untrusted(TrustError::WhitelistExpired { expired, now });
        let failure = of_store("can't open a.test", &StoreError::new("the head of a.test", cause));
        assert_eq!(failure.kind, Kind::Damaged);
        let hint = failure.hint.expect("a next step");
        assert!(hint.contains("clock") && hint.contains("resign") && !hint.contains("key"), "{hint}");
    }
}
