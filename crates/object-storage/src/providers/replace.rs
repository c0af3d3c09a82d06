//! Replaces a file if it has the expected content, in one step that other writers can't come between.
//!
//! A conditional put can fail without an answer, or with one that leaves open whether it was applied: `object_store`
//! takes a 409 on a create for "exists", and repeats a put whose answer was lost, so that it meets its own file. Every
//! failure is therefore settled by reading what is stored.

use bytes::Bytes;
use esker_store::StorageProblem;

use super::failure::Failure;
use super::requests::{Condition, ReadFailure, Requests, pause};

/// Size up to which a file is read to be compared; a larger one is only equal to expected content of its size.
const FILE_MAX: u64 = 1 << 20;
/// Number of attempts; each failed request is repeated several times within one.
const ATTEMPTS: u32 = 8;

/// Result of a conditional replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replaced {
    /// The file had the expected content, and has the new one.
    Yes,
    /// The file has other content.
    No,
}

/// Replaces a file in the root if it has the expected content; none if it is to be missing.
///
/// If another writer replaces the new content before a lost answer is settled, the result is `No`.
pub(crate) async fn replace(
    requests: &Requests,
    file: &str,
    bytes: &Bytes,
    expected: Option<&[u8]>,
) -> Result<Replaced, StorageProblem> {
    let limit = [bytes, expected.unwrap_or_default()].map(|content| content.len() as u64);
    let limit = limit.into_iter().fold(FILE_MAX, u64::max);
    let mut last: Option<Failure> = None;
    for attempt in 0..ATTEMPTS {
        pause(attempt).await;
        let found = match requests.get(file, limit).await {
            Ok(found) => found,
            Err(ReadFailure::TooLarge) => return Ok(Replaced::No),
            Err(ReadFailure::Problem(problem)) => return Err(problem),
        };
        let content = found.as_ref().map(|(content, _)| content);
        if last.is_some() && content == Some(bytes) {
            return Ok(Replaced::Yes);
        }
        if content.map(|content| &content[..]) != expected {
            return Ok(Replaced::No);
        }
        let condition = match found {
            None => Condition::Missing,
            Some((_, version)) if version.e_tag.is_none() && version.version.is_none() => {
                return Err(StorageProblem::NotAtomic("the server gives files no version (ETag)".to_owned()));
            }
            Some((_, version)) => Condition::Is(version),
        };
        match requests.put_if(file, bytes, condition).await {
            Ok(()) => return Ok(Replaced::Yes),
            Err(Failure::Unsupported(said)) => return Err(StorageProblem::NotAtomic(said)),
            Err(Failure::Problem(problem)) if !problem.may_pass() => return Err(problem),
            Err(failure) => last = Some(failure),
        }
    }
    Err(last.map_or_else(|| StorageProblem::Unavailable("no attempt was made".to_owned()), Failure::problem))
}
