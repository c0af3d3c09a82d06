//! Requests to start a daemon of another program, over a socket in the runtime folder.
//!
//! The client sends the program as a descriptor, and gets a line: `ok` and the process id, or `failed` and the reason.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use esker_fuse::mount::{receive_device, send_device};

/// Time limit of a client to send its request.
const CLIENT_PATIENCE: Duration = Duration::from_secs(5);
/// Time limit of an upgrade and of its roll-back.
const PATIENCE: Duration = Duration::from_secs(120);
/// Maximum length of an answer in bytes.
const ANSWER_MAX: u64 = 4096;

/// An upgrade in progress.
pub(super) struct Upgrade {
    client: UnixStream,
    /// The new program, until it is started.
    pub(super) next: Option<File>,
    /// The program before, while the new one is not proven.
    pub(super) previous: Option<File>,
}

impl Upgrade {
    pub(super) fn answer(mut self, line: &str) {
        // The client may be gone.
        let _ = writeln!(self.client, "{}", line.replace('\n', " "));
    }
}

/// Reads the request of a client of this user or root.
pub(super) fn accept(client: UnixStream) -> Option<Upgrade> {
    if !esker_cache_share::peer::is_trusted(&client) {
        return None;
    }
    client.set_read_timeout(Some(CLIENT_PATIENCE)).ok()?;
    client.set_write_timeout(Some(CLIENT_PATIENCE)).ok()?;
    let program = File::from(receive_device(&client).ok()?);
    Some(Upgrade { client, next: Some(program), previous: None })
}

/// Failures of an upgrade.
#[derive(Debug, thiserror::Error)]
pub enum UpgradeError {
    /// The mount has no supervisor, or it doesn't answer.
    #[error("its supervisor doesn't answer")]
    Unreachable(#[source] io::Error),
    /// The new program didn't serve the mount.
    #[error("{0}")]
    RolledBack(String),
}

/// Has the supervisor of `user` at `socket` replace the daemon by one of `program`; returns the new process id. Blocks until the
/// new daemon serves, or the old program does again.
pub fn request(socket: &Path, user: u32, program: &OwnedFd) -> Result<u32, UpgradeError> {
    let line = || -> io::Result<String> {
        let stream = UnixStream::connect(socket)?;
        if esker_cache_share::peer::user(&stream) != Some(user) {
            return Err(io::Error::other("another user answers"));
        }
        stream.set_read_timeout(Some(PATIENCE))?;
        send_device(&stream, program.as_fd())?;
        let mut line = String::new();
        BufReader::new(stream.take(ANSWER_MAX)).read_line(&mut line)?;
        Ok(line)
    };
    let line = line().map_err(UpgradeError::Unreachable)?;
    match line.trim_end().split_once(' ') {
        Some(("ok", pid)) => {
            pid.parse().map_err(|_| UpgradeError::RolledBack("its answer isn't understood".into()))
        }
        Some(("failed", why)) => Err(UpgradeError::RolledBack(why.to_owned())),
        _ => Err(UpgradeError::Unreachable(io::ErrorKind::UnexpectedEof.into())),
    }
}
