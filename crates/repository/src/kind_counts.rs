//! Counts of entries by their kind.

use esker_format::catalog::EntryKind;
use esker_format::write::catalog::Entry;
use serde::Serialize;

/// Numbers of entries by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KindCounts {
    /// Number of regular files.
    pub files: u64,
    /// Number of directories.
    pub directories: u64,
    /// Number of symlinks.
    pub symlinks: u64,
    /// Pipes, sockets and devices.
    pub special: u64,
}

impl KindCounts {
    /// Counts an entry by its kind.
    pub fn add(&mut self, entry: &Entry) {
        *self.of(entry) += 1;
    }

    /// Takes an entry off the counts.
    pub fn remove(&mut self, entry: &Entry) {
        *self.of(entry) -= 1;
    }

    /// Adds other counts.
    pub fn add_all(&mut self, other: &Self) {
        self.files += other.files;
        self.directories += other.directories;
        self.symlinks += other.symlinks;
        self.special += other.special;
    }

    fn of(&mut self, entry: &Entry) -> &mut u64 {
        match entry.kind() {
            Some(EntryKind::File) => &mut self.files,
            Some(EntryKind::Directory) => &mut self.directories,
            Some(EntryKind::Symlink) => &mut self.symlinks,
            _ => &mut self.special,
        }
    }

    /// Returns the total number of entries.
    pub fn total(&self) -> u64 {
        self.files + self.directories + self.symlinks + self.special
    }
}
