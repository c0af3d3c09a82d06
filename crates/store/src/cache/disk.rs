//! File operations of a cache, behind a trait, so that tests can make any of them fail or lose it in a crash.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat};
use rustix::io::Errno;

/// File operations of a [`Cache`](crate::Cache), the saved heads and a publisher. Reads through a handle are not among
/// them.
pub trait Disk: Send + Sync {
    /// Creates a folder; an existing one is no error.
    fn make_dir(&self, path: &Path) -> io::Result<()>;

    /// Creates a file for writing, which must not exist yet.
    fn create(&self, path: &Path) -> io::Result<File>;

    /// Creates a file for writing and reading, which must not exist yet.
    fn create_spool(&self, path: &Path) -> io::Result<File>;

    /// Creates a file without a name, for writing and reading back: nothing is left of it when it is closed. None if the
    /// file system has no such thing.
    fn create_nameless(&self, _folder: &Path) -> io::Result<Option<File>> {
        Ok(None)
    }

    /// Links an unnamed file (`O_TMPFILE`) to an unused name on the file system of its folder.
    fn name(&self, _file: &File, _path: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Opens an unnamed file again for reading only.
    fn reopen(&self, _file: &File) -> io::Result<File> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Appends to a file that was created.
    fn write(&self, file: &File, bytes: &[u8]) -> io::Result<()>;

    /// Makes the content of a file durable, not its name.
    fn sync(&self, file: &File) -> io::Result<()>;

    /// Opens a file for reading.
    fn open(&self, path: &Path) -> io::Result<File>;

    /// Fills the buffer from a file that was opened.
    fn read_exact_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Renames a file, replacing an existing target.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Makes a symbolic link.
    fn link(&self, target: &Path, path: &Path) -> io::Result<()>;

    /// Changes the permissions of a file.
    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Removes an empty folder.
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        fs::remove_dir(path)
    }

    /// Returns the names in a folder.
    fn list(&self, path: &Path) -> io::Result<Vec<OsString>>;

    /// Returns length and modification time of a file, without following a link.
    fn facts(&self, path: &Path) -> io::Result<FileFacts>;

    /// Makes the names in a folder durable.
    fn sync_dir(&self, path: &Path) -> io::Result<()>;

    /// Makes all changes on the file system of this folder durable.
    fn sync_all(&self, path: &Path) -> io::Result<()>;
}

/// Result of [`Disk::facts`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Length in bytes.
    pub len: u64,
    /// Time of the last modification.
    pub modified: SystemTime,
    /// True for a regular file.
    pub regular: bool,
}

/// The real disk. The umask may take permissions to write from new files and folders, but none to read: a server that
/// runs as another user has to read what an administrator with a strict umask publishes.
#[derive(Clone, Copy, Debug)]
pub struct RealDisk {
    file_mode: u32,
    folder_mode: u32,
}

impl RealDisk {
    /// Files that only their owner may access: users don't read or trust each other's files.
    pub const PRIVATE: Self = Self { file_mode: 0o600, folder_mode: 0o700 };
    /// Files that others may read, as a web server must.
    pub const SERVED: Self = Self { file_mode: 0o664, folder_mode: 0o775 };
}

// Whatever the umask, nothing that is made can be written to by every user.
const _: () = assert!((RealDisk::SERVED.file_mode | RealDisk::SERVED.folder_mode) & 0o002 == 0);
const _: () = assert!((RealDisk::PRIVATE.file_mode | RealDisk::PRIVATE.folder_mode) & 0o077 == 0);

