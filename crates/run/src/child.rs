//! Implements the child, which enters the namespaces, mounts, and executes the command.

use std::convert::Infallible;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, RawFd};
use std::path::{Path, PathBuf};

use esker_kernel_mount::{
    MountError, MountOptions, Trusted, UpperLayer, mount_device, mount_overlay, mount_writable, open_device,
};
use rustix::mount::{MountFlags, mount, mount_bind};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, set_parent_process_death_signal, setrlimit};

use crate::channel::Channel;
use crate::container::read_only;
use crate::explain::{Blocked, Step};
use crate::namespaces::{self, Identity, because};
use crate::processes::{Orphans, enter_with};
use crate::{exec, root, sys};

/// Arguments of the child's command line, set by the parent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildArguments {
    /// Descriptor of the child's end of the channel.
    pub(crate) channel: RawFd,
    /// The command's limit on open files, if it differs from that of this process.
    pub(crate) open_files: Option<u64>,
    /// Mount points of the trees.
    pub(crate) points: Vec<Point>,
    /// Command and its arguments.
    pub(crate) command: Vec<OsString>,
}

/// A mount point with its source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// Mount point.
    pub path: PathBuf,
    /// Source of the mount, for the first column of `mount` and `df`.
    pub source: String,
    /// Attributes for an overlay above the mount; none for no overlay. See
    /// [`esker_kernel_mount::mount_overlay`].
    pub overlay: Option<Trusted>,
    /// Make it writable, with its changes in a folder.
    pub writable: Option<Writable>,
}

/// Folder for the changes of a writable tree, and the working directory of its command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Writable {
    /// Folder that gets the changes.
    pub upper: PathBuf,
    /// Folder for the kernel's own use.
    pub work: PathBuf,
    /// Working directory of the command, which is made if the tree lacks it. Where the kernel allows, the rest of the tree
    /// is read-only.
    pub directory: PathBuf,
}

/// Failure that the child reports.
pub(crate) struct Failed {
    /// Exit code.
    pub(crate) code: u8,
    /// Message; further lines give advice.
    pub(crate) text: String,
}

/// Values of the argument that selects an overlay for a mount.
const OVERLAYS: [(&str, Option<Trusted>); 3] =
    [("bare", None), ("overlaid", Some(Trusted::Shown)), ("hiding", Some(Trusted::Hidden))];

/// Words of the argument that says whether a mount is writable.
const READ_ONLY: &str = "read-only";
const WRITABLE: &str = "writable";

impl ChildArguments {
    /// Returns the arguments that [`ChildArguments::parse`] understands.
    pub(crate) fn arguments(&self) -> Vec<OsString> {
        let open_files = self.open_files.map_or_else(|| "-".to_owned(), |limit| limit.to_string());
        let mut all = vec![self.channel.to_string().into(), open_files.into()];
        all.push(self.points.len().to_string().into());
        for point in &self.points {
            let overlay =
                OVERLAYS.iter().find(|(_, overlay)| *overlay == point.overlay).map(|(word, _)| word);
            let overlay = overlay.copied().unwrap_or_default();
            all.extend([point.path.clone().into_os_string(), point.source.clone().into(), overlay.into()]);
            match &point.writable {
                None => all.push(READ_ONLY.into()),
                Some(Writable { upper, work, directory }) => {
                    all.push(WRITABLE.into());
                    all.extend([upper, work, directory].map(|path| path.clone().into_os_string()));
                }
            }
        }
        all.extend(self.command.iter().cloned());
        all
    }

    /// Parses the parent's arguments; `None` if another program made them.
    pub fn parse(arguments: Vec<OsString>) -> Option<Self> {
        let mut arguments = arguments.into_iter();
        let channel = arguments.next()?.to_str()?.parse().ok()?;
        let open_files = match arguments.next()?.to_str()? {
            "-" => None,
            limit => Some(limit.parse().ok()?),
        };
        let count = arguments.next()?.to_str()?.parse::<usize>().ok()?;
        let mut points = Vec::new();
        for _ in 0..count {
            let path = PathBuf::from(arguments.next()?);
            let source = arguments.next()?.into_string().ok()?;
            let told = arguments.next()?;
            let overlay = OVERLAYS.iter().find(|(word, _)| told == **word)?.1;
            let mut next = || arguments.next().map(PathBuf::from);
            let writable = match next()?.to_str()? {
                READ_ONLY => None,
                WRITABLE => Some(Writable { upper: next()?, work: next()?, directory: next()? }),
                _ => return None,
            };
            points.push(Point { path, source, overlay, writable });
        }
        let command: Vec<OsString> = arguments.collect();
        (!command.is_empty()).then_some(Self { channel, open_files, points, command })
    }
}

