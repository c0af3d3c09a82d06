//! Executables that a repository runs before and after its commands.

use std::ffi::OsStr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use esker_run::give_signals_back;
use esker_store::changeable_part;

use crate::error::{Failure, warn};
use crate::output::for_messages;

/// Folder of hooks, below the folder of the repository.
const FOLDER: &str = ".esker/hooks";

/// Text of `esker help hooks`.
pub(crate) const HELP: &str = "\
Hooks are executables that a repository runs before and after commands on it. They are in the folder .esker/hooks
of the repository's storage, like /srv/cvmfs/sw.example.org/.esker/hooks/publish-after; for object storage, of the
folder that remembers it.

  transaction-before, transaction-after   a transaction begins
  publish-before, publish-after           publish, ingest, remove, repo copy, and the publish of a transaction
  abort-before, abort-after               transaction abort
  rollback-before, rollback-after         rollback, undo
  tag-before, tag-after                   tag add, move, remove

The argument is the name of the repository. The environment has those of these variables that apply:

  ESKER_REPOSITORY   name of the repository
  ESKER_TAG          tag for the revision, target of the rollback, or tags that change
  ESKER_REVISION     after: the new revision, or that of the tag; for a transaction, its base
  ESKER_TRANSACTION  id of the transaction
  ESKER_PATH         directory of the repository that changes

If a hook before a command fails, the command changes nothing; if one after it fails, that is a warning. Dry runs
have no hooks. What hooks print goes to standard error. A hook that other users can change is not run.
";

/// Command that has hooks.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hooked {
    Transaction,
    Publish,
    Abort,
    /// `esker rollback` and `esker undo`.
    Rollback,
    /// `esker tag add`, `move` and `remove`.
    Tag,
}

/// Facts for a hook beside the name of the repository. It gets them in its environment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct HookFacts<'a> {
    /// Tag that is named for the revision, or that is changed.
    pub(crate) tag: Option<&'a str>,
    /// Revision that is published.
    pub(crate) revision: Option<u64>,
    /// Id of the transaction.
    pub(crate) transaction: Option<&'a str>,
    /// Directory of the repository that changes.
    pub(crate) path: Option<&'a OsStr>,
}

impl Hooked {
    fn name(self) -> &'static str {
        match self {
            Hooked::Transaction => "transaction",
            Hooked::Publish => "publish",
            Hooked::Abort => "abort",
            Hooked::Rollback => "rollback",
            Hooked::Tag => "tag",
        }
    }

    /// Runs the hook before the command; if it fails, the command must end.
    pub(crate) fn before(self, repository: &Path, name: &str, facts: HookFacts<'_>) -> Result<(), Failure> {
        match run(repository, &format!("{}-before", self.name()), name, facts) {
            Ok(()) => Ok(()),
            Err((path, reason)) => {
                Err(Failure::failed(format!("{name}: the hook {} {reason}", path.display()))
                    .hint("nothing was changed; mend the hook, or take away its permission to be executed"))
            }
        }
    }

    /// Runs the hook after the command, which is done; a failure is a warning.
    pub(crate) fn after(self, repository: &Path, name: &str, facts: HookFacts<'_>) {
        if let Err((path, reason)) = run(repository, &format!("{}-after", self.name()), name, facts) {
            warn(Some(&format!("the hook {} {reason}", path.display())));
        }
    }
}

/// Runs a hook with the name of the repository as its argument, if it is there and may be executed.
fn run(repository: &Path, hook: &str, name: &str, facts: HookFacts<'_>) -> Result<(), (PathBuf, String)> {
    let path = repository.join(FOLDER).join(hook);
    let is_executable = |facts: std::fs::Metadata| facts.is_file() && facts.permissions().mode() & 0o111 != 0;
    if !std::fs::metadata(&path).is_ok_and(is_executable) {
        return Ok(());
    }
    match changeable_part(&path) {
        Ok(None) => {}
        Ok(Some(part)) => {
            let text = format!(
                "is not run, because users other than this one and root can change {}",
                part.display()
            );
            return Err((path, text));
        }
        Err(error) => return Err((path, format!("can't be looked at: {error}"))),
    }
    let mut command = Command::new(&path);
    let revision = facts.revision.map(|number| number.to_string());
    for (variable, value) in [
        ("ESKER_REPOSITORY", Some(OsStr::new(name))),
        ("ESKER_TAG", facts.tag.map(OsStr::new)),
        ("ESKER_REVISION", revision.as_deref().map(OsStr::new)),
        ("ESKER_TRANSACTION", facts.transaction.map(OsStr::new)),
        ("ESKER_PATH", facts.path),
    ] {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
    // What a hook prints is no part of the report.
    command.stdout(for_messages());
    give_signals_back(command.arg(name));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err((path, format!("failed ({status})"))),
        Err(error) => Err((path, format!("can't be executed: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn hooks_that_others_can_change_are_not_run() {
        let repository = tempfile::tempdir().expect("a folder");
        let (folder, told) = (repository.path().join(FOLDER), repository.path().join("told"));
        fs::create_dir_all(&folder).expect("folders");
        let hook = folder.join("publish-before");
        let text = format!("#!/bin/sh\necho ran >>{}\n", told.display());
        esker_testkit::programs::write(Command::new("sh"), &hook, &text);
        let mode =
            |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("a mode");
        let runs = || fs::read_to_string(&told).unwrap_or_default().lines().count();
        Hooked::Publish
            .before(repository.path(), "a.test", HookFacts::default())
            .expect("a hook of this user");
        assert_eq!(runs(), 1);
        mode(&folder, 0o777);
        let refused = Hooked::Publish
            .before(repository.path(), "a.test", HookFacts::default())
            .expect_err("a folder of all users");
        assert!(format!("{refused:?}").contains(".esker/hooks"), "{refused:?}");
        mode(&folder, 0o755);
        mode(&hook, 0o777);
        Hooked::Publish
            .before(repository.path(), "a.test", HookFacts::default())
            .expect_err("a hook of all users");
        assert_eq!(runs(), 1, "it ran");
    }
}
