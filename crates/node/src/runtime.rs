//! Runtime directory: sockets, registry and logs of the mounts of one user.
//!
//! ```text
//!  <runtime>/<id>.json    registry entry, locked by the daemon while it lives
//!  <runtime>/<id>.sock    control socket
//!  <runtime>/<id>.upgrade socket of the supervisor
//!  <runtime>/<id>.log     log of the daemon
//!  <runtime>/<id>.tree    for a moment: private mount point of a tree below an overlay
//! ```
//!
//! `<id>` is a digest of the mount point. The directory belongs to the user alone, which is checked
//! because its parent may be `/tmp`. It is removed with the last file in it.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use esker_format::hash::{ContentHash, HashAlgorithm};
use rustix::fs::{Access, access};

use esker_cache_share::FileError;

/// Shared folders for runtime directories `esker-UID` of users without a session, in order of preference.
pub const SHARED: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// Longest path of a socket: `sun_path` has 108 bytes, the last of them zero.
const SOCKET_PATH_MAX: usize = 107;

/// The runtime directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// Creating or examining the directory failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The directory belongs to another user or has wrong permissions.
    #[error("{path} can't be used for sockets: {why}")]
    NotOurs {
        /// The directory.
        path: PathBuf,
        /// Description of the problem.
        why: String,
    },
}

/// The runtime directory of this user.
#[derive(Clone, Debug)]
pub struct RuntimeDir {
    path: PathBuf,
}

impl RuntimeDir {
    /// Creates the directory if need be and checks that it is private.
    pub fn open(path: &Path) -> Result<Self, RuntimeError> {
        if let Err(error) = DirBuilder::new().mode(0o700).create(path)
            && error.kind() != io::ErrorKind::AlreadyExists
        {
            return Err(FileError { action: "create", path: path.into(), source: error }.into());
        }
        Self::check(path)?;
        let dir = Self { path: path.to_owned() };
        if dir.upgrades("0000000000000000").as_os_str().len() > SOCKET_PATH_MAX {
            let why = "its path is too long for the address of a socket".into();
            return Err(RuntimeError::NotOurs { path: path.into(), why });
        }
        Ok(dir)
    }

