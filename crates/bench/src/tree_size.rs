//! Counts the files of a tree and their bytes.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Returns the number of regular files below a folder, and their bytes.
pub(crate) fn size(folder: &Path) -> Result<(u64, u64)> {
    let (mut files, mut bytes) = (0, 0);
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).with_context(|| format!("can't read {}", folder.display()))?;
        for entry in entries {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                folders.push(entry.path());
            } else if metadata.is_file() {
                files += 1;
                bytes += metadata.len();
            }
        }
    }
    Ok((files, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        fs::create_dir(folder.path().join("sub")).expect("a folder");
        fs::write(folder.path().join("sub/a"), b"four").expect("a file");
        std::os::unix::fs::symlink("sub", folder.path().join("link")).expect("a link");
        assert_eq!(size(folder.path()).expect("a size"), (1, 4));
        assert!(size(Path::new("absent")).is_err());
    }
}
