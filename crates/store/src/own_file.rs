//! Opens files of this process's own in folders that other users may write to.
//!
//! A link, a second name of another file, or a file of another user there would make root change what is elsewhere, and a
//! file that every user may open could be locked by every user.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Component, Path, PathBuf};

use esker_format::canary;
use rustix::fs::OFlags;
use rustix::process::geteuid;

/// Maximum number of attempts while other processes make and remove the file.
const RETRIES_MAX: u32 = 100;
/// Maximum number of links in one path, as in the kernel.
const LINKS_MAX: u32 = 40;

/// Opens a regular file to write to, made if it is missing, with mode 0600 and the owner of its folder if root makes it. Refuses
/// links, files with several names, and files of users who own neither this process nor the folder.
pub fn open_own_file(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = open_to_lock(path, options)?;
    match has_other_names(&file)? {
        true => Err(refused("it has another name, so it may be another file")),
        false => Ok(file),
    }
}

/// Returns whether a file has several names: it may be a file elsewhere, or that of a copy made of hard links.
pub(crate) fn has_other_names(file: &File) -> io::Result<bool> {
    Ok(file.metadata()?.nlink() > 1 && !canary::skipped("own-file-names"))
}

fn refused(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Opens a file like [`open_own_file`], only to lock it; it may have other names.
pub(crate) fn open_to_lock(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let (file, is_new) = open_or_make(path, options)?;
    if is_new {
        let folder = std::fs::metadata(folder_of(path))?;
        if geteuid().is_root() && folder.uid() != 0 {
            fchown(&file, Some(folder.uid()), Some(folder.gid()))?;
        }
        return Ok(file);
    }
    let facts = file.metadata()?;
    if !facts.is_file() {
        return Err(refused("it is not a regular file"));
    }
    let own = geteuid().as_raw();
    let is_foreign = facts.uid() != own && facts.uid() != std::fs::metadata(folder_of(path))?.uid();
    if is_foreign && !canary::skipped("own-file-owner") {
        return Err(refused("it belongs to another user than its folder"));
    }
    if facts.uid() == own && facts.mode() & 0o077 != 0 {
        // Confined servers may not; what they open lies in folders of their own.
        let _ = file.set_permissions(std::fs::Permissions::from_mode(0o600));
    }
    Ok(file)
}

/// Opens a file, or makes it; returns whether it is new.
fn open_or_make(path: &Path, options: &mut OpenOptions) -> io::Result<(File, bool)> {
    let no_links = if canary::skipped("own-file-links") { OFlags::empty() } else { OFlags::NOFOLLOW };
    options.custom_flags((no_links | OFlags::NONBLOCK).bits().cast_signed());
    let mut again = RETRIES_MAX;
    loop {
        match options.open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return Ok((other?, false)),
        }
        match options.clone().create_new(true).mode(0o600).open(path) {
            // Another process has just made it, or a link leads to nothing.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists && again > 0 => again -= 1,
            other => return Ok((other?, true)),
        }
    }
}

/// Opens a log to append to, made if it is missing. Where other users can change the way to it, links are refused, and
/// what isn't a regular file with one name and of this process's user, root or the owner of the folder.
pub fn open_log(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    // The way to a folder that is missing fails as the log itself does.
    if changeable_way(path)?.is_none() {
        return options.open(path);
    }
    options.custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed());
    let file = options.open(path)?;
    let facts = file.metadata()?;
    if !facts.is_file() || facts.nlink() > 1 {
        return Err(refused(
            "it is not a regular file with one name, in a folder that other users can change",
        ));
    }
    let owner = facts.uid();
    if owner != geteuid().as_raw() && owner != 0 && owner != std::fs::metadata(folder_of(path))?.uid() {
        return Err(refused("it belongs to another user than its folder"));
    }
    Ok(file)
}

