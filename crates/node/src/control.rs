//! Control socket of a mount: one line of JSON as request, one as reply.
//!
//! Only the mounting user and root are served; a client that is slow or sends too much is disconnected.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use esker_cache_share::FileError;
use parking_lot::{Condvar, Mutex};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use serde::{Deserialize, Serialize};

use crate::revisions::Revisions;
use crate::status::MountStatus;
use crate::trace::{Activity, TraceRequest, TraceStart};

/// Maximum length of a request in bytes.
const REQUEST_MAX: u64 = 4 * 1024;
/// Maximum length of a reply in bytes: a status has at most a few dozen failures of a few kilobytes each.
const RESPONSE_MAX: u64 = 4 * 1024 * 1024;
/// Timeout for a client's request, and for reading the reply.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Maximum number of clients that are served at the same time.
const CLIENTS_MAX: usize = 16;
/// Maximum pause after a failed accept.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);

/// Request to a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "command")]
pub enum Request {
    /// Requests the status.
    Status,
    /// Requests the mounted and the server's revision; the server may take some seconds to reply.
    Revision {
        /// True to include the tagged revisions.
        tags: bool,
        /// Timeout in seconds.
        patience: u64,
    },
    /// Triggers a check for a new revision, and a switch to it.
    Update,
    /// Requests a trace: after the reply, lines follow until the client shuts its half of the connection down.
    Trace(TraceRequest),
    /// Requests the activity now.
    Activity,
    /// Gives up the place of a mount that is gone there, and that another mount namespace still has.
    Leave,
    /// Unmounts and ends the daemon.
    Unmount {
        /// True to detach a mount in use, which then ends with its last user.
        lazy: bool,
    },
}

/// Reply of a daemon.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "answer")]
pub enum Response {
    /// The status.
    Status(Box<MountStatus>),
    /// The revisions.
    Revision(Box<Revisions>),
    /// The trace begins.
    Tracing(Box<TraceStart>),
    /// The activity now.
    Activity(Box<Activity>),
    /// The check for a new revision is done.
    Updated {
        /// Revision that is mounted now.
        revision: u64,
        /// True if the revision differs from the one before.
        changed: bool,
        /// Reason why a newer revision, if there is one, could not be found.
        offline: Option<String>,
    },
    /// The operation succeeded.
    Done,
    /// The operation failed because programs use the mount.
    Busy {
        /// Text of the error.
        message: String,
    },
    /// The operation failed.
    Failed {
        /// Text of the error.
        message: String,
    },
}

/// Function that answers requests.
pub type Answer = Arc<dyn Fn(Request) -> Response + Send + Sync>;

/// Function that serves a trace until its client or the mount ends it.
pub(crate) type Stream = Arc<dyn Fn(&TraceRequest, UnixStream) -> io::Result<()> + Send + Sync>;

/// Sources of the answers of a control socket.
#[derive(Clone)]
struct Service {
    answer: Answer,
    stream: Option<Stream>,
}

/// A control socket in service until the process ends.
#[derive(Debug)]
pub struct Control {
    clients: Arc<Clients>,
}

/// Number of clients being served.
#[derive(Debug, Default)]
struct Clients {
    count: Mutex<usize>,
    changed: Condvar,
}

impl Control {
    /// Waits until all pending requests are answered, at most `patience`.
    pub fn drain(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        let mut count = self.clients.count.lock();
        while *count > 0 {
            if self.clients.changed.wait_until(&mut count, deadline).timed_out() {
                return;
            }
        }
    }
}

impl Clients {
    fn begin(&self) -> bool {
        let mut count = self.count.lock();
        let room = *count < CLIENTS_MAX;
        *count += usize::from(room);
        room
    }

    fn end(&self) {
        *self.count.lock() -= 1;
        self.changed.notify_all();
    }

    /// Waits until one of the requests is answered, at most `patience`.
    fn wait(&self, patience: Duration) {
        self.changed.wait_for(&mut self.count.lock(), patience);
    }
}

/// A control socket to which clients can connect; they wait until it is served.
#[derive(Debug)]
pub struct Listening {
    listener: UnixListener,
}

/// Begins to listen at `socket`.
pub fn listen(socket: &Path) -> Result<Listening, FileError> {
    // A killed daemon may have left one. We hold the registry's lock, so no process listens there. Any other file is
    // not ours.
    if std::fs::symlink_metadata(socket).is_ok_and(|facts| facts.file_type().is_socket()) {
        let _ = std::fs::remove_file(socket);
    }
    let listener = UnixListener::bind(socket).map_err(FileError::on("listen at", socket))?;
    Ok(Listening { listener })
}

