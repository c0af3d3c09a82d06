//! Passes objects on that are too large for the cache, while they arrive.
//!
//! Nothing of such an object is kept, so each request has its own fetch. The last bytes are sent only if the hash of all is
//! right; else the connection ends without them, which tells the client. The next request for it asks another server first.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use esker_store::{Cause, Relay, RelayPart};
use tokio::sync::Semaphore;

use super::failure::Failure;
use super::objects::Objects;
use super::place::Place;
use super::upstream::ObjectQuery;
use crate::transport::body::Relayed;
use crate::transport::shares::Shares;

/// Maximum number of objects that are passed on at the same time; each takes some 200 KiB of memory.
const AT_ONCE: usize = 32;
/// Maximum number of passed-on objects for one client address.
const FOR_ONE_ADDRESS: usize = 8;

/// Bounds the number of objects that are passed on.
pub(crate) struct Passing {
    permits: Arc<Semaphore>,
    shares: Arc<Shares>,
}

impl Passing {
    pub(crate) fn new() -> Self {
        Self { permits: Arc::new(Semaphore::new(AT_ONCE)), shares: Arc::default() }
    }

    /// Begins to fetch an object for one client; returns its body.
    pub(crate) async fn begin(
        &self,
        objects: &Arc<Objects>,
        place: &Arc<Place>,
        query: ObjectQuery,
        client: IpAddr,
    ) -> Result<Relayed, Failure> {
        let share = self.shares.take_below(client, FOR_ONE_ADDRESS).ok_or(Failure::Busy)?;
        let permit = self.permits.clone().try_acquire_owned().map_err(|_| Failure::Busy)?;
        let (relay, mut parts) = Relay::new(query.name.hash);
        objects.counters.passed_on.fetch_add(1, Ordering::Relaxed);
        let fetching = tokio::spawn(fetch(objects.clone(), place.clone(), query, Arc::new(relay)));
        match parts.recv().await {
            Some(RelayPart::Begin(left)) => {
                Ok(Relayed { parts, left, is_whole: false, _permit: (permit, share) })
            }
            // Nothing was sent yet, so that the client can be told the reason.
            _ => Err(fetching.await.ok().and_then(Result::err).unwrap_or(Failure::Ended)),
        }
    }
}

async fn fetch(
    objects: Arc<Objects>,
    place: Arc<Place>,
    query: ObjectQuery,
    relay: Arc<Relay>,
) -> Result<(), Failure> {
    let name = query.name;
    let fetched = objects.upstream.relay(&place, &query, relay.clone()).await;
    objects.counters.fetched_bytes.fetch_add(relay.known(), Ordering::Relaxed);
    fetched.map_err(|error| {
        if relay.is_wrong() {
            tracing::warn!("{}: {name}, which is passed on, is damaged", place.title());
            place.doubt(name);
        } else if !matches!(error.cause(), Cause::Closed) {
            tracing::warn!("{}: {name} can't be passed on: {error}", place.title());
        }
        error.into()
    })
}
