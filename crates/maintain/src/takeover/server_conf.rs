//! Reads `server.conf`: assignments of a shell, without evaluating code.

use std::path::{Path, PathBuf};

use super::error::TakeoverError;
use esker_format::name::RepositoryName;
use esker_repository::RepositoryError;
use esker_store::{RealDisk, read_file};

/// Maximum size of a configuration in bytes; real ones have a few kilobytes.
const FILE_MAX: u64 = 1 << 18;
/// The newest layout of `cvmfs_server` that is known.
const LAYOUT_MAX: u32 = 143;
/// Layouts before this one are text like `2.1.6`, and need a migration by `cvmfs_server`.
const LAYOUT_MIN: u32 = 137;

/// Parameters of a `server.conf`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerConf {
    path: PathBuf,
    /// Names and values in order; the value is none if the shell would have to evaluate it.
    pub(super) parameters: Vec<(String, Option<String>)>,
}

impl ServerConf {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, TakeoverError> {
        let refused = |reason: String| TakeoverError::ServerConf { path: path.to_owned(), reason };
        let bytes =
            read_file(&RealDisk::SERVED, path, FILE_MAX).map_err(RepositoryError::file("reading", path))?;
        let bytes = bytes.ok_or_else(|| refused("it is missing".to_owned()))?;
        let text = String::from_utf8(bytes).map_err(|_| refused("it is not text".to_owned()))?;
        Ok(Self { path: path.to_owned(), parameters: text.lines().filter_map(assignment).collect() })
    }

    /// Returns the value of a parameter; the last assignment counts.
    pub fn get(&self, name: &str) -> Option<&str> {
        let found = self.parameters.iter().rev().find(|(known, _)| known == name);
        found.and_then(|(_, value)| value.as_deref())
    }

    /// Checks that it describes this repository, as stratum 0, in a known layout.
    pub(super) fn check(&self, name: &RepositoryName) -> Result<(), TakeoverError> {
        let kind = self.get("CVMFS_REPOSITORY_TYPE").unwrap_or("stratum0");
        if kind != "stratum0" {
            return Err(self.refused(format!("it is of a {kind}, and only a stratum0 publishes")));
        }
        let named = self.get("CVMFS_REPOSITORY_NAME").unwrap_or(name.as_str());
        if named != name.as_str() {
            return Err(self.refused(format!("it is of the repository {named}")));
        }
        let layout = self.get("CVMFS_CREATOR_VERSION").unwrap_or_default();
        match layout.parse::<u32>() {
            Ok(LAYOUT_MIN..=LAYOUT_MAX) => Ok(()),
            _ => Err(self.refused(format!(
                "its layout {layout:?} is not between {LAYOUT_MIN} and {LAYOUT_MAX}; `cvmfs_server migrate` changes it"
            ))),
        }
    }

    pub(super) fn refused(&self, reason: String) -> TakeoverError {
        TakeoverError::ServerConf { path: self.path.clone(), reason }
    }
}

/// Reads `NAME=VALUE`; lines of other kinds are none.
fn assignment(line: &str) -> Option<(String, Option<String>)> {
    let line = line.trim();
    let line = line.strip_prefix("export ").unwrap_or(line).trim_start();
    let (name, value) = line.split_once('=')?;
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    (!name.is_empty() && name.bytes().all(is_name)).then(|| (name.to_owned(), word(value)))
}

/// Returns the value of a shell word without expansions; none if it has some.
fn word(text: &str) -> Option<String> {
    let mut value = String::new();
    let mut letters = text.chars();
    let mut quote = None;
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (None, '\'' | '"') => quote = Some(letter),
            (Some(open), letter) if open == letter => quote = None,
            (Some('\''), letter) => value.push(letter),
            (_, '$' | '`') => return None,
            (_, '\\') => value.push(letters.next()?),
            (None, ';' | '&' | '|' | '<' | '>' | '(' | ')') => return None,
            (None, letter) if letter.is_whitespace() => {
                let rest = letters.as_str().trim_start();
                // Words after the value would be a command.
                return (rest.is_empty() || rest.starts_with('#')).then_some(value);
            }
            (_, letter) => value.push(letter),
        }
    }
    quote.is_none().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values are those that a shell gives the variables.
    #[test]
    fn values_equal_those_of_a_shell() {
        let lines = [
            "A=plain",
            "B=\"two words\"",
            "C='single $x'",
            "D=a\\ b",
            "E=\"\"",
            "F=",
            "G=x # comment",
            "export H=exported",
            "I=\"a'b\"",
            "J=one'two'\"three\"",
        ];
        for line in lines {
            let (name, value) = assignment(line).expect("an assignment");
            let script = format!("{line}\nprintf %s \"${name}\"");
            let output = std::process::Command::new("sh").arg("-c").arg(script).output().expect("a shell");
            assert_eq!(value.expect("a value").as_bytes(), output.stdout, "{line}");
        }
    }

    #[test]
    fn code_is_not_evaluated() {
        for line in ["A=$HOME", "A=`id`", "A=\"$(id)\"", "A=x; id", "A=x id", "A=\"open", "A=x|id", "A=\\"] {
            assert_eq!(assignment(line), Some(("A".to_owned(), None)), "{line}");
        }
        for line in ["", "# A=x", "if [ x = y ]", "a b=c", "=x"] {
            assert_eq!(assignment(line), None, "{line}");
        }
    }
}
