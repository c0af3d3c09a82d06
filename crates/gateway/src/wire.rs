//! Requests and answers of the reference's gateway protocol, versions 2 and 3 with the additions of CernVM-FS 2.14.
//!
//! All answers are JSON objects with sorted names and no line end: the reference's publisher takes the body as it comes, and
//! reads `status` only. Unknown names in requests are ignored. Source: `gateway/` of CernVM-FS.

use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value, json};

use crate::lease::{Lease, Millis, Request};

/// Newest version of the protocol.
pub const VERSION_MAX: u32 = 3;
/// Oldest version of the protocol.
pub const VERSION_MIN: u32 = 2;

/// Request for a lease.
#[derive(Clone, Debug, Deserialize)]
pub struct Acquire {
    /// Repository and directory.
    pub path: String,
    /// Version of the protocol that the publisher speaks.
    #[serde(deserialize_with = "number")]
    pub api_version: u64,
    /// Host of the publisher.
    #[serde(default)]
    pub hostname: String,
    /// Leases of the same key in the directory that are to end, because their publisher is gone; none if no lease is to end.
    /// They are named, so that a request that is late ends none that was acquired meanwhile.
    #[serde(default)]
    pub take_over: Option<Vec<String>>,
    /// Token that the publisher proposes, so that it can repeat a request whose answer was lost.
    #[serde(default)]
    pub token: Option<String>,
}

/// Leading JSON of a payload.
#[derive(Clone, Debug, Deserialize)]
pub struct Payload {
    /// Token of the lease; in version 3 the URL has it.
    #[serde(default)]
    pub session_token: String,
    /// SHA-1 of the header of the pack.
    pub payload_digest: String,
    /// Length of the header of the pack.
    #[serde(deserialize_with = "number")]
    pub header_size: u64,
}

/// Request to publish a root catalog.
#[derive(Clone, Debug, Deserialize)]
pub struct Commit {
    old_root_hash: String,
    new_root_hash: String,
    #[serde(default)]
    tag_name: String,
    #[serde(default)]
    tag_description: String,
    #[serde(default)]
    auto_tag_threshold: Option<i64>,
    #[serde(default)]
    delete_tags: String,
}

/// Request for another end of a lease.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
pub struct Refresh {
    /// Time from now to the end, in seconds.
    #[serde(default)]
    pub expires_in_sec: Option<u64>,
}

impl From<Commit> for Request {
    fn from(commit: Commit) -> Self {
        Self {
            old_root: commit.old_root_hash,
            new_root: commit.new_root_hash,
            tag: commit.tag_name,
            description: commit.tag_description,
            // Zero is what a publisher without the setting sends.
            tags_before: commit.auto_tag_threshold.filter(|time| *time > 0),
            removed_tags: commit.delete_tags.split_ascii_whitespace().map(ToOwned::to_owned).collect(),
        }
    }
}

/// Reads a number that the reference's publishers write as text.
fn number<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(u64),
        Text(String),
    }
    match Written::deserialize(from)? {
        Written::Number(number) => Ok(number),
        Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
    }
}

/// Answer to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer(Map<String, Value>);

impl Answer {
    /// Creates the answer of a request that was carried out.
    pub fn ok() -> Self {
        Self::with_status("ok")
    }

    /// Creates the answer of a request that is refused.
    pub fn error(reason: impl Into<String>) -> Self {
        Self::with_status("error").with("reason", reason.into())
    }

    /// Creates the answer for a directory that is leased to another publisher.
    pub fn busy(remaining: Millis) -> Self {
        Self::with_status("path_busy").with("time_remaining", duration(remaining))
    }

    /// Creates the answer for a directory of which the same key has leases that the request did not name.
    pub fn held(leases: &[String]) -> Self {
        Self::busy(Millis(0)).with("own_leases", leases)
    }

    /// Creates the answer with a new lease.
    pub fn lease(token: &str, publisher: u32) -> Self {
        Self::ok().with("max_api_version", publisher.min(VERSION_MAX)).with("session_token", token)
    }

    /// Creates the answer with the number of the revision that has the changes.
    pub fn committed(revision: u64) -> Self {
        Self::ok().with("final_revision", revision)
    }

    fn with_status(status: &str) -> Self {
        Self(Map::new()).with("status", status)
    }

