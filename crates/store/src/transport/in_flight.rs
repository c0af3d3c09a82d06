//! Represents a place among the requests in flight to a server.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::time::Instant;

use super::fair_queue::User;
use super::host::Host;
use super::stream_rate::StreamRate;
use crate::priority::{Priority, Urgency};
use crate::transport::source::Fetch;

/// Size from which a response must yield to demands, in bytes.
const LARGE: u64 = 1 << 20;
/// Divisor of the path's capacity: a response is slow if its connection delivers less than this part
const SLOW_PART: u64 = 8;
/// Number of round trips for which a slow response would have to continue before it is replaced.
const SLOW_FOR: u64 = 16;
/// Slow round trips after which a connection is replaced. TCP needs ten seconds to recover from an early loss, and a
/// new connection ten round trips.
const SLOW_ROUNDS: u32 = 4;
/// Pause of a yielding response between two checks, if the round trip is unknown.
const STILL: Duration = Duration::from_millis(50);

/// One request in flight, and its expected bytes; counted until it is dropped.
pub(super) struct InFlight {
    pub(super) host: Rc<Host>,
    urgency: Cell<Urgency>,
    /// User of the demand.
    user: Cell<User>,
    /// Number of bytes still expected.
    coming: Cell<u64>,
    stream_rate: Cell<StreamRate>,
    /// Consecutive slow round trips.
    slow_rounds: Cell<u32>,
    /// Number of bytes that the host counts for the request.
    counted: Cell<u64>,
    /// True if the host counts the response as a large prefetch.
    large: Cell<bool>,
    /// Time until which received bytes had been queued locally and don't measure the path.
    stale_until: Cell<Option<Instant>>,
}

impl InFlight {
    pub(super) fn take(host: Rc<Host>, priority: &Priority, expected: u64) -> Self {
        let (urgency, user) = (priority.urgency(), priority.user());
        host.load.begin(urgency, user);
        let large = urgency == Urgency::Prefetch && is_large(expected);
        if large {
            host.load.begin_large();
        }
        let turn = Self {
            host,
            urgency: Cell::new(urgency),
            user: Cell::new(user),
            coming: Cell::new(0),
            stream_rate: Cell::new(StreamRate::after(0)),
            slow_rounds: Cell::new(0),
            counted: Cell::new(0),
            large: Cell::new(large),
            stale_until: Cell::new(None),
        };
        turn.expect(expected);
        turn
    }

    pub(super) fn urgency(&self) -> Urgency {
        self.urgency.get()
    }

    /// Counts a prefetch as a demand after it became one.
    fn follow(&self, fetch: &Fetch) {
        if self.urgency.get() == Urgency::Prefetch && fetch.priority.urgency() == Urgency::Demand {
            self.urgency.set(Urgency::Demand);
            self.user.set(fetch.priority.user());
            self.host.load.raise(self.user.get(), self.counted.get());
            self.no_longer_large();
        }
    }

    fn no_longer_large(&self) {
        if self.large.replace(false) {
            self.host.load.end_large();
        }
    }

    /// Sets the bytes still expected.
    fn expect(&self, bytes: u64) {
        self.coming.set(bytes);
        let on_path = bytes.min(self.stream_rate.get().on_path());
        let before = self.counted.replace(on_path);
        self.host.load.expect(self.urgency.get(), before, on_path);
    }

    /// Records the connection, which delivered so many bytes in its last round trip.
    pub(super) fn goes_over(&self, brought: u64) {
        self.stream_rate.set(StreamRate::after(brought));
        self.slow_rounds.set(0);
        self.expect(self.coming.get());
    }

    /// Returns the bytes that the connection delivers in a round trip.
    pub(super) fn in_a_round(&self) -> u64 {
        self.stream_rate.get().in_a_round()
    }

    /// Notes the start of a response with the object, after a wait; `announced` is its length.
    pub(super) fn answered(&self, waited: Duration, announced: Option<u64>, fetch: &Fetch) {
        self.host.path.answered(waited, self.host.most_prefetched(), Instant::now());
        if let Some(bytes) = announced {
            self.expect(bytes);
            if let Some(plain) = fetch.plain_size {
                self.host.path.learn(plain, bytes);
            }
        }
    }

    /// Records received bytes; other requests may start now.
    pub(super) fn received(&self, bytes: u64) {
        let now = Instant::now();
        let waited_here = self.stale_until.get().is_some_and(|until| until >= now);
        self.host.path.delivered(bytes, waited_here, now);
        self.host.awaiting.delivered(now);
        let mut stream_rate = self.stream_rate.get();
        let is_round_over = stream_rate.came(bytes, self.host.path.round_trip(), now);
        self.stream_rate.set(stream_rate);
        self.expect(self.coming.get().saturating_sub(bytes));
        if self.host.queue.has_prefetches() {
            self.host.start();
        }
        if is_round_over {
            self.slow_rounds.set(if self.is_slow() { self.slow_rounds.get() + 1 } else { 0 });
        }
    }

    /// Records progress of the object and of the queues that wait for its place.
    pub(super) fn came_further(&self, fetch: &Fetch) {
        fetch.progress.mark();
        self.host.queue.came_further(fetch);
    }

    /// Returns true if the rest would be faster over another connection, because this one was slow for a while.
    pub(super) fn is_stuck(&self) -> bool {
        self.slow_rounds.get() >= SLOW_ROUNDS
    }

