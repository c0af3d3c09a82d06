//! Registries of all users, read by root for `esker status`.
//!
//! ```text
//!  /run/user/UID/esker/   $XDG_RUNTIME_DIR as login services set it
//!  /tmp/esker-UID/        without one, or in another shared folder
//! ```
//!
//! A user may put anything there: links, pipes, other file systems, sockets that don't answer, false entries. So nothing
//! is opened by a path that a user could change: each step goes from an open directory to a name in it, follows no link,
//! stays on the same file system, and must lead to a file of that user. That file system must not be one whose server is a
//! process, which could keep root waiting. The number of entries, their length and the time for answers are bounded.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Instant;

use esker_cache_share::peer;
use rustix::fs::{Dir, FileType, Mode, OFlags, ResolveFlags, fstat, open, openat2};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::{ENTRY_MAX, Entry, try_lock};
use crate::control::{self, Request, Response};
use crate::mounts;
use crate::runtime::SHARED;

/// Maximum number of entries read of one user.
const ENTRIES_MAX: usize = 64;
/// Maximum number of names read in a folder.
const NAMES_MAX: usize = 10_000;
/// File systems whose server may be a user's process or an unreachable machine.
const SLOW: [&str; 8] = ["fuse", "nfs", "cifs", "smb", "9p", "ceph", "autofs", "virtiofs"];

/// Folders with registries of users.
#[derive(Clone, Debug)]
pub struct Places {
    /// Folder with a subfolder for each user, named by number.
    pub run: PathBuf,
    /// Folders that contain `esker-UID`.
    pub temporary: Vec<PathBuf>,
}

impl Default for Places {
    fn default() -> Self {
        Self { run: "/run/user".into(), temporary: SHARED.map(PathBuf::from).into() }
    }
}

/// Mount that another user has registered. All fields are unverified statements of that user.
#[derive(Debug)]
pub struct UserMount {
    /// User id of the owner.
    pub user: u32,
    /// Registry entry of the mount.
    pub entry: Entry,
    /// True if the daemon of the mount is alive.
    pub alive: bool,
    /// Control socket of the mount, if that user owns it.
    socket: Option<OwnedFd>,
    /// Socket of the mount's supervisor, if that user owns it.
    upgrades: Option<OwnedFd>,
}

/// Returns all mounts that other users have registered, sorted by user and mount point.
pub fn of_users(places: &Places) -> Vec<UserMount> {
    let mut all = with_departed(places);
    all.retain(|one| !one.entry.departed);
    all
}

/// Returns all mounts that other users have registered, also those that have given up their place.
pub fn with_departed(places: &Places) -> Vec<UserMount> {
    let me = rustix::process::geteuid().as_raw();
    let mut found = Vec::new();
    for name in names(&places.run) {
        if let Some(user) = number(&name, "").filter(|user| *user != me) {
            found.extend(of_user(user, &places.run.join(name), OsStr::new("esker")));
        }
    }
    for folder in &places.temporary {
        for name in names(folder) {
            if let Some(user) = number(&name, "esker-").filter(|user| *user != me) {
                found.extend(of_user(user, folder, OsStr::new(&name)));
            }
        }
    }
    found.sort_by(|a, b| (a.user, &a.entry.mountpoint).cmp(&(b.user, &b.entry.mountpoint)));
    found
}

/// Returns the names in a folder that is not a user's; none if that folder could keep its reader waiting.
fn names(folder: &Path) -> Vec<String> {
    if place(folder).is_none() {
        return Vec::new();
    }
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    entries.take(NAMES_MAX).filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect()
}

fn number(name: &str, prefix: &str) -> Option<u32> {
    let digits = name.strip_prefix(prefix)?;
    digits.bytes().all(|byte| byte.is_ascii_digit()).then(|| digits.parse().ok())?
}

