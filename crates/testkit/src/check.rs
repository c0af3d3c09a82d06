//! Checks a whole repository, written from the description of the format alone: it shares no code with the writer
//! and reads databases with SQLite itself.
//!
//! * the head: manifest, whitelist, certificate, their signatures;
//! * every object that the head leads to: its name is the hash of its bytes, and it decompresses;
//! * every catalog: tables, keys of paths, flags, link counts, chunks, counters, nested catalogs;
//! * bundles: flags of triggers, and listed paths;
//! * history and reflog.
//!
//! Faults are collected without a panic, so that tests can damage a repository and see the damage reported.

mod bundles;
mod catalogs;
mod head;
mod objects;

use std::collections::BTreeMap;
use std::path::Path;

use crate::listing::Entry;
use crate::object::Algorithm;

use objects::Objects;

/// Results of a check: the faults, and the tree.
#[derive(Debug, Default)]
pub struct Findings {
    /// Problems found.
    pub problems: Vec<String>,
    /// Tree of the head's revision, by path; `/` is the root. Entries that listings leave out are not in it.
    pub tree: BTreeMap<Vec<u8>, Entry>,
    /// Files listed in bundles that the publisher made, by the path of the specification.
    pub bundles: BTreeMap<Vec<u8>, Vec<String>>,
    /// Offsets and hashes of the contents of files with external data, by path.
    pub external: BTreeMap<Vec<u8>, Vec<(u64, String)>>,
    /// The number of entries of each catalog, by mountpoint.
    pub catalogs: BTreeMap<String, u64>,
    /// The tags of the history: name and revision.
    pub tags: BTreeMap<String, u64>,
    /// The number of the revision.
    pub revision: u64,
    /// Paths of all objects that the head references.
    pub objects: Vec<String>,
}

impl Findings {
    fn problem(&mut self, text: impl Into<String>) {
        self.problems.push(text.into());
    }

    /// Panics if a problem was found.
    pub fn assert_clean(&self) -> &Self {
        assert!(self.problems.is_empty(), "the repository has problems:\n{}", self.problems.join("\n"));
        self
    }

    /// Asserts the same of a repository whose publisher was interrupted. The reflog is replaced just before the
    /// head, so a head may name the one before; clients don't read it.
    pub fn assert_whole(&self, when: &str) -> &Self {
        let mut problems = self.problems.iter().filter(|problem| *problem != OTHER_REFLOG).peekable();
        assert!(problems.peek().is_none(), "{when}: {:#?}", problems.collect::<Vec<_>>());
        self
    }

    /// Returns the tree as a listing, in path order.
    pub fn listing(&self) -> Vec<Entry> {
        self.tree.values().cloned().collect()
    }
}

/// Fault of a reflog that the manifest does not name.
const OTHER_REFLOG: &str = "the manifest names another reflog";

/// Judges the repository in a folder, whose owner has this public key (PEM).
pub fn check(repository: &Path, name: &str, public_key: &str) -> Findings {
    let mut findings = Findings::default();
    let Some(head) = head::check(repository, name, public_key, &mut findings) else { return findings };
    let objects = Objects::new(repository, Algorithm::of_text(&head.root));
    head::check_history(&head, &objects, &mut findings);
    head::check_reflog(repository, &head, &mut findings);
    catalogs::check(&head, &objects, &mut findings);
    bundles::targets(&mut findings);
    findings.objects = objects.seen();
    findings
}
