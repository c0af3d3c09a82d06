//! Counts the traffic over a link.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

/// Traffic over a link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Number of connections.
    pub connections: u64,
    /// Number of HTTP requests whose heads were complete.
    pub requests: u64,
    /// Bytes from clients to the server, as TCP carries them.
    pub up: u64,
    /// Bytes from the server to clients, heads of answers included.
    pub down: u64,
    /// Times that a connection stalled because of a lost segment or a full queue.
    pub losses: u64,
}

impl Counts {
    /// Returns the difference to `before`.
    pub fn since(&self, before: &Self) -> Self {
        Self {
            connections: self.connections - before.connections,
            requests: self.requests - before.requests,
            up: self.up - before.up,
            down: self.down - before.down,
            losses: self.losses - before.losses,
        }
    }
}

/// Counters that are updated during a measurement.
#[derive(Debug, Default)]
pub(super) struct Counters {
    connections: AtomicU64,
    requests: AtomicU64,
    up: AtomicU64,
    down: AtomicU64,
    losses: AtomicU64,
}

impl Counters {
    pub(super) fn connection(&self) {
        self.connections.fetch_add(1, Relaxed);
    }

    pub(super) fn up(&self, bytes: usize, requests: u64) {
        self.up.fetch_add(bytes as u64, Relaxed);
        self.requests.fetch_add(requests, Relaxed);
    }

    pub(super) fn down(&self, bytes: usize) {
        self.down.fetch_add(bytes as u64, Relaxed);
    }

    pub(super) fn losses(&self, losses: u64) {
        if losses > 0 {
            self.losses.fetch_add(losses, Relaxed);
        }
    }

    pub(super) fn get(&self) -> Counts {
        Counts {
            connections: self.connections.load(Relaxed),
            requests: self.requests.load(Relaxed),
            up: self.up.load(Relaxed),
            down: self.down.load(Relaxed),
            losses: self.losses.load(Relaxed),
        }
    }
}

/// Finds the ends of request heads in a stream of bytes, wherever it is cut.
#[derive(Debug, Default)]
pub(super) struct Heads {
    matched: usize,
}

const END: &[u8; 4] = b"\r\n\r\n";

impl Heads {
    /// Counts the HTTP heads that end in these bytes.
    pub(super) fn count(&mut self, bytes: &[u8]) -> u64 {
        let mut heads = 0;
        for byte in bytes {
            self.matched = match *byte {
                byte if byte == END[self.matched] => self.matched + 1,
                b'\r' => 1,
                _ => 0,
            };
            if self.matched == END.len() {
                heads += 1;
                self.matched = 0;
            }
        }
        heads
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_counted_however_they_are_cut() {
        let stream = b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET /b HTTP/1.1\r\n\r\n\r\r\n\r\n";
        for cut in 0..stream.len() {
            let mut heads = Heads::default();
            assert_eq!(heads.count(&stream[..cut]) + heads.count(&stream[cut..]), 3, "cut at {cut}");
        }
    }
}
