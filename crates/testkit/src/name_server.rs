//! A name server on the loopback interface with scripted replies.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Time that a test waits for a query.
const PATIENCE: Duration = Duration::from_secs(60);

/// Reply to a query for the addresses of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameAnswer {
    /// The name has these addresses.
    At(Vec<Ipv4Addr>),
    /// An alias of a name with these addresses.
    Alias(String, Vec<Ipv4Addr>),
    /// The name does not exist.
    Nowhere,
    /// The server does not reply.
    Silence,
    /// The server replies to queries for IPv6 addresses alone.
    SilenceOfV4,
}

/// A running name server. Its thread ends with the process.
pub struct NameServer {
    address: SocketAddr,
    shared: Arc<NameServerState>,
}

struct NameServerState {
    socket: UdpSocket,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ttl: u32,
    names: BTreeMap<String, NameAnswer>,
    /// Reply to all queries for IPv6 addresses; `None` for no reply.
    v6: Option<Vec<Ipv6Addr>>,
    /// Number of queries for IPv4 addresses, by name.
    asked: BTreeMap<String, usize>,
    /// Replies that are held back.
    held: Option<Vec<(Vec<u8>, SocketAddr)>>,
}

impl NameServer {
    /// Starts a name server whose replies have this TTL in seconds. It knows no names at first.
    pub fn start(ttl: u32) -> NameServer {
        NameServer::start_at(ttl, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
    }

    /// Starts a name server at an address. At port 53 programs find it by `/etc/resolv.conf`, which knows no others; a test has
    /// it in a network of its own.
    pub fn start_at(ttl: u32, address: SocketAddr) -> NameServer {
        let socket = UdpSocket::bind(address).expect("a free port");
        let address = socket.local_addr().expect("its address");
        let state = State { ttl, v6: Some(Vec::new()), ..State::default() };
        let shared = Arc::new(NameServerState { socket, state: Mutex::new(state), changed: Condvar::new() });
        let theirs = Arc::clone(&shared);
        std::thread::spawn(move || theirs.answer());
        NameServer { address, shared }
    }

    /// Returns the address that the server listens at.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Sets the reply for a name from now on.
    pub fn tell(&self, name: &str, known: NameAnswer) {
        self.shared.state.lock().unwrap().names.insert(name.to_owned(), known);
    }

    /// Sets the IPv6 addresses of all names; `None` makes the server silent to these queries.
    pub fn tell_v6(&self, addresses: Option<Vec<Ipv6Addr>>) {
        self.shared.state.lock().unwrap().v6 = addresses;
    }

    /// Returns the number of queries for the IPv4 addresses of a name.
    pub fn asked(&self, name: &str) -> usize {
        self.shared.state.lock().unwrap().asked.get(name).copied().unwrap_or(0)
    }

    /// Holds replies back from now on.
    pub fn hold(&self) {
        self.shared.state.lock().unwrap().held = Some(Vec::new());
    }

    /// Sends the held replies, and replies at once again.
    pub fn release(&self) {
        for (reply, to) in self.shared.state.lock().unwrap().held.take().into_iter().flatten() {
            let _ = self.shared.socket.send_to(&reply, to);
        }
    }

    /// Waits for this number of queries for a name; panics after a minute.
    pub fn wait_for(&self, name: &str, times: usize) {
        let deadline = Instant::now() + PATIENCE;
        let mut state = self.shared.state.lock().unwrap();
        while state.asked.get(name).is_none_or(|asked| *asked < times) {
            let left = deadline.saturating_duration_since(Instant::now());
            assert!(!left.is_zero(), "{name} was not asked for {times} times: {:?}", state.asked);
            state = self.shared.changed.wait_timeout(state, left).unwrap().0;
        }
    }
}

impl NameServerState {
    fn answer(&self) {
        let mut packet = [0; 512];
        while let Ok((len, from)) = self.socket.recv_from(&mut packet) {
            let mut state = self.state.lock().unwrap();
            let reply = state.reply(&packet[..len]);
            self.changed.notify_all();
            let Some(reply) = reply else { continue };
            match &mut state.held {
                Some(held) => held.push((reply, from)),
                None => _ = self.socket.send_to(&reply, from),
            }
        }
    }
}

impl State {
    /// Answers as RFC 1035, section 4, has it: the question comes back, and a record for each address follows.
    fn reply(&mut self, query: &[u8]) -> Option<Vec<u8>> {
        let (name, end) = name_of(query)?;
        let question = query.get(12..end + 4)?;
        let is_v4 = query.get(end..end + 2)? == [0, 1];
        let known = self.names.get(&name).cloned().unwrap_or(NameAnswer::Nowhere);
        if is_v4 {
            *self.asked.entry(name).or_default() += 1;
        }
        let addresses: Vec<Vec<u8>> = match &known {
            NameAnswer::Silence => return None,
            NameAnswer::SilenceOfV4 if is_v4 => return None,
            NameAnswer::At(addresses) | NameAnswer::Alias(_, addresses) if is_v4 => {
                addresses.iter().map(|it| it.octets().to_vec()).collect()
            }
            NameAnswer::At(_) | NameAnswer::Alias(..) | NameAnswer::SilenceOfV4 => {
                self.v6.as_ref()?.iter().map(|it| it.octets().to_vec()).collect()
            }
            NameAnswer::Nowhere => Vec::new(),
        };
        let code = if known == NameAnswer::Nowhere { 3 } else { 0 };
        let mut reply = query.get(..2)?.to_vec();
        reply.extend([0x81, 0x80 | code, 0, 1]);
        // A record: kind and content.
        let alias = match &known {
            NameAnswer::Alias(target, _) => Some((5, encoded(target)?)),
            _ => None,
        };
        let kind = if is_v4 { 1 } else { 28 };
        let records: Vec<(u8, Vec<u8>)> =
            alias.into_iter().chain(addresses.into_iter().map(|address| (kind, address))).collect();
        reply.extend(u16::try_from(records.len()).ok()?.to_be_bytes());
        reply.extend([0, 0, 0, 0]);
        reply.extend(question);
        for (kind, content) in records {
            match &known {
                NameAnswer::Alias(target, _) if kind != 5 => reply.extend(encoded(target)?),
                // Where the name of the question is.
                _ => reply.extend([0xc0, 12]),
            }
            reply.extend([0, kind, 0, 1]);
            reply.extend(self.ttl.to_be_bytes());
            reply.extend(u16::try_from(content.len()).ok()?.to_be_bytes());
            reply.extend(content);
        }
        Some(reply)
    }
}

/// Returns the name in a query, without a final dot, and the position after it.
fn name_of(query: &[u8]) -> Option<(String, usize)> {
    let mut labels = Vec::new();
    let mut at = 12;
    loop {
        let len = usize::from(*query.get(at)?);
        at += 1;
        if len == 0 {
            return Some((labels.join("."), at));
        }
        labels.push(String::from_utf8_lossy(query.get(at..at + len)?).to_lowercase());
        at += len;
    }
}

/// Returns the bytes of a name, each label behind its length.
fn encoded(name: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).ok()?);
        bytes.extend(label.as_bytes());
    }
    bytes.push(0);
    Some(bytes)
}
