//! Socket of a cache directory's writer, in that directory.
//!
//! Paths of sockets are short (107 bytes), paths of cache directories need not be; both ends therefore name the
//! directory by a descriptor.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, connect, listen, socket_with,
    sockopt,
};
use serde::{Deserialize, Serialize};

use super::writer::BrokerAddress;
use crate::memory::is_memory;
use crate::peer::{self, Peer};
use crate::socket_place::SocketPlace;

/// The socket's name in the cache directory.
const NAME: &str = "broker";

/// Length of the queue of clients that are not accepted yet.
const BACKLOG: i32 = 128;

fn address(directory: &File, name: &str) -> io::Result<SocketAddrUnix> {
    let path = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
    Ok(SocketAddrUnix::new(path.as_str())?)
}

fn new_socket() -> io::Result<OwnedFd> {
    Ok(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
}

/// A Unix socket that a process needs for its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum CacheSocket {
    /// Listens in the cache directory, whose lock the process holds.
    Listening,
    /// Is connected to the writer of the cache.
    ToWriter,
    /// Is connected to the broker of the node.
    ToBroker,
}

type Maker = Box<dyn Fn(CacheSocket) -> io::Result<OwnedFd> + Send + Sync>;

/// Maker of the sockets of a confined process.
static MAKER: OnceLock<Maker> = OnceLock::new();

/// Has the sockets of this process, which may make none, made by another one. It has one cache, and one broker.
pub fn set_cache_sockets(make: Maker) {
    // Called once, at the start of a process.
    let _ = MAKER.set(make);
}

impl CacheSocket {
    /// Makes a socket of the cache at `cache`, in this process.
    pub fn make(self, cache: &Path, broker: Option<&BrokerAddress>) -> io::Result<OwnedFd> {
        match self {
            Self::Listening => {
                let (socket, path) = listening(cache)?;
                named(&path)?;
                Ok(socket)
            }
            Self::ToWriter => connected(&address(&File::open(cache)?, NAME)?),
            Self::ToBroker => {
                let broker = broker.ok_or(io::ErrorKind::NotFound)?;
                connected(&SocketAddrUnix::new(broker.socket.as_path())?)
            }
        }
    }

    /// Makes a socket of the cache at `cache`, in this process or in the one that does so for it.
    fn made(self, cache: &Path, broker: Option<&BrokerAddress>) -> io::Result<OwnedFd> {
        match MAKER.get() {
            // Memory is that of this process alone, and so is its cache.
            Some(_) if is_memory(cache) && self != Self::ToBroker => Err(io::ErrorKind::Unsupported.into()),
            Some(make) => make(self),
            None => self.make(cache, broker),
        }
    }
}

fn connected(address: &SocketAddrUnix) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    connect(&socket, address)?;
    Ok(socket)
}

/// A listening socket in a cache directory that no client finds yet. A process that will be confined makes it before, and
/// gives it its name once it holds the lock of the cache.
pub(crate) struct Unnamed(Listener);

impl Unnamed {
    /// Listens in `cache`.
    pub(crate) fn bind(cache: &Path) -> io::Result<Self> {
        let (socket, path) = listening(cache)?;
        Ok(Self(Listener { socket, path }))
    }

    /// Replaces the socket of a dead writer; the caller holds the lock of the cache.
    pub(crate) fn name(mut self) -> io::Result<Listener> {
        self.0.path = named(&self.0.path)?;
        Ok(self.0)
    }
}

/// Returns a socket that listens in `cache` under a name of this process.
fn listening(cache: &Path) -> io::Result<(OwnedFd, PathBuf)> {
    let name = format!("{NAME}.{}", std::process::id());
    let path = cache.join(&name);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = new_socket()?;
    bind(&socket, &address(&File::open(cache)?, &name)?)?;
    listen(&socket, BACKLOG)?;
    Ok((socket, path))
}

/// Gives a socket the name that clients know.
fn named(path: &Path) -> io::Result<PathBuf> {
    let name = path.with_file_name(NAME);
    std::fs::rename(path, &name)?;
    // Those of processes that were killed before they had the lock.
    if let Some(entries) = name.parent().and_then(|cache| std::fs::read_dir(cache).ok()) {
        let left = entries
            .flatten()
            .map(|entry| entry.path())
            .filter(|path| path.file_stem().is_some_and(|stem| stem == NAME) && path.extension().is_some());
        left.for_each(|path| drop(std::fs::remove_file(path)));
    }
    Ok(name)
}

/// A listening socket; its name is removed when this is dropped.
pub(crate) struct Listener {
    socket: OwnedFd,
    path: PathBuf,
}

impl Listener {
    /// Listens in `cache`, whose lock the caller holds, and replaces the socket of a dead writer.
    pub(crate) fn bind(cache: &Path) -> io::Result<Self> {
        Ok(Self { socket: CacheSocket::Listening.made(cache, None)?, path: cache.join(NAME) })
    }

