//! Makes and removes mounts of Linux: FUSE connections, overlays and EROFS images above them, and memory.
//!
//! FUSE is mounted as root with mount(2), as a user through `fusermount3`, or in a user namespace. All mounts of
//! repositories are read-only, `nosuid`, `nodev` and `noatime`; permissions are checked by the kernel.
#![deny(unsafe_code)]

mod erofs;
mod explain;
mod fusermount;
mod handover;
mod memory;
mod namespace;
mod overlay;
mod sys;
mod trusted;

use std::borrow::Cow;
use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags};

pub use erofs::{image_path, may_mount_images, mount_image};
pub use explain::namespace_setting;
pub use handover::{receive_device, send_device};
pub use memory::private_memory;
pub use overlay::{SOURCE_PREFIX, Trusted, UpperLayer, mount_overlay, mount_writable};
pub use trusted::may_see_trusted;

/// Path of the FUSE device.
pub(crate) const DEVICE: &str = "/dev/fuse";

/// The type of the mount, as `mount` and `/proc/mounts` show it.
const TYPE: &str = "fuse.esker";

/// Flags of each mount that root makes: read-only, no access times, and neither devices nor set-user-ID programs of a
/// repository.
pub const FLAGS: MountFlags =
    MountFlags::RDONLY.union(MountFlags::NOSUID).union(MountFlags::NODEV).union(MountFlags::NOATIME);

/// Options of a mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountOptions {
    /// Source in the first column of `mount` and `df`: the URL of the repository.
    pub source: String,
    /// True if other users may access the mount. Always on for root; `fusermount3` allows it only if
    /// `/etc/fuse.conf` says `user_allow_other`.
    pub allow_other: bool,
    /// True if programs on the mount can't be executed.
    pub noexec: bool,
    /// SELinux labels of the mount.
    pub labels: Vec<Label>,
}

/// An SELinux mount option, which the kernel accepts for every type of file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Label {
    kind: &'static str,
    context: String,
}

impl Label {
    /// The names of the options.
    pub const KINDS: [&'static str; 4] = ["context", "fscontext", "defcontext", "rootcontext"];

    /// Makes a label of the option's name and its value. `None` if it is no such option, or the value can't be one.
    pub fn new(kind: &str, context: &str) -> Option<Self> {
        let kind = Self::KINDS.into_iter().find(|known| *known == kind)?;
        let plain = |byte: u8| byte.is_ascii_graphic() && !matches!(byte, b'"' | b'\'' | b'\\');
        // The root of the mount stands for itself: `rootcontext=@target` is made into a context by mount(8).
        let good = !context.is_empty() && context.len() < LABEL_MAX && context.bytes().all(plain);
        good.then(|| Self { kind, context: context.to_owned() })
    }

    /// Returns the option's name and its value.
    pub fn parts(&self) -> (&'static str, &str) {
        (self.kind, &self.context)
    }

    /// Returns the option in quotes, because a context with several categories contains commas.
    pub(crate) fn text(&self) -> String {
        format!("{}=\"{}\"", self.kind, self.context)
    }
}

/// Maximum length of a context; all options must fit into a page of memory.
const LABEL_MAX: usize = 1024;

/// Kind of unmounting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unmount {
    /// Fails with `EBUSY` while it is used.
    #[default]
    IfUnused,
    /// Detaches the mount at once; it ends with its last user.
    Lazy,
}

/// Failure of mounting or unmounting, with a remedy.
#[derive(Debug, thiserror::Error)]
#[error("{action} {path}: {reason}", path = path.display())]
pub struct MountError {
    action: Cow<'static, str>,
    path: PathBuf,
    reason: String,
    #[source]
    source: Option<io::Error>,
}

impl MountError {
    fn new(action: &'static str, path: &Path, reason: impl Into<String>, source: Option<io::Error>) -> Self {
        Self { action: action.into(), path: path.to_owned(), reason: reason.into(), source }
    }

    /// Makes the error that another process has met, from its [`Self::parts`] and its source.
    pub fn of_another(action: String, path: PathBuf, reason: String, source: Option<io::Error>) -> Self {
        Self { action: action.into(), path, reason, source }
    }

    /// Names another path: that by which a user knows the file.
    pub fn at(self, path: &Path) -> Self {
        Self { path: path.to_owned(), ..self }
    }

    /// Returns the action that failed, its path and the reason.
    pub fn parts(&self) -> (&str, &Path, &str) {
        (&self.action, &self.path, &self.reason)
    }

    /// Returns the system's error number, if there is one.
    pub fn raw_os_error(&self) -> Option<i32> {
        self.source.as_ref()?.raw_os_error()
    }
}

/// A mounted connection.
#[derive(Debug)]
pub struct Mount {
    device: OwnedFd,
    mountpoint: PathBuf,
}

