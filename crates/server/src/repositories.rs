//! Finds the repositories in the served folders.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_format::manifest::{self, Manifest};
use esker_format::name::RepositoryName;

use crate::file::Folder;
use esker_store::Links;

/// Maximum size of a manifest in bytes; real ones have a few hundred.
const MANIFEST_MAX: u64 = 64 * 1024;

/// The served folders. They are read at every use, so a repository that is created later is served without a restart.
#[derive(Debug)]
pub struct Repositories {
    roots: Vec<Root>,
}

#[derive(Debug)]
enum Root {
    /// Folder of one repository, with the name in its manifest, or that of the folder while it has no manifest.
    One(RepositoryName, Folder, Identity),
    /// A folder of folders, each named as its repository.
    Many(Folder, Identity),
}

/// Device and inode of a folder when it was opened; none of one that is not on this machine.
type Identity = Option<(u64, u64)>;

impl Root {
    /// Returns why there is nothing of what was served: its file system was unmounted, or can't be read.
    fn gone(&self) -> Option<io::Error> {
        let (Self::One(_, folder, identity) | Self::Many(folder, identity)) = self;
        let identity = (*identity)?;
        let facts = match rustix::fs::stat(folder.path()) {
            Ok(facts) => facts,
            Err(error) => return Some(error.into()),
        };
        let is_empty = || match self {
            Self::One(..) => !folder.has(manifest::PATH),
            Self::Many(..) => inside(folder).is_empty(),
        };
        let is_other = (facts.st_dev, facts.st_ino) != identity;
        (is_other && is_empty()).then(|| {
            io::Error::other("it is another folder than at the start, without a repository: its file system may be unmounted")
        })
    }
}

/// Error in the folders to serve.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// A folder can't be read.
    #[error("can't read the folder {path}")]
    Unreadable {
        /// Path of the folder.
        path: PathBuf,
        /// The I/O error.
        source: io::Error,
    },
    /// The manifest of a repository has no valid name.
    #[error("can't tell which repository is in {path}: {reason}")]
    Nameless {
        /// Path of the folder.
        path: PathBuf,
        /// Error of reading its manifest.
        reason: String,
    },
    /// Two folders contain the same repository.
    #[error("both {first} and {second} hold the repository {name}")]
    Twice {
        /// The repository.
        name: String,
        /// First folder.
        first: PathBuf,
        /// Second folder.
        second: PathBuf,
    },
}

impl Repositories {
    /// Opens folders that each are a repository or contain some. No link that leads out of one is followed.
    pub fn open(folders: &[PathBuf]) -> Result<Self, RootError> {
        Self::following(folders, Vec::new())
    }

    /// Opens folders, following links into one of the folders `follow`.
    pub fn following(folders: &[PathBuf], follow: Vec<PathBuf>) -> Result<Self, RootError> {
        let links = Arc::new(Links::Into(follow));
        let roots = folders.iter().map(|folder| root(folder, &links)).collect::<Result<_, _>>()?;
        let repositories = Self { roots };
        let mut seen = BTreeMap::new();
        for (name, path) in repositories.all() {
            if let Some(first) = seen.insert(name.clone(), path.path()) {
                return Err(RootError::Twice { name: name.as_str().to_owned(), first, second: path.path() });
            }
        }
        Ok(repositories)
    }

    /// Adds repositories that are no folders of this machine.
    pub(crate) fn add(&mut self, folders: Vec<(RepositoryName, Folder)>) -> Result<(), RootError> {
        let known: BTreeMap<_, _> = self.all().into_iter().collect();
        for (name, folder) in folders {
            if let Some(first) = known.get(&name) {
                let (first, second) = (first.path(), folder.path());
                return Err(RootError::Twice { name: name.as_str().to_owned(), first, second });
            }
            self.roots.push(Root::One(name, folder, None));
        }
        Ok(())
    }

    /// Returns the names of all repositories that currently exist, as in their URLs.
    pub fn names(&self) -> Vec<RepositoryName> {
        self.all().into_iter().map(|(name, _)| name).collect()
    }

    /// Returns the links at the top of the folders that lead out and are not followed, and where they lead.
    pub fn refused_links(&self) -> Vec<(PathBuf, PathBuf)> {
        let tops = self.folders().flat_map(Folder::refused_links).collect::<Vec<_>>();
        let below = self.all().into_iter().flat_map(|(_, folder)| folder.refused_links());
        tops.into_iter().chain(below).collect()
    }

    /// Returns the existing repositories, by the name in their URL, each with its folder.
    pub(crate) fn all(&self) -> Vec<(RepositoryName, Folder)> {
        let mut all = Vec::new();
        for root in &self.roots {
            match root {
                Root::One(name, path, _) => all.push((name.clone(), path.clone())),
                Root::Many(folder, _) => all.extend(inside(folder)),
            }
        }
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all
    }

