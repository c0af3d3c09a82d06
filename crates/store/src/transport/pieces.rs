//! Fetches one demanded object over several connections, if the path to the server is long.
//!
//! TCP sends ten segments in the first round trip and twice as much in each further one, so that an object of a few
//! megabytes takes eight round trips while the link is nearly empty, and many more after a loss. In pieces over
//! several connections it takes two to four. A program waits for a demanded object, so that is worth the requests;
//! prefetches fill the link anyhow.
//!
//! The length is unknown before the first response. The expected length is requested at once; a request beyond the end
//! gets status 416, and the rest is requested as soon as the length is known.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use hyper::StatusCode;
use tokio::task::JoinSet;

use super::attempt;
use super::host::Host;
use super::host_queue::Job;
use super::in_flight::InFlight;
use super::receive::Receiver;
use super::site::Site;
use super::stream_rate::FIRST_ROUND;
use crate::error::Cause;
use crate::priority::{Priority, Urgency};
use crate::transport::source::{Fetch, MEMORY_MAX, Stored};

/// Maximum number of concurrent requests for one object.
const PIECES_MAX: u64 = 32;

/// Division of an object into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Bytes of each piece, and the number of first pieces.
    size: u64,
    count: u64,
}

impl Plan {
    /// Plans at most `most` requests for so many bytes; `None` if one request is as good.
    fn of(bytes: u64, most: u64) -> Option<Self> {
        let count = bytes.div_ceil(FIRST_ROUND).min(PIECES_MAX).min(most);
        // Rounded up: a rest of a few bytes would cost another round trip.
        (count > 1).then(|| Self { size: bytes.div_ceil(count), count })
    }

    /// Returns the first pieces.
    fn pieces(self) -> impl Iterator<Item = Range<u64>> {
        (0..self.count).map(move |number| number * self.size..(number + 1) * self.size)
    }
}

impl Host {
    /// Returns the pieces of a job's object, if it is to be requested in pieces. Only objects with a hash are, because
    /// all pieces must be of the same bytes; after damage or on a detour the object is requested whole.
    pub(super) fn plan(&self, job: &Job) -> Option<Plan> {
        let Job { site, fetch, .. } = job;
        let is_plain = fetch.expected.hash().is_some()
            && fetch.part.is_none()
            && !fetch.http.fresh
            && fetch.attempt.detour == 0;
        let is_far = self.is_farther_than(self.context.options.pieces);
        let may = site.via.is_none() && site.capabilities.has_pieces() && !self.connections.multiplexes();
        if !is_far || !is_plain || !may || fetch.priority.urgency() != Urgency::Demand {
            return None;
        }
        let free = self.most().saturating_sub(self.load.active() + 1) as u64;
        Plan::of(self.expected(fetch), free).filter(|_| self.expected(fetch) <= MEMORY_MAX)
    }
}

/// Fetches the object in pieces, or as a whole if the server doesn't support pieces.
pub(super) async fn fetch(
    site: &Arc<Site>,
    fetch: &Fetch,
    in_flight: &InFlight,
    plan: Plan,
) -> Result<Stored, Cause> {
    let outcome = in_pieces(site, fetch, in_flight, plan).await;
    match &outcome {
        Ok(_) => site.capabilities.came_in_pieces(true),
        // A connection may break by chance, or since there are too many of them.
        Err(Cause::Broken(_) | Cause::Unreachable(_)) => site.capabilities.came_in_pieces(false),
        // The server or a middlebox refuses so many requests, or ranges.
        Err(Cause::WholeFile | Cause::Status(_) | Cause::Overloaded { .. }) => site.capabilities.no_pieces(),
        Err(_) => {}
    }
    match outcome {
        Err(Cause::WholeFile | Cause::Status(_) | Cause::Broken(_) | Cause::Unreachable(_)) => {
            attempt::attempt(site, fetch, in_flight).await
        }
        outcome => outcome,
    }
}

async fn in_pieces(
    site: &Arc<Site>,
    fetch: &Fetch,
    in_flight: &InFlight,
    plan: Plan,
) -> Result<Stored, Cause> {
    let host = &in_flight.host;
    // Those that are under way end with it.
    let mut under_way = JoinSet::new();
    for piece in plan.pieces() {
        under_way.spawn_local(get(site.clone(), fetch, host, piece));
    }
    let mut object = Object { asked: plan.size * plan.count, ..Object::default() };
    while let Some(piece) = under_way.join_next().await {
        let (start, outcome) = piece.map_err(|error| Cause::Broken(error.to_string()))?;
        match outcome {
            Ok(stored) => object.add(start, stored, fetch)?,
            Err(Cause::Status(status)) if start > 0 && StatusCode::RANGE_NOT_SATISFIABLE == status => {}
            Err(cause) => return Err(cause),
        }
        for piece in object.rest(host) {
            under_way.spawn_local(get(site.clone(), fetch, host, piece));
        }
        object.gather(host, fetch).await?;
    }
    let stored = object.finish().await?;
    if let Some(plain) = fetch.plain_size {
        host.path.learn(plain, stored.len());
    }
    Ok(stored)
}

