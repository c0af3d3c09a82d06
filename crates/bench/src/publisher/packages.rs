//! Archives of a synthetic tree: packages with a nested catalog each.

use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::path::Path;

use anyhow::{Context, Result};
use esker_testkit::raw_tar::Raw;

/// Entries of a directory in a package, and the directory itself.
const DIRECTORY: usize = 100;

/// Sizes of a tree of packages.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packages {
    /// Number of packages.
    pub(super) count: usize,
    /// Number of entries of a package, with the marker of its catalog.
    entries: usize,
    /// True if no two files have the same content.
    distinct: bool,
}

impl Packages {
    /// Returns packages with this number of entries in all.
    pub(super) fn of(entries: usize, each: usize, distinct: bool) -> Self {
        let each = each.max(3);
        Self { count: entries.div_ceil(each).max(1), entries: each, distinct }
    }

    /// Returns the number of entries.
    pub(super) fn entries(&self) -> usize {
        self.count * self.entries
    }

    /// Returns the name of a package.
    pub(super) fn name(&self, package: usize) -> String {
        format!("p{:05}", package % self.count)
    }

    /// Returns the path of a file in its package; files are numbered over and over.
    pub(super) fn file(&self, number: usize) -> String {
        let slots = self.entries - 2;
        let files = slots - slots.div_ceil(DIRECTORY);
        let file = number % files;
        slot(file / (DIRECTORY - 1) * DIRECTORY + 1 + file % (DIRECTORY - 1))
    }

    fn content(&self, package: usize, path: &str, revision: usize) -> String {
        let package = if self.distinct { package } else { 0 };
        format!("package {package}, file {path}, revision {revision}\n")
    }

    /// Writes an archive of the whole tree.
    pub(super) fn write(&self, path: &Path) -> Result<()> {
        let mut archive = Archive::create(path)?;
        for package in 0..self.count {
            let name = self.name(package);
            archive.put(&Raw::directory(name.as_bytes()))?;
            archive.put(&Raw::file(format!("{name}/.cvmfscatalog").as_bytes(), b""))?;
            for number in 0..self.entries - 2 {
                let inner = slot(number);
                let path = format!("{name}/{inner}");
                archive.put(&if number.is_multiple_of(DIRECTORY) {
                    Raw::directory(path.as_bytes())
                } else {
                    Raw::file(path.as_bytes(), self.content(package, &inner, 0).as_bytes())
                })?;
            }
        }
        archive.finish()
    }

    /// Writes an archive of the files that a revision changes, in two packages.
    pub(super) fn write_change(&self, path: &Path, revision: usize, files: usize) -> Result<()> {
        let mut archive = Archive::create(path)?;
        for number in 0..files {
            let package = (2 * revision + number % 2) % self.count;
            let inner = self.file(number / 2);
            let content = self.content(package, &inner, revision);
            archive
                .put(&Raw::file(format!("{}/{inner}", self.name(package)).as_bytes(), content.as_bytes()))?;
        }
        archive.finish()
    }
}

/// Returns the path of an entry in a package: each directory precedes its files.
fn slot(number: usize) -> String {
    let directory = format!("d{:04}", number / DIRECTORY);
    if number.is_multiple_of(DIRECTORY) {
        directory
    } else {
        format!("{directory}/f{:02}", number % DIRECTORY)
    }
}

struct Archive(BufWriter<File>);

impl Archive {
    fn create(path: &Path) -> Result<Self> {
        let file = File::create(path).with_context(|| format!("can't create {}", path.display()))?;
        Ok(Self(BufWriter::with_capacity(1 << 20, file)))
    }

    fn put(&mut self, member: &Raw) -> Result<()> {
        Ok(self.0.write_all(&member.bytes())?)
    }

    fn finish(mut self) -> Result<()> {
        self.0.write_all(&[0; 1024])?;
        Ok(self.0.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn changed_files_are_files_of_the_tree() {
        let packages = Packages::of(1000, 250, true);
        assert_eq!((packages.count, packages.entries()), (4, 1000));
        let all: BTreeSet<String> =
            (0..248usize).filter(|number| !number.is_multiple_of(DIRECTORY)).map(slot).collect();
        let changed: BTreeSet<String> = (0..245).map(|number| packages.file(number)).collect();
        assert_eq!(changed, all);
        assert_eq!(packages.file(245), packages.file(0));
    }

    #[test]
    fn an_archive_has_a_block_or_two_for_each_entry() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("tree.tar");
        let packages = Packages::of(1000, 500, true);
        packages.write(&path).expect("an archive");
        // Of each package the directory, the marker and five directories have one block.
        let blocks = 2 * (7 + 2 * 493) + 2;
        assert_eq!(path.metadata().expect("a file").len(), 512 * blocks);
        packages.write_change(&path, 3, 10).expect("an archive");
        assert_eq!(path.metadata().expect("a file").len(), 512 * 22);
    }
}
