//! The namespaces that a command gets.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use rustix::fs::fstat;
use rustix::process::{getegid, geteuid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::explain::{Blocked, Facts, Step, explain};
use crate::{root, sys};

/// Who a command is in its user namespace. Outside it is always whoever started it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// Who it is outside.
    #[default]
    Same,
    /// Root, as far as programs ask; files that it makes are its user's.
    Root,
}

/// What a process sees of mounts, and as whom.
#[derive(Debug)]
pub(crate) struct Namespaces {
    pub(crate) mount: OwnedFd,
    pub(crate) user: OwnedFd,
}

impl Namespaces {
    /// Those of a process: its number, or `self`.
    pub(crate) fn of(process: &str) -> io::Result<Self> {
        let open = |kind: &str| File::open(format!("/proc/{process}/ns/{kind}")).map(OwnedFd::from);
        Ok(Self { mount: open("mnt")?, user: open("user")? })
    }

    /// Joins them. The process must have a single thread.
    pub(crate) fn join(&self) -> io::Result<()> {
        // Root has made none, and the kernel lets nobody join what they are in.
        let own = fs::metadata("/proc/self/ns/user")?;
        if own.ino() != fstat(&self.user)?.st_ino {
            move_into_link_name_space(self.user.as_fd(), Some(LinkNameSpaceType::User))?;
        }
        Ok(move_into_link_name_space(self.mount.as_fd(), Some(LinkNameSpaceType::Mount))?)
    }
}

/// Joins the namespaces of a command of this user, as long as that runs. The process must have a single thread.
pub fn join(command: u32) -> io::Result<()> {
    Namespaces::of(&command.to_string())?.join()
}

/// Enters a mount namespace whose mounts don't reach the host. Root needs only that; everybody else (and root of a
/// container that may not mount) makes a user namespace for it. The process must have a single thread.
pub(crate) fn enter(identity: Identity) -> Result<(), Blocked> {
    if !(geteuid().is_root() && sys::unshare(UnshareFlags::NEWNS).is_ok()) {
        enter_user_namespace(identity)?;
    }
    root::detach_from_host().map_err(because(Step::Mount))
}

/// Enters a user namespace and a mount namespace in it.
pub(crate) fn enter_user_namespace(identity: Identity) -> Result<(), Blocked> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let both = UnshareFlags::NEWUSER | UnshareFlags::NEWNS;
    sys::unshare(both).map_err(|error| because(Step::Namespace)(error.into()))?;
    map(identity, uid, gid).map_err(because(Step::Mapping))
}

/// Explains an error at `step`.
pub(crate) fn because(step: Step) -> impl Fn(io::Error) -> Blocked {
    move |error| explain(step, &error, &Facts::gather())
}

fn map(identity: Identity, uid: u32, gid: u32) -> io::Result<()> {
    let (inner_uid, inner_gid) = match identity {
        Identity::Same => (uid, gid),
        Identity::Root => (0, 0),
    };
    // The group map may be written by an ordinary user only once setgroups is off.
    fs::write("/proc/self/setgroups", "deny")?;
    fs::write("/proc/self/uid_map", format!("{inner_uid} {uid} 1"))?;
    fs::write("/proc/self/gid_map", format!("{inner_gid} {gid} 1"))
}