    /// Listens at a path where every user may connect. Only this user may be able to change the folder; a dead socket
    /// is replaced.
    pub(crate) fn bind_for_all(path: &Path) -> io::Result<Self> {
        let folder = path.parent().ok_or(io::ErrorKind::InvalidInput)?;
        let facts = std::fs::symlink_metadata(folder)?;
        let me = rustix::process::geteuid().as_raw();
        if !facts.is_dir() || facts.uid() != me || facts.mode() & 0o022 != 0 {
            let why =
                format!("{} must be a folder of user {me} that no other user may write to", folder.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let address = SocketAddrUnix::new(path)?;
        match connect(new_socket()?, &address) {
            Ok(()) => {
                return Err(io::Error::new(io::ErrorKind::AddrInUse, "another broker listens there"));
            }
            Err(rustix::io::Errno::NOENT) => {}
            // A dead broker leaves a socket; any other file is not the broker's to remove.
            Err(_) if !std::fs::symlink_metadata(path)?.file_type().is_socket() => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    "the existing file is not a socket",
                ));
            }
            Err(_) => std::fs::remove_file(path)?,
        }
        let socket = new_socket()?;
        SocketPlace::open(path)?.bind(&socket, 0o666, |_| Ok(()))?;
        listen(&socket, BACKLOG)?;
        Ok(Self { socket, path: path.to_owned() })
    }

    /// Accepts the next client and returns its peer credentials; the host decides whether it is served.
    pub(super) fn accept(&self) -> io::Result<(OwnedFd, Peer)> {
        loop {
            match accept_with(&self.socket, SocketFlags::CLOEXEC) {
                Ok(client) => {
                    if let Some(peer) = Peer::of(&client) {
                        return Ok((client, peer));
                    }
                }
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Makes [`Listener::accept`] return with an error.
    pub(super) fn stop(&self) {
        // Fails only if it has been stopped before.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The next writer removes it if we can't.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Connects to the writer of `cache`.
pub(crate) fn dial(cache: &Path) -> io::Result<OwnedFd> {
    let socket = CacheSocket::ToWriter.made(cache, None)?;
    if !peer::is_trusted(&socket) {
        let why = "another user listens in this cache directory";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
    }
    Ok(socket)
}

/// Connects to the broker of a node, if a trusted user runs it.
pub(super) fn dial_broker(broker: &BrokerAddress) -> io::Result<OwnedFd> {
    let socket = CacheSocket::ToBroker.made(Path::new(""), Some(broker))?;
    // User of the process that listens there.
    match Peer::of(&socket) {
        Some(peer) if broker.trusted.contains(&peer.uid) => Ok(socket),
        _ => Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is not run by a user that is trusted")),
    }
}

/// Bounds the unread messages of a peer, and the descriptors in them.
pub(super) fn limit_unread(socket: impl AsFd, bytes: usize) -> io::Result<()> {
    Ok(sockopt::set_socket_send_buffer_size(socket, bytes)?)
}

/// Makes sends to a peer that reads nothing fail after `patience`.
pub(super) fn limit_sends(socket: impl AsFd, patience: Duration) -> io::Result<()> {
    Ok(sockopt::set_socket_timeout(socket, sockopt::Timeout::Send, Some(patience))?)
}

/// Bounds the time of receiving; `None` is no bound.
pub(crate) fn limit_receives(socket: impl AsFd, patience: Option<Duration>) -> io::Result<()> {
    Ok(sockopt::set_socket_timeout(socket, sockopt::Timeout::Recv, patience)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sockets_of_a_cache_are_made_for_another_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let make = |socket: CacheSocket| socket.make(folder.path(), None);
        let listening = make(CacheSocket::Listening).expect("a socket");
        make(CacheSocket::ToWriter).expect("connected");
        let names: Vec<_> = std::fs::read_dir(folder.path()).expect("the folder").flatten().collect();
        assert_eq!(names.iter().map(std::fs::DirEntry::file_name).collect::<Vec<_>>(), [NAME]);
        drop(listening);
        assert!(make(CacheSocket::ToWriter).is_err(), "no process listens");
        let broker = BrokerAddress { socket: folder.path().join(NAME), trusted: vec![], is_named: true };
        make(CacheSocket::Listening).map(drop).expect("the dead socket is replaced");
        assert_eq!(make(CacheSocket::ToBroker).expect_err("no broker").kind(), io::ErrorKind::NotFound);
        let dead = CacheSocket::ToBroker.make(folder.path(), Some(&broker)).expect_err("it is dead");
        assert_eq!(dead.kind(), io::ErrorKind::ConnectionRefused);
    }

    #[test]
    fn a_broker_replaces_a_dead_socket_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("socket");
        for _ in 0..2 {
            let listener = Listener::bind_for_all(&path).expect("listening");
            let taken = Listener::bind_for_all(&path).err().expect("another one listens");
            assert_eq!(taken.kind(), io::ErrorKind::AddrInUse);
            // As a killed broker leaves it.
            listener.stop();
            std::mem::forget(listener);
        }
        let file = folder.path().join("file");
        std::fs::write(&file, "content").expect("a file");
        let refused = Listener::bind_for_all(&file).err().expect("a file is there");
        assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&file).expect("the file"), "content");
    }
}
