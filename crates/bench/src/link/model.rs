//! Computes when each byte leaves and arrives, over a clock that is passed in, without sockets.
//!
//! ```text
//! sender ─► window ─► queue ─► bottleneck ─► one-way delay ─► receiver
//!              ▲                                                 │
//!              └────────────── acknowledged, one-way delay ◄─────┘
//! ```
//!
//! Each connection has a [`Flow`] per direction, which bounds the data in flight: 10 segments at first, twice as
//! many with each round trip, and after a loss as CUBIC allows. A flow that was idle for longer than a
//! retransmission timeout starts again. All flows of a direction share one [`Bottleneck`] with a bounded queue.
//! A segment that is lost, or finds the queue full, arrives a round trip later, and no later segment of its connection
//! overtakes it.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use super::profile::Profile;
use esker_testkit::soak::Random;

/// Time since the link was made.
pub(crate) type At = Duration;

/// Payload of an Ethernet frame with TCP timestamps.
pub(crate) const SEGMENT: u64 = 1448;

/// Initial window of a sender in bytes (RFC 6928).
pub(crate) const WINDOW_INITIAL: u64 = 10 * SEGMENT;

/// Receive window in bytes, read or not: the default limit of Linux.
const WINDOW_RECEIVER: u64 = 6 << 20;

/// Bytes processed together. At the slowest rate the last byte is 2 ms behind the first.
pub(crate) const BURST: u64 = 64 << 10;

/// Smallest amount in bytes that is sent while more could follow.
const PACKET: u64 = 16 << 10;

/// The smallest part of a retransmission timeout that isn't the round trip, in Linux.
const TIMEOUT_MIN: Duration = Duration::from_millis(200);

/// CUBIC's constant, in segments per second cubed, and the factor of the window after a loss (RFC 9438).
const CUBIC_C: f64 = 0.4;
const CUBIC_BETA: [u64; 2] = [7, 10];

/// Bottleneck of one direction: bytes of all connections leave it one after the other.
#[derive(Clone, Debug)]
pub(crate) struct Bottleneck {
    nanos_per_byte: f64,
    queue: u64,
    free: At,
}

impl Bottleneck {
    pub(crate) fn new(profile: &Profile) -> Self {
        Self { nanos_per_byte: 8e9 / profile.rate as f64, queue: profile.queue(), free: At::ZERO }
    }

    /// Returns true if data that arrives now finds the queue full.
    fn is_full(&self, now: At) -> bool {
        self.free.saturating_sub(now).as_nanos() as f64 >= self.queue as f64 * self.nanos_per_byte
    }

    /// Returns the time at which the last of these bytes leaves the bottleneck, if they arrive now.
    fn pass(&mut self, now: At, bytes: u64) -> At {
        let takes = Duration::from_nanos((bytes as f64 * self.nanos_per_byte).ceil() as u64);
        self.free = self.free.max(now) + takes;
        self.free
    }
}

/// Congestion window of a sender.
#[derive(Clone, Debug)]
struct Window {
    round_trip: Duration,
    size: u64,
    /// Slow-start threshold; unlimited before the first loss.
    threshold: u64,
    /// Window at the last loss, in bytes.
    best: u64,
    /// Start of congestion avoidance.
    since: Option<At>,
}

impl Window {
    fn new(round_trip: Duration) -> Self {
        Self { round_trip, size: WINDOW_INITIAL, threshold: u64::MAX, best: 0, since: None }
    }

    fn grow(&mut self, now: At, bytes: u64) {
        if self.size < self.threshold {
            self.size = (self.size + bytes).min(self.threshold);
            return;
        }
        let since = now.saturating_sub(*self.since.get_or_insert(now)).as_secs_f64();
        let best = self.best as f64 / SEGMENT as f64;
        let lost = 1.0 - CUBIC_BETA[0] as f64 / CUBIC_BETA[1] as f64;
        let until_best = (best * lost / CUBIC_C).cbrt();
        let segments = CUBIC_C * (since - until_best).powi(3) + best;
        // Where round trips are short, CUBIC grows as its predecessor would: by about a segment in two of them.
        let predecessor =
            best * (1.0 - lost) + 3.0 * lost / (2.0 - lost) * since / self.round_trip.as_secs_f64();
        self.size = self.size.max((segments.max(predecessor) * SEGMENT as f64) as u64);
    }

    fn shrink(&mut self) {
        self.best = self.size;
        self.size = (self.size * CUBIC_BETA[0] / CUBIC_BETA[1]).max(2 * SEGMENT);
        self.threshold = self.size;
        self.since = None;
    }

    fn restart(&mut self) {
        self.size = self.size.min(WINDOW_INITIAL);
        self.since = None;
    }
}

/// Answer to the question whether a flow may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// This many bytes may be sent now.
    Now(u64),
    /// Bytes may be sent from this time on.
    From(At),
    /// Nothing may be sent until the receiver reads.
    Blocked,
}

#[derive(Clone, Debug)]
struct Sent {
    bytes: u64,
    acknowledged: At,
    /// True if the window limited the sender; only then does it grow.
    filled_window: bool,
}

