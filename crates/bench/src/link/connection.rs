//! A connection through the relay: two sockets and the data between them.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, Shutdown, SocketFlags, SocketType, sockopt};

use super::counts::{Counters, Heads};
use super::model::{At, BURST, Bottleneck, Flow, Room};
use super::profile::Profile;

/// Bottlenecks of both directions, which all connections share.
pub(super) struct Links {
    pub(super) up: Bottleneck,
    pub(super) down: Bottleneck,
}

/// A connection from a client through here to the server.
pub(super) struct Connection {
    client: OwnedFd,
    server: OwnedFd,
    up: Pipe,
    down: Pipe,
    heads: Heads,
    /// Earliest time at which the relay has scheduled this connection.
    pub(super) alarm: Option<At>,
}

/// One direction of a connection.
struct Pipe {
    flow: Flow,
    parcels: VecDeque<Parcel>,
    /// True if the socket may have bytes and there is room to pass them on.
    readable: bool,
    writable: bool,
    /// Arrival time of the end of the stream, once the sender has ended it.
    end: Option<At>,
    ended: bool,
}

/// Bytes that are on the emulated link.
struct Parcel {
    arrival: At,
    bytes: Vec<u8>,
    written: usize,
}

impl Connection {
    /// Connects to the server; the client's first bytes arrive after a round trip, the server's half a round trip
    /// later.
    pub(super) fn open(
        client: TcpStream,
        to: SocketAddr,
        profile: &Profile,
        now: At,
        seed: u64,
    ) -> io::Result<Self> {
        client.set_nonblocking(true)?;
        client.set_nodelay(true)?;
        let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let server = net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_tcp_nodelay(&server, true)?;
        match net::connect(&server, &to) {
            // Whether it comes about shows when something is written.
            Ok(()) | Err(Errno::INPROGRESS) => {}
            Err(error) => return Err(error.into()),
        }
        let established = now + profile.round_trip;
        Ok(Self {
            client: client.into(),
            server,
            up: Pipe::new(Flow::new(profile, established, 2 * seed)),
            down: Pipe::new(Flow::new(profile, established + profile.one_way(), 2 * seed + 1)),
            heads: Heads::default(),
            alarm: None,
        })
    }

    /// Registers the sockets for events; the server's socket has the odd key.
    pub(super) fn watch(&self, epoll: &OwnedFd, id: u64) -> io::Result<()> {
        let flags =
            epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::RDHUP | epoll::EventFlags::ET;
        for (socket, key) in [(&self.client, 2 * id), (&self.server, 2 * id + 1)] {
            epoll::add(epoll, socket, epoll::EventData::new_u64(key), flags)?;
        }
        Ok(())
    }

    /// Records that a socket is readable or writable.
    pub(super) fn ready(&mut self, server: bool, flags: epoll::EventFlags) {
        let (from, to) = if server { (&mut self.down, &mut self.up) } else { (&mut self.up, &mut self.down) };
        let gone = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        from.readable |= flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP | gone);
        to.writable |= flags.intersects(epoll::EventFlags::OUT | gone);
    }

    /// Delivers data that is due, reads new data, and returns the time of the next step.
    pub(super) fn advance(
        &mut self,
        now: At,
        links: &mut Links,
        counters: &Counters,
    ) -> io::Result<Option<At>> {
        let heads = &mut self.heads;
        let up = self.up.advance(now, &self.client, &self.server, &mut links.up, |bytes| {
            counters.up(bytes.len(), heads.count(bytes));
        })?;
        let down = self.down.advance(now, &self.server, &self.client, &mut links.down, |bytes| {
            counters.down(bytes.len());
        })?;
        counters.losses(self.up.flow.take_losses() + self.down.flow.take_losses());
        Ok([up, down].into_iter().flatten().min())
    }

    /// Returns true if both sides have closed their direction.
    pub(super) fn is_over(&self) -> bool {
        self.up.ended && self.down.ended
    }

    /// Resets both sockets, so that both peers see a failure.
    pub(super) fn reset(&self) {
        for socket in [&self.client, &self.server] {
            // One that is broken already needs none.
            let _ = sockopt::set_socket_linger(socket, Some(std::time::Duration::ZERO));
        }
    }
}

impl Pipe {
    fn new(flow: Flow) -> Self {
        let parcels = VecDeque::new();
        Self { flow, parcels, readable: false, writable: false, end: None, ended: false }
    }

    fn advance(
        &mut self,
        now: At,
        from: &OwnedFd,
        to: &OwnedFd,
        bottleneck: &mut Bottleneck,
        mut sent: impl FnMut(&[u8]),
    ) -> io::Result<Option<At>> {
        self.deliver(now, to)?;
        let mut room = None;
        while self.readable && self.end.is_none() {
            match self.flow.room(now, self.unread(now)) {
                Room::Blocked => break,
                Room::From(later) => {
                    room = Some(later);
                    break;
                }
                Room::Now(room) => self.take(now, from, room, bottleneck, &mut sent)?,
            }
        }
        let next = self.parcels.front().map(|first| first.arrival).or(self.end.filter(|_| !self.ended));
        // Data that is due but can't be written waits for a socket event, not for a time.
        Ok([next.filter(|next| *next > now), room].into_iter().flatten().min())
    }

    /// Returns the number of bytes that arrived and that the receiver has not read.
    fn unread(&self, now: At) -> u64 {
        let arrived = self.parcels.iter().take_while(|parcel| parcel.arrival <= now);
        arrived.map(|parcel| (parcel.bytes.len() - parcel.written) as u64).sum()
    }

    /// Reads at most `room` bytes from the sender.
    fn take(
        &mut self,
        now: At,
        from: &OwnedFd,
        room: u64,
        bottleneck: &mut Bottleneck,
        sent: &mut impl FnMut(&[u8]),
    ) -> io::Result<()> {
        let mut bytes = Vec::with_capacity(usize::try_from(room.min(BURST)).unwrap_or(0));
        match rustix::io::read(from, spare_capacity(&mut bytes)) {
            Ok(0) => self.end = Some(self.flow.end(now)),
            Ok(read) => {
                if read < bytes.capacity() / 4 {
                    bytes.shrink_to_fit();
                }
                sent(&bytes);
                let arrival = self.flow.send(now, bottleneck, read as u64);
                self.parcels.push_back(Parcel { arrival, bytes, written: 0 });
            }
            Err(Errno::AGAIN) => self.readable = false,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Writes the data that is due.
    fn deliver(&mut self, now: At, to: &OwnedFd) -> io::Result<()> {
        while self.writable
            && let Some(first) = self.parcels.front_mut().filter(|first| first.arrival <= now)
        {
            match net::send(to, &first.bytes[first.written..], net::SendFlags::NOSIGNAL) {
                Ok(written) => first.written += written,
                Err(Errno::AGAIN) => self.writable = false,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
            if first.written == first.bytes.len() {
                self.parcels.pop_front();
            }
        }
        if !self.ended && self.parcels.is_empty() && self.end.is_some_and(|end| end <= now) {
            self.ended = true;
            net::shutdown(to, Shutdown::Write)?;
        }
        Ok(())
    }
}
