//! The repositories to copy, with their servers, keys and selection.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::name::RepositoryName;
use esker_maintain::{
    Replicate, ReplicateError, ReplicateProgress, Replicated, RevisionLimit, remembered_spool,
};
use esker_object_storage::connect;
use esker_repository::{Disks, RememberedStorage, ReplicaState, Repository, RepositoryError, Storage};
use esker_store::{Engine, Servers, Source, without_passwords};

use super::Args;
use crate::error::{Context as _, Failure, Kind, of_store};
use crate::publisher::{PublisherArgs, of_operation, with_options};
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
    /// URLs of its servers.
    pub(super) urls: Vec<String>,
    keys: Vec<u8>,
    revisions: RevisionLimit,
    paths: Vec<Vec<u8>>,
}

impl Target {
    /// Returns the targets of a command line.
    pub(super) fn all(args: &Args, settings: &Settings) -> Result<Vec<Self>, Failure> {
        let to = PublisherArgs::in_storage(args.to.as_deref());
        let sources = if args.all { replicas(&to.storage_folder(settings)?)? } else { args.sources.clone() };
        let mut targets: Vec<Self> = Vec::new();
        for source in &sources {
            let target = Self::new(source, &to, args, settings)?;
            if targets.iter().any(|other| other.root == target.root) {
                let text = format!("two of the repositories would be copied to {}", target.root.display());
                return Err(Failure::usage(text).hint("name a folder of repositories with --to DIR"));
            }
            targets.push(target);
        }
        Ok(targets)
    }

    fn new(source: &str, to: &PublisherArgs, args: &Args, settings: &Settings) -> Result<Self, Failure> {
        let is_url = source.contains("://");
        let urls: Vec<String> =
            source.split(';').map(|url| url.trim().trim_end_matches('/').to_owned()).collect();
        let last = urls.first().and_then(|url| url.rsplit('/').next()).unwrap_or_default();
        let name =
            RepositoryName::parse(last).context(Kind::Usage, format!("{source} names no repository"))?;
        let unreadable = |error| of_operation(&format!("{name} was not replicated"), &error);
        let root = Repository::locate(&to.storage_folder(settings)?, &name);
        let (mut changed, mut is_new) = (None, false);
        let before = RememberedStorage::read(&root).map_err(unreadable)?;
        match &before {
            // Refuses another bucket than the remembered one.
            Some(known) => {
                to.root(&name, settings)?;
                changed = Some(with_options(known, &name, &root, &args.bucket)?).filter(|now| now != known);
            }
            None if is_url && args.dry_run => changed = to.planned_bucket(&name, &args.bucket)?,
            None if is_url => {
                is_new = to.new_place(name.as_str(), &args.bucket, settings)?.1;
            }
            None => {
                if let Some(option) = args.bucket.given() {
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
            (_, true) => urls,
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
        let (mut revisions, mut paths) = (RevisionLimit::All, Vec::new());
        if let Some(known) = known.filter(|_| !args.whole) {
            revisions = known.revisions.map_or(RevisionLimit::All, RevisionLimit::Newest);
            paths = known.paths.into_iter().map(String::into_bytes).collect();
        }
        if let Some(number) = args.revisions {
            revisions = RevisionLimit::Newest(number);
        }
        if !args.path.is_empty() {
            paths = args.path.iter().map(|path| normalised(path)).collect::<Result<_, _>>()?;
        }
        let spool = settings.spool(&name, &root).or_else(|| remembered_spool(&root));
        Ok(Self { name, root, storage, changed, is_new, spool, urls, keys, revisions, paths })
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
        let mut servers = Servers::direct(self.urls.first().map_or("", String::as_str));
        servers.urls.clone_from(&self.urls);
        connect(engine, servers).map_err(|error| {
            of_store(&format!("can't use {}", without_passwords(&self.urls.join(";"))), &error)
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
            ..Replicate::new(self.name.clone(), self.urls.join(";"), source, self.keys.clone(), progress)
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

/// Returns the names of the replicas in a folder.
pub(super) fn replicas(folder: &Path) -> Result<Vec<String>, Failure> {
    let listed = std::fs::read_dir(folder)
        .map_err(|error| Failure::failed(format!("can't list {}: {error}", folder.display())))?;
    let mut names: Vec<String> = listed
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| RepositoryName::parse(name).is_ok())
        // One whose state can't be read fails by its name.
        .filter(|name| !matches!(ReplicaState::read(&folder.join(name)), Ok(None)))
        .collect();
    names.sort_unstable();
    if names.is_empty() {
        return Err(Failure::usage(format!("there is no replica in {}", folder.display()))
            .hint("make one with `esker replicate URL`"));
    }
    Ok(names)
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
