//! Requests to replace a daemon by one of another program or with other options, over a socket in the runtime folder.
//!
//! The client sends a descriptor, behind a zero byte that of a program, behind an `o` that of options. For a `g` it gets the
//! descriptor of the options that are kept. Otherwise it gets a line: `ok`
//! and the process id; `failed` and the reason if the daemon before serves again; or `lost` and the reason if none does.

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use esker_cache_share::peer;
use esker_kernel_mount::{receive_device, send_device};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::messages::{self, Kind};
use super::process::say;
use super::program::OfDaemon;
use super::{options as mount_options, origin, program};
use crate::packets;

/// Time limit of a client to send its request.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum length of an answer in bytes.
const ANSWER_MAX: usize = 4096;

/// Part of a daemon that the next daemon replaces.
#[derive(Debug)]
pub enum Replacement {
    /// Program of the daemon.
    Program(OwnedFd),
    /// Sealed options of the mount.
    Options(OwnedFd),
}

impl Replacement {
    /// Returns a noun phrase for the new daemon, used in messages.
    pub(super) const fn describe(&self) -> &'static str {
        match self {
            Self::Program(_) => "the new program",
            Self::Options(_) => "a daemon with the new settings",
        }
    }
}

/// A replacement in progress.
pub(super) struct Upgrade {
    /// Client that waits; none if the daemon itself has changed its options.
    pub(super) client: Option<UnixStream>,
    /// Replacement for the next daemon, until that is started.
    pub(super) next: Option<Replacement>,
    /// Replaced part of the previous daemon, until the new daemon serves.
    pub(super) previous: Option<Replacement>,
    /// Failure of the new daemon, while the one before doesn't serve yet.
    pub(super) failed: Option<String>,
}

impl Upgrade {
    pub(super) fn new(client: Option<UnixStream>, next: Replacement) -> Self {
        Self { client, next: Some(next), previous: None, failed: None }
    }

    pub(super) fn answer(self, line: &str) {
        // The client may be gone.
        let _ = self.client.map(|mut client| writeln!(client, "{}", line.replace('\n', " ")));
    }
}

/// Byte that requests the options.
const GET: u8 = b'g';

/// Request of a client.
pub(super) enum Wish {
    /// To replace the daemon.
    Upgrade(Upgrade),
    /// To get the options of the mount.
    Options(UnixStream),
}

/// Reads the request of a client of this user or root that is not one of the mount's own processes.
pub(super) fn accept(client: UnixStream, daemon: &OfDaemon) -> Option<Wish> {
    if !peer::is_trusted(&client) {
        return None;
    }
    client.set_read_timeout(Some(CLIENT_TIMEOUT)).ok()?;
    client.set_write_timeout(Some(CLIENT_TIMEOUT)).ok()?;
    let next = match packets::receive(&client).ok()? {
        (byte, Some(program)) if byte == [0] => Replacement::Program(program),
        (byte, Some(options)) if byte == [Kind::Options as u8] => Replacement::Options(options),
        (byte, None) if byte == [GET] => return Some(Wish::Options(client)),
        _ => return None,
    };
    let refused = origin::refusal(&client).map(str::to_owned);
    let checked = match (refused, next) {
        (Some(why), _) => Err(why),
        (None, Replacement::Program(file)) => match program::refusal(&file, daemon) {
            Some(why) => Err(format!("{why}; name one with --binary that only you and root can change")),
            None => Ok(Replacement::Program(file)),
        },
        (None, Replacement::Options(file)) => mount_options::from_outside(file)
            .map(Replacement::Options)
            .map_err(|error| format!("the new options can't be taken: {error}")),
    };
    match checked {
        Ok(next) => Some(Wish::Upgrade(Upgrade::new(Some(client), next))),
        Err(why) => {
            // The daemon goes on, as after a roll-back.
            say(&format!("a replacement is refused: {why}"));
            let _ = writeln!(&client, "failed it is refused: {}", why.replace('\n', " "));
            None
        }
    }
}

/// Failures of an upgrade.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// The mount has no supervisor, or it doesn't answer.
    #[error("its supervisor doesn't answer")]
    Unreachable(#[source] io::Error),
    /// The new daemon didn't serve the mount, and the one before does.
    #[error("{0}")]
    RolledBack(String),
    /// Neither the new daemon nor the one before serves the mount.
    #[error("{0}")]
    Lost(String),
}

/// Has the supervisor of `user` at `socket` replace the daemon; returns the new process id. Blocks until the new daemon
/// serves, or the one before does again, at most until the deadline.
pub fn request(
    socket: &Path,
    user: u32,
    replacement: &Replacement,
    deadline: Instant,
) -> Result<u32, UpgradeError> {
    let line = answer(socket, user, replacement, deadline).map_err(UpgradeError::Unreachable)?;
    match line.trim_end().split_once(' ') {
        Some(("ok", pid)) => {
            pid.parse().map_err(|_| UpgradeError::Lost("its answer isn't understood".into()))
        }
        Some(("failed", why)) => Err(UpgradeError::RolledBack(why.to_owned())),
        Some(("lost", why)) => Err(UpgradeError::Lost(why.to_owned())),
        _ => Err(UpgradeError::Unreachable(io::ErrorKind::UnexpectedEof.into())),
    }
}

/// Returns the options that the supervisor of `user` at `socket` keeps for a mount.
pub fn options(socket: &Path, user: u32, deadline: Instant) -> io::Result<OwnedFd> {
    let mut stream = connected(socket, user)?;
    stream.set_read_timeout(Some(left(deadline)?))?;
    stream.write_all(&[GET])?;
    receive_device(&stream)
}

/// Returns the time until a deadline.
fn left(deadline: Instant) -> io::Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(late()) } else { Ok(left) }
}

fn late() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer came in time")
}

fn connected(socket: &Path, user: u32) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    // Without waiting: a process that doesn't accept may never do so.
    connect(&stream, &SocketAddrUnix::new(socket)?)?;
    if peer::user(&stream) != Some(user) {
        return Err(io::Error::other("another user answers"));
    }
    let stream = UnixStream::from(stream);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

fn answer(socket: &Path, user: u32, replacement: &Replacement, deadline: Instant) -> io::Result<String> {
    let mut stream = connected(socket, user)?;
    match replacement {
        Replacement::Program(program) => send_device(&stream, program.as_fd())?,
        Replacement::Options(options) => {
            messages::send(&stream, Kind::Options, b"", Some(options.as_fd()))?;
        }
    }
    let mut line = Vec::new();
    let mut piece = [0; 512];
    while !line.ends_with(b"\n") && line.len() < ANSWER_MAX {
        stream.set_read_timeout(Some(left(deadline)?))?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(len) => line.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(late()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(String::from_utf8_lossy(&line).into_owned())
}

#[cfg(test)]
mod tests;
