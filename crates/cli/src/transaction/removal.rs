//! Removes folders of transactions, whose directories may be closed to their own owner.
//!
//! A large folder is moved aside, which ends the transaction at once, and another process deletes it. If that is killed, one of a
//! later transaction deletes the rest.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use esker_run::give_signals_back;

use crate::error::{Context as _, Failure, Kind};

/// Subcommand of the process that deletes what was moved aside.
pub(crate) const SWEEP: &str = "sweep-transactions";
/// Beginning of the names of folders that were moved aside.
const ASIDE: &str = ".removed-";
/// Most entries that are deleted without another process.
const AT_ONCE_MAX: usize = 500;

/// Deletes what was moved aside in a folder of transactions; not for use by hand.
#[derive(clap::Args, Debug)]
pub(crate) struct SweepArgs {
    folder: PathBuf,
}

pub(crate) fn sweep(args: &SweepArgs) -> Result<(), Failure> {
    let deleted = aside(&args.folder).and_then(|all| all.iter().try_for_each(|one| remove_tree(one)));
    deleted.context(Kind::Failed, format!("can't delete all of {}", args.folder.display()))
}

/// Removes a folder from a folder of transactions. The deletion of a large one goes on after this returns.
pub(super) fn remove(folder: &Path, transactions: &Path) -> io::Result<()> {
    let name = folder.strip_prefix(transactions).unwrap_or(folder);
    let name = name.to_string_lossy().replace('/', "-");
    let behind = transactions.join(format!("{ASIDE}{}-{name}", std::process::id()));
    match fs::rename(folder, &behind) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(_) => return remove_tree(folder),
        Ok(()) => {}
    }
    if remove_some(&behind, AT_ONCE_MAX)? || sweep_later(transactions) {
        return Ok(());
    }
    remove_tree(&behind)
}

/// Starts the process that deletes what was moved aside, if there is something; returns false if that fails.
pub(super) fn sweep_later(transactions: &Path) -> bool {
    if aside(transactions).is_ok_and(|all| all.is_empty()) {
        return true;
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0("esker").arg(SWEEP).arg(transactions);
    // A group of its own, so that Ctrl-C doesn't end it.
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    give_signals_back(&mut command);
    command.spawn().is_ok()
}

fn aside(transactions: &Path) -> io::Result<Vec<PathBuf>> {
    let Some(entries) = ignore_missing(fs::read_dir(transactions))? else { return Ok(Vec::new()) };
    let paths = entries.map(|entry| entry.map(|entry| entry.path()));
    let is_aside = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(ASIDE.as_bytes()))
    };
    paths.filter(|path| path.as_ref().map_or(true, is_aside)).collect()
}

/// Removes a folder with all that is in it. Needs no space, and follows no symlink.
pub(super) fn remove_tree(folder: &Path) -> io::Result<()> {
    remove_some(folder, usize::MAX).map(drop)
}

/// Removes at most so many entries of a folder, and the folder; returns false if more are left.
fn remove_some(folder: &Path, most: usize) -> io::Result<bool> {
    // A command may have made directories of any depth, so there is no recursion.
    let mut waiting: Vec<(PathBuf, bool)> = vec![(folder.to_owned(), false)];
    let mut removed = 0;
    while let Some((path, emptied)) = waiting.pop() {
        if removed >= most {
            return Ok(false);
        }
        if emptied {
            ignore_missing(fs::remove_dir(&path))?;
            removed += 1;
            continue;
        }
        let Some(facts) = ignore_missing(fs::symlink_metadata(&path))? else { continue };
        if !facts.is_dir() {
            ignore_missing(fs::remove_file(&path))?;
            removed += 1;
            continue;
        }
        if facts.permissions().mode() & 0o700 != 0o700 {
            ignore_missing(fs::set_permissions(&path, fs::Permissions::from_mode(0o700)))?;
        }
        waiting.push((path.clone(), true));
        // Another process may delete the same folder.
        for entry in ignore_missing(fs::read_dir(&path))?.into_iter().flatten() {
            waiting.push((entry?.path(), false));
        }
    }
    Ok(true)
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

    #[test]
    fn a_folder_that_was_moved_aside_is_deleted_in_parts() {
        let top = tempfile::tempdir().expect("a folder");
        let folder = top.path().join(format!("{ASIDE}1-t"));
        fs::create_dir_all(folder.join("a/b")).expect("folders");
        (0..20).for_each(|number| fs::write(folder.join(format!("a/b/{number}")), "").expect("a file"));
        fs::create_dir(top.path().join("other")).expect("a folder");
        assert!(!remove_some(&folder, 10).expect("removing"));
        assert_eq!(fs::read_dir(folder.join("a/b")).expect("a folder").count(), 10);
        sweep(&SweepArgs { folder: top.path().to_owned() }).expect("sweeping");
        assert!(!folder.exists() && top.path().join("other").exists());
        assert!(aside(&top.path().join("missing")).expect("nothing").is_empty());
    }
}
