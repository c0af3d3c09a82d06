//! Copies a mount's log to the system's log: datagrams to its socket, or a file.
//!
//! A site that looks for fail-overs in its logs finds those of this client in the same place as the reference's.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use esker_config::{SyslogOptions, SyslogTarget};
use esker_store::changeable_way;
use parking_lot::Mutex;

use crate::sys;

/// Size in bytes at which a log file is rotated, as in the reference.
const FILE_MAX: u64 = 500 * 1024;
/// Longer lines are cut: RFC 3164 has 1024 bytes a packet.
const LINE_MAX: usize = 900;
/// Syslog severity of errors (RFC 3164, 4.1.1).
const ERROR: u8 = 3;
const DEBUG: u8 = 7;
/// `user`, and the first of `local0` to `local7`.
const USER: u8 = 1;
const LOCAL: u8 = 16;

/// Severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyslogSeverity {
    /// An error.
    Error,
    /// The severity that the options name.
    Configured,
    /// A line for developers.
    Debug,
}

/// Connection to the system's log. Its failures are ignored and delay nothing: there is a log beside it.
#[derive(Debug)]
pub struct Syslog {
    options: SyslogOptions,
    socket: Option<UnixDatagram>,
    /// True if the socket is connected, and a line needs no address.
    is_connected: bool,
    file: Mutex<()>,
}

impl Syslog {
    /// Opens a socket for the destination. Refuses a file to which other users can make its path lead elsewhere.
    pub fn new(options: SyslogOptions) -> io::Result<Self> {
        let socket = match options.to {
            SyslogTarget::Socket(_) => {
                let socket = UnixDatagram::unbound()?;
                socket.set_nonblocking(true)?;
                Some(socket)
            }
            SyslogTarget::File(ref path) => {
                if let Some(part) = changeable_way(path)? {
                    let why = format!("other users can change {}, on the way to the log", part.display());
                    return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
                }
                None
            }
        };
        Ok(Self { options, socket, is_connected: false, file: Mutex::default() })
    }

    /// Connects the socket, for a process that may send to no address. A log that is started again is then out of reach.
    pub fn connect(mut self) -> io::Result<Self> {
        if let (SyslogTarget::Socket(path), Some(socket)) = (&self.options.to, &self.socket) {
            socket.connect(path)?;
            self.is_connected = true;
        }
        Ok(self)
    }

    /// Returns the socket; `None` for a file.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.socket.as_ref().map(UnixDatagram::as_fd)
    }

    /// Sends a line; returns false if that is not possible now.
    pub fn line(&self, severity: SyslogSeverity, text: &str) -> bool {
        let line = self.compose(severity, text, SystemTime::now());
        match (&self.options.to, &self.socket) {
            (SyslogTarget::Socket(_), Some(socket)) if self.is_connected => {
                rustix::io::write(socket, line.as_bytes()).is_ok()
            }
            // Without a connection, so that another process may listen there the next time.
            (SyslogTarget::Socket(path), Some(socket)) => socket.send_to(line.as_bytes(), path).is_ok(),
            (SyslogTarget::File(path), _) => {
                let _one_after_the_other = self.file.lock();
                append(path, &line).is_ok()
            }
            (SyslogTarget::Socket(_), None) => false,
        }
    }

    fn compose(&self, severity: SyslogSeverity, text: &str, time: SystemTime) -> String {
        let SyslogOptions { to, local, severity: configured, prefix } = &self.options;
        let facility = local.map_or(USER, |local| LOCAL + local);
        let severity = match severity {
            SyslogSeverity::Error => ERROR,
            SyslogSeverity::Configured => *configured,
            SyslogSeverity::Debug => DEBUG,
        };
        let priority = facility * 8 + severity;
        let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let pid = std::process::id();
        // One line each, whatever a server or a path put into it.
        let mut text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let end = (0..=LINE_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        let prefix = if prefix.is_empty() { String::new() } else { format!("({prefix}) ") };
        let line = format!("{} esker[{pid}]: {prefix}{text}", sys::local_time(seconds));
        match to {
            SyslogTarget::Socket(_) => format!("<{priority}>{line}"),
            SyslogTarget::File(_) => line + "\n",
        }
    }
}

