//! Paths at which two revisions differ, and their counts.

use esker_format::catalog::EntryKind;
use esker_format::write::catalog::Entry;
use esker_repository::{ChangeKind, PathDiff};

/// A path at which two revisions differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChangedPath {
    pub(crate) path: Vec<u8>,
    pub(crate) change: ChangeKind,
    pub(crate) kind: EntryKind,
    /// Names of the attributes that differ.
    pub(crate) attributes: Vec<&'static str>,
    /// Size of the file before.
    pub(crate) old_size: Option<u64>,
    /// Size of the file after.
    pub(crate) new_size: Option<u64>,
}

/// Counts of the paths at which two revisions differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) added: u64,
    pub(crate) changed: u64,
    pub(crate) removed: u64,
    /// Bytes of files that were added or have new content, in the new revision.
    pub(crate) bytes_added: u64,
    /// Bytes of files that were removed or have new content, in the old revision.
    pub(crate) bytes_removed: u64,
}

impl ChangedPath {
    pub(crate) fn of(diff: &PathDiff<'_>) -> Self {
        let size = |entry: Option<&Entry>| entry.filter(|entry| entry.is_file()).map(|entry| entry.size);
        let kind = diff.new.or(diff.old).and_then(Entry::kind);
        Self {
            path: diff.path.to_vec(),
            change: diff.change,
            kind: kind.unwrap_or(EntryKind::File),
            attributes: diff.attributes.names().collect(),
            old_size: size(diff.old),
            new_size: size(diff.new),
        }
    }

    /// Returns true if the content of a file differs, or the file is new or gone.
    fn has_other_content(&self) -> bool {
        self.change != ChangeKind::Changed || self.attributes.contains(&"content")
    }
}

impl Counts {
    pub(crate) fn add(&mut self, changed: &ChangedPath) {
        *match changed.change {
            ChangeKind::Added => &mut self.added,
            ChangeKind::Changed => &mut self.changed,
            ChangeKind::Removed => &mut self.removed,
        } += 1;
        if changed.has_other_content() {
            self.bytes_added = self.bytes_added.saturating_add(changed.new_size.unwrap_or(0));
            self.bytes_removed = self.bytes_removed.saturating_add(changed.old_size.unwrap_or(0));
        }
    }

    /// Returns the number of paths.
    pub(crate) fn paths(&self) -> u64 {
        self.added.saturating_add(self.changed).saturating_add(self.removed)
    }
}
