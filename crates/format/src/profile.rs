//! Profiles: recordings of the reads of a command in a repository, in order. Users record them, and
//! publishers build bundles from them.
//!
//! Esker's own format: readable JSON, one file and one read per line. A profile holds observations rather
//! than conclusions: the publisher decides which file triggers which others.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::bundle::absolute;
use crate::name::{NameError, RepositoryName};
use crate::time::UnixTime;

/// Maximum length in bytes of a profile that is read: room for 200,000 files.
pub const BYTES_MAX: usize = 64 << 20;

const FORMAT: &str = "esker-profile";
const VERSION: u32 = 1;

/// Recording of a command's reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Name of the repository.
    pub repository: RepositoryName,
    /// Revision that the command used.
    pub revision: u64,
    /// Command line, for information.
    pub command: String,
    /// Time of the recording.
    pub recorded: UnixTime,
    /// Files that the user marked as triggers, in addition to detected ones.
    pub triggers: Vec<String>,
    /// Files in the order of their first reads.
    pub files: Vec<ProfileFile>,
    /// Reads in order.
    pub reads: Vec<ProfileRead>,
}

/// A file that was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProfileFile {
    /// Path from the root of the repository.
    pub path: String,
    /// Size in bytes.
    pub size: u64,
    /// True if the file is executable.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub program: bool,
}

/// First read of a file, or of a part of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProfileRead {
    /// Index of the file in [`Profile::files`].
    pub file: usize,
    /// Milliseconds since the command began.
    pub ms: u64,
    /// Byte range of the read; none if the file is small enough to be fetched whole.
    pub range: Option<Range<u64>>,
}

/// Reasons why a profile can't be used.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The profile is larger than [`BYTES_MAX`].
    #[error("it has {0} bytes, {BYTES_MAX} are allowed")]
    TooLarge(usize),
    /// The text is not JSON, or a member is missing.
    #[error("it is not a profile")]
    Syntax(#[from] serde_json::Error),
    /// The format or its version is not supported.
    #[error("it has format `{format}`, version {version}; `{FORMAT}`, version {VERSION} is known")]
    Unsupported {
        /// Name of the format.
        format: String,
        /// Version of the format.
        version: u32,
    },
    /// The repository name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A path is invalid.
    #[error("`{0}` is not the path of a file in a repository")]
    Path(String),
    /// A read is invalid.
    #[error("read {0} is invalid")]
    Read(usize),
}

#[derive(Serialize, Deserialize)]
struct Stored {
    format: String,
    version: u32,
    repository: String,
    revision: u64,
    command: String,
    recorded: i64,
    #[serde(default)]
    triggers: Vec<String>,
    files: Vec<ProfileFile>,
    reads: Vec<StoredRead>,
}

#[derive(Serialize, Deserialize)]
struct StoredRead {
    file: usize,
    ms: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    range: Option<(u64, u64)>,
}

impl Profile {
    /// Reads a profile.
    pub fn parse(bytes: &[u8]) -> Result<Self, ProfileError> {
        if bytes.len() > BYTES_MAX {
            return Err(ProfileError::TooLarge(bytes.len()));
        }
        let stored: Stored = serde_json::from_slice(bytes)?;
        if stored.format != FORMAT || stored.version != VERSION {
            let format = stored.format.chars().take(40).collect();
            return Err(ProfileError::Unsupported { format, version: stored.version });
        }
        for path in stored.files.iter().map(|file| &file.path).chain(&stored.triggers) {
            if !is_path(path) {
                return Err(ProfileError::Path(path.chars().take(200).collect()));
            }
        }
        let mut reads = Vec::with_capacity(stored.reads.len());
        for (number, read) in stored.reads.iter().enumerate() {
            let range = read.range.map(|(start, end)| start..end);
            if read.file >= stored.files.len() || range.as_ref().is_some_and(Range::is_empty) {
                return Err(ProfileError::Read(number));
            }
            reads.push(ProfileRead { file: read.file, ms: read.ms, range });
        }
        Ok(Self {
            repository: RepositoryName::parse(&stored.repository)?,
            revision: stored.revision,
            command: stored.command,
            recorded: UnixTime(stored.recorded),
            triggers: stored.triggers,
            files: stored.files,
            reads,
        })
    }