    /// Returns the directory if it exists already; `None` if this user has no mounts.
    pub fn existing(path: &Path) -> Result<Option<Self>, RuntimeError> {
        match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            _ => {
                Self::check(path)?;
                Ok(Some(Self { path: path.to_owned() }))
            }
        }
    }

    /// Chooses the directory among several, in order: one that is there and only this user's, else the first that can be
    /// made. Another user may have made one of the others, to keep this user from mounting.
    pub fn choose(candidates: &[PathBuf]) -> Option<&Path> {
        let is_ours = |path: &&PathBuf| matches!(Self::existing(path), Ok(Some(_)));
        let is_free = |path: &&PathBuf| {
            let base = path.parent().unwrap_or(Path::new("/"));
            let is_missing = matches!(Self::existing(path), Ok(None));
            is_missing && base.is_dir() && access(base, Access::WRITE_OK | Access::EXEC_OK).is_ok()
        };
        let mut all = candidates.iter();
        let found = all.clone().find(is_ours).or_else(|| all.find(is_free));
        found.map(PathBuf::as_path)
    }

    fn check(path: &Path) -> Result<(), RuntimeError> {
        let meta = fs::symlink_metadata(path).map_err(FileError::on("look at", path))?;
        let me = rustix::process::geteuid().as_raw();
        let why = if !meta.is_dir() {
            "it is not a directory".to_owned()
        } else if meta.uid() != me {
            format!("it belongs to user {}, not to user {me}", meta.uid())
        } else if meta.mode() & 0o077 != 0 {
            format!("its mode {:04o} lets others in; it must be 0700", meta.mode() & 0o7777)
        } else {
            return Ok(());
        };
        Err(RuntimeError::NotOurs { path: path.into(), why })
    }

    /// Returns the id of a mount point in file names.
    pub fn id(mountpoint: &Path) -> String {
        let hash = ContentHash::of(HashAlgorithm::Sha1, mountpoint.as_os_str().as_bytes());
        let mut id = hash.to_string();
        id.truncate(16);
        id
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn entry(&self, id: &str) -> PathBuf {
        self.path.join(format!("{id}.json"))
    }

    pub(crate) fn socket(&self, id: &str) -> PathBuf {
        self.path.join(format!("{id}.sock"))
    }

    pub(crate) fn upgrades(&self, id: &str) -> PathBuf {
        self.path.join(format!("{id}.upgrade"))
    }

    pub(crate) fn layer(&self, id: &str) -> PathBuf {
        self.path.join(format!("{id}.tree"))
    }

    /// Returns the path of a daemon's log.
    pub fn log(&self, id: &str) -> PathBuf {
        self.path.join(format!("{id}.log"))
    }

    /// Removes the directory if nothing is left in it.
    pub fn leave(&self) {
        // Another mount still uses it, most likely.
        let _ = fs::remove_dir(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_runtime_directory_open_to_other_users_is_refused() {
        let base = tempfile::tempdir().expect("a directory");
        let path = base.path().join("esker");
        assert!(RuntimeDir::existing(&path).expect("absent").is_none());
        RuntimeDir::open(&path).expect("created");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
        let error = RuntimeDir::open(&path).expect_err("open to others");
        assert!(error.to_string().contains("0755"), "{error}");
    }

    #[test]
    fn a_link_or_file_in_its_place_is_refused() {
        let base = tempfile::tempdir().expect("a directory");
        let path = base.path().join("esker");
        std::os::unix::fs::symlink(base.path(), &path).expect("link");
        assert!(RuntimeDir::open(&path).is_err());
    }

    /// An occupied first choice is skipped; an existing directory remains the choice.
    #[test]
    fn foreign_files_in_the_way_are_skipped() {
        let base = tempfile::tempdir().expect("a directory");
        let choices = ["a", "b", "c"].map(|name| base.path().join(name).join("esker"));
        assert_eq!(RuntimeDir::choose(&choices), None, "nothing can be made");
        for choice in &choices {
            fs::create_dir(choice.parent().expect("a parent")).expect("a directory");
        }
        let [first, second, third] = &choices;
        assert_eq!(RuntimeDir::choose(&choices), Some(first.as_path()));
        let traps: [&dyn Fn(); 3] = [
            &|| fs::write(first, "").expect("a file"),
            &|| std::os::unix::fs::symlink(base.path(), first).expect("a link"),
            &|| {
                fs::create_dir(first).expect("a directory");
                fs::set_permissions(first, fs::Permissions::from_mode(0o777)).expect("a mode");
            },
        ];
        for (number, trap) in traps.iter().enumerate() {
            trap();
            assert_eq!(RuntimeDir::choose(&choices), Some(second.as_path()), "trap {number}");
            fs::remove_file(first).or_else(|_| fs::remove_dir(first)).expect("removed");
        }
        if rustix::process::geteuid().is_root() {
            fs::create_dir(first).expect("a directory");
            fs::set_permissions(first, fs::Permissions::from_mode(0o700)).expect("a mode");
            std::os::unix::fs::chown(first, Some(1), Some(1)).expect("given away");
            assert_eq!(RuntimeDir::choose(&choices), Some(second.as_path()), "another user's");
            fs::remove_dir(first).expect("removed");
        }
        RuntimeDir::open(third).expect("made");
        assert_eq!(RuntimeDir::choose(&choices), Some(third.as_path()), "mounts are registered there");
    }

    #[test]
    fn a_path_too_long_for_a_socket_is_refused_with_the_reason() {
        let base = tempfile::tempdir().expect("a directory");
        let error = RuntimeDir::open(&base.path().join("x".repeat(100))).expect_err("too long");
        assert!(error.to_string().contains("too long"), "{error}");
    }
}