    /// Adds a value.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.0.insert(name.to_owned(), value.into());
        self
    }

    /// Returns the body.
    pub fn body(&self) -> Vec<u8> {
        serde_json::to_vec(&self.0).expect("names of a JSON object are text")
    }
}

/// Returns what lists of leases say of a lease.
pub fn lease_data(lease: &Lease) -> Value {
    json!({
        "key_id": lease.key,
        "path": lease.path.to_string(),
        "expires": time(lease.expires),
        "hostname": lease.hostname,
    })
}

/// Returns a time span as the Go library writes it: `1h59m59.96s`.
fn duration(span: Millis) -> String {
    let all = span.0.max(0);
    let (hours, minutes, rest) = (all / 3_600_000, all / 60_000 % 60, all % 60_000);
    let fraction = format!("{:03}", rest % 1000);
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    let seconds = format!("{}{point}{fraction}s", rest / 1000);
    match (hours, minutes) {
        (0, 0) if all < 1000 && all > 0 => format!("{all}ms"),
        (0, 0) => seconds,
        (0, _) => format!("{minutes}m{seconds}"),
        _ => format!("{hours}h{minutes}m{seconds}"),
    }
}

/// Returns a time as the Go library writes it: `2026-11-21 11:08:13.206 +0000 UTC`.
fn time(at: Millis) -> String {
    let seconds = esker_format::time::UnixTime(at.0.div_euclid(1000)).to_string();
    let seconds = seconds.trim_end_matches(" UTC");
    match at.0.rem_euclid(1000) {
        0 => format!("{seconds} +0000 UTC"),
        rest => format!("{seconds}.{} +0000 UTC", format!("{rest:03}").trim_end_matches('0')),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_of_all_versions_are_read() {
        let acquire = |text: &str| serde_json::from_str::<Acquire>(text).map(|request| request.api_version);
        assert_eq!(acquire(r#"{"path" : "r.test/a", "api_version" : "2", "hostname" : "h"}"#).unwrap(), 2);
        assert_eq!(acquire(r#"{"path":"r.test/a","api_version":3,"unknown":[]}"#).unwrap(), 3);
        assert!(acquire(r#"{"path":"r.test/a","api_version":"x"}"#).is_err());
        let commit = |text: &str| serde_json::from_str::<Commit>(text).map(Request::from).unwrap();
        let plain = commit(
            r#"{"old_root_hash":"a","new_root_hash":"b","tag_name":"t","tag_channel":0,"tag_description":"d"}"#,
        );
        let expected = Request {
            old_root: "a".into(),
            new_root: "b".into(),
            tag: "t".into(),
            description: "d".into(),
            ..Request::default()
        };
        assert_eq!(plain, expected);
        let newest = commit(
            r#"{"old_root_hash":"a","new_root_hash":"b","auto_tag_threshold":17,"delete_tags":"one two "}"#,
        );
        assert_eq!((newest.tags_before, newest.removed_tags), (Some(17), vec!["one".into(), "two".into()]));
    }

    #[test]
    fn answers_are_those_of_the_reference() {
        let text = |answer: Answer| String::from_utf8(answer.body()).unwrap();
        assert_eq!(text(Answer::ok()), r#"{"status":"ok"}"#);
        assert_eq!(text(Answer::error("invalid_hmac")), r#"{"reason":"invalid_hmac","status":"error"}"#);
        assert_eq!(text(Answer::lease("T", 2)), r#"{"max_api_version":2,"session_token":"T","status":"ok"}"#);
        assert_eq!(text(Answer::committed(7)), r#"{"final_revision":7,"status":"ok"}"#);
        assert_eq!(
            text(Answer::busy(Millis(7_199_960))),
            r#"{"status":"path_busy","time_remaining":"1h59m59.96s"}"#
        );
    }

    #[test]
    fn spans_and_times_have_the_form_of_go() {
        for (span, text) in
            [(0, "0s"), (250, "250ms"), (1000, "1s"), (61_500, "1m1.5s"), (3_600_000, "1h0m0s"), (-5, "0s")]
        {
            assert_eq!(duration(Millis(span)), text);
        }
        assert_eq!(time(Millis(1_795_259_293_206)), "2026-11-21 11:08:13.206 +0000 UTC");
        assert_eq!(time(Millis(1_795_259_293_000)), "2026-11-21 11:08:13 +0000 UTC");
    }
}