/// Adds a line to a file; a file that is long enough is renamed first, replacing the one before.
fn append(path: &Path, line: &str) -> io::Result<()> {
    let mut file = open(path)?;
    if file.metadata()?.size() >= FILE_MAX {
        let mut aside = path.as_os_str().to_owned();
        aside.push(".1");
        fs::rename(path, &aside)?;
        file = open(path)?;
    }
    file.write_all(line.as_bytes())
}

/// Opens regular files with one name only: opening a pipe would wait for a reader, and another name may be that of a file
/// elsewhere.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options
        .append(true)
        .create(true)
        .mode(0o644)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(path)?;
    let facts = file.metadata()?;
    if facts.is_file() && facts.nlink() <= 1 { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(to: SyslogTarget) -> SyslogOptions {
        SyslogOptions { to, local: Some(2), severity: 6, prefix: "a.test".into() }
    }

    #[test]
    fn lines_have_the_format_of_rfc_3164() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        socket.set_nonblocking(true).expect("not to wait");
        let syslog = Syslog::new(options(SyslogTarget::Socket(path.clone()))).expect("a way");
        let mut buffer = [0; 4096];
        let mut received = || {
            let len = socket.recv(&mut buffer).expect("a datagram");
            String::from_utf8(buffer[..len].to_vec()).expect("text")
        };
        assert!(syslog.line(SyslogSeverity::Configured, "proxy a left\nfor b"));
        let line = received();
        let (head, text) = line.split_once(" esker[").expect("a tag");
        // local2 is 18; information is 6.
        assert!(head.starts_with("<150>") && head.len() == "<150>".len() + "Jan  1 00:00:00".len(), "{line}");
        assert_eq!(text, format!("{}]: (a.test) proxy a left for b", std::process::id()));
        assert!(syslog.line(SyslogSeverity::Error, &"ü".repeat(2000)));
        let line = received();
        assert!(line.starts_with("<147>") && line.len() < 1024, "{line}");
        let user =
            Syslog::new(SyslogOptions { local: None, severity: 5, ..options(SyslogTarget::Socket(path)) });
        assert!(user.expect("a way").line(SyslogSeverity::Configured, "x"));
        assert!(received().starts_with("<13>"));
    }

    #[test]
    fn an_unread_socket_delays_no_other_client() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let syslog = Syslog::new(options(SyslogTarget::Socket(path.clone()))).expect("a way");
        assert!(!syslog.line(SyslogSeverity::Error, "there is no socket"));
        let full = UnixDatagram::bind(&path).expect("a socket");
        // More than any queue holds; this ends because none of them waits.
        assert!((0..5000).any(|number| !syslog.line(SyslogSeverity::Debug, &format!("line {number}"))));
        let mut buffer = [0; 1024];
        assert!(full.recv(&mut buffer).is_ok());
    }

    #[test]
    fn a_file_that_others_can_make_another_one_is_not_written_to() {
        let folder = tempfile::tempdir().expect("a folder");
        let (log, victim) = (folder.path().join("log"), folder.path().join("victim"));
        fs::write(&victim, "x").expect("a file");
        for plant in [fs::hard_link, |from, to| std::os::unix::fs::symlink(from, to)] {
            plant(&victim, &log).expect("a second name");
            let syslog = Syslog::new(options(SyslogTarget::File(log.clone()))).expect("a way");
            assert!(!syslog.line(SyslogSeverity::Error, "y"));
            assert_eq!(fs::read_to_string(&victim).expect("a file"), "x");
            fs::remove_file(&log).expect("removing");
        }
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(folder.path(), open).expect("a mode");
        let refused = Syslog::new(options(SyslogTarget::File(log))).expect_err("a folder of all");
        assert!(refused.to_string().contains("on the way to the log"), "{refused}");
    }

    #[test]
    fn a_long_log_file_is_rotated() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mounts.log");
        let syslog = Syslog::new(options(SyslogTarget::File(path.clone()))).expect("a way");
        assert!(syslog.line(SyslogSeverity::Configured, "first"));
        let text = fs::read_to_string(&path).expect("the file");
        assert!(text.ends_with("]: (a.test) first\n") && !text.starts_with('<'), "{text}");
        fs::write(&path, vec![b'x'; usize::try_from(FILE_MAX).expect("small")]).expect("a long file");
        assert!(syslog.line(SyslogSeverity::Configured, "second"));
        assert_eq!(fs::metadata(folder.path().join("mounts.log.1")).expect("aside").len(), FILE_MAX);
        assert_eq!(fs::read_to_string(&path).expect("the file").lines().count(), 1);
    }
}
