//! Tracks requests that were sent to a server and not answered yet.
//!
//! A server that handles one request after the other keeps all but the first waiting; that is normal while it sends
//! bytes. A server may also withhold some objects and send others. The order of responses tells the two apart: a
//! request is *overtaken* when one that was sent later is answered first. Until then it waits as long as the server
//! sends bytes for any other request. Once overtaken, it has the usual time for the first byte.
//!
//! A request that is overtaken, or that has seen no byte from its server since it was sent, is *stalled* after a short
//! time. Stalled requests don't count against the server's request limit, up to a bound; above the bound the oldest
//! ones are withdrawn when others wait for their slot: see [`Host`](super::host::Host).

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// Factor of the first-byte limit while the server sends other responses and another route is left.
const TIMEOUT: u32 = 3;

/// Pending requests of one server.
#[derive(Default)]
pub(super) struct Awaiting {
    sent: RefCell<BTreeMap<u64, Sent>>,
    next: Cell<u64>,
    /// Time of the last bytes of a body from the server.
    delivered: Cell<Option<Instant>>,
}

struct Sent {
    at: Instant,
    overtaken: Option<Instant>,
    /// Notified when the request is withdrawn.
    back: Rc<Notify>,
    taken_back: bool,
    /// True if the request may be withdrawn.
    yields: bool,
}

/// A pending request, removed on drop.
pub(super) struct Entry<'a> {
    all: &'a Awaiting,
    number: u64,
    back: Rc<Notify>,
}

impl Awaiting {
    /// Adds a request that is sent now; `yields` is true if it may be withdrawn.
    pub(super) fn sent(&self, yields: bool) -> Entry<'_> {
        let number = self.next.get();
        self.next.set(number + 1);
        let back = Rc::new(Notify::new());
        let sent =
            Sent { at: Instant::now(), overtaken: None, back: back.clone(), taken_back: false, yields };
        self.sent.borrow_mut().insert(number, sent);
        Entry { all: self, number, back }
    }

    /// Records that the server sent bytes of a body.
    pub(super) fn delivered(&self, now: Instant) {
        self.delivered.set(Some(now));
    }

    fn is_stalled(&self, sent: &Sent, after: Duration, now: Instant) -> bool {
        let silent = self.delivered.get().is_none_or(|last| last <= sent.at);
        !sent.taken_back
            && now.saturating_duration_since(sent.at) >= after
            && (silent || sent.overtaken.is_some())
    }

    /// Returns the number of stalled requests that were sent at least `after` ago.
    pub(super) fn stalled(&self, after: Duration, now: Instant) -> usize {
        self.sent.borrow().values().filter(|sent| self.is_stalled(sent, after, now)).count()
    }

    /// Withdraws the oldest stalled request, if one may be withdrawn.
    pub(super) fn take_back(&self, after: Duration, now: Instant) -> bool {
        let mut all = self.sent.borrow_mut();
        let stalled = all.values_mut().find(|sent| sent.yields && self.is_stalled(sent, after, now));
        let Some(sent) = stalled else { return false };
        sent.taken_back = true;
        sent.back.notify_one();
        true
    }

    /// Returns when the next request will have waited for `after`.
    pub(super) fn next_at(&self, after: Duration, now: Instant) -> Option<Instant> {
        self.sent.borrow().values().map(|sent| sent.at + after).filter(|at| *at > now).min()
    }
}

impl Entry<'_> {
    /// Waits until the request is withdrawn.
    pub(super) async fn taken_back(&self) {
        self.back.notified().await;
    }

    /// Returns true if the server answered a request that was sent later.
    pub(super) fn is_overtaken(&self) -> bool {
        self.all.sent.borrow().get(&self.number).is_some_and(|sent| sent.overtaken.is_some())
    }

    /// Returns the deadline for the first byte; `replaceable` if another route is left to try.
    pub(super) fn deadline(&self, limit: Duration, replaceable: bool) -> Instant {
        let all = self.all.sent.borrow();
        let Some(sent) = all.get(&self.number) else { return Instant::now() };
        let delivered = self.all.delivered.get();
        let waits_since = sent.overtaken.or(delivered).map_or(sent.at, |at| at.max(sent.at));
        let deadline = waits_since + limit;
        if replaceable { deadline.min(sent.at + limit * TIMEOUT) } else { deadline }
    }

    /// Notes the first byte of a response: requests sent before are overtaken.
    pub(super) fn answered(self) {
        let now = Instant::now();
        for (_, sent) in self.all.sent.borrow_mut().range_mut(..self.number) {
            sent.overtaken.get_or_insert(now);
        }
    }
}

impl Drop for Entry<'_> {
    fn drop(&mut self) {
        self.all.sent.borrow_mut().remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(10);
    const MOMENT: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn a_request_waits_while_the_server_sends_and_is_not_overtaken() {
        let all = Awaiting::default();
        let (first, second) = (all.sent(true), all.sent(true));
        let start = Instant::now();
        assert_eq!(second.deadline(LIMIT, false), start + LIMIT);
        first.answered();
        for _ in 0..20 {
            tokio::time::advance(Duration::from_secs(5)).await;
            all.delivered(Instant::now());
        }
        let now = Instant::now();
        assert_eq!(second.deadline(LIMIT, false), now + LIMIT, "it stands in the server's queue");
        assert_eq!(second.deadline(LIMIT, true), start + LIMIT * TIMEOUT, "unless another way is left");
        assert_eq!(all.stalled(MOMENT, now), 0);
        all.sent(true).answered();
        assert!(second.is_overtaken());
        tokio::time::advance(Duration::from_secs(5)).await;
        all.delivered(Instant::now());
        assert_eq!(second.deadline(LIMIT, false), now + LIMIT, "it was passed over");
        assert_eq!(all.stalled(MOMENT, Instant::now()), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_stalled_request_is_withdrawn() {
        let all = Awaiting::default();
        let (kept, first, _second) = (all.sent(false), all.sent(true), all.sent(true));
        assert!(!all.take_back(MOMENT, Instant::now()), "too soon");
        assert_eq!(all.next_at(MOMENT, Instant::now()), Some(Instant::now() + MOMENT));
        tokio::time::advance(MOMENT).await;
        assert_eq!(all.stalled(MOMENT, Instant::now()), 3);
        assert!(all.take_back(MOMENT, Instant::now()));
        tokio::time::timeout(Duration::ZERO, first.taken_back()).await.expect("told");
        assert_eq!(all.stalled(MOMENT, Instant::now()), 2);
        drop(kept);
        assert!(all.take_back(MOMENT, Instant::now()));
        assert!(!all.take_back(MOMENT, Instant::now()), "none is left");
    }
}
