//! Closes a container before its command is executed: the last user namespace, and what the command may not take along.
//!
//! The kernel lets the root of a user namespace change and undo mounts that were made in it. So the command gets one more,
//! below that of the mounts, with a copy of them that is locked: no flag can be taken away, and nothing unmounted that
//! hides something. A process that stays in the namespace above writes its map of ids:
//!
//! ```text
//!  process                         helper
//!    │ fork ────────────────────────► waits at a pipe
//!    │ makes the root, enters it      │
//!    │ unshare(NEWUSER, NEWNS)        │
//!    │ closes its end ──────────────► │ writes uid_map and gid_map
//!    │ ◄───────────────── exit code ──┘
//! ```

use std::fs;
use std::io::{self, PipeWriter, Read};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;

use rustix::process::{DumpableBehavior, Pid, WaitOptions, set_dumpable_behavior, waitpid};
use rustix::thread::{CapabilitySet, UnshareFlags, set_no_new_privs};

use super::{ContainerError, MappedIds, Stage, filter, step};
use crate::namespaces::{Maps, process_directory};
use crate::processes::{Orphans, enter_process_namespace};
use crate::sys;

/// Capabilities of root in a contained command: those of podman.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SETFCAP)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SYS_CHROOT);

/// Part of the host that a contained command may share with its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Requests by which a program types into the terminal.
    Terminal,
    /// Open files beyond input, output and errors.
    Descriptors,
    /// Keys of the session, and the calls for keys.
    Keyring,
    /// Shared memory, semaphores and message queues, of System V and POSIX.
    Ipc,
    /// Environment variables.
    Environment,
}

/// Restrictions of a contained command.
#[derive(Clone, Debug, Default)]
pub struct Contained {
    /// Parts that are shared all the same, on request.
    pub shared: Vec<Share>,
}

impl Contained {
    /// True if the command shares this with its caller.
    pub fn shares(&self, what: Share) -> bool {
        self.shared.contains(&what)
    }

    /// Leaves what the command doesn't share, and continues in the command's process in a PID namespace of its own. The
    /// process must have a single thread.
    pub fn enter(&self, stage: &Stage) -> Result<(), ContainerError> {
        if !self.shares(Share::Descriptors) {
            let open = stage.host(Path::new("/proc/self/fd"));
            refuse_directories(&open)?;
            sys::close_at_exec(&open).map_err(step("close inherited files"))?;
        }
        if !self.shares(Share::Keyring) {
            match sys::leave_session_keyring() {
                // A kernel without keyrings, or a container that forbids the call also to the command.
                Err(error) if !matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => {
                    return Err(step("leave the session keyring")(error));
                }
                _ => {}
            }
        }
        if !self.shares(Share::Ipc) {
            sys::unshare(UnshareFlags::NEWIPC)
                .map_err(|error| step("make an IPC namespace (--share ipc does without)")(error.into()))?;
        }
        enter_process_namespace(Orphans::Kept).map_err(step("make a PID namespace, which --contain needs"))
    }

    /// Takes from this process what no contained command has. It must have entered its last user namespace.
    pub fn restrict(&self) -> Result<(), ContainerError> {
        sys::bound_capabilities(KEPT.bits()).map_err(step("drop capabilities"))?;
        set_no_new_privs(true).map_err(|error| step("set no_new_privs")(error.into()))?;
        sys::leave_abstract_sockets();
        let program = filter::program(self.shares(Share::Terminal), self.shares(Share::Keyring));
        sys::install_filter(&program)
            .map_err(step("filter system calls (--share terminal,keyring does without a filter)"))
    }
}

/// Fails if input, output or errors are a directory, from which a program would get at the folders around it. `open` has a
/// link to each open file of this process.
fn refuse_directories(open: &Path) -> Result<(), ContainerError> {
    let all = [("input", "0"), ("output", "1"), ("errors", "2")];
    match all.into_iter().find(|(_, number)| is_directory(open, number)) {
        Some((name, _)) => Err(ContainerError::Impossible {
            what: format!("standard {name} is a directory, which a contained command must not have"),
            remedy:
                "redirect it to a file, or show the directory with --bind; --share descriptors leaves it open"
                    .into(),
        }),
        None => Ok(()),
    }
}

fn is_directory(open: &Path, number: &str) -> bool {
    fs::metadata(open.join(number)).is_ok_and(|facts| facts.is_dir())
}

/// The last user namespace of a command, prepared while the host can be seen.
pub struct Seal {
    helper: Pid,
    go: PipeWriter,
    ids: Option<MappedIds>,
}

impl Seal {
    /// Starts the process that will map the ids. This process must have a single thread.
    pub fn prepare(stage: &Stage) -> Result<Self, ContainerError> {
        Self::start(stage).map_err(step("prepare the command's user namespace"))
    }

    fn start(stage: &Stage) -> io::Result<Self> {
        let proc = stage.host(Path::new("/proc"));
        let maps = match stage.ids {
            Some(ids) => ids.maps(&proc)?,
            None => Maps::same(&proc)?,
        };
        // The number of this process there, whatever its own namespace.
        let own = process_directory(&proc.join(fs::read_link(proc.join("self"))?))?;
        // The end of a child is lost while the signal is ignored.
        sys::set_default(libc::SIGCHLD);
        let (mut wait, go) = io::pipe()?;
        let held = go.as_raw_fd();
        let helper = sys::in_child(move || {
            // The child's copy of the parent's end, or it would wait for itself.
            sys::close(held);
            // It ends when the parent closes its end, or is gone.
            let _ = wait.read(&mut [0]);
            u8::from(maps.write(own.as_fd()).is_err())
        })?;
        Ok(Self { helper, go, ids: stage.ids })
    }

    /// Enters the namespace. The process must be in the command's root, and have a single thread.
    pub fn close(self) -> Result<(), ContainerError> {
        self.enter().map_err(step("enter the command's user namespace"))
    }

    fn enter(self) -> io::Result<()> {
        // Files of a process that isn't dumpable belong to root, and so would the maps. By now nothing of the host can be
        // reached through this process.
        set_dumpable_behavior(DumpableBehavior::Dumpable)?;
        sys::unshare(UnshareFlags::NEWUSER | UnshareFlags::NEWNS)?;
        drop(self.go);
        let ended = rustix::io::retry_on_intr(|| waitpid(Some(self.helper), WaitOptions::empty()))?;
        if ended.and_then(|(_, status)| status.exit_status()) != Some(0) {
            return Err(io::Error::other("its ids can't be mapped"));
        }
        if self.ids.is_some() { sys::become_root_of_namespace() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_among_open_files_are_found() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = fs::File::create(folder.path().join("file")).expect("a file");
        let directory = fs::File::open(folder.path()).expect("the folder");
        let open = Path::new("/proc/self/fd");
        assert!(is_directory(open, &directory.as_raw_fd().to_string()));
        assert!(!is_directory(open, &file.as_raw_fd().to_string()));
        assert!(!is_directory(open, "none"));
    }
}