impl From<Listening> for OwnedFd {
    fn from(listening: Listening) -> Self {
        listening.listener.into()
    }
}

impl Listening {
    /// Resumes the socket of another process, at which clients may wait already.
    pub fn resume(listener: OwnedFd) -> Self {
        Self { listener: listener.into() }
    }

    /// Returns the descriptor of the socket.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Answers requests from now on; failures of the socket itself are logged.
    pub fn serve(self, answer: Answer) -> io::Result<Control> {
        self.serve_as(Service { answer, stream: None })
    }

    /// Answers requests and serves traces from now on.
    pub(crate) fn serve_with_traces(self, answer: Answer, stream: Stream) -> io::Result<Control> {
        self.serve_as(Service { answer, stream: Some(stream) })
    }

    fn serve_as(self, service: Service) -> io::Result<Control> {
        let accept = move || self.listener.accept().map(|(client, _)| client);
        serve_all(accept, service)
    }
}

fn serve_all(
    accept: impl Fn() -> io::Result<UnixStream> + Send + 'static,
    service: Service,
) -> io::Result<Control> {
    let clients = Arc::<Clients>::default();
    let theirs = clients.clone();
    esker_threads::spawn("control", move || accept_all(&accept, &service, &theirs))?;
    Ok(Control { clients })
}

/// Accepts until the process ends: a mount that no longer listens could not be unmounted by its user.
fn accept_all(accept: &impl Fn() -> io::Result<UnixStream>, service: &Service, clients: &Arc<Clients>) {
    let mut failing = false;
    loop {
        let client = match accept() {
            Ok(client) => client,
            Err(error) => {
                // Most likely the process is out of descriptors or memory. Clients free theirs, and so does the cache,
                // without a notification: so accept is also retried after a while, during which connections wait in
                // the socket's queue. Logged once, until it works again.
                if !std::mem::replace(&mut failing, true) {
                    tracing::error!("the control socket can't accept connections, retrying: {error}");
                }
                clients.wait(ACCEPT_AGAIN);
                continue;
            }
        };
        failing = false;
        // Excess clients are disconnected.
        if !esker_cache_share::peer::is_trusted(&client) || !clients.begin() {
            continue;
        }
        let (service, theirs) = (service.clone(), Arc::clone(clients));
        let spawned = esker_threads::spawn("control-client", move || {
            // The client may have disconnected.
            let _ = serve(client, &service);
            theirs.end();
        });
        if spawned.is_err() {
            clients.end();
        }
    }
}

fn serve(client: UnixStream, service: &Service) -> io::Result<()> {
    client.set_read_timeout(Some(CLIENT_TIMEOUT))?;
    client.set_write_timeout(Some(CLIENT_TIMEOUT))?;
    let mut line = Vec::new();
    BufReader::new((&client).take(REQUEST_MAX)).read_until(b'\n', &mut line)?;
    let response = match serde_json::from_slice(&line) {
        Ok(Request::Trace(request)) if let Some(stream) = &service.stream => return stream(&request, client),
        Ok(request) => (service.answer)(request),
        Err(error) => Response::Failed { message: format!("the request isn't understood: {error}") },
    };
    send(&client, &response)
}

pub(crate) fn send(mut to: &UnixStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    to.write_all(&line)
}

/// Sends a request to the daemon at `socket`; waits at most `patience` for the reply.
pub fn ask(socket: &Path, request: &Request, patience: Duration) -> Result<Response, FileError> {
    let talk = || -> io::Result<Response> {
        let stream = UnixStream::connect(socket)?;
        ask_on(&stream, request, Instant::now() + patience)
    };
    talk()
        .map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => {
                let text = format!("no answer came within {} s", patience.as_secs_f32());
                io::Error::new(io::ErrorKind::TimedOut, text)
            }
            _ => error,
        })
        .map_err(FileError::on("ask the daemon at", socket))
}

/// Sends a request to the daemon at `socket`, whose whole reply has to arrive by `deadline`. Doesn't wait for a daemon
/// that accepts no connections.
pub fn ask_by(socket: &Path, request: &Request, deadline: Instant) -> io::Result<Response> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let stream = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&stream, &SocketAddrUnix::new(socket)?)?;
    let stream = UnixStream::from(stream);
    stream.set_nonblocking(false)?;
    ask_on(&stream, request, deadline)
}