impl Mount {
    /// Mounts on `mountpoint`: with mount(2) as root, otherwise through `fusermount3`.
    pub fn new(mountpoint: &Path, options: &MountOptions) -> Result<Self, MountError> {
        if rustix::process::geteuid().is_root() {
            Self::direct(mountpoint, options)
        } else {
            Self::helped(mountpoint, options)
        }
    }

    /// Mounts with mount(2), which needs `CAP_SYS_ADMIN` in the user namespace of this process.
    pub fn direct(mountpoint: &Path, options: &MountOptions) -> Result<Self, MountError> {
        let device = open_device()?;
        mount_device(device.as_fd(), mountpoint, options)?;
        Ok(Self { device, mountpoint: mountpoint.to_owned() })
    }

    /// Mounts through `fusermount3` (or `fusermount`), which needs no privilege.
    pub fn helped(mountpoint: &Path, options: &MountOptions) -> Result<Self, MountError> {
        // fusermount would mount on a file too, which mount(2) refuses; such a mount has no tree.
        if std::fs::metadata(mountpoint).is_ok_and(|there| !there.is_dir()) {
            let error = io::Error::from_raw_os_error(libc::ENOTDIR);
            let reason = explain::mount(&error, mountpoint);
            return Err(MountError::new("mounting on", mountpoint, reason, Some(error)));
        }
        let device = fusermount::mount(mountpoint, options)?;
        Ok(Self { device, mountpoint: mountpoint.to_owned() })
    }

    /// Returns the connection to serve, for `esker_fuse::Session::start`.
    pub fn into_device(self) -> OwnedFd {
        self.device
    }

    /// Returns the mountpoint.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }
}

/// Opens `/dev/fuse`.
pub fn open_device_file() -> io::Result<OwnedFd> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_CLOEXEC).open(DEVICE)?;
    Ok(file.into())
}

/// Opens `/dev/fuse`. A process in a user namespace has to open it itself: the kernel refuses to mount a
/// connection that was opened in another user namespace.
pub fn open_device() -> Result<OwnedFd, MountError> {
    open_device_file()
        .map_err(|e| MountError::new("opening", Path::new(DEVICE), explain::device(&e), Some(e)))
}

/// Mounts an open connection with mount(2): for root, and for a process that has `CAP_SYS_ADMIN` in its own
/// user namespace. There `allow_other` means everyone in that namespace, and the owners that the tree gives
/// are numbers of that namespace.
pub fn mount_device(
    device: BorrowedFd<'_>,
    mountpoint: &Path,
    options: &MountOptions,
) -> Result<(), MountError> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let allow_other = if options.allow_other || uid.is_root() { ",allow_other" } else { "" };
    let labels: String = options.labels.iter().map(|label| format!(",{}", label.text())).collect();
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions{allow_other}{labels}",
        device.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw(),
    );
    // A zero byte can't be part of a URL or a number; cutting there keeps this infallible.
    let data = CString::new(data).unwrap_or_default();
    let source = options.source.split('\0').next().unwrap_or_default();
    let mut flags = FLAGS;
    flags.set(MountFlags::NOEXEC, options.noexec);
    rustix::mount::mount(source, mountpoint, TYPE, flags, Some(data.as_c_str())).map_err(|e| {
        let error = io::Error::from(e);
        let reason = match options.labels.first() {
            Some(label) if e == rustix::io::Errno::INVAL && mountpoint.is_dir() => {
                format!("the kernel refuses {}, or another option of SELinux", label.text())
            }
            _ => explain::mount(&error, mountpoint),
        };
        MountError::new("mounting on", mountpoint, reason, Some(error))
    })
}

/// Time for which an unmount is retried: a program that lists all mounts (`df`, a monitor) pins each for a
/// moment.
const GLANCE: Duration = Duration::from_secs(1);
const GLANCE_STEP: Duration = Duration::from_millis(20);

/// Unmounts: with umount2(2) as root or in an own namespace, otherwise through `fusermount3`. A mount that is
/// in use is tried again for a second.
pub fn unmount(mountpoint: &Path, how: Unmount) -> Result<(), MountError> {
    let deadline = Instant::now() + GLANCE;
    loop {
        match unmount_once(mountpoint, how) {
            // fusermount3 tells no number.
            Err(error)
                if how == Unmount::IfUnused
                    && error.raw_os_error().is_none_or(|errno| errno == libc::EBUSY)
                    && Instant::now() < deadline =>
            {
                // The kernel sends no notification when a mount is unpinned.
                std::thread::sleep(GLANCE_STEP);
            }
            outcome => return outcome,
        }
    }
}

fn unmount_once(mountpoint: &Path, how: Unmount) -> Result<(), MountError> {
    let flags = match how {
        Unmount::IfUnused => UnmountFlags::NOFOLLOW,
        Unmount::Lazy => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
    };
    match rustix::mount::unmount(mountpoint, flags) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => fusermount::unmount(mountpoint, how),
        Err(e) => {
            let error = io::Error::from(e);
            Err(MountError::new("unmounting", mountpoint, explain::unmount(&error), Some(error)))
        }
    }
}
