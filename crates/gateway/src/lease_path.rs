//! Paths of leases: a directory of a repository, with everything below it.

use std::fmt;

use esker_format::name::RepositoryName;
use serde::{Deserialize, Serialize};

/// A directory of a repository.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LeasePath {
    /// The repository.
    pub repository: RepositoryName,
    /// Path below its root: empty, or components that each have a slash before them.
    directory: String,
}

/// The text names no directory of a repository. The first three texts are the reference's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LeasePathError {
    /// The text begins with a slash.
    #[error("input has leading slash")]
    LeadingSlash,
    /// There is no slash after the name of the repository.
    #[error("missing repository name or subpath")]
    NoSubpath,
    /// There can't be a repository of this name.
    #[error("repository not found: {0}")]
    Repository(String),
    /// A component has a meaning of its own, or can't be in a path.
    #[error("the path has a component that can't be published: `{0}`")]
    Component(String),
}

impl LeasePath {
    /// Parses `REPOSITORY/DIRECTORY`; the root is `REPOSITORY/`. Empty components mean nothing, as in a path of the kernel.
    pub fn parse(text: &str) -> Result<Self, LeasePathError> {
        if text.starts_with('/') {
            return Err(LeasePathError::LeadingSlash);
        }
        let (name, directory) = text.split_once('/').ok_or(LeasePathError::NoSubpath)?;
        let repository =
            RepositoryName::parse(name).map_err(|error| LeasePathError::Repository(error.text))?;
        Ok(Self { repository, directory: normal(directory)? })
    }

    /// Returns the whole repository.
    pub fn root(repository: RepositoryName) -> Self {
        Self { repository, directory: String::new() }
    }

    /// Returns the directory below the root: empty, or components that each have a slash before them.
    pub fn directory(&self) -> &str {
        &self.directory
    }

    /// Returns true if another path is this directory or one below it.
    pub fn covers(&self, other: &Self) -> bool {
        self.repository == other.repository && is_within(&other.directory, &self.directory)
    }

    /// Returns true if one of the paths is the other one or below it.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.covers(other) || other.covers(self)
    }
}

/// Displays the text that [`LeasePath::parse`] reads.
impl fmt::Display for LeasePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let directory = if self.directory.is_empty() { "/" } else { &self.directory };
        write!(f, "{}{directory}", self.repository)
    }
}

impl TryFrom<String> for LeasePath {
    type Error = LeasePathError;

    fn try_from(text: String) -> Result<Self, LeasePathError> {
        Self::parse(&text)
    }
}

impl From<LeasePath> for String {
    fn from(path: LeasePath) -> Self {
        path.to_string()
    }
}

/// Returns true if a directory is another one or below it, component by component.
fn is_within(directory: &str, above: &str) -> bool {
    directory.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns a directory with one slash before each of its components.
pub(crate) fn normal(directory: &str) -> Result<String, LeasePathError> {
    let mut text = String::with_capacity(directory.len() + 1);
    for component in directory.split('/').filter(|component| !component.is_empty()) {
        if matches!(component, "." | "..") || component.contains('\0') {
            return Err(LeasePathError::Component(component.to_owned()));
        }
        text.push('/');
        text.push_str(component);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> LeasePath {
        LeasePath::parse(text).unwrap()
    }

    #[test]
    fn paths_are_normal() {
        for (text, directory) in [
            ("r.test/", ""),
            ("r.test//", ""),
            ("r.test/a", "/a"),
            ("r.test//a/b/", "/a/b"),
            ("r.test/a%b_c", "/a%b_c"),
        ] {
            assert_eq!(path(text).directory(), directory, "{text}");
            assert_eq!(path(&path(text).to_string()), path(text));
        }
        assert_eq!(path("r.test//").to_string(), "r.test/");
    }

    #[test]
    fn texts_that_name_no_directory_are_refused() {
        for (text, error) in [
            ("/r.test/a", LeasePathError::LeadingSlash),
            ("r.test", LeasePathError::NoSubpath),
            ("../a", LeasePathError::Repository("..".into())),
            ("r.test/../s.test", LeasePathError::Component("..".into())),
            ("r.test/a/./b", LeasePathError::Component(".".into())),
            ("r.test/a\0b", LeasePathError::Component("a\0b".into())),
        ] {
            assert_eq!(LeasePath::parse(text), Err(error), "{text}");
        }
    }

    /// The reference compares texts, so that there a lease of `/a/b` forbids one of `/a/bc`.
    #[test]
    fn paths_overlap_by_components() {
        for (one, other, overlap) in [
            ("r.test/", "r.test/a", true),
            ("r.test/a", "r.test/a", true),
            ("r.test/a", "r.test/a/b", true),
            ("r.test/a/b", "r.test/a/bc", false),
            ("r.test/a", "r.test/A", false),
            ("r.test/a%", "r.test/ab", false),
            ("r.test/", "s.test/", false),
        ] {
            assert_eq!(path(one).overlaps(&path(other)), overlap, "{one} {other}");
            assert_eq!(path(other).overlaps(&path(one)), overlap, "{other} {one}");
        }
        assert!(
            path("r.test/a").covers(&path("r.test/a/b")) && !path("r.test/a/b").covers(&path("r.test/a"))
        );
    }
}
