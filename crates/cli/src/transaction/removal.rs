//! Removes folders whose directories may be closed to their own owner.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

/// Removes a folder with all that is in it. Needs no space, and follows no symlink.
pub(super) fn remove_tree(folder: &Path) -> io::Result<()> {
    // A command may have made directories of any depth, so there is no recursion.
    let mut waiting: Vec<(PathBuf, bool)> = vec![(folder.to_owned(), false)];
    while let Some((path, emptied)) = waiting.pop() {
        if emptied {
            ignore_missing(fs::remove_dir(&path))?;
            continue;
        }
        let Some(facts) = ignore_missing(fs::symlink_metadata(&path))? else { continue };
        if !facts.is_dir() {
            ignore_missing(fs::remove_file(&path))?;
            continue;
        }
        if facts.permissions().mode() & 0o700 != 0o700 {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
        }
        waiting.push((path.clone(), true));
        for entry in fs::read_dir(&path)? {
            waiting.push((entry?.path(), false));
        }
    }
    Ok(())
}

fn ignore_missing<T>(outcome: io::Result<T>) -> io::Result<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closed_directories_are_removed_and_symlinks_are_not_followed() {
        let outside = tempfile::tempdir().expect("a folder");
        fs::write(outside.path().join("stays"), "").expect("a file");
        let top = tempfile::tempdir().expect("a folder");
        let folder = top.path().join("t");
        fs::create_dir_all(folder.join("a/closed/b")).expect("folders");
        fs::write(folder.join("a/closed/b/file"), "").expect("a file");
        std::os::unix::fs::symlink(outside.path(), folder.join("link")).expect("a link");
        fs::set_permissions(folder.join("a/closed"), fs::Permissions::from_mode(0o000)).expect("a mode");
        remove_tree(&folder).expect("removing");
        assert!(!folder.exists() && outside.path().join("stays").exists());
    }
}
