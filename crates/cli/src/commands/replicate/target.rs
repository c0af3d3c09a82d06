//! The repositories to copy, with their servers, keys and selection.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::name::RepositoryName;
use esker_maintain::{
    Replicate, ReplicateError, ReplicateProgress, Replicated, RevisionLimit, remembered_spool,
};
use esker_object_storage::connect;
use esker_repository::{Disks, RememberedStorage, ReplicaState, RepositoryError, Storage};
use esker_store::{Engine, Servers, Source, without_passwords};

use super::Args;
use super::group::{Group, NamedSource};
use crate::error::{Failure, of_store, warn};
use crate::publisher::{of_operation, with_options};
use crate::settings::Settings;
use crate::settings::public_keys::public_keys;

/// A repository to copy.
pub(super) struct Target {
    pub(super) name: RepositoryName,
    pub(super) root: PathBuf,
    pub(super) storage: Storage,
    /// Settings of object storage to remember after success: an option changed them.
    changed: Option<RememberedStorage>,
    /// True if this command remembered the storage.
    is_new: bool,
    /// Folder of CernVM-FS's state, if it copies or collects the replica, too.
    spool: Option<PathBuf>,
    pub(super) servers: Servers,
    keys: Vec<u8>,
    revisions: RevisionLimit,
    paths: Vec<Vec<u8>>,
    forget_history: bool,
    reserve: Option<u64>,
}

/// Finds the repositories of a command, and again those that were added since.
pub(super) struct Targets<'a> {
    groups: &'a [Group],
    args: &'a Args,
    settings: &'a Settings,
    /// Folders of the repositories that were found.
    known: HashSet<PathBuf>,
    /// Failures of repositories of a list, which hold up no other.
    pub(super) refused: Vec<Failure>,
}

impl<'a> Targets<'a> {
    pub(super) fn new(groups: &'a [Group], args: &'a Args, settings: &'a Settings) -> Self {
        Self { groups, args, settings, known: HashSet::new(), refused: Vec::new() }
    }

    /// Returns the repositories that no call before has returned.
    pub(super) fn next(&mut self) -> Result<Vec<Target>, Failure> {
        let is_first = self.known.is_empty();
        let mut targets = Vec::new();
        for group in self.groups {
            for source in group.sources(self.args, self.settings)? {
                let (name, root) = source.place(group, self.settings)?;
                if !self.known.insert(root.clone()) {
                    if is_first && !source.is_listed {
                        let text = format!("two of the repositories would be copied to {}", root.display());
                        return Err(Failure::usage(text).hint("name a folder of repositories with --to DIR"));
                    }
                    continue;
                }
                match Target::new(&source, (name, root), group, self.args.dry_run, self.settings) {
                    Err(failure) if source.is_listed => {
                        warn(Some(&failure.message));
                        self.refused.push(failure);
                    }
                    target => targets.push(target?),
                }
            }
        }
        Ok(targets)
    }
}

