//! Keeps the files that a command reads in memory, so that "hot" stays true during the measurement.
//!
//! Kernels reclaim pages that look idle, some (DAMON) without any pressure, and a run every few seconds looks idle. A
//! directory would then be read from its disk and a mount from its client, which is no comparison of hot starts.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::sys::{Locked, resident_pages};

/// Maximum number of files: Linux limits a process to 65,530 mappings.
const FILES_MAX: usize = 60_000;

/// Files that are locked in memory until this is dropped.
#[derive(Debug)]
pub struct Held {
    files: Vec<Locked>,
}

impl Held {
    /// Returns the number of files.
    pub fn files(&self) -> usize {
        self.files.len()
    }
}

/// Returns the files below `root` with at least one page in the page cache, as paths relative to it.
pub fn resident(root: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    each_resident(root, |path, _| found.extend(path.strip_prefix(root).map(Path::to_owned)))?;
    Ok(found)
}

/// Returns the number of bytes of the files below `root` in the page cache.
pub fn resident_bytes(root: &Path) -> Result<u64> {
    let mut pages = 0;
    each_resident(root, |_, of_file| pages += of_file)?;
    Ok(pages * rustix::param::page_size() as u64)
}

/// Calls `tell` with each file below `root` that has pages in the page cache, and the size of these pages.
fn each_resident(root: &Path, mut tell: impl FnMut(&Path, u64)) -> Result<()> {
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            std::fs::read_dir(&folder).with_context(|| format!("can't list {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let (path, meta) = (entry.path(), entry.metadata()?);
            if meta.is_dir() {
                folders.push(path);
            } else if meta.is_file() && meta.size() > 0 {
                match resident_pages(&File::open(&path)?, len(meta.size())?)? {
                    0 => {}
                    pages => tell(&path, pages as u64),
                }
            }
        }
    }
    Ok(())
}

/// Reads these files of each root into memory and locks them there. Needs root, or a limit on locked memory that
/// is large enough.
pub fn hold(roots: &[PathBuf], files: &[PathBuf]) -> Result<Held> {
    let mut held = Held { files: Vec::new() };
    // As much of each root where not all can be held.
    for path in files.iter().flat_map(|file| roots.iter().map(move |root| root.join(file))).take(FILES_MAX) {
        let file = File::open(&path).with_context(|| format!("can't open {}", path.display()))?;
        let len = len(file.metadata()?.size())?;
        held.files.push(Locked::of(&file, len).with_context(|| format!("can't lock {}", path.display()))?);
    }
    Ok(held)
}

fn len(size: u64) -> io::Result<usize> {
    usize::try_from(size).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_just_written_are_found_and_locked() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::create_dir(folder.path().join("sub")).expect("a folder");
        std::fs::write(folder.path().join("sub/file"), b"content").expect("a file");
        std::fs::write(folder.path().join("empty"), b"").expect("a file");
        let files = resident(folder.path()).expect("a list");
        assert_eq!(files, [PathBuf::from("sub/file")]);
        assert_eq!(hold(&[folder.path().to_owned()], &files).expect("locked").files(), 1);
    }
}
