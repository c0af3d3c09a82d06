//! Tracks the clients of a shared mount.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use rustix::process::{Pid, PidfdFlags, geteuid, pidfd_open};

use super::Key;
use crate::namespaces::Namespaces;

/// Backlog of the socket: as many processes as a node starts at once.
const BACKLOG: i32 = 4096;
/// Poll interval while a client starts, and on kernels without notification.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// A process that uses the shared mount.
enum Client {
    /// A process descriptor, which signals the end of the process.
    Told(OwnedFd),
    /// Process id and start time, polled on kernels before Linux 5.3.
    Seen(u32, Option<String>),
}

impl Client {
    fn new(pid: Pid) -> Option<Self> {
        let number = pid.as_raw_nonzero().get().cast_unsigned();
        match pidfd_open(pid, PidfdFlags::empty()) {
            Ok(descriptor) => Some(Client::Told(descriptor)),
            Err(rustix::io::Errno::SRCH) => None,
            Err(_) => Some(Client::Seen(number, started(number))),
        }
    }

    fn is_there(&self) -> bool {
        match self {
            Client::Told(descriptor) => {
                let mut asked = [PollFd::new(descriptor, PollFlags::IN)];
                let now = Timespec { tv_sec: 0, tv_nsec: 0 };
                // An error is no sign of an end.
                poll(&mut asked, Some(&now)).map_or(true, |ended| ended == 0)
            }
            Client::Seen(number, since) => started(*number) == *since && since.is_some(),
        }
    }
}

/// Returns the start time of a process, because process ids are reused. `None` if it has ended.
fn started(pid: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program, in brackets, may hold anything.
    let (_, fields) = stat.rsplit_once(')')?;
    let mut fields = fields.split_whitespace();
    let is_dead = matches!(fields.next()?, "Z" | "X");
    fields.nth(18).filter(|_| !is_dead).map(str::to_owned)
}

/// Socket and clients of a shared mount.
pub(super) struct Clients {
    listener: OwnedFd,
    namespaces: Namespaces,
    key: Key,
    clients: Vec<Client>,
}

impl Clients {
    /// Listens at `socket`, and replaces a stale socket there.
    pub(super) fn listen(socket: &Path, namespaces: Namespaces, key: &Key, starter: u32) -> io::Result<Self> {
        match fs::remove_file(socket) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        bind(&listener, &SocketAddrUnix::new(socket)?)?;
        listen(&listener, BACKLOG)?;
        let starter = Pid::from_raw(starter.cast_signed());
        let clients = starter.and_then(Client::new).into_iter().collect();
        Ok(Self { listener, namespaces, key: key.clone(), clients })
    }

    /// Accepts clients until the last one has ended and `retire` confirms that no other connects.
    pub(super) fn serve<T>(mut self, retire: impl Fn() -> Option<T>) -> io::Result<()> {
        loop {
            self.let_in()?;
            self.clients.retain(Client::is_there);
            if self.clients.is_empty()
                && let Some(lock) = retire()
            {
                // Accepts clients that connected before the socket was removed.
                self.let_in()?;
                self.clients.retain(Client::is_there);
                drop(lock);
                if self.clients.is_empty() {
                    return Ok(());
                }
            }
            self.wait()?;
        }
    }

    fn wait(&self) -> io::Result<()> {
        let told = self.clients.iter().filter_map(|client| match client {
            Client::Told(descriptor) => Some(descriptor.as_fd()),
            Client::Seen(..) => None,
        });
        let all = told.chain([self.listener.as_fd()]);
        let mut watched: Vec<PollFd> = all.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let all_told = self.clients.iter().all(|client| matches!(client, Client::Told(_)));
        let patience = (!all_told || self.clients.is_empty()).then_some(&POLL_INTERVAL);
        match poll(&mut watched, patience) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Accepts all clients that are connecting.
    fn let_in(&mut self) -> io::Result<()> {
        loop {
            let stream = match accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(stream) => stream,
                Err(rustix::io::Errno::AGAIN) => return Ok(()),
                Err(rustix::io::Errno::INTR | rustix::io::Errno::CONNABORTED) => continue,
                Err(error) => return Err(error.into()),
            };
            let Ok(peer) = socket_peercred(&stream) else { continue };
            if peer.uid != geteuid() {
                continue;
            }
            // Recorded first: the client may end as soon as it has the reply.
            if let Some(client) = Client::new(peer.pid)
                && self.namespaces.send(stream.as_fd(), &self.key).is_ok()
            {
                self.clients.push(client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_end_of_a_process_is_noticed_with_and_without_pidfd() {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("a process");
        let told = Client::new(Pid::from_child(&child)).expect("a client");
        let seen = Client::Seen(child.id(), started(child.id()));
        assert!(told.is_there() && seen.is_there());
        assert!(!Client::Seen(child.id(), Some("1".into())).is_there(), "another process of that number");
        child.kill().expect("killed");
        // Dead, and its number still taken until it is waited for.
        rustix::process::waitid(
            rustix::process::WaitId::Pid(Pid::from_child(&child)),
            rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
        )
        .expect("ended");
        assert!(!told.is_there() && !seen.is_there());
        child.wait().expect("waited");
        assert!(!seen.is_there());
    }
}
