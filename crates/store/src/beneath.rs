//! Opens files below a folder that another user may own, without following links out of it.
//!
//! A server that runs as root would otherwise hand out whatever an owner of a repository links to. The kernel resolves a path
//! below the folder in one step (`openat2`); where it can't, the path is walked one component after the other, with no link
//! followed. A link that leads out is followed only where [`Links`] allows it, and then the place it leads to is opened by a
//! path that has no links any more.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

/// Policy for links that lead out of a folder.
#[derive(Clone, Debug)]
pub enum Links {
    /// All links are followed.
    All,
    /// Links into one of these folders are followed.
    Into(Vec<PathBuf>),
    /// Links owned by one of these users are followed.
    OfUsers(Vec<u32>),
}

/// Maximum number of attempts to resolve a path while other processes rename its components.
const ATTEMPTS: usize = 16;
/// Maximum number of links in one path, as in the kernel.
const LINKS_MAX: usize = 40;

/// A folder below which files are opened.
#[derive(Debug)]
pub struct RootedDir {
    dir: OwnedFd,
    path: PathBuf,
    links: Arc<Links>,
}

impl RootedDir {
    /// Opens the folder itself by a trusted path.
    pub fn open(path: &Path, links: &Arc<Links>) -> io::Result<Self> {
        let dir = rustix::fs::open(path, FOLDER, Mode::empty())?;
        Ok(Self { dir, path: path.to_owned(), links: links.clone() })
    }

    /// Opens a folder below this one; later opens are confined to it.
    pub fn enter(&self, name: &Path) -> io::Result<Self> {
        let dir = self.resolve(name, FOLDER)?;
        Ok(Self { dir, path: self.path.join(name), links: self.links.clone() })
    }

    /// Opens a regular file for reading. Refuses one of another user that only has a name here (a hard link), unless
    /// every user may read it.
    pub fn file(&self, path: &Path) -> io::Result<(File, std::fs::Metadata)> {
        // A FIFO that an owner put there must not make the reader wait.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(self.resolve(path, flags)?);
        let facts = file.metadata()?;
        if !facts.is_file() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
        }
        let is_secret = facts.mode() & 0o004 == 0 && !matches!(*self.links, Links::All);
        if facts.nlink() > 1 && is_secret && facts.uid() != rustix::fs::fstat(&self.dir)?.st_uid {
            let text = "it is a hard link to a file of another user, which not all users may read";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok((file, facts))
    }

    /// Opens the target of a path, if the policy allows its links.
    pub fn resolve(&self, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
        match &*self.links {
            Links::All => Ok(openat(&self.dir, path, flags, Mode::empty())?),
            Links::Into(folders) => self.resolve_or(path, flags, || self.target_in(path, folders)),
            Links::OfUsers(users) => {
                self.resolve_or(path, flags, || Ok((PathBuf::from("/"), self.walk(path, users)?)))
            }
        }
    }

    /// Opens a path below the folder. If a link leads out, opens the target that `elsewhere` returns: a folder and a
    /// path in it without links.
    fn resolve_or(
        &self,
        path: &Path,
        flags: OFlags,
        elsewhere: impl FnOnce() -> io::Result<(PathBuf, PathBuf)>,
    ) -> io::Result<OwnedFd> {
        match below(self.dir.as_fd(), path, flags, ResolveFlags::empty()) {
            Err(Errno::XDEV | Errno::LOOP) => {}
            other => return Ok(other?),
        }
        let (base, target) = elsewhere()?;
        let rest = target.strip_prefix(&base).unwrap_or(&target);
        let rest = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
        let dir = rustix::fs::open(&base, FOLDER, Mode::empty())?;
        match below(dir.as_fd(), rest, flags, ResolveFlags::NO_SYMLINKS) {
            // A link was put there meanwhile.
            Err(Errno::LOOP | Errno::XDEV) => Err(leads_out(path)),
            other => Ok(other?),
        }
    }

