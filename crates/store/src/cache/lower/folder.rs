//! Access to a folder that other users filled, without following links and without a race between check and use.
//!
//! Every step is an `openat` relative to a checked descriptor, so a component can't be exchanged between check and
//! use.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat};

use crate::error::Cause;

/// Flags for folders that are only traversed.
const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Flags that open any file without blocking, whatever its type.
const FILE: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

/// Users that may have write access to the folder and its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Writers {
    /// Only these users, because the files carry no proof of their content.
    Only(Vec<u32>),
    /// These users, and the groups of their files: the reference client makes its cache folder `0770`.
    WithGroups(Vec<u32>),
    /// Any user.
    AllUsers,
}

impl Writers {
    /// Returns why a file or folder is not trusted.
    fn problem(&self, facts: &Stat) -> Option<String> {
        let (owners, forbidden) = match self {
            Writers::Only(owners) => (owners, 0o022),
            Writers::WithGroups(owners) => (owners, 0o002),
            Writers::AllUsers => return None,
        };
        if !owners.contains(&facts.st_uid) {
            return Some(format!("belongs to user {}", facts.st_uid));
        }
        let sticky =
            FileType::from_raw_mode(facts.st_mode) == FileType::Directory && facts.st_mode & 0o1000 != 0;
        (facts.st_mode & forbidden != 0 && !sticky).then(|| {
            "may be written to by other users, who could put anything there; use `chmod go-w`".to_owned()
        })
    }
}

/// A lower folder that other programs write.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) fd: OwnedFd,
    writers: Writers,
}

impl Folder {
    /// Opens a folder after checking the owners and permissions of every folder above it. `writers`, given the
    /// owner, returns who may write to it and to every folder above it. Links in the path are resolved first,
    /// and the resolved path is checked.
    pub(super) fn walk(path: &Path, writers: impl FnOnce(u32) -> Writers) -> Result<Self, Cause> {
        let failed = |source: io::Error| Cause::Disk { doing: "looking at", path: path.to_owned(), source };
        let path = std::fs::canonicalize(path).map_err(failed)?;
        let mut steps = vec![openat(CWD, "/", FOLDER, Mode::empty()).map_err(|error| failed(error.into()))?];
        let mut names = vec![PathBuf::from("/")];
        for part in path.components() {
            let Component::Normal(name) = part else { continue };
            let last = steps.last().expect("there is a step because the walk began at the root");
            let next = openat(last, name, FOLDER, Mode::empty()).map_err(|error| failed(error.into()))?;
            names.push(names.last().map_or_else(PathBuf::new, |above| above.join(name)));
            steps.push(next);
        }
        let facts = |fd: &OwnedFd| fstat(fd).map_err(|error| failed(error.into()));
        let fd = steps.last().expect("there is a step because the walk began at the root");
        let writers = writers(facts(fd)?.st_uid);
        // From the top, so that the message names the folder in which the trouble begins.
        for (step, name) in steps.iter().zip(&names) {
            if let Some(problem) = writers.problem(&facts(step)?) {
                let problem = format!("{problem}; so it is not used as a lower cache");
                return Err(Cause::NotPrivate { path: name.clone(), problem });
            }
        }
        let fd = steps.pop().expect("there is a step because the walk began at the root");
        Ok(Self { fd, writers })
    }

    /// Returns whether the folder has a subfolder of this name.
    pub(super) fn has_folder(&self, name: &str) -> bool {
        openat(&self.fd, name, FOLDER, Mode::empty()).is_ok()
    }

    /// Opens a folder in it.
    pub(super) fn enter(&self, name: impl AsRef<OsStr>) -> io::Result<OwnedFd> {
        let fd = openat(&self.fd, Path::new(name.as_ref()), FOLDER, Mode::empty())?;
        self.look(&fd)?;
        Ok(fd)
    }

