//! Parses `.cvmfsdirtab`: rules that select the directories with catalogs of their own.
//!
//! One rule a line. A path with `*` and `?`, neither of which matches a slash, asks for catalogs; a line that
//! starts with `!` forbids them, and there `*` matches slashes too. `#` starts a comment, `\` takes the meaning
//! from the character after it. Slashes at the end or side by side mean nothing.

use std::collections::BTreeSet;

use esker_format::glob::Glob;
use esker_format::write::catalog::Entry;
use esker_repository::path;

use crate::changes::NewTree;
use crate::error::PublishError;

/// Name of the rules file in the root of the repository.
pub(crate) const NAME: &[u8] = b".cvmfsdirtab";

/// The rules of a repository.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Dirtab {
    wanted: Vec<Vec<u8>>,
    forbidden: Vec<Vec<u8>>,
}

impl Dirtab {
    pub(crate) fn parse(text: &[u8]) -> Result<Self, PublishError> {
        let mut rules = Self::default();
        for (number, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let refused = |reason: &str| PublishError::Dirtab { line: number + 1, reason: reason.to_owned() };
            let line = line.trim_ascii();
            if line.is_empty() || line.starts_with(b"#") {
                continue;
            }
            let forbidden = line.strip_prefix(b"!").map(<[u8]>::trim_ascii);
            if forbidden.is_some_and(<[u8]>::is_empty) {
                continue;
            }
            let pattern = without_idle_slashes(forbidden.unwrap_or(line));
            if !is_well_formed(&pattern) {
                return Err(refused("it names nothing or ends in a backslash"));
            }
            if forbidden.is_some() {
                rules.forbidden.push(pattern);
            } else if pattern.starts_with(b"/") {
                rules.wanted.push(pattern);
            } else {
                return Err(refused("it is not an absolute path"));
            }
            if rules.wanted.iter().any(|wanted| rules.forbidden.contains(wanted)) {
                return Err(refused("it says the opposite of another line"));
            }
        }
        Ok(rules)
    }

    /// Returns true if the rules select a directory for a catalog of its own.
    pub(crate) fn wants(&self, directory: &[u8]) -> bool {
        self.wanted.iter().any(|pattern| matches(pattern, directory, false)) && !self.forbids(directory)
    }

    /// Returns true if a rule forbids a catalog of a directory.
    pub(crate) fn forbids(&self, directory: &[u8]) -> bool {
        self.forbidden.iter().any(|pattern| matches(pattern, directory, true))
    }

    /// Returns the selected directories of a tree. Only the directories above them are read.
    pub(crate) fn selected(&self, tree: NewTree<'_>) -> Result<BTreeSet<Vec<u8>>, PublishError> {
        let mut selected = BTreeSet::new();
        for pattern in &self.wanted {
            let mut found = vec![Vec::new()];
            for name in pattern.split(|byte| *byte == b'/').skip(1) {
                let mut below = Vec::new();
                for directory in &found {
                    add_directories(tree, directory, name, &mut below)?;
                }
                found = below;
            }
            selected.extend(found.into_iter().filter(|directory| !self.forbids(directory)));
        }
        Ok(selected)
    }
}

/// Adds the directories in a directory whose names match a pattern.
fn add_directories(
    tree: NewTree<'_>,
    directory: &[u8],
    pattern: &[u8],
    found: &mut Vec<Vec<u8>>,
) -> Result<(), PublishError> {
    if !pattern.iter().any(|byte| b"*?\\".contains(byte)) {
        let path = path::join(directory, pattern);
        found.extend(tree.entry(&path)?.filter(Entry::is_directory).map(|_| path));
        return Ok(());
    }
    let pattern = glob(pattern);
    let listed = tree.list(directory)?.into_iter();
    let matching = listed.filter(|entry| entry.is_directory() && pattern.fits(&entry.name));
    found.extend(matching.map(|entry| path::join(directory, &entry.name)));
    Ok(())
}

/// Returns a path with one slash before each name; the first name has one only if it had one before. Empty if
/// there is no name.
fn without_idle_slashes(pattern: &[u8]) -> Vec<u8> {
    let mut kept = Vec::with_capacity(pattern.len());
    for name in pattern.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        if !kept.is_empty() || pattern.starts_with(b"/") {
            kept.push(b'/');
        }
        kept.extend_from_slice(name);
    }
    kept
}