impl Target {
    fn new(
        source: &NamedSource,
        (name, root): (RepositoryName, PathBuf),
        group: &Group,
        dry_run: bool,
        settings: &Settings,
    ) -> Result<Self, Failure> {
        let (to, args, bucket) = (group.storage(), &group.0, group.bucket());
        let is_url = source.is_url();
        let unreadable = |error| of_operation(&format!("{name} was not replicated"), &error);
        let (mut changed, mut is_new) = (None, false);
        let before = RememberedStorage::read(&root).map_err(unreadable)?;
        match &before {
            // Refuses another bucket than the remembered one.
            Some(known) => {
                to.root(&name, settings)?;
                changed = Some(with_options(known, &name, &root, &bucket)?).filter(|now| now != known);
            }
            None if is_url && dry_run => changed = to.planned_bucket(&name, &bucket)?,
            None if is_url => {
                is_new = to.new_place(name.as_str(), &bucket, settings)?.1;
            }
            None => {
                if let Some(option) = bucket.given() {
                    return Err(Failure::usage(format!("{option} is for replicas in object storage"))
                        .hint("name the bucket with --to s3://BUCKET/PREFIX"));
                }
            }
        }
        let opened = match &changed {
            Some(changed) => changed.open(&Disks::default(), &root).map(|sink| Storage::new(&root, sink)),
            None => Storage::open(&root),
        };
        let forget = |error: RepositoryError| {
            if is_new {
                RememberedStorage::forget(&root);
            }
            unreadable(error)
        };
        let storage = opened.map_err(forget)?;
        let known = ReplicaState::of(&storage).map_err(forget)?;
        let urls = match (&known, is_url) {
            (_, true) => source.urls(),
            (Some(known), false) => known.servers.split(';').map(ToOwned::to_owned).collect(),
            (None, false) => {
                let text = format!("there is no replica of {name} in {}", root.display());
                return Err(Failure::usage(text)
                    .hint(format!("make one with `esker replicate URL`, where URL ends with /{name}")));
            }
        };
        let keys = match &known {
            Some(known) if args.public_key.is_empty() && !known.keys.is_empty() => {
                known.keys.clone().into_bytes()
            }
            _ => {
                let files = public_keys(&args.public_key, name.as_str(), settings)?;
                files.into_iter().flat_map(|(_, text)| text.into_iter().chain(*b"\n")).collect()
            }
        };
        let mut revisions = RevisionLimit::All;
        let kept = known.filter(|_| !args.whole);
        let asked = args.path.iter().map(|path| normalised(path)).collect::<Result<Vec<_>, _>>()?;
        // The paths of a first run that failed may be wrong: new ones take their place.
        let is_kept = |kept: &&ReplicaState| !args.set_path && (kept.succeeded.is_some() || asked.is_empty());
        let paths = match kept.as_ref().filter(is_kept) {
            None => asked,
            Some(kept) if kept.paths.is_empty() && !asked.is_empty() => {
                return Err(Failure::usage(format!("the replica of {name} has all paths of the repository"))
                    .hint("restrict it to the paths of --path with --set-path"));
            }
            Some(kept) => kept.paths.iter().map(|path| path.clone().into_bytes()).chain(asked).collect(),
        };
        if let Some(kept) = &kept {
            revisions = kept.revisions.map_or(RevisionLimit::All, RevisionLimit::Newest);
        }
        if let Some(number) = args.revisions {
            revisions = RevisionLimit::Newest(number);
        }
        let servers = group.servers(&urls, settings)?;
        let spool = settings.spool(&name, &root).or_else(|| remembered_spool(&root));
        let (forget_history, reserve) = (args.forget_history, args.reserve);
        Ok(Self {
            name,
            root,
            storage,
            changed,
            is_new,
            spool,
            servers,
            keys,
            revisions,
            paths,
            forget_history,
            reserve,
        })
    }

    /// Remembers or forgets the storage, as the outcome of a run says.
    pub(super) fn ended(&self, outcome: &Result<Replicated, ReplicateError>) -> Result<(), RepositoryError> {
        match (outcome, &self.changed) {
            (Ok(_), Some(changed)) => changed.write(&self.root),
            (Err(_), _) if self.is_new && matches!(ReplicaState::read(&self.root), Ok(None)) => {
                RememberedStorage::forget(&self.root);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Opens the servers.
    pub(super) fn connect(&self, engine: &Engine) -> Result<Arc<dyn Source>, Failure> {
        connect(engine, self.servers.clone()).map_err(|error| {
            of_store(&format!("can't use {}", without_passwords(&self.servers.urls.join(";"))), &error)
        })
    }

    pub(super) fn replicate<'p>(
        &self,
        source: Arc<dyn Source>,
        progress: &'p (dyn Fn(ReplicateProgress) + Sync),
    ) -> Replicate<'p> {
        Replicate {
            revisions: self.revisions,
            paths: self.paths.clone(),
            spool: self.spool.clone(),
            forget_history: self.forget_history,
            reserve: self.reserve,
            ..Replicate::new(
                self.name.clone(),
                self.servers.urls.join(";"),
                source,
                self.keys.clone(),
                progress,
            )
        }
    }
}

/// Returns a path as repositories have it.
fn normalised(path: &Path) -> Result<Vec<u8>, Failure> {
    use std::os::unix::ffi::OsStrExt as _;
    let bytes = path.as_os_str().as_bytes();
    let bytes = bytes.strip_suffix(b"/").unwrap_or(bytes);
    let is_plain = !bytes.split(|byte| *byte == b'/').skip(1).any(|part| matches!(part, b"" | b"." | b".."));
    if !bytes.starts_with(b"/") || !is_plain || std::str::from_utf8(bytes).is_err() || bytes.contains(&b'\n')
    {
        let text = format!("--path {} can't be used", path.display());
        return Err(
            Failure::usage(text).hint("name a directory from the root of the repository, like /sw/el9")
        );
    }
    Ok(bytes.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_named_from_the_root_of_the_repository() {
        let of = |path: &str| normalised(Path::new(path)).ok();
        assert_eq!(of("/sw/el9/"), Some(b"/sw/el9".to_vec()));
        for bad in ["sw", "", "/", "/a//b", "/a/../b", "/a/./b", "/a\nb"] {
            assert_eq!(of(bad), None, "{bad:?}");
        }
    }
}