/// Requests a piece. Its place in the queue dates from this call.
fn get(
    site: Arc<Site>,
    fetch: &Fetch,
    host: &Rc<Host>,
    piece: Range<u64>,
) -> impl Future<Output = (u64, Result<Stored, Cause>)> + use<> {
    let (start, len) = (piece.start, piece.end - piece.start);
    let fetch = Fetch {
        part: Some(piece.into()),
        limit: len,
        plain_size: None,
        spool: None,
        priority: Priority::demand(fetch.priority.user()),
        ..fetch.clone()
    };
    let in_flight = InFlight::take(host.clone(), &fetch.priority, len);
    async move { (start, attempt::attempt(&site, &fetch, &in_flight).await) }
}

/// Received pieces of an object.
#[derive(Default)]
struct Object {
    /// Length of the object, known from the first response on.
    len: Option<u64>,
    /// Number of bytes requested so far.
    asked: u64,
    /// Receiver of the first piece.
    receiver: Option<Receiver>,
    /// Received pieces with a gap before them.
    later: BTreeMap<u64, Stored>,
}

impl Object {
    fn add(&mut self, start: u64, stored: Stored, fetch: &Fetch) -> Result<(), Cause> {
        let len = stored.whole().map(|whole| whole.len);
        let len = len.ok_or_else(|| Cause::Broken("a part of unknown length came".into()))?;
        if len > fetch.limit {
            return Err(Cause::TooLarge { limit: fetch.limit });
        }
        if self.len.is_some_and(|before| before != len) {
            return Err(Cause::Broken("parts of files of different lengths came".into()));
        }
        self.len = Some(len);
        self.later.insert(start, stored);
        Ok(())
    }

    /// Returns the ranges still to request, once the object is known to be longer than expected.
    fn rest(&mut self, host: &Host) -> Vec<Range<u64>> {
        let begin = self.asked;
        let Some(left) = self.len.and_then(|len| len.checked_sub(begin)).filter(|left| *left > 0) else {
            return Vec::new();
        };
        self.asked += left;
        let free = host.most().saturating_sub(host.load.active()) as u64;
        let count = left.div_ceil(FIRST_ROUND).min(PIECES_MAX).min(free).max(1);
        let at = |number: u64| begin + left * number / count;
        (0..count).map(|number| at(number)..at(number + 1)).collect()
    }

    /// Appends received pieces without a gap to the beginning.
    async fn gather(&mut self, host: &Host, fetch: &Fetch) -> Result<(), Cause> {
        let Some(len) = self.len else { return Ok(()) };
        let receiver = self.receiver.get_or_insert_with(|| {
            Receiver::new(fetch.limit, Some(len), host.context.budget.share(), fetch.spool.clone())
        });
        while let Some(next) = self.later.remove(&receiver.received()) {
            let bytes = next.into_bytes().map_err(|error| Cause::Broken(error.to_string()))?;
            receiver.take(&bytes).await?;
        }
        Ok(())
    }

    async fn finish(self) -> Result<Stored, Cause> {
        match self.receiver {
            Some(receiver) if Some(receiver.received()) == self.len => receiver.finish().await,
            _ => Err(Cause::Broken("the parts that came are not all of it".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_covers_the_expected_size() {
        assert_eq!(Plan::of(FIRST_ROUND, 48), None);
        assert_eq!(Plan::of(1 << 20, 1), None);
        assert_eq!(Plan::of(1 << 20, 0), None);
        assert_eq!(Plan::of(0, 5), None);
        for (bytes, most, count) in
            [(20_000, 48, 2), (390_000, 48, 27), (1 << 22, 48, PIECES_MAX), (1 << 22, 3, 3)]
        {
            let plan = Plan::of(bytes, most).expect("a plan");
            assert_eq!(plan.count, count);
            let pieces: Vec<_> = plan.pieces().collect();
            assert_eq!(pieces[0].start, 0);
            assert!(pieces.windows(2).all(|two| two[0].end == two[1].start));
            let end = pieces[pieces.len() - 1].end;
            assert!(end >= bytes && end - bytes < count, "{end} of {bytes}");
        }
    }
}