    /// Opens a regular file below it, and returns its length. Any error but `NotFound` means that the entry exists but
    /// is not acceptable.
    pub(super) fn open(&self, folders: &[&str], name: &str) -> io::Result<(File, u64)> {
        let mut within: Option<OwnedFd> = None;
        for folder in folders {
            let above = within.as_ref().map_or(self.fd.as_fd(), AsFd::as_fd);
            let next = openat(above, *folder, FOLDER, Mode::empty())?;
            self.look(&next)?;
            within = Some(next);
        }
        let above = within.as_ref().map_or(self.fd.as_fd(), AsFd::as_fd);
        let file = openat(above, name, FILE, Mode::empty())?;
        let facts = self.look(&file)?;
        if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile {
            return Err(io::Error::other("it is not a file"));
        }
        Ok((File::from(file), facts.st_size as u64))
    }

    fn look(&self, fd: &OwnedFd) -> io::Result<Stat> {
        let facts = fstat(fd)?;
        match self.writers.problem(&facts) {
            None => Ok(facts),
            Some(problem) => Err(io::Error::other(problem)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn me() -> u32 {
        rustix::process::geteuid().as_raw()
    }

    fn only(owner: u32) -> Writers {
        Writers::Only(vec![0, me(), owner])
    }

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// A private folder inside the sticky folder for temporary files.
    fn private() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        mode(folder.path(), 0o755);
        fs::create_dir_all(folder.path().join("a/b")).unwrap();
        fs::write(folder.path().join("a/b/file"), b"bytes").unwrap();
        folder
    }

    #[test]
    fn a_folder_that_others_may_write_to_is_refused_wherever_it_is_in_the_path() {
        let folder = private();
        let inner = folder.path().join("a/b");
        Folder::walk(&inner, only).unwrap();
        for (bad, writable) in [("a", 0o777), ("a/b", 0o777), ("a", 0o775), ("a/b", 0o775)] {
            let path = folder.path().join(bad);
            mode(&path, writable);
            let refused = Folder::walk(&inner, only).unwrap_err();
            let Cause::NotPrivate { path: named, problem } = &refused else { panic!("{refused:?}") };
            assert_eq!(*named, fs::canonicalize(&path).unwrap());
            assert!(problem.contains("chmod go-w"), "{problem}");
            let group = Folder::walk(&inner, |owner| Writers::WithGroups(vec![0, me(), owner]));
            assert_eq!(group.is_ok(), writable == 0o775);
            Folder::walk(&inner, |_| Writers::AllUsers).unwrap();
            mode(&path, 0o755);
        }
        // In a sticky folder only the owner can exchange an entry.
        mode(&folder.path().join("a"), 0o1777);
        Folder::walk(&inner, only).unwrap();
        let stranger = Folder::walk(&inner, |_| Writers::Only(vec![me() + 1])).unwrap_err();
        assert!(stranger.to_string().contains("belongs to user 0"), "{stranger}");
    }

    #[test]
    fn files_are_opened_only_if_they_are_what_they_should_be() {
        let folder = private();
        let walked = Folder::walk(folder.path(), only).unwrap();
        let open = |name: &str| walked.open(&["a", "b"], name);
        assert_eq!(open("file").unwrap().1, 5);
        assert_eq!(open("none").unwrap_err().kind(), io::ErrorKind::NotFound);
        let place = |name: &str| folder.path().join("a/b").join(name);
        symlink("file", place("link")).unwrap();
        fs::create_dir(place("folder")).unwrap();
        rustix::fs::mknodat(CWD, place("pipe"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
        fs::write(place("open"), b"bytes").unwrap();
        mode(&place("open"), 0o666);
        for bad in ["link", "folder", "pipe", "open"] {
            let error = open(bad).unwrap_err();
            assert_ne!(error.kind(), io::ErrorKind::NotFound, "{bad}");
        }
        // A link in place of a folder is not followed either.
        fs::rename(folder.path().join("a"), folder.path().join("elsewhere")).unwrap();
        symlink("elsewhere", folder.path().join("a")).unwrap();
        assert_ne!(open("file").unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