    /// Returns the folders that may contain a repository.
    pub(crate) fn candidates(&self, name: &RepositoryName) -> impl Iterator<Item = Folder> {
        self.roots.iter().filter_map(move |root| match root {
            Root::One(served, path, _) => (served == name).then(|| path.clone()),
            Root::Many(folder, _) => Some(folder.of(name.as_str())),
        })
    }

    /// Returns true if what may have contained a repository is gone: the file may be there or not.
    pub(crate) fn is_gone(&self, name: &RepositoryName) -> bool {
        let may_have = |root: &&Root| !matches!(root, Root::One(served, ..) if served != name);
        self.roots.iter().filter(may_have).any(|root| root.gone().is_some())
    }

    /// Returns the number of named folders that can't be read.
    pub(crate) fn gone(&self) -> usize {
        self.roots.iter().filter(|root| root.gone().is_some()).count()
    }

    /// Returns the first of the named folders that can't be read, and why.
    pub(crate) fn unreadable(&self) -> Option<(PathBuf, io::Error)> {
        self.roots.iter().find_map(|root| {
            let (Root::One(_, folder, _) | Root::Many(folder, _)) = root;
            let path = folder.path();
            if !folder.is_local() {
                return None;
            }
            std::fs::read_dir(&path).err().or_else(|| root.gone()).map(|error| (path, error))
        })
    }

    /// Returns the paths of the named folders on this machine.
    pub(crate) fn places(&self) -> impl Iterator<Item = PathBuf> {
        let folders = self.roots.iter().map(|root| match root {
            Root::One(_, folder, _) | Root::Many(folder, _) => folder,
        });
        folders.filter(|folder| folder.is_local()).map(Folder::path)
    }

    /// Returns the folders of repositories that may contain server-wide files.
    pub(crate) fn folders(&self) -> impl Iterator<Item = &Folder> {
        self.roots.iter().filter_map(|root| match root {
            Root::One(..) => None,
            Root::Many(folder, _) => Some(folder),
        })
    }
}

fn root(folder: &Path, links: &Arc<Links>) -> Result<Root, RootError> {
    let unreadable = |source| RootError::Unreadable { path: folder.to_owned(), source };
    // The folder stays the same one if the process moves, and becomes another one if the link is that was named.
    let path = std::path::absolute(folder).map_err(unreadable)?;
    let named = Folder::named(&path, links);
    let identity = rustix::fs::stat(&path).ok().map(|facts| (facts.st_dev, facts.st_ino));
    match manifest_of(&named) {
        Ok(manifest) => {
            let name = manifest.name.unwrap_or_default();
            match RepositoryName::parse(&name) {
                Ok(name) => Ok(Root::One(name, named, identity)),
                Err(error) => Err(RootError::Nameless { path, reason: error.to_string() }),
            }
        }
        Err(Unread::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::read_dir(&path).map_err(unreadable)?;
            Ok(match unpublished(&path) {
                Some(name) => Root::One(name, named, identity),
                None => Root::Many(named, identity),
            })
        }
        Err(Unread::Io(source)) => Err(unreadable(source)),
        Err(Unread::Malformed(reason)) => Err(RootError::Nameless { path, reason }),
    }
}

/// Returns the name of a repository whose folder exists before its first manifest.
fn unpublished(folder: &Path) -> Option<RepositoryName> {
    let objects = folder.join("data");
    let is_one = objects.is_dir() && !objects.join(manifest::PATH).exists();
    RepositoryName::parse(folder.canonicalize().ok()?.file_name()?.to_str()?).ok().filter(|_| is_one)
}

/// Returns the repositories in a folder. A repository that is removed meanwhile is skipped.
fn inside(folder: &Folder) -> Vec<(RepositoryName, Folder)> {
    let entries = std::fs::read_dir(folder.path()).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| {
            let name = RepositoryName::parse(entry.file_name().to_str()?).ok()?;
            let inside = folder.of(name.as_str());
            inside.has(manifest::PATH).then_some((name, inside))
        })
        .collect()
}

/// Failure to read a manifest.
#[derive(Debug)]
pub(crate) enum Unread {
    Io(io::Error),
    Malformed(String),
}

impl Unread {
    /// Returns true if the manifest is missing.
    pub(crate) fn is_absent(&self) -> bool {
        use io::ErrorKind::{NotADirectory, NotFound};
        matches!(self, Self::Io(error) if matches!(error.kind(), NotFound | NotADirectory))
    }
}

/// Reads the manifest of the repository in a folder, without verifying it: clients do that.
pub(crate) fn manifest_of(folder: &Folder) -> Result<Manifest, Unread> {
    let bytes = folder.read(manifest::PATH, MANIFEST_MAX).map_err(Unread::Io)?;
    Manifest::parse(&bytes).map_err(|error| Unread::Malformed(error.to_string()))
}
