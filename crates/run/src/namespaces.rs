//! The namespaces that a command gets.

use std::fs;
use std::io;

use rustix::process::{getegid, geteuid};
use rustix::thread::UnshareFlags;

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
