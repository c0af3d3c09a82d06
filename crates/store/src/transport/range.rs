//! Formats range requests, and checks their responses.

use hyper::header::{self, HeaderName};
use hyper::{Response, StatusCode};

use crate::error::Cause;
use crate::transport::source::{Fetch, FilePart, FileVersion, Validator};

/// Returns the value of `Range`, if a part is requested.
pub(super) fn range(fetch: &Fetch, from: u64) -> Option<String> {
    match &fetch.part {
        Some(FilePart { range, .. }) => {
            Some(format!("bytes={}-{}", range.start + from, range.end.saturating_sub(1)))
        }
        None => (from > 0).then(|| format!("bytes={from}-")),
    }
}

/// Returns the known length and version of the file that a part is of.
fn whole_file(fetch: &Fetch) -> Option<&FileVersion> {
    fetch.part.as_ref()?.whole.as_deref()
}

/// Returns the value of `If-Range` for the known version; if it doesn't match, the server sends the whole file.
pub(super) fn if_range(fetch: &Fetch) -> Option<&str> {
    match whole_file(fetch)?.version.as_ref()? {
        Validator::Tag(text) | Validator::Time(text) => Some(text),
    }
}

/// Checks a response from which the bytes before `from` are not needed; returns how many of them it contains. `None`
/// if its status is to be judged as that of any response.
pub(super) fn skipped<T>(response: &Response<T>, fetch: &Fetch, from: u64) -> Option<Result<u64, Cause>> {
    let begin = fetch.part.as_ref().map_or(from, |part| part.range.start + from);
    match (response.status(), &fetch.part) {
        (StatusCode::PARTIAL_CONTENT, _) if fetch.part.is_some() || from > 0 => {
            Some(is_wanted(response, fetch, begin).map(|()| 0))
        }
        // No part was requested; a part that is everything is fine.
        (StatusCode::PARTIAL_CONTENT, None) => Some(match complete(response) {
            Some(_) => Ok(0),
            None => Err(Cause::Broken(
                "it was asked for a whole file, and sent a part of it (status 206)".to_owned(),
            )),
        }),
        (status, Some(_)) if is_whole(status) => Some(Err(match is_of(response, fetch) {
            true => Cause::WholeFile,
            false => Cause::Changed,
        })),
        // It has become so short that it has no such part.
        (StatusCode::RANGE_NOT_SATISFIABLE, Some(_)) if whole_file(fetch).is_some() => {
            Some(Err(Cause::Changed))
        }
        (status, None) if is_whole(status) => Some(Ok(from)),
        _ => None,
    }
}

/// Returns whether a response with this status is a whole file: as the server has it, or as a proxy changed it. The
/// hash tells whether the change did harm.
fn is_whole(status: StatusCode) -> bool {
    matches!(status, StatusCode::OK | StatusCode::NON_AUTHORITATIVE_INFORMATION)
}

/// Returns the length of a file if a partial response has all of it, from the first byte to the last.
pub(super) fn complete<T>(response: &Response<T>) -> Option<u64> {
    let Span { first, last, len } = span(response)?;
    let len = len?;
    (first == 0 && last.checked_add(1) == Some(len)).then_some(len)
}

/// Checks that the response is the requested part of the requested file.
fn is_wanted<T>(response: &Response<T>, fetch: &Fetch, begin: u64) -> Result<(), Cause> {
    let wrong =
        || Cause::Broken(format!("it was asked for what begins at byte {begin}, and sent something else"));
    let Span { first, last, len } = span(response).ok_or_else(wrong)?;
    if !is_of(response, fetch) {
        return Err(Cause::Changed);
    }
    let end = fetch.part.as_ref().map(|part| part.range.end.min(len.unwrap_or(u64::MAX)));
    if first != begin || end.is_some_and(|end| last.checked_add(1) != Some(end)) {
        return Err(wrong());
    }
    Ok(())
}

/// Returns true if a response is of the known version. One without a validator is trusted where the request
/// named the version.
fn is_of<T>(response: &Response<T>, fetch: &Fetch) -> bool {
    let Some(known) = whole_file(fetch) else { return true };
    let len = span(response).and_then(|span| span.len);
    if len.is_some_and(|len| len != known.len) {
        return false;
    }
    match &known.version {
        Some(Validator::Tag(tag)) => field(response, header::ETAG).is_none_or(|now| now == tag),
        Some(Validator::Time(time)) => field(response, header::LAST_MODIFIED).is_none_or(|now| now == time),
        None => true,
    }
}

/// Returns the length and validator of the whole file in a partial response.
pub(super) fn whole<T>(response: &Response<T>) -> Option<FileVersion> {
    let len = span(response)?.len?;
    Some(FileVersion { len, version: version(response) })
}

/// Returns the validator. A weak tag may stay the same for other bytes, so a time is better.
fn version<T>(response: &Response<T>) -> Option<Validator> {
    let tag = field(response, header::ETAG).filter(|tag| tag.starts_with('"') && tag.len() > 2);
    let time = || field(response, header::LAST_MODIFIED).filter(|time| !time.is_empty());
    tag.map(|tag| Validator::Tag(tag.to_owned()))
        .or_else(|| time().map(|time| Validator::Time(time.to_owned())))
}

