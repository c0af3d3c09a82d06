//! Explains failures of `object_store`.

use std::error::Error as _;

use esker_store::{Cause, StorageProblem};
use object_store::Error;

/// Maximum number of characters of a server's explanation.
const SAID_MAX: usize = 300;
/// Text that `object_store` writes before the status of a response.
const STATUS: &str = "status code: ";
/// Host of a cloud's instance metadata service, which gives machines their credentials.
const METADATA: &str = "169.254.";

/// Failure of a request, after the repetitions of `object_store`.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The server has no such file.
    Missing,
    /// A condition was not met, or the server can't tell.
    Condition,
    /// The server doesn't know the operation or a field of it.
    Unsupported(String),
    /// Another failure.
    Problem(StorageProblem),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let text = error.to_string();
        let status = status(&text);
        let said = said(&text);
        match error {
            Error::NotFound { .. } if !text.contains("NoSuchBucket") => return Self::Missing,
            Error::NotFound { .. } => return Self::Problem(StorageProblem::NoBucket(said)),
            Error::AlreadyExists { .. } | Error::Precondition { .. } | Error::NotModified { .. } => {
                return Self::Condition;
            }
            Error::NotImplemented { .. } | Error::NotSupported { .. } => return Self::Unsupported(said),
            Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
                return Self::Problem(StorageProblem::Denied(said));
            }
            _ => {}
        }
        if matches!(status, Some(405 | 501)) || text.contains("NotImplemented") {
            return Self::Unsupported(said);
        }
        let cause = cause(&error);
        let is_of_metadata = text.contains(METADATA);
        Self::Problem(match (cause, status) {
            _ if is_of_metadata => StorageProblem::NoCredentials(
                "neither the environment nor a profile has a key, and this machine has no role in a cloud"
                    .into(),
            ),
            (Some(cause), _) => match cause {
                Cause::BadUrl { .. } | Cause::Insecure { .. } => StorageProblem::Refused(with_sources(cause)),
                _ => StorageProblem::Unavailable(with_sources(cause)),
            },
            (None, Some(404)) => StorageProblem::NoBucket(said),
            (None, Some(401 | 403)) => StorageProblem::Denied(said),
            (None, Some(429 | 503)) => StorageProblem::Overloaded(said),
            (None, Some(408 | 500..=599)) => StorageProblem::Unavailable(said),
            (None, _) if text.contains("SlowDown") => StorageProblem::Overloaded(said),
            (None, _) if text.contains("InternalError") => StorageProblem::Unavailable(said),
            (None, Some(300..=399)) => StorageProblem::Refused(format!(
                "{said}; the bucket is in another region or at another endpoint"
            )),
            (None, _) => StorageProblem::Refused(said),
        })
    }
}

impl Failure {
    /// Returns the failure of an operation whose conditions and files are known to be right.
    pub(super) fn problem(self) -> StorageProblem {
        match self {
            Self::Missing => StorageProblem::NoBucket("it answers with status 404".to_owned()),
            Self::Condition => {
                StorageProblem::Unavailable("another request changed the same file".to_owned())
            }
            Self::Unsupported(said) => StorageProblem::Refused(said),
            Self::Problem(problem) => problem,
        }
    }

    /// Returns true if the same request may succeed when it is repeated.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Problem(problem) if problem.may_pass())
    }
}

/// Returns the failure of a connection in a chain of errors.
fn cause(error: &Error) -> Option<&Cause> {
    let mut next = error.source();
    while let Some(error) = next {
        if let Some(cause) = error.downcast_ref::<Cause>() {
            return Some(cause);
        }
        next = error.source();
    }
    None
}

fn with_sources(cause: &Cause) -> String {
    let mut text = cause.to_string();
    let mut next = cause.source();
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

fn status(text: &str) -> Option<u16> {
    let (_, rest) = text.rsplit_once(STATUS)?;
    rest.get(..3)?.parse().ok()
}

/// Returns the code and message of a server's answer, or the end of the text.
fn said(text: &str) -> String {
    let element = |name: &str| {
        let (_, rest) = text.split_once(&format!("<{name}>"))?;
        rest.split_once('<').map(|(value, _)| value.trim()).filter(|value| !value.is_empty())
    };
    let plain = match (element("Code"), element("Message")) {
        (Some(code), Some(message)) => format!("{code}, {message}"),
        (Some(code), None) => code.to_owned(),
        _ => match text.rsplit_once(STATUS) {
            Some((_, rest)) => format!("it answers with status {}", rest.trim_end_matches([':', ' '])),
            None => text.to_owned(),
        },
    };
    plain.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).take(SAID_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Failure {
        Error::Generic { store: "S3", source: text.to_owned().into() }.into()
    }

    #[test]
    fn answers_of_servers_are_explained() {
        let denied = "Server returned non-2xx status code: 403 Forbidden: <?xml?><Error><Code>AccessDenied</Code>\
                      <Message>no\nway</Message></Error>";
        let Failure::Problem(problem) = of(denied) else { panic!("a problem") };
        assert_eq!(problem, StorageProblem::Denied("AccessDenied, no way".to_owned()));
        let slow = "Server returned non-2xx status code: 503 Service Unavailable: ";
        let Failure::Problem(problem) = of(slow) else { panic!("a problem") };
        assert_eq!(
            problem,
            StorageProblem::Overloaded("it answers with status 503 Service Unavailable".to_owned())
        );
        assert!(problem.may_pass());
        assert!(matches!(
            of("Server returned non-2xx status code: 501 Not Implemented: "),
            Failure::Unsupported(_)
        ));
    }

    proptest::proptest! {
        #[test]
        fn any_answer_is_explained(text in "\\PC*", status in 0_u32..2000) {
            let shown = match of(&format!("status code: {status}{text}")) {
                Failure::Problem(problem) => problem.to_string(),
                other => format!("{other:?}"),
            };
            proptest::prop_assert!(shown.chars().count() < 2 * SAID_MAX);
        }
    }
}
