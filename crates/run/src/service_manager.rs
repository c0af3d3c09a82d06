//! systemd and programs like it: sockets that they opened for this process, and messages to them.

use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

use crate::sys;

/// First descriptor of a passed socket.
const FIRST: i32 = 3;
/// Maximum number of passed sockets.
const SOCKETS_MAX: i32 = 64;

/// Takes the listening sockets of TCP that the service manager opened for this process, as `LISTEN_PID` and `LISTEN_FDS`
/// tell. Empty if it opened none. Call it once.
pub fn inherited_listeners() -> io::Result<Vec<TcpListener>> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<i64>().ok());
    if number("LISTEN_PID") != Some(i64::from(std::process::id())) {
        return Ok(Vec::new());
    }
    let count = number("LISTEN_FDS").unwrap_or(0);
    let count = i32::try_from(count).ok().filter(|count| (0..=SOCKETS_MAX).contains(count));
    let count = count.ok_or_else(|| io::Error::other("LISTEN_FDS is no small number"))?;
    let sockets = sys::inherited_sockets(FIRST, count)?;
    sockets
        .into_iter()
        .map(|socket| {
            if !rustix::net::sockopt::socket_acceptconn(&socket)? {
                return Err(io::Error::other("a passed socket doesn't listen"));
            }
            let listener = TcpListener::from(socket);
            listener.local_addr()?;
            Ok(listener)
        })
        .collect()
}

/// Connection to the service manager, for states such as `READY=1`. A process makes it before it is confined.
#[derive(Debug, Default)]
pub struct Manager(Option<UnixDatagram>);

impl Manager {
    /// Connects to the service manager, if it listens.
    pub fn connect() -> io::Result<Self> {
        let Some(path) = std::env::var_os("NOTIFY_SOCKET") else { return Ok(Self(None)) };
        let address = match path.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&path)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        Ok(Self(Some(socket)))
    }

    /// Tells the service manager a state. Nothing is sent to an address.
    pub fn tell(&self, state: &str) -> io::Result<()> {
        self.0.iter().try_for_each(|socket| Ok(rustix::io::write(socket, state.as_bytes()).map(drop)?))
    }

    /// Returns the socket, if the manager listens.
    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(UnixDatagram::as_fd)
    }
}