/// State of one direction of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Flow {
    one_way: Duration,
    loss: f64,
    window: Window,
    under_way: VecDeque<Sent>,
    bytes_under_way: u64,
    /// Time at which the handshake ends.
    open: At,
    /// Time until which further losses count as the same loss event.
    repaired: At,
    last_sent: At,
    last_arrival: At,
    losses: u64,
    random: Random,
}

impl Flow {
    /// Creates a flow that may send from `open` on. Equal seeds lose equal segments.
    pub(crate) fn new(profile: &Profile, open: At, seed: u64) -> Self {
        Self {
            one_way: profile.one_way(),
            loss: profile.loss,
            window: Window::new(profile.round_trip),
            under_way: VecDeque::new(),
            bytes_under_way: 0,
            open,
            repaired: At::ZERO,
            last_sent: open,
            last_arrival: At::ZERO,
            losses: 0,
            random: Random(seed),
        }
    }

    /// Returns the number of losses since the previous call.
    pub(crate) fn take_losses(&mut self) -> u64 {
        std::mem::take(&mut self.losses)
    }

    /// Returns the number of bytes that may be sent now, while `unread` bytes wait for the receiver.
    pub(crate) fn room(&mut self, now: At, unread: u64) -> Room {
        self.acknowledge(now);
        if now < self.open {
            return Room::From(self.open);
        }
        let timeout = 2 * self.one_way + TIMEOUT_MIN;
        if self.under_way.is_empty() && now.saturating_sub(self.last_sent) > timeout {
            self.window.restart();
        }
        let limit = self.window.size.min(WINDOW_RECEIVER.saturating_sub(unread));
        let free = limit.saturating_sub(self.bytes_under_way);
        // Like Linux, which waits until a third of the window is free, or enough for a large packet.
        let worthwhile = (limit / 3).clamp(1, PACKET);
        if free < worthwhile {
            return self.acknowledged(worthwhile - free).map_or(Room::Blocked, Room::From);
        }
        Room::Now(free.min(BURST))
    }

    /// Sends bytes for which there is room; returns the arrival time of the last one.
    pub(crate) fn send(&mut self, now: At, bottleneck: &mut Bottleneck, bytes: u64) -> At {
        let lost = bottleneck.is_full(now) || self.is_lost(bytes);
        let mut arrival = bottleneck.pass(now, bytes) + self.one_way;
        if lost {
            arrival += 2 * self.one_way;
            if now >= self.repaired {
                self.losses += 1;
                self.window.shrink();
                self.repaired = arrival + self.one_way;
            }
        }
        // Segments of a connection arrive in order.
        arrival = arrival.max(self.last_arrival);
        self.last_arrival = arrival;
        self.last_sent = now;
        self.bytes_under_way += bytes;
        let filled_window = 2 * self.bytes_under_way >= self.window.size;
        self.under_way.push_back(Sent { bytes, acknowledged: arrival + self.one_way, filled_window });
        arrival
    }

    /// Returns the arrival time of the end of the stream, which needs no room in the window.
    pub(crate) fn end(&self, now: At) -> At {
        (now.max(self.open) + self.one_way).max(self.last_arrival)
    }

    /// Returns the time at which this many further bytes will be acknowledged.
    fn acknowledged(&self, bytes: u64) -> Option<At> {
        let mut sum = 0;
        let enough = self.under_way.iter().find(|sent| {
            sum += sent.bytes;
            sum >= bytes
        });
        enough.map(|sent| sent.acknowledged)
    }

    fn acknowledge(&mut self, now: At) {
        while let Some(first) = self.under_way.front().filter(|first| first.acknowledged <= now) {
            self.bytes_under_way -= first.bytes;
            if first.filled_window {
                self.window.grow(first.acknowledged, first.bytes);
            }
            self.under_way.pop_front();
        }
    }

    fn is_lost(&mut self, bytes: u64) -> bool {
        if self.loss == 0.0 {
            return false;
        }
        let kept = (1.0 - self.loss).powf(bytes.div_ceil(SEGMENT) as f64);
        self.random.draw() as f64 / u64::MAX as f64 > kept
    }
}

/// Returns the time in which `connections` new connections fetch `bytes` each on an idle link, from opening them to
/// the last byte: handshake, request, reply.
pub(crate) fn forecast(profile: &Profile, connections: u64, bytes: u64) -> Duration {
    let open = profile.round_trip + profile.one_way();
    let mut bottleneck = Bottleneck::new(profile);
    let mut acting: BinaryHeap<_> = (0..connections).map(|seed| Reverse((open, seed))).collect();
    let mut flows: Vec<_> = (0..connections).map(|seed| (Flow::new(profile, open, seed), bytes)).collect();
    let mut last = open;
    // The flow whose time comes first acts.
    while let Some(Reverse((now, at))) = acting.pop() {
        let (flow, left) = &mut flows[at as usize];
        match flow.room(now, 0) {
            Room::Now(room) => {
                last = last.max(flow.send(now, &mut bottleneck, room.min(*left)));
                *left -= room.min(*left);
                if *left > 0 {
                    acting.push(Reverse((now, at)));
                }
            }
            Room::From(later) => acting.push(Reverse((later, at))),
            Room::Blocked => unreachable!("all that arrives is read"),
        }
    }
    last
}

#[cfg(test)]
mod tests;