fn of_user(user: u32, base: &Path, name: &OsStr) -> Vec<UserMount> {
    let Some(folder) = folder(user, base, name) else { return Vec::new() };
    let Ok(entries) = Dir::read_from(&folder) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.take(NAMES_MAX) {
        let Ok(entry) = entry else { break };
        let Some(id) = entry.file_name().to_bytes().strip_suffix(b".json") else { continue };
        if id.len() == 16 && id.iter().all(u8::is_ascii_hexdigit) {
            found.extend(read(&folder, user, &String::from_utf8_lossy(id)));
        }
        if found.len() >= ENTRIES_MAX {
            break;
        }
    }
    found
}

/// Opens the registry of a user: a folder of that user on a file system of the kernel.
fn folder(user: u32, base: &Path, name: &OsStr) -> Option<OwnedFd> {
    let folder = within(&place(base)?, name, OFlags::RDONLY | OFlags::DIRECTORY)?;
    (fstat(&folder).ok()?.st_uid == user).then_some(folder)
}

/// Opens a folder with O_PATH, so that its file system gets no request. `None` if it could keep its reader waiting.
fn place(folder: &Path) -> Option<OwnedFd> {
    let how = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    open(folder, how, Mode::empty()).ok().filter(|place| !is_slow(place))
}

/// Opens a name directly in a folder, without following links.
fn within(folder: &OwnedFd, name: &OsStr, how: OFlags) -> Option<OwnedFd> {
    let resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV | ResolveFlags::BENEATH;
    openat2(folder, name, how | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty(), resolve).ok()
}

/// True if the open file's file system could keep its reader waiting, or is unknown.
fn is_slow(place: &OwnedFd) -> bool {
    let on = mounts::of(place).ok().flatten();
    on.is_none_or(|line| SLOW.iter().any(|slow| line.kind.starts_with(slow)))
}

fn read(folder: &OwnedFd, user: u32, id: &str) -> Option<UserMount> {
    let is = |file: &OwnedFd, wanted: FileType| {
        fstat(file).is_ok_and(|stat| stat.st_uid == user && FileType::from_raw_mode(stat.st_mode) == wanted)
    };
    // A pipe in its place is not waited for.
    let how = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = within(folder, OsStr::new(&format!("{id}.json")), how)?;
    if !is(&file, FileType::RegularFile) {
        return None;
    }
    let file = File::from(file);
    let mut text = Vec::new();
    (&file).take(ENTRY_MAX).read_to_end(&mut text).ok()?;
    let entry = serde_json::from_slice(&text).ok()?;
    let socket = |end: &str| {
        let socket = within(folder, OsStr::new(&format!("{id}.{end}")), OFlags::PATH);
        socket.filter(|socket| is(socket, FileType::Socket))
    };
    let (socket, upgrades) = (socket("sock"), socket("upgrade"));
    Some(UserMount { user, entry, alive: !try_lock(&file), socket, upgrades })
}

impl UserMount {
    /// Returns a path of the supervisor's socket, which is valid in this process as long as this value lives. Another
    /// process of that user may listen there, so who does must be checked.
    pub fn upgrades(&self) -> Option<PathBuf> {
        self.upgrades.as_ref().map(|socket| PathBuf::from(format!("/proc/self/fd/{}", socket.as_raw_fd())))
    }

    /// Requests the status from the mount's daemon, which must run as that user.
    pub fn ask(&self, deadline: Instant) -> io::Result<Response> {
        self.request(&Request::Status, deadline)
    }

    /// Sends a request to the mount's daemon, which must run as that user.
    pub fn request(&self, request: &Request, deadline: Instant) -> io::Result<Response> {
        control::ask_on(&self.connect()?, request, deadline)
    }

    /// Connects to the mount's daemon, which must run as that user.
    pub fn connect(&self) -> io::Result<UnixStream> {
        let socket = self.socket.as_ref().ok_or_else(|| io::Error::other("it has no socket"))?;
        let address = SocketAddrUnix::new(format!("/proc/self/fd/{}", socket.as_raw_fd()))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Without waiting: a queue that is full stays full.
        connect(&stream, &address)?;
        if peer::user(stream.as_fd()) != Some(self.user) {
            return Err(io::Error::other("another user answers"));
        }
        let stream = UnixStream::from(stream);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests;