    /// Returns the folder that a link leads into, and the path of its target there.
    fn target_in(&self, path: &Path, folders: &[PathBuf]) -> io::Result<(PathBuf, PathBuf)> {
        let target = self.path.join(path).canonicalize()?;
        let bases = || std::iter::once(&self.path).chain(folders);
        // Mostly they are named without links, and needn't be looked up for each object.
        let named = bases().find(|base| target.starts_with(base)).cloned();
        let found = named.or_else(|| {
            bases().filter_map(|base| base.canonicalize().ok()).find(|base| target.starts_with(base))
        });
        Ok((found.ok_or_else(|| leads_out(path))?, target))
    }

    /// Resolves a path component by component; each link must belong to one of `users` or stay below the folder.
    fn walk(&self, path: &Path, users: &[u32]) -> io::Result<PathBuf> {
        let own = self.path.canonicalize()?;
        let mut at = own.clone();
        let mut rest: Vec<PathBuf> =
            path.components().rev().map(|part| PathBuf::from(part.as_os_str())).collect();
        let (mut links, mut strangers) = (0, false);
        while let Some(part) = rest.pop() {
            match part.components().next() {
                None | Some(Component::CurDir) => continue,
                Some(Component::ParentDir) => _ = at.pop(),
                Some(Component::RootDir | Component::Prefix(_)) => at = PathBuf::from("/"),
                Some(Component::Normal(name)) => at.push(name),
            }
            let facts = at.symlink_metadata()?;
            if facts.is_symlink() {
                links += 1;
                if links > LINKS_MAX {
                    return Err(Errno::LOOP.into());
                }
                strangers |= !users.contains(&facts.uid());
                let target = at.read_link()?;
                at.pop();
                rest.extend(target.components().rev().map(|part| PathBuf::from(part.as_os_str())));
            }
        }
        if strangers && !at.starts_with(&own) { Err(leads_out(path)) } else { Ok(at) }
    }
}

