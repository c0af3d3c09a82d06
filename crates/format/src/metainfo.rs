//! Description of a repository, and its status on a server: free-form JSON with conventional fields.

use serde_json::Value;

/// Description of a repository by its owner.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metainfo {
    /// Administrator of the repository.
    pub administrator: Option<String>,
    /// Email address of the administrator.
    pub email: Option<String>,
    /// Organisation that owns the repository.
    pub organisation: Option<String>,
    /// Description of the content.
    pub description: Option<String>,
    /// URL of further information.
    pub url: Option<String>,
    /// Recommended server of the publisher (stratum 0).
    pub recommended_stratum0: Option<String>,
    /// Recommended replicas (stratum 1).
    pub recommended_stratum1s: Vec<String>,
    /// All fields.
    pub all: serde_json::Map<String, Value>,
}

/// Reasons why a JSON object can't be read.
#[derive(Debug, thiserror::Error)]
pub enum JsonError {
    /// The text is not JSON.
    #[error("it is not valid JSON")]
    Syntax(#[from] serde_json::Error),
    /// The text is JSON, but not an object.
    #[error("it is not a JSON object")]
    NotAnObject,
}

fn parse_object(bytes: &[u8]) -> Result<serde_json::Map<String, Value>, JsonError> {
    match serde_json::from_slice(bytes)? {
        Value::Object(object) => Ok(object),
        _ => Err(JsonError::NotAnObject),
    }
}

impl Metainfo {
    /// Parses a description; fields of an unexpected type are ignored.
    pub fn parse(bytes: &[u8]) -> Result<Self, JsonError> {
        let all = parse_object(bytes)?;
        let text = |key: &str| {
            all.get(key).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned)
        };
        let list = |key: &str| {
            let items = all.get(key).and_then(Value::as_array).into_iter().flatten();
            items.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        Ok(Self {
            administrator: text("administrator"),
            email: text("email"),
            organisation: text("organisation"),
            description: text("description"),
            url: text("url"),
            recommended_stratum0: text("recommended-stratum0"),
            recommended_stratum1s: list("recommended-stratum1s"),
            all,
        })
    }
}

/// Status of a repository on one server, `.cvmfs_status.json`. Times are output of `date --utc`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerStatus {
    /// Time of the last replication.
    pub last_snapshot: Option<String>,
    /// Servers that a replica of Esker is copied from, separated by `;`.
    pub source: Option<String>,
    /// Begin of the first replication, while it is in progress.
    pub snapshotting_since: Option<String>,
    /// Time of the last garbage collection.
    pub last_gc: Option<String>,
    /// Time of the last check.
    pub last_check: Option<String>,
    /// True if the last check succeeded; `None` if none ran or its result is unknown.
    pub check_succeeded: Option<bool>,
}

impl ServerStatus {
    /// Path of the status below the root of the repository.
    pub const PATH: &str = ".cvmfs_status.json";

    /// Parses a status; fields of an unexpected type are ignored.
    pub fn parse(bytes: &[u8]) -> Result<Self, JsonError> {
        let all = parse_object(bytes)?;
        let text = |key: &str| all.get(key).and_then(Value::as_str).map(str::to_owned);
        Ok(Self {
            last_snapshot: text("last_snapshot"),
            source: text("source"),
            snapshotting_since: text("snapshotting_since"),
            last_gc: text("last_gc"),
            last_check: text("last_check"),
            check_succeeded: match text("check_status").as_deref() {
                Some("succeeded") => Some(true),
                Some("failed") => Some(false),
                _ => None,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conventional_fields_are_parsed() {
        let metainfo = Metainfo::parse(
            br#"{"administrator":"A","email":"","recommended-stratum1s":["s1",2,"s2"],"url":5,"custom":{"x":1}}"#,
        )
        .unwrap();
        assert_eq!(metainfo.administrator.as_deref(), Some("A"));
        assert_eq!((metainfo.email.as_deref(), metainfo.url.as_deref()), (None, None));
        assert_eq!(metainfo.recommended_stratum1s, ["s1", "s2"]);
        assert!(metainfo.all.contains_key("custom"));
        assert!(matches!(Metainfo::parse(b"[]"), Err(JsonError::NotAnObject)));
        assert!(matches!(Metainfo::parse(b"{"), Err(JsonError::Syntax(_))));
        assert!(Metainfo::parse(&b"[".repeat(1 << 20)).is_err());
    }

    #[test]
    fn a_server_status_is_parsed() {
        let status = ServerStatus::parse(br#"{"check_status":"failed","last_gc":"Fri Oct 18"}"#).unwrap();
        assert_eq!(status.check_succeeded, Some(false));
        assert_eq!(status.last_gc.as_deref(), Some("Fri Oct 18"));
        assert_eq!(status.last_snapshot, None);
    }
}
