//! Client of traces: subscribes at the control socket of a mount and reads its lines.

use std::io::{self, BufRead, BufReader, Read};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use super::wire::{TraceLine, TraceRequest, TraceStart};
use crate::control::{Request, Response, send};

/// Maximum length of a line in bytes: a path and a URL.
const LINE_MAX: u64 = 64 * 1024;

/// A subscription to the trace of one mount.
#[derive(Debug)]
pub struct Subscription {
    /// Facts of the mount.
    pub start: TraceStart,
    reader: BufReader<UnixStream>,
}

/// Ends a subscription from another thread.
#[derive(Debug)]
pub struct Stop(UnixStream);

impl Stop {
    /// Asks the daemon to end the trace; the lines until then still come.
    pub fn stop(&self) {
        // If it fails, the connection is closed already.
        let _ = self.0.shutdown(Shutdown::Write);
    }

    /// Ends the connection, whatever the daemon does.
    pub fn cut(&self) {
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

impl Subscription {
    /// Subscribes at a control socket; the daemon has to reply within `patience`.
    pub fn begin(socket: &Path, request: &TraceRequest, patience: Duration) -> io::Result<Self> {
        Self::on(UnixStream::connect(socket)?, request, patience)
    }

    /// Subscribes on a connection to a control socket.
    pub fn on(stream: UnixStream, request: &TraceRequest, patience: Duration) -> io::Result<Self> {
        let deadline = Instant::now() + patience;
        stream.set_write_timeout(Some(patience))?;
        send(&stream, &Request::Trace(request.clone()))?;
        let mut reader = BufReader::new(stream);
        let response = first_line(&mut reader, deadline)?;
        let start = match serde_json::from_slice(&response)? {
            Response::Tracing(start) => *start,
            Response::Failed { message } => return Err(io::Error::other(message)),
            other => return Err(io::Error::other(format!("it answered {other:?}"))),
        };
        reader.get_ref().set_read_timeout(None)?;
        Ok(Self { start, reader })
    }

    /// Returns the handle that ends the subscription.
    pub fn stopper(&self) -> io::Result<Stop> {
        self.reader.get_ref().try_clone().map(Stop)
    }

    /// Waits for the next line; `None` if the connection ended without [`TraceLine::End`].
    pub fn next_line(&mut self) -> io::Result<Option<TraceLine>> {
        let mut line = Vec::new();
        (&mut self.reader).take(LINE_MAX).read_until(b'\n', &mut line)?;
        if line.is_empty() {
            return Ok(None);
        }
        Ok(Some(serde_json::from_slice(&line)?))
    }
}

/// Reads the first line, all of which has to come by `deadline`.
fn first_line(reader: &mut BufReader<UnixStream>, deadline: Instant) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    while !line.ends_with(b"\n") && (line.len() as u64) < LINE_MAX {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "no answer came in time"));
        }
        reader.get_ref().set_read_timeout(Some(left))?;
        let piece = match reader.fill_buf() {
            Ok(piece) => piece,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                continue;
            }
            Err(error) => return Err(error),
        };
        if piece.is_empty() {
            break;
        }
        let len = piece.iter().position(|byte| *byte == b'\n').map_or(piece.len(), |at| at + 1);
        line.extend_from_slice(&piece[..len]);
        reader.consume(len);
    }
    Ok(line)
}