fn field<T>(response: &Response<T>, name: HeaderName) -> Option<&str> {
    response.headers().get(name).and_then(|value| value.to_str().ok()).map(str::trim)
}

/// Parsed `Content-Range`.
struct Span {
    first: u64,
    last: u64,
    len: Option<u64>,
}

fn span<T>(response: &Response<T>) -> Option<Span> {
    if response.status() != StatusCode::PARTIAL_CONTENT {
        return None;
    }
    let (part, len) = field(response, header::CONTENT_RANGE)?.strip_prefix("bytes ")?.split_once('/')?;
    let (first, last) = part.split_once('-')?;
    let len = if len == "*" { None } else { Some(len.parse().ok()?) };
    Some(Span { first: first.parse().ok()?, last: last.parse().ok()?, len })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn answer(status: u16, fields: &[(&str, &str)]) -> Response<()> {
        let mut answer = Response::builder().status(status);
        for (name, value) in fields {
            answer = answer.header(*name, *value);
        }
        answer.body(()).unwrap()
    }

    fn of(version: Option<Validator>) -> Fetch {
        let whole = Some(Arc::new(FileVersion { len: 100, version }));
        Fetch { part: Some(FilePart { range: 10..20, whole }), ..Fetch::new("a", "a", 10) }
    }

    #[test]
    fn a_part_of_another_version_is_rejected() {
        let known = of(Some(Validator::Tag("\"a\"".into())));
        assert_eq!(if_range(&known), Some("\"a\""));
        let outcome = |status, fields: &[(&str, &str)]| skipped(&answer(status, fields), &known, 0);
        let good = ("content-range", "bytes 10-19/100");
        assert!(matches!(outcome(206, &[good]), Some(Ok(0))));
        assert!(matches!(outcome(206, &[good, ("etag", "\"a\"")]), Some(Ok(0))));
        let changed = |outcome| matches!(outcome, Some(Err(Cause::Changed)));
        assert!(changed(outcome(206, &[good, ("etag", "\"b\"")])));
        assert!(changed(outcome(206, &[("content-range", "bytes 10-19/101")])));
        assert!(changed(outcome(200, &[("etag", "\"b\"")])));
        assert!(changed(outcome(416, &[])));
        assert!(matches!(outcome(200, &[("etag", "\"a\"")]), Some(Err(Cause::WholeFile))));
        for wrong in
            ["bytes 11-19/100", "bytes 10-18/100", "bytes 10-19", "bytes x-19/100", "lines 10-19/100"]
        {
            let said = outcome(206, &[("content-range", wrong)]);
            assert!(matches!(said, Some(Err(Cause::Broken(_)))), "{wrong}");
        }
        assert!(outcome(404, &[]).is_none() && outcome(503, &[]).is_none());
    }

    #[test]
    fn a_continued_transfer_may_restart_from_zero() {
        let plain = Fetch::new("a", "a", 100);
        assert!(matches!(skipped(&answer(200, &[]), &plain, 7), Some(Ok(7))));
        let part = answer(206, &[("content-range", "bytes 7-99/*")]);
        assert!(matches!(skipped(&part, &plain, 7), Some(Ok(0))));
        assert!(matches!(skipped(&part, &plain, 0), Some(Err(Cause::Broken(_)))), "no part was requested");
    }

    #[test]
    fn a_range_of_the_whole_file_is_a_whole_file() {
        let plain = Fetch::new("a", "a", 100);
        let sent = |range: &str| skipped(&answer(206, &[("content-range", range)]), &plain, 0);
        assert!(matches!(sent("bytes 0-99/100"), Some(Ok(0))));
        for part in
            ["bytes 0-98/100", "bytes 1-99/100", "bytes 0-99/*", "bytes 0-100/100", "bytes 0-99", "none"]
        {
            assert!(matches!(sent(part), Some(Err(Cause::Broken(_)))), "{part}");
        }
        assert!(matches!(skipped(&answer(206, &[]), &plain, 0), Some(Err(Cause::Broken(_)))));
        assert!(matches!(skipped(&answer(203, &[]), &plain, 0), Some(Ok(0))));
        let known = of(None);
        assert!(matches!(skipped(&answer(203, &[]), &known, 0), Some(Err(Cause::WholeFile))));
    }

    #[test]
    fn the_validator_distinguishes_versions() {
        let told = |fields: &[(&str, &str)]| {
            let range = ("content-range", "bytes 0-0/5");
            whole(&answer(206, &[&[range], fields].concat())).and_then(|whole| whole.version)
        };
        let time = ("last-modified", "Mon, 02 Jan 2006 15:04:05 GMT");
        assert_eq!(told(&[("etag", "\"x\""), time]), Some(Validator::Tag("\"x\"".into())));
        assert_eq!(told(&[("etag", "W/\"x\""), time]), Some(Validator::Time(time.1.into())));
        assert_eq!(told(&[("etag", "W/\"x\"")]), None);
    }
}
