//! Owners of files in the containers of root: numbers that no user of the machine has.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::CWD;
use rustix::mount::{MoveMountFlags, OpenTreeFlags, move_mount, open_tree};
use rustix::process::geteuid;
use rustix::thread::{CapabilitySet, capabilities};

use crate::namespaces::{self, Maps};
use crate::subordinate::{self, Range};
use crate::sys;

/// Number of users and of groups in a container of root.
const COUNT: u32 = 65_536;
/// Their first number where `/etc/subuid` and `/etc/subgid` give root none: above the numbers of directory services
/// (SSSD's default ends at 2,000,200,000) and of other containers (systemd's end at 1,879,048,191), and below the
/// numbers that some programs take for negative.
const FIRST: u32 = 0x7fff_0000;

/// Users and groups of the host that a container of root has in place of the host's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MappedIds {
    uid: u32,
    gid: u32,
}

impl MappedIds {
    /// Returns the ids for containers of this process; `None` for ordinary users, whose own id is theirs there, and for
    /// root of a container that has too few ids or rights of its own.
    pub fn of_root() -> Option<Self> {
        let needed =
            CapabilitySet::SYS_ADMIN | CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::CHOWN;
        let effective = capabilities(None).ok()?.effective;
        if !geteuid().is_root() || !effective.contains(needed) {
            return None;
        }
        let (uids, gids) = subordinate::of_root();
        let first =
            |ranges: &[Range]| ranges.iter().find(|(_, count)| *count >= COUNT).map(|(first, _)| *first);
        let (uid, gid) = first(&uids).zip(first(&gids)).unwrap_or((FIRST, FIRST));
        namespaces::has_ids(uid, gid, COUNT).unwrap_or(false).then_some(Self { uid, gid })
    }

    /// Returns the host's numbers of root and its group in the container.
    pub fn first(self) -> (u32, u32) {
        (self.uid, self.gid)
    }

    /// Returns the maps for a user namespace. `proc` is where the host's `/proc` is.
    pub(super) fn maps(self, proc: &Path) -> io::Result<Maps> {
        Maps::of(proc, format!("0 {} {COUNT}\n", self.uid), format!("0 {} {COUNT}\n", self.gid))
    }
}

/// Binds a directory or file so that the container's users own in it what the host's users of the same number own
/// there. Needs root, Linux 5.12, and a file system that can do it.
pub(super) fn bind(users: Option<&OwnedFd>, from: &Path, to: &Path, recursive: bool) -> io::Result<()> {
    let users = users.ok_or(io::ErrorKind::Unsupported)?;
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
    let tree = open_tree(CWD, from, flags)?;
    sys::map_mount(tree.as_fd(), users.as_fd(), recursive)?;
    Ok(move_mount(&tree, "", CWD, to, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)?)
}

/// Makes a user namespace with these ids, for [`bind`]. `proc` is where the host's `/proc` is; this process must be in the
/// PID namespace of that.
pub(super) fn users(ids: MappedIds, proc: &Path) -> Option<OwnedFd> {
    let made = namespaces::made_with(ids.maps(proc).ok()?, || Ok(()));
    made.ok().map(|namespaces| namespaces.user)
}