/// Returns the part of a record's path that other users can change: the file, a folder or a link. In a user namespace
/// without the owner of the root directory, where the owners on the way have no numbers, only the file counts.
pub fn changeable_record(path: &Path) -> io::Result<Option<PathBuf>> {
    if std::fs::metadata("/")?.uid() == 0 {
        return changeable_part(path);
    }
    let mut file = Way::default();
    file.look(path)?;
    let is_link = std::fs::symlink_metadata(path)?.is_symlink();
    Ok(file.changeable.or_else(|| is_link.then(|| path.to_owned())))
}

/// Returns the part of a program's path that users other than this one and root can change: the file, or a folder or link on the
/// way to it. Such a program runs what they want. A file may not be writable to its group either.
pub fn changeable_part(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut way = Way::default();
    let target = way.walk(PathBuf::from("/"), &std::path::absolute(path)?)?;
    way.look(&target)?;
    Ok(way.changeable)
}

/// Returns the part of the way to a file or folder that users other than this one and root can change, so that the path leads
/// elsewhere. What is at the path may be theirs, and need not exist.
pub fn changeable_way(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut way = Way::default();
    way.walk(PathBuf::from("/"), &std::path::absolute(path)?)?;
    Ok(way.changeable)
}

/// Folders and links of the path of a file.
#[derive(Default)]
struct Way {
    links: u32,
    changeable: Option<PathBuf>,
}

impl Way {
    /// Follows a path from a folder without links; returns where it leads.
    fn walk(&mut self, from: PathBuf, path: &Path) -> io::Result<PathBuf> {
        let mut at = from;
        for part in path.components() {
            match part {
                Component::RootDir | Component::Prefix(_) => at = PathBuf::from("/"),
                Component::CurDir => {}
                Component::ParentDir => _ = at.pop(),
                Component::Normal(name) => {
                    self.look(&at)?;
                    let entry = at.join(name);
                    match std::fs::symlink_metadata(&entry) {
                        Ok(facts) if facts.is_symlink() => {
                            self.links += 1;
                            if self.links > LINKS_MAX {
                                return Err(rustix::io::Errno::LOOP.into());
                            }
                            self.look(&entry)?;
                            at = self.walk(at, &std::fs::read_link(&entry)?)?;
                        }
                        _ => at = entry,
                    }
                }
            }
        }
        Ok(at)
    }

