//! Sends events to the journal of systemd, by its native protocol: one datagram with fields.
//!
//! The protocol is described at <https://systemd.io/JOURNAL_NATIVE_PROTOCOL/>. Own code, because the library waits for a
//! journal that reads nothing, and a mount must not.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use serde_json::Value;
use tracing::Level;

use super::record::Record;

const SOCKET: &str = "/run/systemd/journal/socket";

/// Socket of the journal.
pub(super) struct Journal {
    socket: UnixDatagram,
    /// Path of the journal's socket; `None` once the socket is connected.
    path: Option<PathBuf>,
}

impl Journal {
    pub(super) fn open() -> io::Result<Self> {
        Self::at(Path::new(SOCKET))
    }

    fn at(path: &Path) -> io::Result<Self> {
        let socket = UnixDatagram::unbound()?;
        socket.set_nonblocking(true)?;
        Ok(Self { socket, path: Some(path.to_owned()) })
    }

    /// Connects the socket, for a process that may send to no address.
    pub(super) fn connect(self) -> io::Result<Self> {
        if let Some(path) = &self.path {
            self.socket.connect(path)?;
        }
        Ok(Self { path: None, ..self })
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Sends an event; fails if the journal can't take it now.
    pub(super) fn send(&self, record: &Record) -> io::Result<()> {
        let datagram = datagram(record);
        match &self.path {
            Some(path) => self.socket.send_to(&datagram, path).map(drop),
            None => Ok(rustix::io::write(&self.socket, &datagram).map(drop)?),
        }
    }
}

fn datagram(record: &Record) -> Vec<u8> {
    // Severities of syslog.
    let priority = match record.level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        _ => "7",
    };
    let mut bytes = Vec::new();
    add(&mut bytes, "PRIORITY", priority);
    add(&mut bytes, "SYSLOG_IDENTIFIER", "esker");
    add(&mut bytes, "ESKER_TARGET", &record.target);
    if let Some((file, line)) = record.place {
        add(&mut bytes, "CODE_FILE", file);
        add(&mut bytes, "CODE_LINE", &line.to_string());
    }
    if let Some((mountpoint, repository)) = &record.mount {
        add(&mut bytes, "ESKER_MOUNT", mountpoint);
        add(&mut bytes, "ESKER_REPOSITORY", repository);
    }
    add(&mut bytes, "MESSAGE", &record.message);
    for (name, value) in &record.fields {
        let text = value.as_str().map_or_else(|| Value::to_string(value), str::to_owned);
        add(&mut bytes, &format!("ESKER_{}", name.to_ascii_uppercase().replace('.', "_")), &text);
    }
    bytes
}

/// Adds a field; a value of several lines has its length before it.
fn add(bytes: &mut Vec<u8>, name: &str, value: &str) {
    bytes.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        bytes.push(b'\n');
        bytes.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        bytes.push(b'=');
    }
    bytes.extend_from_slice(value.as_bytes());
    bytes.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logging::record::tests::records;

    #[test]
    fn an_event_is_one_datagram_of_fields() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let receiver = UnixDatagram::bind(&path).expect("a socket");
        let mut records = records(|| tracing::error!(target: "esker_fuse", opcode = 15_u64, "one\ntwo"));
        assert!(records[0].place.is_some_and(|(file, line)| file.ends_with("journal.rs") && line > 0));
        records[0].place = Some(("a.rs", 7));
        records[0].mount = Some(("/m".into(), "a.test".into()));
        Journal::at(&path).expect("a journal").send(&records[0]).expect("sent");
        let mut buffer = [0; 1024];
        let len = receiver.recv(&mut buffer).expect("a datagram");
        let connected = Journal::at(&path).expect("a journal").connect().expect("a connection");
        connected.send(&records[0]).expect("sent");
        let mut again = [0; 1024];
        assert_eq!(receiver.recv(&mut again).expect("a datagram"), len);
        assert_eq!(again, buffer);
        let expected = b"PRIORITY=3\nSYSLOG_IDENTIFIER=esker\nESKER_TARGET=fuse\n\
                         CODE_FILE=a.rs\nCODE_LINE=7\nESKER_MOUNT=/m\nESKER_REPOSITORY=a.test\nMESSAGE\n\x07\0\0\0\0\0\0\0one\ntwo\nESKER_OPCODE=15\n";
        assert_eq!(buffer[..len].escape_ascii().to_string(), expected.escape_ascii().to_string());
    }

    #[test]
    fn a_journal_that_reads_nothing_delays_no_event() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        let records = records(|| tracing::info!("line"));
        let journal = Journal::at(&path).expect("a journal");
        assert!(journal.send(&records[0]).is_err(), "no socket");
        let _full = UnixDatagram::bind(&path).expect("a socket");
        // More than any queue holds.
        assert!((0..5000).any(|_| journal.send(&records[0]).is_err()));
    }
}
