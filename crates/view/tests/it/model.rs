//! Trees made by tests, published into the repository of a fixture.

use std::collections::{BTreeMap, BTreeSet};

use esker_testkit::catalog::{Draft, Row};
use esker_testkit::fixture::Repository;

/// Entry of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    Directory {
        mode: u32,
    },
    File {
        content: u8,
        mode: u32,
    },
    /// A file in chunks of 10 bytes.
    Chunked {
        chunks: Vec<u8>,
    },
    Link {
        target: String,
    },
    /// One of two names of a hardlink group.
    Hardlink {
        group: u32,
        content: u8,
    },
}

/// A revision: entries by path without the root, and the directories with their own catalogs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Model {
    pub(crate) things: BTreeMap<String, Thing>,
    pub(crate) nested: BTreeSet<String>,
    pub(crate) hidden: BTreeSet<String>,
}

pub(crate) const CHUNK: u64 = 10;

impl Model {
    pub(crate) fn with(mut self, path: &str, thing: Thing) -> Self {
        self.things.insert(path.to_owned(), thing);
        self
    }

    pub(crate) fn nest(mut self, path: &str) -> Self {
        self.nested.insert(path.to_owned());
        self
    }

    pub(crate) fn directory(self, path: &str) -> Self {
        self.with(path, Thing::Directory { mode: 0o755 })
    }

    pub(crate) fn file(self, path: &str, content: u8) -> Self {
        self.with(path, Thing::File { content, mode: 0o644 })
    }

    /// Publishes the tree as the next revision and returns its root catalog.
    pub(crate) fn publish(&self, repository: &Repository) -> String {
        let mut head = repository.manifest();
        let number = |key| head.get(key).unwrap().parse::<u64>().unwrap();
        let (revision, timestamp) = (number('S') + 1, number('T') + 1);
        let (root, size) = self.store(repository, "", revision);
        head.set('C', &root).set('B', size).set('S', revision).set('T', timestamp);
        repository.publish(&head.sign(&repository.fixture().keys()));
        root
    }

    /// Stores the catalog of a directory and those nested in it.
    fn store(&self, repository: &Repository, mountpoint: &str, revision: u64) -> (String, usize) {
        let draft = Draft::new(mountpoint);
        if mountpoint.is_empty() {
            // Otherwise two equal trees would have the same root catalog.
            draft.property("revision", &revision.to_string());
            draft.add(&Row::directory(""));
        }
        for (path, thing) in &self.things {
            if self.owner(path) == mountpoint {
                let flags = if self.nested.contains(path) { 2 } else { 0 };
                draft.add(&self.row(path, thing, flags));
            }
            if path == mountpoint {
                draft.add(&self.row(path, thing, 32));
            }
        }
        for nested in self.nested.iter().filter(|path| self.owner(path) == mountpoint) {
            let (hash, size) = self.store(repository, nested, revision);
            draft.nest(nested, &hash, size);
        }
        let plain = draft.finish();
        (repository.store(&plain, "C"), plain.len())
    }

    /// The mountpoint of the catalog that has the row of a path (of the parent, for a mountpoint).
    fn owner(&self, path: &str) -> &str {
        let above = |mountpoint: &&String| {
            path.strip_prefix(&***mountpoint).is_some_and(|rest| rest.starts_with('/'))
        };
        self.nested.iter().filter(above).max_by_key(|mountpoint| mountpoint.len()).map_or("", |path| path)
    }

    fn row(&self, path: &str, thing: &Thing, flags: u64) -> Row {
        let mut row = match thing {
            Thing::Directory { mode } => Row { mode: 0o040_000 | mode, ..Row::directory(path) },
            Thing::File { content, mode } => {
                Row { mode: 0o100_000 | mode, ..Row::file(path, 7, Some([*content; 20])) }
            }
            Thing::Chunked { chunks } => Row {
                flags: 4 | 64,
                chunks: chunks.iter().zip(0..).map(|(chunk, at)| (at * CHUNK, CHUNK, [*chunk; 20])).collect(),
                ..Row::file(path, chunks.len() as u64 * CHUNK, None)
            },
            Thing::Link { target } => Row::symlink(path, target),
            Thing::Hardlink { group, content } => {
                Row { links: (*group, 2), ..Row::file(path, 7, Some([*content; 20])) }
            }
        };
        row.flags |= flags;
        if self.hidden.contains(path) {
            row.flags |= 0x8000;
        }
        row
    }
}
