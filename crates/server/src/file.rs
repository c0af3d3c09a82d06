//! Opens files of repositories, such that only regular files below the repository's folder are ever sent.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use esker_store::{Links, RootedDir};
use parking_lot::Mutex;

/// Maximum number of folders of one root that stay open.
const OPEN_MAX: usize = 64;

/// A file, and its length at the time of opening.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) file: Content,
    pub(crate) len: u64,
}

/// Content of an opened file.
#[derive(Debug)]
pub(crate) enum Content {
    File(File),
    /// Bytes that are not read yet.
    Bytes(Bytes),
}

impl Opened {
    pub(crate) fn of(file: File, len: u64) -> Self {
        Self { file: Content::File(file), len }
    }
}

impl From<Bytes> for Opened {
    fn from(bytes: Bytes) -> Self {
        Self { len: bytes.len() as u64, file: Content::Bytes(bytes) }
    }
}

impl Read for Content {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::File(file) => file.read(room),
            Self::Bytes(bytes) => {
                let read = bytes.split_to(room.len().min(bytes.len()));
                if let Some(room) = room.get_mut(..read.len()) {
                    room.copy_from_slice(&read);
                }
                Ok(read.len())
            }
        }
    }
}

/// Opens files of a repository that is no folder of this machine. It blocks.
pub(crate) trait OpenStored: Send + Sync {
    fn open(&self, path: &str) -> io::Result<Opened>;
}

/// The folder of a repository, or of several: owners of repositories may put links there, which are followed only as far as
/// the administrator says.
#[derive(Clone)]
pub(crate) struct Folder {
    root: PathBuf,
    /// Name of the repository, if the folder holds several.
    inside: Option<String>,
    links: Arc<Links>,
    /// Opens the files in place of the folder, whose path is then an address.
    stored: Option<Arc<dyn OpenStored>>,
    /// Folders that are open, shared by all folders of one root.
    open: Arc<Mutex<HashMap<Option<String>, OpenFolder>>>,
}

/// An open folder, which stays in use while its path leads to it.
struct OpenFolder {
    /// Device and inode.
    identity: (u64, u64),
    beneath: Arc<RootedDir>,
}

impl std::fmt::Debug for Folder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.path().fmt(f)
    }
}

impl Folder {
    /// Creates the folder that the administrator named.
    pub(crate) fn named(root: &Path, links: &Arc<Links>) -> Self {
        Self { root: root.to_owned(), inside: None, links: links.clone(), stored: None, open: Arc::default() }
    }

    /// Creates the folder of a repository at an address.
    pub(crate) fn stored(address: String, stored: Arc<dyn OpenStored>) -> Self {
        let links = Arc::new(Links::Into(Vec::new()));
        Self { root: address.into(), inside: None, links, stored: Some(stored), open: Arc::default() }
    }

    /// Returns true if it is a folder of this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.stored.is_none()
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
        match &self.stored {
            Some(stored) => stored.open(path),
            None => file(&*self.beneath()?, path),
        }
    }

    /// Reads a file of at most `limit` bytes.
    pub(crate) fn read(&self, path: &str, limit: u64) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.open(path)?.file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
        if bytes.len() as u64 > limit {
            return Err(io::Error::other(format!("it has more than {limit} bytes")));
        }
        Ok(bytes)
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
    pub(crate) fn beneath(&self) -> io::Result<Arc<RootedDir>> {
        // One call in place of the four that open and close the folders on the way.
        let facts = rustix::fs::stat(self.path())?;
        let identity = (facts.st_dev, facts.st_ino);
        if let Some(known) = self.open.lock().get(&self.inside).filter(|known| known.identity == identity) {
            return Ok(known.beneath.clone());
        }
        let root = RootedDir::open(&self.root, &self.links)?;
        let beneath = match &self.inside {
            Some(inside) => root.enter(Path::new(inside))?,
            None => root,
        };
        let beneath = Arc::new(beneath);
        let mut open = self.open.lock();
        if open.len() >= OPEN_MAX {
            open.clear();
        }
        // What was opened may be a later folder than that of `identity`: it is then opened again next time.
        open.insert(self.inside.clone(), OpenFolder { identity, beneath: beneath.clone() });
        Ok(beneath)
    }
}

/// Opens a regular file below a folder.
pub(crate) fn file(folder: &RootedDir, path: &str) -> io::Result<Opened> {
    let (file, facts) = folder.file(Path::new(path)).map_err(|error| match error.kind() {
        // A folder, a device or a FIFO is no file of a repository.
        io::ErrorKind::InvalidInput => io::ErrorKind::NotFound.into(),
        _ => error,
    })?;
    Ok(Opened::of(file, facts.len()))
}