fn is_well_formed(pattern: &[u8]) -> bool {
    let escapes = pattern.iter().rev().take_while(|byte| **byte == b'\\').count();
    !pattern.is_empty() && escapes.is_multiple_of(2)
}

/// Matches a whole path. A star that does not cross slashes stays in its component, so each is matched alone.
fn matches(pattern: &[u8], text: &[u8], across_slashes: bool) -> bool {
    if across_slashes {
        return glob(pattern).fits(text);
    }
    // Without slashes in reach of a star, both sides have the same number of components.
    let (mut patterns, mut names) = (pattern.split(|byte| *byte == b'/'), text.split(|byte| *byte == b'/'));
    loop {
        match (patterns.next(), names.next()) {
            (None, None) => return true,
            (Some(pattern), Some(name)) if glob(pattern).fits(name) => {}
            _ => return false,
        }
    }
}

/// Parses a pattern, in which `[` is an ordinary byte and `?` matches no slash.
fn glob(pattern: &[u8]) -> Glob<u8> {
    let mut elements = Vec::with_capacity(pattern.len());
    let mut bytes = pattern.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => elements.extend(bytes.next().map(|escaped| (*escaped, true))),
            b'?' => elements.extend(b"[!/]".map(|byte| (byte, false))),
            byte => elements.push((*byte, *byte == b'[')),
        }
    }
    Glob::new(&elements)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_select_and_forbid_directories() {
        let rules =
            Dirtab::parse(b"# comment\n\n /sw/*/*  \n/data/v?\n! *.svn\n!/sw/old/*\n/odd\\*name\n").unwrap();
        for wanted in ["/sw/x86/gcc", "/sw/.hidden/y", "/data/v1", "/odd*name"] {
            assert!(rules.wants(wanted.as_bytes()), "{wanted}");
        }
        for other in [
            "/sw",
            "/sw/x86",
            "/sw/x86/gcc/bin",
            "/data/v",
            "/data/v12",
            "/sw/a/b.svn",
            "/sw/old/x",
            "/oddXname",
            "",
            "/sw/old/x/y",
        ] {
            assert!(!rules.wants(other.as_bytes()), "{other}");
        }
        assert!(!Dirtab::default().wants(b"/a"));
    }

    #[test]
    fn invalid_rules_are_refused() {
        for text in ["relative/*", "/a\n!/a", "!/a\n/a", "/a/\n!//a", "/a\\", "/", "!/"] {
            assert!(matches!(Dirtab::parse(text.as_bytes()), Err(PublishError::Dirtab { .. })), "{text}");
        }
    }

    /// As in CernVM-FS, a rule is a list of names, and additional slashes have no meaning.
    #[test]
    fn slashes_more_than_needed_mean_nothing() {
        let rules = Dirtab::parse(b"/sw/*/\n//data//v?/\n! /sw/old/\n!\n! *.svn/\n").unwrap();
        for wanted in ["/sw/gcc", "/data/v1"] {
            assert!(rules.wants(wanted.as_bytes()), "{wanted}");
        }
        for other in ["/sw", "/sw/old", "/sw/gcc/bin", "/data/v1.svn", "/sw/x.svn"] {
            assert!(!rules.wants(other.as_bytes()), "{other}");
        }
    }

    #[test]
    fn stars_match_within_a_name_except_in_exclusions() {
        for (pattern, text, across, expected) in [
            ("a*b*c", "aXXbYYc", false, true),
            ("a*b*c", "aXXbYY", false, false),
            ("*", "", false, true),
            ("/*", "/a/b", false, false),
            ("/*", "/a/b", true, true),
            ("*/x/*", "/a/x/y/z", true, true),
            ("?", "/", false, false),
            ("/a?b", "/a/b", true, false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes(), across), expected, "{pattern} {text}");
        }
        // Time stays bounded.
        assert!(!glob(&b"*a".repeat(50)).fits(&[b'a'; 49]));
        assert!(!glob(&[&b"*a".repeat(500)[..], b"b"].concat()).fits(&[b'a'; 4000]));
    }
}
