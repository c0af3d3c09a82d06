//! Creates and joins the namespaces of a command.

use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, fstat};
use rustix::process::{DumpableBehavior, WaitOptions, getegid, geteuid, set_dumpable_behavior, waitpid};
use rustix::thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space};

use crate::explain::{Blocked, Facts, Step, explain};
use crate::subordinate::Subordinate;
use crate::{root, sys};

/// User of a command in its user namespace. Outside it is always the calling user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Identity {
    /// The same user as outside.
    #[default]
    Same,
    /// Root within the namespace; files that it makes are its user's.
    Root,
}

/// Mount and user namespace of a process.
#[derive(Debug)]
pub(crate) struct Namespaces {
    pub(crate) mount: OwnedFd,
    pub(crate) user: OwnedFd,
}

impl Namespaces {
    /// Opens the namespaces of a process: its number, or `self`.
    pub(crate) fn of(process: &str) -> io::Result<Self> {
        Self::below(process_directory(&Path::new("/proc").join(process))?.as_fd())
    }

    /// Opens the namespaces of the process with this directory.
    pub(crate) fn below(process: BorrowedFd<'_>) -> io::Result<Self> {
        let open = |kind: &str| -> io::Result<OwnedFd> {
            Ok(rustix::fs::openat(process, kind, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?)
        };
        Ok(Self { mount: open("ns/mnt")?, user: open("ns/user")? })
    }

    /// Joins the namespaces. The process must have a single thread.
    pub(crate) fn join(&self) -> io::Result<()> {
        // Root has made none, and the kernel lets no process join the namespace it is in.
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

/// Denies other processes of the same user access to this process, its memory, root directory and descriptors,
/// until exec.
pub fn close_to_others() {
    // It can't fail: the value is one that the kernel knows.
    let _ = set_dumpable_behavior(DumpableBehavior::NotDumpable);
}

/// Enters a mount namespace whose mounts don't reach the host. Root needs only that; other users (and root of a
/// container that may not mount) make a user namespace for it. The process must have a single thread.
pub(crate) fn enter(identity: Identity) -> Result<(), Blocked> {
    if !(geteuid().is_root() && sys::unshare(UnshareFlags::NEWNS).is_ok()) {
        enter_user_namespace(identity)?;
    }
    root::detach_from_host().map_err(because(Step::Mount))
}

/// Enters a user namespace and a mount namespace in it.
pub(crate) fn enter_user_namespace(identity: Identity) -> Result<(), Blocked> {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    let mapper = match identity {
        Identity::Root => Subordinate::of_user().ok().and_then(|ids| ids.prepare(uid, gid).ok()),
        Identity::Same => None,
    };
    let both = UnshareFlags::NEWUSER | UnshareFlags::NEWNS;
    sys::unshare(both).map_err(|error| because(Step::Namespace)(error.into()))?;
    if mapper.is_some_and(|mapper| mapper.finish().is_ok()) {
        return Ok(());
    }
    map(identity, uid, gid).map_err(because(Step::Mapping))
}

/// Creates a user and a mount namespace for commands, below those of this process. A command in them has no
/// rights over this process, even if both are of the same user and the command is root there. `enter` is called
/// in a child process before it makes them, and may only make system calls.
pub(crate) fn for_commands(enter: impl FnOnce() -> io::Result<()>) -> Result<Namespaces, Blocked> {
    let maps = Maps::same(Path::new("/proc")).map_err(because(Step::Mapping))?;
    made_with(maps, enter)
}

/// Like [`for_commands`], with these ids.
pub(crate) fn made_with(maps: Maps, enter: impl FnOnce() -> io::Result<()>) -> Result<Namespaces, Blocked> {
    let (mut ready, say_ready) = io::pipe().map_err(because(Step::Namespace))?;
    let (wait, done) = io::pipe().map_err(because(Step::Namespace))?;
    let (our_ready, our_done) = (ready.as_raw_fd(), done.as_raw_fd());
    let child = sys::in_child(move || {
        sys::close(our_ready);
        sys::close(our_done);
        let both = UnshareFlags::NEWUSER | UnshareFlags::NEWNS;
        let entered = enter().and_then(|()| Ok(sys::unshare(both)?));
        let code = entered.err().map_or(0, |error| error.raw_os_error().unwrap_or(libc::EINVAL));
        let _ = rustix::io::write(&say_ready, &code.to_le_bytes());
        // Until the parent has opened its namespaces.
        let _ = rustix::io::read(&wait, &mut [0u8; 1]);
        0
    })
    .map_err(because(Step::Namespace))?;
    let mut code = [0; 4];
    let opened = ready.read_exact(&mut code).map_err(because(Step::Namespace)).and_then(|()| {
        match i32::from_le_bytes(code) {
            0 => {}
            errno => return Err(because(Step::Namespace)(io::Error::from_raw_os_error(errno))),
        }
        let process = maps.proc.join(child.as_raw_nonzero().to_string());
        let process = process_directory(&process).map_err(because(Step::Mapping))?;
        maps.write(process.as_fd()).map_err(because(Step::Mapping))?;
        Namespaces::below(process.as_fd()).map_err(because(Step::Namespace))
    });
    drop(done);
    let _ = rustix::io::retry_on_intr(|| waitpid(Some(child), WaitOptions::empty()));
    opened
}

/// Opens the directory of a process in `/proc`.
pub(crate) fn process_directory(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Ids of a user namespace to be made.
pub(crate) struct Maps {
    /// Path at which the host's `/proc` is mounted.
    proc: PathBuf,
    uids: String,
    gids: String,
    /// True if no process of the namespace may change its groups, as in that of this process.
    denies_groups: bool,
}

impl Maps {
    /// Returns the maps of all ids of this process's namespace to themselves. `proc` is where the host's `/proc` is.
    pub(crate) fn same(proc: &Path) -> io::Result<Self> {
        let all = |map: &str| -> io::Result<String> {
            let lines = own_map(proc, map)?;
            Ok(lines.into_iter().map(|(first, count)| format!("{first} {first} {count}\n")).collect())
        };
        Self::of(proc, all("uid_map")?, all("gid_map")?)
    }

    /// Returns these maps.
    pub(crate) fn of(proc: &Path, uids: String, gids: String) -> io::Result<Self> {
        let denies_groups = fs::read_to_string(proc.join("self/setgroups"))?.trim() == "deny";
        Ok(Self { proc: proc.to_owned(), uids, gids, denies_groups })
    }

    /// Writes the maps for the process with this directory, which has just made its namespace.
    pub(crate) fn write(&self, process: BorrowedFd<'_>) -> io::Result<()> {
        let write = |name: &str, text: &str| -> io::Result<()> {
            let file = rustix::fs::openat(process, name, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())?;
            // The kernel takes a map in one write.
            rustix::io::write(&file, text.as_bytes())?;
            Ok(())
        };
        write("uid_map", &self.uids)?;
        if self.denies_groups {
            write("setgroups", "deny")?;
        }
        write("gid_map", &self.gids)
    }
}

/// Returns the ranges of ids that this process's user namespace has: the first one, and how many.
pub(crate) fn own_map(proc: &Path, map: &str) -> io::Result<Vec<(u32, u32)>> {
    Ok(ranges_in(&fs::read_to_string(proc.join("self").join(map))?))
}

fn ranges_in(map: &str) -> Vec<(u32, u32)> {
    let range = |line: &str| {
        let mut fields = line.split_whitespace();
        Some((fields.next()?.parse().ok()?, fields.nth(1)?.parse().ok()?))
    };
    map.lines().filter_map(range).collect()
}

/// Returns whether the user namespace of this process has `count` users and as many groups from these ids on.
pub fn has_ids(uid: u32, gid: u32, count: u32) -> io::Result<bool> {
    let has = |map, first| Ok::<_, io::Error>(have(&own_map(Path::new("/proc"), map)?, first, count));
    Ok(has("uid_map", uid)? && has("gid_map", gid)?)
}

/// Returns true if one of the ranges has `count` ids from `first` on.
fn have(ranges: &[(u32, u32)], first: u32, count: u32) -> bool {
    let end = |first: u32, count: u32| u64::from(first) + u64::from(count);
    ranges.iter().any(|(own, len)| *own <= first && end(first, count) <= end(*own, *len))
}

/// Explains an error at `step`.
pub(crate) fn because(step: Step) -> impl Fn(io::Error) -> Blocked {
    move |error| explain(step, &error, &Facts::gather())
}

/// Maps only the ids of this process.
fn map(identity: Identity, uid: u32, gid: u32) -> io::Result<()> {
    let (inner_uid, inner_gid) = match identity {
        Identity::Same => (uid, gid),
        Identity::Root => (0, 0),
    };
    let at = |name: &str| format!("/proc/self/{name}");
    // `newuidmap` may have written one of them before it failed; a map can be written once.
    let is_unwritten = |name: &str| fs::read_to_string(at(name)).is_ok_and(|map| map.trim().is_empty());
    if is_unwritten("uid_map") {
        fs::write(at("uid_map"), format!("{inner_uid} {uid} 1"))?;
    }
    if is_unwritten("gid_map") {
        // An ordinary user may write the group map only once setgroups is off.
        fs::write(at("setgroups"), "deny")?;
        fs::write(at("gid_map"), format!("{inner_gid} {gid} 1"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_has_the_ids_of_its_map() {
        let has = |map: &str, first, count| have(&ranges_in(map), first, count);
        assert!(has("         0          0 4294967295\n", 65_522, 1));
        assert!(has("0 100000 65536\n", 65_522, 1));
        assert!(!has("0 1000 1\n", 65_522, 1) && !has("", 0, 1));
        assert!(has("0 1000 1\n1 100000 65536\n", 65_521, 1));
        // All of them, also of a range that is too short.
        assert!(has("0 0 4294967295\n", 0x7fff_0000, 65_536) && has("5 9 10\n", 5, 10));
        assert!(!has("5 9 10\n", 5, 11) && !has("5 9 10\n", 4, 2));
    }
}