    /// Writes the profile.
    pub fn to_json(&self) -> Vec<u8> {
        let mut text = String::from("{\n");
        let mut member = |name: &str, value: serde_json::Value| {
            text.push_str(&format!("\"{name}\": {value},\n"));
        };
        member("format", FORMAT.into());
        member("version", VERSION.into());
        member("repository", self.repository.as_str().into());
        member("revision", self.revision.into());
        member("command", self.command.as_str().into());
        member("recorded", self.recorded.0.into());
        member("triggers", self.triggers.clone().into());
        push_lines(&mut text, "files", self.files.iter());
        text.push_str(",\n");
        let stored = |read: &ProfileRead| StoredRead {
            file: read.file,
            ms: read.ms,
            range: read.range.as_ref().map(|range| (range.start, range.end)),
        };
        push_lines(&mut text, "reads", self.reads.iter().map(stored));
        text.push_str("\n}\n");
        text.into_bytes()
    }
}

/// Returns true if a text is a path in a repository, in canonical form.
pub fn is_path(text: &str) -> bool {
    text.starts_with('/') && absolute(text.as_bytes(), b"").is_some()
}

fn push_lines(text: &mut String, name: &str, items: impl Iterator<Item = impl Serialize>) {
    let line = |item| {
        serde_json::to_string(&item).expect("numbers and texts become JSON because all their keys are text")
    };
    let lines: Vec<String> = items.map(line).collect();
    text.push_str(&format!("\"{name}\": [\n{}\n]", lines.join(",\n")));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile() -> Profile {
        let file = |path: &str, size, program| ProfileFile { path: path.to_owned(), size, program };
        Profile {
            repository: RepositoryName::parse("sw.example.org").unwrap(),
            revision: 7,
            command: "python -c 'import \"x\"'".to_owned(),
            recorded: UnixTime(1_700_000_000),
            triggers: vec!["/app/main.py".to_owned()],
            files: vec![file("/bin/python", 6 << 20, true), file("/lib/ü.py", 10, false)],
            reads: vec![
                ProfileRead { file: 0, ms: 1, range: Some(0..1 << 20) },
                ProfileRead { file: 1, ms: 2, range: None },
            ],
        }
    }

    #[test]
    fn a_written_profile_is_parsed_again() {
        let text = profile().to_json();
        assert_eq!(Profile::parse(&text).unwrap(), profile());
        let lines = String::from_utf8(text).unwrap();
        assert!(lines.lines().any(|line| line == r#"{"path":"/lib/ü.py","size":10}"#), "{lines}");
        assert!(lines.lines().any(|line| line.starts_with(r#"{"file":0,"ms":1,"range":[0,1048576]}"#)));
        let empty = Profile { files: Vec::new(), reads: Vec::new(), ..profile() };
        assert_eq!(Profile::parse(&empty.to_json()).unwrap(), empty);
    }

    #[test]
    fn invalid_profiles_are_rejected() {
        let good = String::from_utf8(profile().to_json()).unwrap();
        for (from, to, expected) in [
            ("esker-profile", "other", "format `other`, version 1"),
            ("\"version\": 1", "\"version\": 2", "version 2"),
            ("sw.example.org", "/", "not a repository name"),
            ("/lib/ü.py", "/lib/../x", "`/lib/../x` is not the path"),
            ("/app/main.py", "main.py", "`main.py` is not the path"),
            ("\"file\":1", "\"file\":2", "read 1 is invalid"),
            ("[0,1048576]", "[5,5]", "read 0 is invalid"),
            ("\"reads\"", "\"read\"", "not a profile"),
        ] {
            let bad = good.replacen(from, to, 1);
            assert_ne!(bad, good, "{from}");
            let error = Profile::parse(bad.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