    /// Returns true if the connection is slow for a longer time while the path isn't full.
    fn is_slow(&self) -> bool {
        let (stream_rate, holds) = (self.stream_rate.get(), self.host.path.budget());
        let brings = stream_rate.in_a_round();
        self.host.is_far()
            && stream_rate.is_steady()
            && brings < holds / SLOW_PART
            && self.coming.get() > brings.saturating_mul(SLOW_FOR)
            && self.host.load.coming() < holds / 2
    }

    /// Pauses a large prefetch while demands take at least half of the path; returns true if it paused. Demands
    /// that take less, since TCP starts slowly and is slow after a loss, would leave the path empty.
    pub(super) async fn give_way(&self, fetch: &Fetch) -> bool {
        let mut stood = false;
        loop {
            self.follow(fetch);
            if !self.must_stand() {
                return stood;
            }
            stood = true;
            let round_trip = self.host.path.round_trip().unwrap_or(STILL);
            self.host.load.until_calm(round_trip).await;
            self.stale_until.set(Some(Instant::now() + round_trip));
            self.slow_rounds.set(0);
        }
    }

    fn must_stand(&self) -> bool {
        self.large.get() && self.host.load.demanded() >= self.host.path.budget() / 2
    }
}

fn is_large(bytes: u64) -> bool {
    bytes > LARGE
}

impl Host {
    /// Returns whether a response of this size may be prefetched now.
    pub(super) fn may_prefetch_large(&self, bytes: u64) -> bool {
        !is_large(bytes) || self.load.may_begin_large()
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.host.load.end(self.urgency.get(), self.user.get());
        self.expect(0);
        self.no_longer_large();
        if !self.host.is_demanded() {
            self.host.load.calm();
        }
        self.host.start();
        if self.host.load.active() == 0 {
            self.host.path.idle();
        }
    }
}

#[cfg(test)]
mod tests {

    use super::super::context::NetworkContext;
    use super::super::dns::Names;
    use super::super::tls::Tls;
    use super::super::url::BaseUrl;
    use super::super::{ConnectOptions, HttpOptions, Limits, Site, TrafficCounts};
    use super::*;
    use crate::memory_budget::MemoryBudget;
    use crate::servers::{Authorities, Dns, InfoHeaders, Timings};
    use std::sync::Arc;

    const MIB: u64 = 1 << 20;

    fn host() -> Rc<Host> {
        let budget = MemoryBudget::new(u64::MAX);
        let context = NetworkContext {
            options: HttpOptions::default(),
            budget,
            names: Names::default(),
            tls: Tls::default(),
        };
        let base = BaseUrl::parse("http://server.example/repo").expect("a URL");
        let limits = Limits::new(&HttpOptions::default(), &Timings::default(), false);
        let connect_options =
            ConnectOptions { limits, dns: Dns::default(), info_headers: InfoHeaders::default() };
        let site = Site::new(
            base,
            None,
            connect_options,
            (&Authorities::default(), false),
            Arc::<TrafficCounts>::default(),
        );
        Host::new(Rc::new(context), &site)
    }

    #[test]
    fn a_large_prefetch_pauses_while_a_demand_fills_the_path() {
        let host = host();
        let prefetch = InFlight::take(host.clone(), &Priority::new(Urgency::Prefetch), 8 * MIB);
        let small = InFlight::take(host.clone(), &Priority::new(Urgency::Prefetch), MIB / 2);
        let waits = InFlight::take(host.clone(), &Priority::new(Urgency::Demand), 8 * MIB);
        assert!(!prefetch.must_stand(), "a new connection brings little at first");
        waits.goes_over(MIB);
        assert!(prefetch.must_stand() && !small.must_stand() && !waits.must_stand());
        drop(waits);
        assert!(!prefetch.must_stand());
        assert!(host.load.demanded() == 0 && host.load.coming() > 0);
        drop((prefetch, small));
        assert_eq!((host.load.coming(), host.load.active()), (0, 0));
    }

    #[test]
    fn few_large_responses_are_prefetched_at_once() {
        let host = host();
        let mut turns: Vec<InFlight> = Vec::new();
        while host.may_prefetch_large(8 * MIB) {
            turns.push(InFlight::take(host.clone(), &Priority::new(Urgency::Prefetch), 8 * MIB));
        }
        assert_eq!(turns.len(), 6);
        assert!(host.may_prefetch_large(MIB));
        // Demands don't count.
        turns.push(InFlight::take(host.clone(), &Priority::new(Urgency::Demand), 8 * MIB));
        turns.remove(0);
        assert!(host.may_prefetch_large(8 * MIB));
    }

    #[test]
    fn a_response_is_slow_if_the_path_could_deliver_more() {
        let host = host();
        let round_trip = Duration::from_millis(80);
        let mut now = Instant::now();
        host.path.answered(round_trip, 1, now);
        // The path brought 32 MiB a second before.
        for _ in 0..2 {
            host.path.delivered(32 * MIB / 12, false, now);
            now += round_trip;
        }
        let turn = InFlight::take(host.clone(), &Priority::new(Urgency::Demand), 8 * MIB);
        let mut stream_rate = StreamRate::after(0);
        for _ in 0..4 {
            stream_rate.came(20_000, Some(round_trip), now);
            now += round_trip;
        }
        turn.stream_rate.set(stream_rate);
        turn.expect(8 * MIB);
        assert!(turn.is_slow());
        let others: Vec<_> = (0..8)
            .map(|_| InFlight::take(host.clone(), &Priority::new(Urgency::Prefetch), 8 * MIB))
            .collect();
        others.iter().for_each(|other| other.goes_over(MIB));
        assert!(!turn.is_slow(), "others fill it");
        drop(others);
        turn.expect(100_000);
        assert!(!turn.is_slow(), "it is over soon anyway");
    }
}