/// Enters the namespaces, mounts and executes the command; returns only if that failed, with the exit code (the parent
/// has the message). The process must have a single thread.
pub fn become_command(arguments: &ChildArguments) -> io::Result<u8> {
    let channel = Channel::from_descriptor(sys::adopt(arguments.channel)?);
    let Err(failed) = enter_and_execute(arguments, &channel);
    channel.say_failed(failed.code, &failed.text)?;
    Ok(failed.code)
}

fn enter_and_execute(arguments: &ChildArguments, channel: &Channel) -> Result<Infallible, Failed> {
    let told = |blocked: Blocked| Failed { code: 1, text: format!("{blocked}\n{}", blocked.remedy) };
    let blocked = |step: Step| move |error: io::Error| told(because(step)(error));
    let gone = |error: io::Error| Failed { code: 1, text: format!("the parent process is gone: {error}") };
    namespaces::enter(Identity::Same).map_err(told)?;
    let paths: Vec<&Path> = arguments.points.iter().map(|point| point.path.as_path()).collect();
    root::provide(&paths).map_err(blocked(Step::Root))?;
    for (index, point) in (0u8..).zip(&arguments.points) {
        let device = open_device().map_err(|error| blocked(Step::Device)(cause(&error)))?;
        // All processes of the namespace are the user's, or were admitted by the user.
        let options =
            MountOptions { source: point.source.clone(), allow_other: true, ..MountOptions::default() };
        mount_device(device.as_fd(), &point.path, &options)
            .map_err(|error| blocked(Step::Mount)(cause(&error)))?;
        channel.say_mounted(index, device.as_fd()).map_err(gone)?;
    }
    // Without the parent every access to the trees fails, so the command ends with it. Set before the
    // answer is awaited: a parent that dies in between is seen there.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| gone(error.into()))?;
    channel.wait_for_go().map_err(gone)?;
    for point in &arguments.points {
        let Some(trusted) = point.overlay else { continue };
        // Older kernels let only root mount overlays; the command then runs from the tree as it is.
        let _ = mount_overlay(&point.path, &point.path, &point.source, trusted);
    }
    for point in &arguments.points {
        if let Some(writable) = &point.writable {
            make_writable(point, writable, arguments.channel)?;
        }
    }
    if let Some(soft) = arguments.open_files {
        let limit = Rlimit { current: Some(soft), ..getrlimit(Resource::Nofile) };
        // Lowering the soft limit to its old value can't fail.
        let _ = setrlimit(Resource::Nofile, limit);
    }
    Err(execute(&arguments.command, &std::env::vars_os().collect::<Vec<_>>()))
}

/// Puts a writable overlay on a tree and goes to the directory of the command. The command becomes a process of a namespace
/// of its own, so that none of its processes outlives it and changes the tree any more.
fn make_writable(point: &Point, writable: &Writable, channel: RawFd) -> Result<(), Failed> {
    let failed = |text: String| Failed { code: 1, text };
    let layer = UpperLayer { upper: &writable.upper, work: &writable.work };
    mount_writable(&point.path, &point.source, layer).map_err(|error| failed(error.to_string()))?;
    let directory = &writable.directory;
    let made = std::fs::create_dir_all(directory);
    if *directory != point.path && mount_bind(directory, directory).is_ok() {
        // Without it, changes elsewhere are refused when they are published.
        let _ = read_only(&point.path);
    }
    let entered = made.and_then(|()| std::env::set_current_dir(directory));
    entered.map_err(|error| failed(format!("can't enter {}: {error}", directory.display())))?;
    enter_with(Orphans::Killed, Some(channel))
        .map_err(|error| failed(format!("can't make a namespace for the command's processes: {error}")))?;
    // Programs see the numbers of the namespace. The kernel refuses it where parts of /proc are hidden.
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let _ = mount("proc", "/proc", "proc", flags, None);
    Ok(())
}

/// Executes a command; returns only if that failed.
pub(crate) fn execute(command: &[OsString], environment: &[(OsString, OsString)]) -> Failed {
    let Some((program, arguments)) = command.split_first() else {
        return Failed { code: 2, text: "there is no command".into() };
    };
    let failed = exec::execute(program, arguments, environment);
    let text = format!("can't execute {}: {}\n{}", program.display(), failed.reason, failed.hint);
    Failed { code: failed.code, text }
}

/// Creates the namespaces of a command and enters them; returns why that fails. For a process with one thread
/// that is about to end.
pub fn namespaces_blocked() -> Option<Blocked> {
    let make = || {
        namespaces::enter_user_namespace(Identity::Same)?;
        root::detach_from_host().map_err(because(Step::Mount))
    };
    make().err()
}

/// Returns the system's error below an error of the mount, which the explanation uses.
fn cause(error: &MountError) -> io::Error {
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    match source.and_then(io::Error::raw_os_error) {
        Some(errno) => io::Error::from_raw_os_error(errno),
        None => io::Error::other(error.to_string()),
    }
}
