//! Rules for the paths that a publisher publishes, and for their owners.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use esker_format::write::catalog::Entry;
use esker_repository::path;
use ignore::gitignore::{Gitignore, GitignoreBuilder};

use crate::error::PublishError;

/// File in the root of a source, or of the repository, with rules for ignored paths.
pub(crate) const NAME: &str = ".eskerignore";

/// Rules for the entries of a source. Paths that they ignore stay in the repository as they are.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Rules in the order in which they were read; later ones go before earlier ones.
    lines: Vec<String>,
    rules: Option<Gitignore>,
    /// Paths whose changes are left out, with all below them.
    pub(crate) left_out: BTreeSet<Vec<u8>>,
    /// Map of the users of the source.
    pub uids: OwnerMap,
    /// Map of the groups of the source.
    pub gids: OwnerMap,
    /// Path that a source folder had when it was built, which is rewritten to its path at clients; none to publish files as
    /// they are.
    pub relocate: Option<PathBuf>,
}

impl Filter {
    /// Adds rules in the syntax of `.gitignore`; `path` is where they come from.
    pub fn ignore(&mut self, text: &[u8], path: &Path) -> Result<(), PublishError> {
        let refused = |reason: String| PublishError::Rules { path: path.to_owned(), reason };
        let text = std::str::from_utf8(text).map_err(|error| refused(error.to_string()))?;
        self.lines.extend(text.lines().map(str::to_owned));
        let mut builder = GitignoreBuilder::new("");
        for line in &self.lines {
            builder.add_line(None, line).map_err(|error| refused(error.to_string()))?;
        }
        self.rules = Some(builder.build().map_err(|error| refused(error.to_string()))?);
        Ok(())
    }

    /// Adds the rules of the file `.eskerignore` of a folder, if it has one.
    pub(crate) fn ignore_of(&mut self, folder: &Path) -> Result<(), PublishError> {
        let path = folder.join(NAME);
        match std::fs::read(&path) {
            Ok(text) => self.ignore(&text, &path),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(PublishError::Source { doing: "reading", path, source }),
        }
    }

    /// Returns true if the entry of this path, below the source, is not published. The entries of an ignored directory are not
    /// asked for.
    pub(crate) fn ignores(&self, path: &[u8], is_directory: bool) -> bool {
        if self.left_out.iter().any(|left_out| path::is_within(path, left_out)) {
            return true;
        }
        let Some(rules) = &self.rules else { return false };
        let path = path.strip_prefix(b"/").unwrap_or(path);
        !path.is_empty() && rules.matched(Path::new(OsStr::from_bytes(path)), is_directory).is_ignore()
    }

    /// Gives an entry the owner that it is published with.
    pub(crate) fn own(&self, entry: &mut Entry) {
        entry.uid = self.uids.mapped(entry.uid);
        entry.gid = self.gids.mapped(entry.gid);
    }
}

/// A map of users or groups, in the format of CernVM-FS: lines of an old and a new number, `*` for all others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnerMap {
    known: BTreeMap<u32, u32>,
    others: Option<u32>,
}

impl OwnerMap {
    /// Parses a map; `path` is for messages.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, PublishError> {
        let mut map = Self::default();
        for (number, line) in String::from_utf8_lossy(text).lines().enumerate() {
            let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
            let refused = || PublishError::Rules {
                path: path.to_owned(),
                reason: format!("line {} is not an old number (or `*`) and a new one", number + 1),
            };
            let id = |word: &str| word.parse::<u32>().ok().filter(|id| *id != u32::MAX).ok_or_else(refused);
            match words[..] {
                [] => {}
                ["*", new] => map.others = Some(id(new)?),
                [old, new] => _ = map.known.insert(id(old)?, id(new)?),
                _ => return Err(refused()),
            }
        }
        Ok(map)
    }

    fn mapped(&self, id: u32) -> u32 {
        self.known.get(&id).copied().or(self.others).unwrap_or(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_rules_override_earlier_ones() {
        let mut filter = Filter::default();
        filter.ignore(b"*.o\n/build/\n# none\n", Path::new("a")).unwrap();
        filter.ignore(b"!keep.o\n", Path::new("b")).unwrap();
        for (path, is_directory, ignored) in [
            ("/x.o", false, true),
            ("/d/x.o", false, true),
            ("/d/keep.o", false, false),
            ("/build", true, true),
            ("/build", false, false),
            ("/d/build", true, false),
            ("", true, false),
        ] {
            assert_eq!(filter.ignores(path.as_bytes(), is_directory), ignored, "{path}");
        }
        assert!(!Filter::default().ignores(b"/x.o", false));
    }

    #[test]
    fn owner_maps_have_a_line_for_all_others() {
        let map = OwnerMap::parse(b"# users\n0 10\n5 6 # known\n\n* 99\n", Path::new("map")).unwrap();
        assert_eq!([0, 5, 7].map(|id| map.mapped(id)), [10, 6, 99]);
        assert_eq!(OwnerMap::default().mapped(7), 7);
        for bad in ["1", "1 x", "1 2 3", "1 4294967295", "-1 0"] {
            let error = OwnerMap::parse(bad.as_bytes(), Path::new("map")).unwrap_err();
            assert!(error.to_string().contains("line 1"), "{bad}");
        }
    }
}
