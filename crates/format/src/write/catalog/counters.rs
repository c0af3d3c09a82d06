//! Implements counting, adding and writing of a catalog's counters.

use crate::catalog::{Counters, EntryKind, Flags, NestedCatalog, Statistics};

use super::{Entry, Value};

/// Name of a counter and its accessors.
type Field = (&'static str, fn(&Counters) -> u64, fn(&mut Counters) -> &mut u64);

macro_rules! fields {
    ($($name:ident),* $(,)?) => {
        [$((stringify!($name), |c| c.$name, |c| &mut c.$name)),*]
    };
}

const FIELDS: [Field; 12] = fields![
    regular,
    symlink,
    special,
    dir,
    nested,
    chunked,
    chunks,
    file_size,
    chunked_size,
    xattr,
    external,
    external_file_size,
];

impl Counters {
    /// Adds other counters to these.
    pub fn add(&mut self, other: &Self) {
        for (_, get, get_mut) in FIELDS {
            *get_mut(self) = get(self).saturating_add(get(other));
        }
    }

    /// Subtracts other counters; no counter falls below zero, even if one was wrong before.
    pub fn subtract(&mut self, other: &Self) {
        for (_, get, get_mut) in FIELDS {
            *get_mut(self) = get(self).saturating_sub(get(other));
        }
    }

    /// Counts the entries of one catalog.
    pub fn of<'e>(
        entries: impl Iterator<Item = &'e Entry>,
        nested: impl Iterator<Item = &'e NestedCatalog>,
    ) -> Self {
        let nested = nested.filter(|nested| !nested.bind).count() as u64;
        let mut own = Self { nested, ..Self::default() };
        for entry in entries {
            own.xattr += u64::from(entry.xattrs.is_some());
            match entry.kind() {
                Some(EntryKind::Directory) => own.dir += 1,
                Some(EntryKind::Symlink) => own.symlink += 1,
                Some(EntryKind::File) => own.count_file(entry),
                _ => own.special += 1,
            }
        }
        own
    }

    fn count_file(&mut self, entry: &Entry) {
        self.regular += 1;
        self.file_size = self.file_size.saturating_add(entry.size);
        if !entry.chunks.is_empty() {
            self.chunked += 1;
            self.chunks += entry.chunks.len() as u64;
            self.chunked_size = self.chunked_size.saturating_add(entry.size);
        }
        if entry.flags.has(Flags::EXTERNAL) {
            self.external += 1;
            self.external_file_size = self.external_file_size.saturating_add(entry.size);
        }
    }
}

impl Statistics {
    /// Returns the counters of the catalog and everything nested below it together.
    pub fn total(&self) -> Counters {
        let mut total = self.own;
        total.add(&self.subtree);
        total
    }
}

/// Returns the rows of table `statistics`.
pub(super) fn rows(statistics: &Statistics) -> Vec<Vec<Value<'static>>> {
    let of = |prefix: &'static str, counters: &Counters| {
        let counters = *counters;
        FIELDS.map(|(name, get, _)| {
            vec![
                Value::text(format!("{prefix}{name}").into_bytes()),
                Value::Integer(get(&counters).cast_signed()),
            ]
        })
    };
    of("self_", &statistics.own).into_iter().chain(of("subtree_", &statistics.subtree)).collect()
}
