//! Creates a root directory with additional mount points.
//!
//! A mount point that the host lacks is not created there. Instead the command gets a new root: a small read-only
//! tmpfs in which every entry of the host's root is bound (symbolic links are copied), and the missing directories are
//! added. A directory of the host on the way to a mount point is treated the same way, so that its other entries stay
//! visible.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::mount::{
    MountFlags, MountPropagationFlags, UnmountFlags, mount, mount_bind_recursive, mount_change, mount_move,
    mount_remount, unmount,
};

/// Path of the host's root while the new root is built.
pub(crate) const OLD_ROOT: &str = ".esker-old-root";

/// Directories present on every Linux, one of which serves as the temporary mount point of the new root.
const HOOKS: [&str; 2] = ["/tmp", "/proc"];

/// Stops mounts of this namespace from propagating to the host.
pub(crate) fn detach_from_host() -> io::Result<()> {
    Ok(mount_change("/", MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC)?)
}

/// Creates all of `points` (absolute, without `..`) as directories, with a new root if necessary.
pub(crate) fn provide(points: &[&Path]) -> io::Result<()> {
    if points.iter().all(|point| point.is_dir()) {
        return Ok(());
    }
    let cwd = std::env::current_dir().unwrap_or_else(|_| PathBuf::from("/"));
    let old = enter_new_root()?;
    let wanted: Vec<Vec<OsString>> = points.iter().map(|point| names(point)).collect();
    let wanted: Vec<Wanted> = wanted.iter().map(|names| Wanted { names, kind: Leaf::Directory }).collect();
    mirror(&old, Path::new("/"), &wanted, Owner::default())?;
    unmount(&old, UnmountFlags::DETACH)?;
    fs::remove_dir(&old)?;
    mount_remount("/", MountFlags::BIND | MountFlags::RDONLY | MountFlags::NOSUID | MountFlags::NODEV, c"")?;
    // A working directory that is gone (deleted) has no better place than the root.
    std::env::set_current_dir(&cwd).or_else(|_| std::env::set_current_dir("/"))
}

/// Mounts a tmpfs and makes it the root; returns where the host's root is now.
pub(crate) fn enter_new_root() -> io::Result<PathBuf> {
    let hook = HOOKS
        .into_iter()
        .map(Path::new)
        .find(|hook| hook.is_dir())
        .ok_or_else(|| io::Error::other("neither /tmp nor /proc exists to build a root on"))?;
    mount("esker", hook, "tmpfs", MountFlags::NOSUID | MountFlags::NODEV, c"mode=0755,size=4m")?;
    let old = hook.join(OLD_ROOT);
    fs::create_dir(&old)?;
    match rustix::process::pivot_root(hook, &old) {
        Ok(()) => {}
        // Nodes that run from their initramfs can't pivot; there the new root is moved over the old one.
        Err(rustix::io::Errno::INVAL) => {
            mount_bind_recursive("/", &old)?;
            // The copy of the host's mounts has a copy of the new root in it, on top of the hook.
            unmount(old.join(hook.strip_prefix("/").unwrap_or(hook)), UnmountFlags::DETACH)?;
            std::env::set_current_dir(hook)?;
            mount_move(".", "/")?;
            rustix::process::chroot(".")?;
        }
        Err(error) => return Err(error.into()),
    }
    std::env::set_current_dir("/")?;
    Ok(Path::new("/").join(OLD_ROOT))
}

/// Required type of a mount point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leaf {
    Directory,
    File,
}

/// Owner of the directories and files that are made for a command, if it isn't the user of this process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Owner(pub(crate) Option<(u32, u32)>);

impl Owner {
    /// Gives a new file to the owner.
    pub(crate) fn take(self, path: &Path) -> io::Result<()> {
        self.0.map_or(Ok(()), |(uid, gid)| std::os::unix::fs::lchown(path, Some(uid), Some(gid)))
    }

    /// Makes a directory.
    pub(crate) fn make_dir(self, path: &Path) -> io::Result<()> {
        fs::create_dir(path).and_then(|()| self.take(path))
    }

    /// Makes a directory, and those on the way to it.
    pub(crate) fn make_dirs(self, path: &Path) -> io::Result<()> {
        if path.is_dir() {
            return Ok(());
        }
        path.parent().map_or(Ok(()), |parent| self.make_dirs(parent))?;
        self.make_dir(path)
    }

    /// Makes an empty file, and the directories on the way to it.
    pub(crate) fn make_file(self, path: &Path) -> io::Result<()> {
        path.parent().map_or(Ok(()), |parent| self.make_dirs(parent))?;
        fs::File::create_new(path).and_then(|_| self.take(path))
    }

    /// Returns options that make it the owner of a tmpfs.
    pub(crate) fn of_tmpfs(self) -> String {
        self.0.map_or(String::new(), |(uid, gid)| format!(",uid={uid},gid={gid}"))
    }
}

/// A mount point, split into names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted<'a> {
    pub(crate) names: &'a [OsString],
    pub(crate) kind: Leaf,
}

/// Returns the names in a path.
pub(crate) fn names(point: &Path) -> Vec<OsString> {
    let normal = |component| match component {
        Component::Normal(name) => Some(OsStr::to_owned(name)),
        _ => None,
    };
    point.components().filter_map(normal).collect()
}

/// Recreates directory `from` at `to` with bound entries; the `wanted` paths become new mount points.
pub(crate) fn mirror(from: &Path, to: &Path, wanted: &[Wanted], owner: Owner) -> io::Result<()> {
    let special: Vec<&OsString> = wanted.iter().filter_map(|wanted| wanted.names.first()).collect();
    if let Ok(entries) = fs::read_dir(from) {
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            if !special.contains(&&name) && name.as_bytes() != OLD_ROOT.as_bytes() {
                show(&entry.path(), &to.join(&name));
            }
        }
    }
    for name in &special {
        let (from, target) = (from.join(name), to.join(name));
        if fs::symlink_metadata(&target).is_ok() {
            continue; // two mount points share this part of their paths, which is done
        }
        let here: Vec<&Wanted> = wanted.iter().filter(|wanted| wanted.names.first() == Some(*name)).collect();
        if here.iter().all(|wanted| wanted.kind == Leaf::File && wanted.names.len() == 1) {
            owner.make_file(&target)?;
            continue;
        }
        owner.make_dir(&target)?;
        if let Ok(meta) = fs::metadata(&from)
            && meta.is_dir()
        {
            fs::set_permissions(&target, meta.permissions())?;
        }
        let below: Vec<Wanted> = here
            .iter()
            .filter_map(|wanted| Some(Wanted { names: wanted.names.get(1..)?, kind: wanted.kind }))
            .filter(|wanted| !wanted.names.is_empty())
            .collect();
        if !below.is_empty() {
            mirror(&from, &target, &below, owner)?;
        }
    }
    Ok(())
}

/// Binds one entry of the host. An unreachable entry (a dead network mount) is skipped: the command could not
/// have used it either.
fn show(from: &Path, to: &Path) {
    let Ok(meta) = fs::symlink_metadata(from) else { return };
    let shown = if meta.is_symlink() {
        fs::read_link(from).and_then(|target| std::os::unix::fs::symlink(target, to))
    } else if meta.is_dir() {
        fs::create_dir(to).and_then(|()| Ok(mount_bind_recursive(from, to)?))
    } else {
        fs::File::create(to).and_then(|_| Ok(mount_bind_recursive(from, to)?))
    };
    if shown.is_err() && !meta.is_symlink() {
        let _ = if meta.is_dir() { fs::remove_dir(to) } else { fs::remove_file(to) };
    }
}
