//! Copies a mount's log to the system's log: datagrams to its socket, or a file.
//!
//! A site that looks for fail-overs in its logs finds those of this client in the same place as the reference's.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use esker_config::{SyslogOptions, SyslogTarget};
use parking_lot::Mutex;

use crate::sys;

/// Size in bytes at which a log file is rotated, as in the reference.
const FILE_MAX: u64 = 500 * 1024;
/// Longer lines are cut: RFC 3164 has 1024 bytes a packet.
const LINE_MAX: usize = 900;
/// Syslog severity of errors (RFC 3164, 4.1.1).
const ERROR: u8 = 3;
/// `user`, and the first of `local0` to `local7`.
const USER: u8 = 1;
const LOCAL: u8 = 16;

/// Connection to the system's log. Its failures are ignored and delay nothing: there is a log beside it.
#[derive(Debug)]
pub struct Syslog {
    options: SyslogOptions,
    socket: Option<UnixDatagram>,
    file: Mutex<()>,
}

impl Syslog {
    /// Opens a socket for the destination.
    pub fn new(options: SyslogOptions) -> io::Result<Self> {
        let socket = match options.to {
            SyslogTarget::Socket(_) => {
                let socket = UnixDatagram::unbound()?;
                socket.set_nonblocking(true)?;
                Some(socket)
            }
            SyslogTarget::File(_) => None,
        };
        Ok(Self { options, socket, file: Mutex::default() })
    }

    /// Sends a line, and forgets it if that is not possible now.
    pub fn line(&self, is_error: bool, text: &str) {
        let line = self.compose(is_error, text, SystemTime::now());
        match (&self.options.to, &self.socket) {
            // Without a connection, so that another process may listen there the next time.
            (SyslogTarget::Socket(path), Some(socket)) => _ = socket.send_to(line.as_bytes(), path),
            (SyslogTarget::File(path), _) => {
                let _one_after_the_other = self.file.lock();
                let _ = append(path, &line);
            }
            (SyslogTarget::Socket(_), None) => {}
        }
    }

    fn compose(&self, is_error: bool, text: &str, time: SystemTime) -> String {
        let SyslogOptions { to, local, severity, prefix } = &self.options;
        let facility = local.map_or(USER, |local| LOCAL + local);
        let priority = facility * 8 + if is_error { ERROR } else { *severity };
        let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let pid = std::process::id();
        // One line each, whatever a server or a path put into it.
        let mut text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let end = (0..=LINE_MAX.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
        text.truncate(end.unwrap_or(0));
        let line = format!("{} esker[{pid}]: ({prefix}) {text}", sys::local_time(seconds));
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

/// Opens regular files only: opening a pipe would wait for a reader.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    let file = options
        .append(true)
        .create(true)
        .mode(0o644)
        .custom_flags(libc::O_NONBLOCK | libc::O_NOFOLLOW)
        .open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::ErrorKind::InvalidInput.into()) }
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
        syslog.line(false, "proxy a left\nfor b");
        let line = received();
        let (head, text) = line.split_once(" esker[").expect("a tag");
        // local2 is 18; information is 6.
        assert!(head.starts_with("<150>") && head.len() == "<150>".len() + "Jan  1 00:00:00".len(), "{line}");
        assert_eq!(text, format!("{}]: (a.test) proxy a left for b", std::process::id()));
        syslog.line(true, &"ü".repeat(2000));
        let line = received();
        assert!(line.starts_with("<147>") && line.len() < 1024, "{line}");
        let user =
            Syslog::new(SyslogOptions { local: None, severity: 5, ..options(SyslogTarget::Socket(path)) });
        user.expect("a way").line(false, "x");
        assert!(received().starts_with("<13>"));
    }

    #[test]
    fn an_unread_socket_delays_no_other_client() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("log");
        let syslog = Syslog::new(options(SyslogTarget::Socket(path.clone()))).expect("a way");
        syslog.line(true, "nobody listens");
        let full = UnixDatagram::bind(&path).expect("a socket");
        // More than any queue holds; this ends because none of them waits.
        (0..5000).for_each(|number| syslog.line(false, &format!("line {number}")));
        let mut buffer = [0; 1024];
        assert!(full.recv(&mut buffer).is_ok());
    }

    #[test]
    fn a_long_log_file_is_rotated() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("mounts.log");
        let syslog = Syslog::new(options(SyslogTarget::File(path.clone()))).expect("a way");
        syslog.line(false, "first");
        let text = fs::read_to_string(&path).expect("the file");
        assert!(text.ends_with("]: (a.test) first\n") && !text.starts_with('<'), "{text}");
        fs::write(&path, vec![b'x'; usize::try_from(FILE_MAX).expect("small")]).expect("a long file");
        syslog.line(false, "second");
        assert_eq!(fs::metadata(folder.path().join("mounts.log.1")).expect("aside").len(), FILE_MAX);
        assert_eq!(fs::read_to_string(&path).expect("the file").lines().count(), 1);
    }
}
