//! Names of repositories.

use std::fmt;
use std::str::FromStr;

/// Maximum length of a name in bytes.
pub const NAME_MAX: usize = 60;

/// Fully qualified name of a repository, for example `software.example.org`.
///
/// Its characters are safe in file names and URLs: the first is a letter or digit, the others are letters,
/// digits, `_`, `.` or `-`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RepositoryName(String);

/// Error: the text is not a repository name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a repository name: {reason}")]
pub struct NameError {
    /// Text that was rejected, truncated for messages.
    pub text: String,
    /// Reason of the rejection.
    pub reason: &'static str,
}

impl RepositoryName {
    /// Validates and creates a name.
    pub fn parse(text: &str) -> Result<Self, NameError> {
        let refuse = |reason| Err(NameError { text: text.chars().take(NAME_MAX + 4).collect(), reason });
        if text.len() > NAME_MAX {
            return refuse("it is longer than 60 characters");
        }
        if !text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric()) {
            return refuse("it does not start with a letter or digit");
        }
        if !text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')) {
            return refuse("it has characters other than letters, digits, `_`, `.` and `-`");
        }
        Ok(Self(text.to_owned()))
    }

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RepositoryName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for RepositoryName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::parse(text)
    }
}

impl AsRef<str> for RepositoryName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_names_are_accepted_and_others_rejected() {
        for good in ["a", "full.test", "0-x_y.example.org", &"a".repeat(60)] {
            assert_eq!(RepositoryName::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", ".", "..", "-a", "_a", "a/b", "a b", "é", "aé", &"a".repeat(61), "a\0"] {
            assert!(RepositoryName::parse(bad).is_err(), "{bad}");
        }
    }
}
