//! Checks a program that a client hands over, before a daemon of the mount becomes it.
//!
//! The next daemon runs with the rights of the supervisor until it confines itself. So its program must be a file that no other
//! user and no daemon can have written.

use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use esker_store::changeable_part;
use rustix::fs::{FileType, fstat};
use rustix::process::geteuid;

use crate::mount_spec::MountSpec;
use crate::mounts;

/// Paths that the daemon of a mount can write, with everything below them.
#[derive(Debug, Default)]
pub(super) struct OfDaemon {
    mountpoint: PathBuf,
    folders: Vec<PathBuf>,
}

impl From<&MountSpec> for OfDaemon {
    fn from(spec: &MountSpec) -> Self {
        let folders = spec.writable();
        // Where a link leads now is where a program's name is.
        let real = folders.iter().filter_map(|folder| folder.canonicalize().ok()).collect::<Vec<_>>();
        Self { mountpoint: spec.mountpoint.clone(), folders: folders.into_iter().chain(real).collect() }
    }
}

/// Returns why a program isn't one that this user or root has put where it is.
pub(super) fn refusal(program: impl AsFd, daemon: &OfDaemon) -> Option<String> {
    let link = PathBuf::from(format!("/proc/self/fd/{}", program.as_fd().as_raw_fd()));
    let nameless = || Some("the program is in no file that has a name".to_owned());
    let Ok(path) = link.read_link() else { return nameless() };
    let place = path.display();
    // First, because looking at such a file may wait for the daemon.
    if path.starts_with(&daemon.mountpoint) || is_made_up(&program, &daemon.mountpoint) {
        return Some(format!("{place} is on a mount whose content is that of another process"));
    }
    let Ok(facts) = fstat(&program) else { return nameless() };
    if FileType::from_raw_mode(facts.st_mode) != FileType::RegularFile {
        return Some(format!("{place} is not a regular file"));
    }
    // A file in memory, or one that was removed, has a name that leads to no file or to another one.
    if !path.is_absolute() || !is_same(&path, (facts.st_dev, facts.st_ino)) {
        return nameless();
    }
    if daemon.folders.iter().any(|folder| path.starts_with(folder)) {
        return Some(format!("{place} is in a folder that the daemon may write to"));
    }
    match changeable_part(&path) {
        Ok(None) => None,
        Ok(Some(part)) => Some(format!("other users can change {}", part.display())),
        Err(error) => Some(format!("{place} can't be checked: {error}")),
    }
}

/// True if a file is on the mount itself, wherever that is shown, or for root on any mount that a process serves.
fn is_made_up(program: impl AsFd, mountpoint: &Path) -> bool {
    let Some(line) = mounts::of(program).ok().flatten() else { return false };
    let is_own = mounts::at(mountpoint).is_ok_and(|own| own.is_some_and(|own| own.device == line.device));
    let is_served = line.is_ours() || line.kind == "fuse" || line.kind.starts_with("fuse.");
    is_own && line.is_ours() || is_served && geteuid().is_root()
}

fn is_same(path: &Path, identity: (u64, u64)) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|facts| (facts.dev(), facts.ino()) == identity)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::*;

    #[test]
    fn only_a_named_file_that_neither_others_nor_the_daemon_can_change_is_a_program() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().canonicalize().expect("a folder").join(name);
        for name in ["bin", "cache", "run", "wide"] {
            fs::create_dir(at(name)).expect("a folder");
        }
        let put = |name: &str| {
            fs::write(at(name), "x").expect("a file");
            fs::set_permissions(at(name), Permissions::from_mode(0o755)).expect("a mode");
            File::open(at(name)).expect("a file")
        };
        symlink(at("cache"), at("link")).expect("a link");
        let daemon = OfDaemon { mountpoint: at("mnt"), folders: vec![at("run"), at("cache")] };
        let said = |file: &File| refusal(file, &daemon);
        let refused = |file: &File, why: &str| {
            assert!(said(file).is_some_and(|said| said.contains(why)), "{:?} for {why}", said(file));
        };
        assert_eq!(said(&put("bin/esker")), None);
        assert_eq!(said(&File::open("/bin/sh").expect("a shell")), None);
        refused(&put("cache/esker"), "the daemon may write to");
        refused(&put("link/esker2"), "the daemon may write to");
        let removed = put("bin/removed");
        fs::remove_file(at("bin/removed")).expect("removing");
        refused(&removed, "no file that has a name");
        // Another file has the name that the kernel shows for the removed one.
        put("bin/removed (deleted)");
        refused(&removed, "no file that has a name");
        let memory: OwnedFd = memfd_create("esker", MemfdFlags::CLOEXEC).expect("memory");
        let mut memory = File::from(memory);
        memory.write_all(b"x").expect("writing");
        refused(&memory, "no file that has a name");
        let (pipe, _writer) = std::io::pipe().expect("a pipe");
        refused(&File::from(OwnedFd::from(pipe)), "not a regular file");
        fs::set_permissions(at("wide"), Permissions::from_mode(0o777)).expect("a mode");
        refused(&put("wide/esker"), "other users can change");
        let written = put("bin/written");
        fs::set_permissions(at("bin/written"), Permissions::from_mode(0o775)).expect("a mode");
        refused(&written, "other users can change");
        if geteuid().is_root() {
            let foreign = put("bin/foreign");
            chown(at("bin/foreign"), Some(61_001), None).expect("another owner");
            refused(&foreign, "other users can change");
        }
    }
}
