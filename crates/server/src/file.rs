//! Opens files of repositories, such that only regular files below the repository's folder are ever sent.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use esker_store::{Beneath, Links};

/// A file, and its length at the time of opening.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: File,
    pub(crate) len: u64,
}

/// The folder of a repository, or of several: owners of repositories may put links there, which are followed only as far as
/// the administrator says.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    root: PathBuf,
    /// Name of the repository, if the folder holds several.
    inside: Option<String>,
    links: Arc<Links>,
}

impl Folder {
    /// Creates the folder that the administrator named.
    pub(crate) fn named(root: &Path, links: &Arc<Links>) -> Self {
        Self { root: root.to_owned(), inside: None, links: links.clone() }
    }

    /// Returns the folder of a repository in it.
    pub(crate) fn of(&self, repository: &str) -> Self {
        Self { inside: Some(repository.to_owned()), ..self.clone() }
    }

    /// Returns the path.
    pub(crate) fn path(&self) -> PathBuf {
        self.inside.as_ref().map_or_else(|| self.root.clone(), |inside| self.root.join(inside))
    }

    /// Opens a regular file below it.
    pub(crate) fn open(&self, path: &str) -> io::Result<Opened> {
        file(&self.beneath()?, path)
    }

    /// Returns true if the file exists.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.open(path).is_ok()
    }

    /// Returns the links directly below it that lead out of the folder and are not followed, with their
    /// targets.
    pub(crate) fn refused_links(&self) -> Vec<(PathBuf, PathBuf)> {
        let entries = std::fs::read_dir(self.path()).into_iter().flatten().flatten();
        let Ok(beneath) = self.beneath() else { return Vec::new() };
        entries
            .filter_map(|entry| {
                let target = entry.path().read_link().ok()?;
                let opened = beneath.resolve(Path::new(&entry.file_name()), rustix::fs::OFlags::PATH);
                let is_refused = opened.err()?.kind() == io::ErrorKind::PermissionDenied;
                is_refused.then(|| (entry.path(), target))
            })
            .collect()
    }

    /// Opens the folder itself, to open several files below it.
    pub(crate) fn beneath(&self) -> io::Result<Beneath> {
        let root = Beneath::open(&self.root, &self.links)?;
        match &self.inside {
            Some(inside) => root.enter(Path::new(inside)),
            None => Ok(root),
        }
    }
}

/// Opens a regular file below a folder.
pub(crate) fn file(folder: &Beneath, path: &str) -> io::Result<Opened> {
    let (file, facts) = folder.file(Path::new(path)).map_err(|error| match error.kind() {
        // A folder, a device or a FIFO is no file of a repository.
        io::ErrorKind::InvalidInput => io::ErrorKind::NotFound.into(),
        _ => error,
    })?;
    Ok(Opened { file, len: facts.len() })
}