    fn look(&mut self, part: &Path) -> io::Result<()> {
        let facts = std::fs::symlink_metadata(part)?;
        let is_ours = [0, geteuid().as_raw()].contains(&facts.uid());
        let (mode, kind) = (facts.mode(), facts.file_type());
        // In a sticky folder, others can't replace what they don't own.
        let is_writable = match () {
            () if kind.is_symlink() => false,
            () if kind.is_dir() => mode & 0o002 != 0 && mode & 0o1000 == 0,
            () => mode & 0o022 != 0,
        };
        if (!is_ours || is_writable) && !canary::skipped("changeable-part") {
            self.changeable.get_or_insert_with(|| part.to_owned());
        }
        Ok(())
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn open(path: &Path) -> io::Result<File> {
        open_own_file(path, OpenOptions::new().read(true).write(true))
    }

    #[test]
    fn only_a_file_of_its_own_is_opened() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        open(&at("new")).unwrap();
        assert_eq!(fs::metadata(at("new")).unwrap().mode() & 0o777, 0o600);
        open(&at("new")).unwrap();
        fs::write(at("target"), "kept").unwrap();
        fs::write(at("linked"), "kept").unwrap();
        std::os::unix::fs::symlink("linked", at("link")).unwrap();
        std::os::unix::fs::symlink("absent", at("dangling")).unwrap();
        fs::hard_link(at("target"), at("second")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        fs::create_dir(at("folder")).unwrap();
        for name in ["link", "dangling", "second", "pipe", "folder"] {
            open(&at(name)).expect_err(name);
        }
        assert!(!at("absent").exists(), "made through a link");
        fs::write(at("wide"), "x").unwrap();
        fs::set_permissions(at("wide"), fs::Permissions::from_mode(0o666)).unwrap();
        open(&at("wide")).unwrap();
        assert_eq!(fs::metadata(at("wide")).unwrap().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_log_is_not_opened_through_what_others_planted() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        let mode = |mode| fs::set_permissions(folder.path(), fs::Permissions::from_mode(mode)).unwrap();
        fs::write(at("victim"), "kept").unwrap();
        std::os::unix::fs::symlink("victim", at("link")).unwrap();
        std::os::unix::fs::symlink("absent", at("dangling")).unwrap();
        fs::hard_link(at("victim"), at("second")).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, at("pipe"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        // The administrator's own links are followed.
        open_log(&at("link")).unwrap();
        mode(0o777);
        open_log(&at("new")).unwrap();
        open_log(&at("new")).unwrap();
        for name in ["link", "dangling", "second", "pipe"] {
            open_log(&at(name)).expect_err(name);
        }
        assert!(!at("absent").exists(), "made through a link");
        open_log(&at("none/log")).unwrap_err();
    }

    #[test]
    fn programs_that_others_can_change_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().canonicalize().unwrap().join(name);
        let mode =
            |name: &str, mode| fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
        fs::create_dir_all(at("a/b")).unwrap();
        fs::write(at("a/b/program"), "x").unwrap();
        std::os::unix::fs::symlink("a/b", at("link")).unwrap();
        let found = |name: &str| changeable_part(&at(name)).unwrap();
        mode("a/b/program", 0o755);
        mode("a", 0o775);
        assert_eq!((found("a/b/program"), found("link/program")), (None, None));
        mode("a/b/program", 0o775);
        assert_eq!(found("a/b/program"), Some(at("a/b/program")));
        mode("a/b/program", 0o755);
        mode("a", 0o777);
        assert_eq!((found("a/b/program"), found("link/program")), (Some(at("a")), Some(at("a"))));
        mode("a", 0o1777);
        assert_eq!(found("link/program"), None);
        changeable_part(&at("absent")).unwrap_err();
        // Links that lead through links, and to a file that doesn't exist.
        fs::create_dir(at("theirs")).unwrap();
        std::os::unix::fs::symlink(at("a/b"), at("theirs/second")).unwrap();
        std::os::unix::fs::symlink("theirs/second", at("first")).unwrap();
        std::os::unix::fs::symlink("loop", at("loop")).unwrap();
        mode("a", 0o755);
        assert_eq!(found("first/program"), None);
        mode("theirs", 0o777);
        assert_eq!(found("first/program"), Some(at("theirs")));
        assert_eq!(changeable_way(&at("first/absent")).unwrap(), Some(at("theirs")));
        assert_eq!(changeable_way(&at("theirs")).unwrap(), None, "what is at the path may be of others");
        changeable_way(&at("loop/x")).unwrap_err();
        mode("a", 0o1777);
        if geteuid().is_root() {
            std::os::unix::fs::lchown(at("link"), Some(61_001), None).unwrap();
            assert_eq!((found("a/b/program"), found("link/program")), (None, Some(at("link"))));
            std::os::unix::fs::chown(at("a/b"), Some(61_001), None).unwrap();
            assert_eq!(found("a/b/program"), Some(at("a/b")));
        }
    }

    #[test]
    fn root_shares_files_with_the_owner_of_a_folder_and_with_no_other_user() {
        if !geteuid().is_root() {
            esker_testkit::skip!("only root can make files of other users");
        }
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::os::unix::fs::chown(folder.path(), Some(61_001), Some(61_001)).unwrap();
        open(&at("new")).unwrap();
        let facts = fs::metadata(at("new")).unwrap();
        assert_eq!((facts.uid(), facts.gid(), facts.mode() & 0o777), (61_001, 61_001, 0o600));
        fs::write(at("theirs"), "x").unwrap();
        std::os::unix::fs::chown(at("theirs"), Some(61_001), None).unwrap();
        open(&at("theirs")).unwrap();
        std::os::unix::fs::chown(at("theirs"), Some(61_002), None).unwrap();
        open(&at("theirs")).unwrap_err();
    }
}