impl Disk for RealDisk {
    fn make_dir(&self, path: &Path) -> io::Result<()> {
        match fs::DirBuilder::new().mode(self.folder_mode).create(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => refuse_link_of_others(path),
            Err(error) => Err(error),
            // Another process may have removed an empty folder meanwhile; its user notices that, as ever.
            Ok(()) => match make_folder_readable(path, self.folder_mode) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                other => other,
            },
        }
    }

    fn create(&self, path: &Path) -> io::Result<File> {
        let file = OpenOptions::new().write(true).create_new(true).mode(self.file_mode).open(path)?;
        make_readable(&file, self.file_mode).map(|()| file)
    }

    fn create_spool(&self, path: &Path) -> io::Result<File> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(self.file_mode).open(path)?;
        make_readable(&file, self.file_mode).map(|()| file)
    }

    fn create_nameless(&self, folder: &Path) -> io::Result<Option<File>> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        match rustix::fs::open(folder, flags, Mode::from_raw_mode(self.file_mode)) {
            Ok(file) => {
                let file = File::from(file);
                make_readable(&file, self.file_mode)?;
                Ok(Some(file))
            }
            // Old ones take it for an attempt to write to a folder.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    fn name(&self, file: &File, path: &Path) -> io::Result<()> {
        Ok(linkat(CWD, descriptor_path(file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
    }

    fn reopen(&self, file: &File) -> io::Result<File> {
        File::open(descriptor_path(file))
    }

    fn write(&self, mut file: &File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn sync(&self, file: &File) -> io::Result<()> {
        file.sync_all()
    }

    fn open(&self, path: &Path) -> io::Result<File> {
        let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or_default();
        OpenOptions::new().read(true).custom_flags(flags).open(path)
    }

    fn read_exact_at(&self, file: &File, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        file.read_exact_at(buffer, offset)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn link(&self, target: &Path, path: &Path) -> io::Result<()> {
        std::os::unix::fs::symlink(target, path)
    }

    fn set_mode(&self, path: &Path, mode: u32) -> io::Result<()> {
        fs::set_permissions(path, fs::Permissions::from_mode(mode))
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<OsString>> {
        fs::read_dir(path)?.map(|entry| entry.map(|entry| entry.file_name())).collect()
    }

    fn facts(&self, path: &Path) -> io::Result<FileFacts> {
        let facts = fs::symlink_metadata(path)?;
        let modified = facts.modified()?;
        Ok(FileFacts { len: facts.size(), modified, regular: facts.is_file() })
    }

    fn sync_dir(&self, path: &Path) -> io::Result<()> {
        File::open(path)?.sync_all()
    }

    fn sync_all(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(path)?)?)
    }
}

/// Refuses a link in place of a folder that belongs to another user than this one and root: files would be made where that
/// user wants.
pub fn refuse_link_of_others(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(facts)
            if facts.is_symlink() && ![0, rustix::process::geteuid().as_raw()].contains(&facts.uid()) =>
        {
            let text = "it is a link of another user, which may lead to files elsewhere";
            Err(io::Error::new(io::ErrorKind::PermissionDenied, text))
        }
        // A folder that is gone by now fails at its first use.
        _ => Ok(()),
    }
}

/// Returns true if a mode has all permissions to read and to enter of another one.
fn is_readable(mode: u32, wanted: u32) -> bool {
    let reading = wanted & 0o555;
    mode & reading == reading
}

/// Adds the permissions of a mode to read and to enter that the umask took from a new folder.
fn make_folder_readable(path: &Path, wanted: u32) -> io::Result<()> {
    if is_readable(fs::symlink_metadata(path)?.mode(), wanted) {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    make_readable(&rustix::fs::open(path, flags, Mode::empty())?.into(), wanted)
}

/// Adds the permissions of a mode to read and to enter that the umask took from an open file or folder.
fn make_readable(file: &File, wanted: u32) -> io::Result<()> {
    let mode = file.metadata()?.mode();
    if is_readable(mode, wanted) {
        return Ok(());
    }
    file.set_permissions(fs::Permissions::from_mode((mode | wanted & 0o555) & 0o7777))
}

/// Returns a path for a descriptor, also of an unnamed file; without privilege the only way before Linux 6.10.
pub(crate) fn descriptor_path(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

/// Number of bytes in one read of a file that is compared with its digest.
const PIECE: usize = 1 << 20;

/// Passes the first `len` bytes of a file to a function, piece by piece, until it fails.
pub(crate) fn read_pieces(
    disk: &dyn Disk,
    file: &File,
    len: u64,
    mut take: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut piece = vec![0; usize::try_from(len).map_or(PIECE, |len| len.min(PIECE))];
    let mut at = 0;
    while at < len {
        let room = usize::try_from(len - at).map_or(PIECE, |left| left.min(PIECE));
        let piece = &mut piece[..room];
        disk.read_exact_at(file, piece, at)?;
        take(piece)?;
        at += room as u64;
    }
    Ok(())
}

/// Writes a file durably: a crash leaves the old or the new content, and after the return the new one.
pub fn persist(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    persist_with(disk, path, |write| write(bytes))
}

/// Writes part of a file.
pub type WritePiece<'w> = dyn FnMut(&[u8]) -> io::Result<()> + 'w;

/// Writes a file durably as [`persist`] does, piece by piece, without holding all of it in memory. The only function
/// that makes a file durable.
pub fn persist_with(
    disk: &dyn Disk,
    path: &Path,
    content: impl FnOnce(&mut WritePiece<'_>) -> io::Result<()>,
) -> io::Result<()> {
    let folder = folder_of(path).ok_or(io::ErrorKind::InvalidInput)?;
    put_in_place(disk, path, content, true)?;
    disk.sync_dir(folder).map_err(|error| {
        let text = format!("{error}; the new content is there, but may not outlast a loss of power");
        io::Error::new(error.kind(), text)
    })
}

/// Writes a file that a crash may lose or damage; without a crash it is never incomplete.
pub fn replace(disk: &dyn Disk, path: &Path, bytes: &[u8]) -> io::Result<()> {
    put_in_place(disk, path, |write| write(bytes), false)
}

fn put_in_place(
    disk: &dyn Disk,
    path: &Path,
    content: impl FnOnce(&mut WritePiece<'_>) -> io::Result<()>,
    durably: bool,
) -> io::Result<()> {
    let temporary = temporary_name(path)?;
    let written = (|| {
        let file = disk.create(&temporary)?;
        content(&mut |bytes| disk.write(&file, bytes))?;
        if durably {
            disk.sync(&file)?;
        }
        drop(file);
        disk.rename(&temporary, path)
    })();
    if written.is_err() {
        // It may not even exist; the error that matters is the first one.
        let _ = disk.remove(&temporary);
    }
    written
}

/// Returns the folder of a file, which is the current one for a name alone; none for the root.
fn folder_of(path: &Path) -> Option<&Path> {
    path.parent().map(|parent| if parent.as_os_str().is_empty() { Path::new(".") } else { parent })
}

/// Creates a folder and its missing parents, durably, if it doesn't exist.
pub fn make_dirs(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    let Some(parent) = folder_of(path) else { return Ok(()) };
    match disk.make_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_dirs(disk, parent)?;
            disk.make_dir(path)?;
        }
        other => other?,
    }
    match disk.sync_dir(parent) {
        // A confined process may not open the folder around one that it made before, or that another user made.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => disk.sync_dir(path),
        other => other,
    }
}

/// Reads a whole file; none if there is none. One that is longer than `limit` is refused as too large.
pub fn read_file(disk: &dyn Disk, path: &Path, limit: u64) -> io::Result<Option<Vec<u8>>> {
    let file = match disk.open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    if facts.len() > limit {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    let len = usize::try_from(facts.len()).map_err(|_| io::ErrorKind::FileTooLarge)?;
    let mut bytes = vec![0; len];
    disk.read_exact_at(&file, &mut bytes, 0)?;
    Ok(Some(bytes))
}

/// Removes unfinished files of [`persist`] and [`replace`] in a folder whose target names `which` selects. Only for
/// callers that know of no other writer.
pub fn remove_unfinished(disk: &dyn Disk, folder: &Path, which: impl Fn(&str) -> bool) -> io::Result<()> {
    for name in disk.list(folder)? {
        let wanted = name.to_str().and_then(unfinished);
        if wanted.is_some_and(&which) {
            disk.remove(&folder.join(name))?;
        }
    }
    Ok(())
}

/// Returns the target name of an unfinished file.
fn unfinished(temporary: &str) -> Option<&str> {
    let rest = temporary.strip_prefix(TEMPORARY_PREFIX)?;
    rest.splitn(3, '-').nth(2)
}

/// Prefix of unfinished files of [`persist`] and [`replace`]; any start may remove them.
pub(crate) const TEMPORARY_PREFIX: &str = ".new-";

fn temporary_name(path: &Path) -> io::Result<PathBuf> {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut temporary = OsString::from(TEMPORARY_PREFIX);
    // Processes in containers, which share storage, may have the same process id.
    let number = RandomState::new().build_hasher().finish();
    temporary.push(format!("{}-{number:016x}-", std::process::id()));
    temporary.push(name);
    Ok(path.with_file_name(temporary))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_temporary_names_differ_beyond_process_and_order() {
        let of = |path: &str| temporary_name(Path::new(path)).expect("a name");
        let (first, second) = (of("/folder/file"), of("/folder/file"));
        let prefix = format!("/folder/{TEMPORARY_PREFIX}{}-", std::process::id());
        let random =
            |path: &Path| path.to_str()?.strip_prefix(&prefix)?.strip_suffix("-file").map(str::to_owned);
        assert!(random(&first).is_some_and(|number| number.len() == 16), "{first:?}");
        assert!(random(&second).is_some() && first != second);
    }

    #[test]
    fn the_folder_of_a_name_alone_is_the_current_one() {
        let of = |path: &'static str| folder_of(Path::new(path));
        assert_eq!(of("file"), Some(Path::new(".")));
        assert_eq!(of("a/file"), Some(Path::new("a")));
        assert_eq!(of("/file"), Some(Path::new("/")));
        assert_eq!(of("/"), None);
    }

    #[test]
    fn a_link_of_another_user_is_no_folder() {
        let root = tempfile::tempdir().unwrap();
        let link = root.path().join("link");
        fs::create_dir(root.path().join("folder")).unwrap();
        std::os::unix::fs::symlink("folder", &link).unwrap();
        // The administrator's own one may lead to another disk.
        RealDisk::PRIVATE.make_dir(&link).unwrap();
        if !rustix::process::geteuid().is_root() {
            esker_testkit::skip!("only root can make links of other users");
        }
        std::os::unix::fs::lchown(&link, Some(61_001), None).unwrap();
        for disk in [RealDisk::PRIVATE, RealDisk::SERVED] {
            assert_eq!(disk.make_dir(&link).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
    }

    /// > U1: A server that runs as another user can read all that a publisher writes into a folder, whatever the umask of the publisher.
    #[test]
    fn a_strict_umask_takes_no_permission_to_read() {
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().mode() & 0o7777;
        for (disk, file, folder) in [(RealDisk::SERVED, 0o644, 0o755), (RealDisk::PRIVATE, 0o600, 0o700)] {
            let root = tempfile::tempdir().unwrap();
            let at = |name: &str| root.path().join(name);
            esker_testkit::sys::with_umask(0o077, || {
                disk.make_dir(&at("folder")).unwrap();
                disk.make_dir(&at("folder")).unwrap();
                drop((disk.create(&at("created")).unwrap(), disk.create_spool(&at("spool")).unwrap()));
                persist(&disk, &at("persisted"), b"head").unwrap();
                match disk.create_nameless(root.path()).unwrap() {
                    Some(nameless) => disk.name(&nameless, &at("named")).unwrap(),
                    None => drop(disk.create(&at("named")).unwrap()),
                }
            });
            assert_eq!(mode(&at("folder")), folder);
            for name in ["created", "spool", "persisted", "named"] {
                assert_eq!(mode(&at(name)), file, "{name}");
            }
        }
    }
}