/// Sends a request on a connection. The whole reply has to arrive by `deadline`.
pub(crate) fn ask_on(mut stream: &UnixStream, request: &Request, deadline: Instant) -> io::Result<Response> {
    let left = || {
        let left = deadline.saturating_duration_since(Instant::now());
        // Of a zero the system would make that there is no deadline.
        if left.is_zero() { Err(io::Error::from(io::ErrorKind::WouldBlock)) } else { Ok(Some(left)) }
    };
    stream.set_write_timeout(left()?)?;
    send(stream, request)?;
    let mut line = Vec::new();
    let mut piece = vec![0; 64 * 1024];
    while !line.ends_with(b"\n") && (line.len() as u64) < RESPONSE_MAX {
        stream.set_read_timeout(left()?)?;
        match stream.read(&mut piece) {
            Ok(0) => break,
            Ok(len) => line.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(serde_json::from_slice(&line)?)
}

#[cfg(test)]
mod tests {
    use esker_testkit::log_lines::LogLines;

    use super::*;

    #[test]
    fn listening_does_not_replace_a_file_that_is_no_socket() {
        let base = tempfile::tempdir().expect("a directory");
        let path = base.path().join("s");
        std::fs::write(&path, "content").expect("a file");
        listen(&path).expect_err("a file is there");
        assert_eq!(std::fs::read_to_string(&path).expect("the file"), "content");
    }

    fn listening(answer: Answer) -> (tempfile::TempDir, std::path::PathBuf) {
        let base = tempfile::tempdir().expect("a directory");
        let socket = base.path().join("s");
        listen(&socket).expect("listening").serve(answer).expect("serving");
        (base, socket)
    }

    /// A stopped daemon accepts connections and sends nothing.
    #[test]
    fn a_missing_reply_is_reported() {
        let base = tempfile::tempdir().expect("a directory");
        let socket = base.path().join("s");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).expect("listening");
        let error = ask(&socket, &Request::Status, Duration::from_millis(10)).expect_err("no answer");
        assert_eq!(error.source.kind(), io::ErrorKind::TimedOut, "{}", error.source);
        assert!(error.source.to_string().contains("no answer"), "{}", error.source);
    }

    #[test]
    fn a_request_gets_its_reply() {
        let (_base, socket) = listening(Arc::new(|request| match request {
            Request::Unmount { lazy: true } => Response::Done,
            _ => Response::Busy { message: "in use".into() },
        }));
        let patience = Duration::from_secs(30);
        let done = ask(&socket, &Request::Unmount { lazy: true }, patience).expect("answer");
        assert_eq!(done, Response::Done);
        let busy = ask(&socket, &Request::Unmount { lazy: false }, patience).expect("answer");
        assert_eq!(busy, Response::Busy { message: "in use".into() });
    }

    #[test]
    fn invalid_requests_are_answered_and_endless_ones_are_cut() {
        let (_base, socket) = listening(Arc::new(|_| Response::Done));
        for nonsense in [b"{}\n".to_vec(), b"\xff\xfe\n".to_vec(), vec![b'x'; 2 * REQUEST_MAX as usize]] {
            let mut stream = UnixStream::connect(&socket).expect("connect");
            // The far end may hang up before all of it is written.
            let _ = stream.write_all(&nonsense);
            let mut text = String::new();
            let _ = stream.read_to_string(&mut text);
            assert!(text.is_empty() || text.contains("isn't understood"), "{text}");
        }
        let answer = ask(&socket, &Request::Status, Duration::from_secs(30)).expect("still there");
        assert_eq!(answer, Response::Done);
    }

    #[test]
    fn a_lack_of_descriptors_is_logged_once_and_survived() {
        let base = tempfile::tempdir().expect("a directory");
        let socket = base.path().join("s");
        let listener = UnixListener::bind(&socket).expect("listening");
        let failures = Arc::new(Mutex::new(3));
        let left = failures.clone();
        let accept = move || {
            let mut left = left.lock();
            if *left > 0 {
                *left -= 1;
                return Err(io::Error::from_raw_os_error(libc::EMFILE));
            }
            drop(left);
            listener.accept().map(|(client, _)| client)
        };
        let lines = LogLines::collect();
        serve_all(accept, Service { answer: Arc::new(|_| Response::Done), stream: None }).expect("serving");
        let answer = ask(&socket, &Request::Status, Duration::from_secs(30)).expect("an answer");
        assert_eq!((answer, *failures.lock()), (Response::Done, 0));
        let said = lines.all();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("os error 24"), "{said:?}");
    }
}
