//! The promises of `docs/semantics.md`, and the tests that quote them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use crate::skips::IN_PART;

/// Signature of mount tests, which run once for each kernel; a macro makes the function with `#[test]`.
const ON_ALL_KERNELS: &str = "(kernel: KernelMask) {";

/// Reads the promises of the document: lines like `**M3.** A sentence…`, up to the next empty line.
pub fn promises(document: &str) -> BTreeMap<String, String> {
    let mut promises = BTreeMap::new();
    for paragraph in document.split("\n\n") {
        let paragraph = paragraph.trim().replace('\n', " ");
        let Some((id, sentence)) = paragraph.strip_prefix("**").and_then(|rest| rest.split_once(".** "))
        else {
            continue;
        };
        let before = promises.insert(id.to_owned(), sentence.to_owned());
        assert!(before.is_none(), "promise {id} stands twice in docs/semantics.md");
    }
    assert!(promises.len() > 10, "docs/semantics.md holds promises");
    promises
}

/// A test function in the source.
#[derive(Debug)]
pub struct Test {
    /// The file, relative to the root of the source tree.
    pub file: PathBuf,
    /// The line of its attribute.
    pub line: usize,
    /// The name of the function.
    pub name: String,
    /// The doc comment, joined to one line.
    pub comment: String,
}

impl Test {
    /// Returns the promises that the comment quotes: after an angle bracket their name and a colon, then their
    /// text.
    pub fn quotes(&self) -> impl Iterator<Item = (&str, &str)> {
        self.comment.split("> ").skip(1).filter_map(|quote| quote.split_once(": "))
    }

    /// True if a report of skips names this test, whichever kernels it is repeated for.
    fn is_named_by(&self, name: &str) -> bool {
        let mut folders = self.file.iter().filter_map(|part| part.to_str()).skip(1);
        let package = folders.next().map(|folder| format!("esker-{folder}"));
        let module = self.file.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        let mut parts = name.split("::");
        let is_of_package = parts.next() == package.as_deref();
        let parts: Vec<&str> = parts.collect();
        let is_top = ["main", "lib", "mod", "tests"].contains(&module);
        is_of_package && parts.contains(&self.name.as_str()) && (is_top || parts.contains(&module))
    }
}

/// Returns the test functions of a source file.
pub fn tests(file: &Path, source: &str) -> Vec<Test> {
    let mut tests = Vec::new();
    let (mut comment, mut marked) = (String::new(), None);
    for (at, line) in source.lines().enumerate() {
        let line = line.trim();
        if line == "#[test]" || line.ends_with(ON_ALL_KERNELS) {
            marked = Some((at + 1, comment.trim().to_owned()));
        }
        if let Some(words) = line.strip_prefix("///") {
            comment.push(' ');
            comment.push_str(words.trim());
        } else if !line.starts_with("#[") {
            comment.clear();
        }
        let Some((_, rest)) = line.split_once("fn ") else { continue };
        if let Some((line, comment)) = marked.take() {
            let name = rest.split(['(', '<']).next().unwrap_or_default().to_owned();
            tests.push(Test { file: file.to_owned(), line, name, comment });
        }
    }
    tests
}

/// Returns the promises all of whose tests are skipped, from the lines of a report of skips.
pub fn not_proven<'a>(tests: &'a [Test], report: &str) -> BTreeSet<&'a str> {
    let skipped: BTreeSet<&str> = report
        .lines()
        .filter_map(|line| line.split_once(": "))
        .map(|(name, _)| name)
        .filter(|name| !name.ends_with(IN_PART))
        .collect();
    let (mut proven, mut left) = (BTreeSet::new(), BTreeSet::new());
    for test in tests {
        let is_skipped = skipped.iter().any(|name| test.is_named_by(name));
        let these = if is_skipped { &mut left } else { &mut proven };
        these.extend(test.quotes().map(|(id, _)| id));
    }
    left.difference(&proven).copied().collect()
}