const FOLDER: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn leads_out(path: &Path) -> io::Error {
    let text = format!("the link at {} leads out of the repository's folder", path.display());
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

/// Opens a path below a folder; fails with `XDEV` or `LOOP` at a link that may not be followed.
fn below(dir: BorrowedFd<'_>, path: &Path, flags: OFlags, more: ResolveFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS | more;
    for _ in 0..ATTEMPTS {
        match openat2(dir, path, flags, Mode::empty(), resolve) {
            Err(Errno::AGAIN | Errno::INTR) => {}
            // Kernels before 5.6, and filters of system calls that don't know it.
            Err(Errno::NOSYS | Errno::PERM) => return step_by_step(dir, path, flags),
            other => return other,
        }
    }
    Err(Errno::AGAIN)
}

/// Opens a path below a folder without `openat2`; follows no link.
fn step_by_step(dir: BorrowedFd<'_>, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let mut parts = Vec::new();
    for part in path.components() {
        match part {
            Component::Normal(part) => parts.push(part),
            Component::CurDir => {}
            _ => return Err(Errno::XDEV),
        }
    }
    let Some((last, folders)) = parts.split_last() else {
        return openat(dir, ".", flags, Mode::empty());
    };
    let mut at: Option<OwnedFd> = None;
    for part in folders {
        let from = at.as_ref().map_or(dir, |at| at.as_fd());
        at = Some(no_link(from, part, FOLDER)?);
    }
    no_link(at.as_ref().map_or(dir, |at| at.as_fd()), last, flags)
}

fn no_link(dir: BorrowedFd<'_>, name: &std::ffi::OsStr, flags: OFlags) -> Result<OwnedFd, Errno> {
    match openat(dir, name, flags | OFlags::NOFOLLOW, Mode::empty()) {
        // The kernel returns `ENOTDIR` for a link opened with `O_DIRECTORY`.
        Err(Errno::NOTDIR) => {
            let facts = rustix::fs::statat(dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
            let is_link = rustix::fs::FileType::from_raw_mode(facts.st_mode).is_symlink();
            Err(if is_link { Errno::LOOP } else { Errno::NOTDIR })
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    struct Place {
        folder: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            let at = |path: &str| folder.path().join(path);
            for path in ["repo/data/ab", "repo/links", "disk", "secret"] {
                fs::create_dir_all(at(path)).unwrap();
            }
            fs::write(at("repo/data/ab/object"), "object").unwrap();
            fs::write(at("disk/object"), "elsewhere").unwrap();
            fs::write(at("secret/shadow"), "secret").unwrap();
            symlink(at("secret/shadow"), at("repo/absolute")).unwrap();
            symlink("../secret/shadow", at("repo/relative")).unwrap();
            symlink("../secret", at("repo/folder")).unwrap();
            symlink("absolute", at("repo/chain")).unwrap();
            symlink("/proc/self/fd/0", at("repo/magic")).unwrap();
            symlink("../data/ab/object", at("repo/links/inside")).unwrap();
            symlink(at("repo/data/ab/object"), at("repo/links/inside-absolute")).unwrap();
            symlink(at("disk"), at("repo/disk")).unwrap();
            rustix::fs::mkfifoat(rustix::fs::CWD, at("repo/pipe"), Mode::RUSR).unwrap();
            Self { folder }
        }

        fn at(&self, path: &str) -> PathBuf {
            self.folder.path().join(path)
        }

        fn read(&self, links: Links, path: &str) -> io::Result<String> {
            let beneath = RootedDir::open(&self.at("repo"), &Arc::new(links))?;
            let (file, _) = beneath.file(Path::new(path))?;
            io::read_to_string(file)
        }
    }

    const OUT: [&str; 6] = ["absolute", "relative", "folder/shadow", "chain", "magic", "../secret/shadow"];

    #[test]
    fn no_link_leads_out_of_the_folder() {
        let place = Place::new();
        let read = |path| place.read(Links::Into(Vec::new()), path);
        for path in OUT {
            assert_eq!(read(path).unwrap_err().kind(), io::ErrorKind::PermissionDenied, "{path}");
        }
        assert!(read("disk/object").is_err());
        assert!(read("pipe").is_err() && read("data").is_err());
        assert_eq!(read("absent").unwrap_err().kind(), io::ErrorKind::NotFound);
        for path in ["data/ab/object", "links/inside", "links/inside-absolute"] {
            assert_eq!(read(path).unwrap(), "object", "{path}");
        }
    }

    #[test]
    fn links_are_followed_into_named_folders() {
        let place = Place::new();
        let read = |path| place.read(Links::Into(vec![place.at("disk")]), path);
        assert_eq!(read("disk/object").unwrap(), "elsewhere");
        assert!(OUT.iter().all(|path| read(path).is_err()));
    }

    #[test]
    fn links_of_trusted_users_are_followed() {
        let place = Place::new();
        let me = rustix::process::geteuid().as_raw();
        let read = |users: &[u32], path| place.read(Links::OfUsers(users.to_vec()), path);
        assert_eq!(read(&[me], "disk/object").unwrap(), "elsewhere");
        assert_eq!(read(&[me], "chain").unwrap(), "secret");
        assert!(OUT[..5].iter().all(|path| read(&[me + 1], path).is_err()));
        assert_eq!(read(&[me + 1], "links/inside-absolute").unwrap(), "object");
    }

    /// The fallback for kernels without `openat2`.
    #[test]
    fn resolving_by_component_leads_out_of_no_folder() {
        let place = Place::new();
        let dir = rustix::fs::open(place.at("repo"), FOLDER, Mode::empty()).unwrap();
        let open = |path: &str| step_by_step(dir.as_fd(), Path::new(path), OFlags::RDONLY);
        for path in OUT.iter().chain(&["links/inside", "disk/object"]) {
            assert!(matches!(open(path), Err(Errno::LOOP | Errno::XDEV)), "{path}");
        }
        assert!(open("data/ab/object").is_ok() && open(".").is_ok());
        assert!(matches!(open("data/ab/object/x"), Err(Errno::NOTDIR)));
        assert!(matches!(open("absent/x"), Err(Errno::NOENT)));
    }

    #[test]
    fn a_hard_link_to_a_secret_of_another_user_is_refused() {
        if !rustix::process::geteuid().is_root() {
            esker_testkit::skip!("only root can make files of other users");
        }
        let place = Place::new();
        let secret = place.at("secret/shadow");
        std::os::unix::fs::chown(place.at("repo"), Some(61_003), None).unwrap();
        fs::hard_link(&secret, place.at("repo/hard")).unwrap();
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
        let read = || place.read(Links::Into(Vec::new()), "hard");
        assert_eq!(read().unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        fs::set_permissions(&secret, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read().unwrap(), "secret");
    }
}
