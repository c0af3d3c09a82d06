//! HTTP/1.1, on one thread of its own.
//!
//! Callers hand requests to the network's thread and get called back. That thread runs an async runtime that
//! nobody else sees. Per server it keeps connections alive, sends no more than a stated number of requests at
//! once, and starts demands before prefetches; prefetches fill the path without making a queue on it, so that
//! what they add to a demanded byte is a fraction of a round trip (decision 0050).

mod batch;
mod connections;
mod counts;
mod exchange;
mod host;
mod meter;
mod names;
mod network;
mod pace;
mod path;
mod receive;
mod turn;
mod url;
mod window;

use std::sync::Arc;
use std::time::Duration;

use crate::done::Done;
use crate::error::StoreError;
use crate::source::{Fetch, Source, Stored};
use crate::status::NetworkStatus;
use batch::Offer;
use counts::Counts;
use url::BaseUrl;

pub(crate) use network::Network;

/// Connections and deadlines.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Requests, and connections, to one server at most. A quarter of them is for demands only.
    pub connections_near: usize,
    /// The same for a server that is far away: each waits longer, and hides that of the others.
    pub connections_far: usize,
    /// The round trip from which on a server is far away.
    pub far: Duration,
    /// Connections to a far server that are opened before anybody needs them.
    pub spare: usize,
    /// Objects in one request at most, where the server offers that; 0 for none.
    pub batch: usize,
    /// Until a name is resolved and, again, until a connection is made.
    pub connect: Duration,
    /// Until the first byte of the answer.
    pub first_byte: Duration,
    /// Fewest bytes a second…
    pub low_speed: u64,
    /// …over this time.
    pub low_speed_window: Duration,
    /// Until the answer is complete, for the smallest answer…
    pub attempt: Duration,
    /// …and longer for larger ones: a second for each so many bytes.
    pub attempt_speed: u64,
    /// How long a connection is kept without use, if the server doesn't say how long it keeps it.
    pub idle: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            // The reference client uses 16. More to a server at hand only queue there, and sites let a node
            // have some dozens of connections to their proxies.
            connections_near: 16,
            connections_far: 64,
            far: Duration::from_millis(2),
            spare: 3,
            batch: 32,
            connect: Duration::from_secs(5),
            first_byte: Duration::from_secs(10),
            low_speed: 1024,
            low_speed_window: Duration::from_secs(10),
            attempt: Duration::from_secs(60),
            attempt_speed: 16 << 10,
            idle: Duration::from_secs(15),
        }
    }
}

/// A repository on a web server. One attempt a request: repeating is the business of
/// [`Retrying`](crate::retry::Retrying).
pub(crate) struct HttpSource {
    network: Arc<Network>,
    site: Arc<Site>,
}

/// Where a repository is, and what its traffic came to.
pub(super) struct Site {
    base: BaseUrl,
    counts: Counts,
    offer: Offer,
}

impl Site {
    fn new(base: BaseUrl) -> Self {
        Self { base, counts: Counts::default(), offer: Offer::default() }
    }

    /// The server, for whom all its repositories queue together.
    fn server(&self) -> (String, u16) {
        (self.base.host.clone(), self.base.port)
    }
}

impl HttpSource {
    pub(crate) fn new(network: Arc<Network>, url: &str) -> Result<Self, StoreError> {
        let site = network.site(BaseUrl::parse(url)?);
        Ok(Self { network, site })
    }
}

impl Source for HttpSource {
    fn fetch(&self, fetch: Fetch, done: Done<Stored>) {
        let place: Arc<str> = self.site.base.to_string().into();
        let named = Done::new(move |outcome: Result<Stored, StoreError>| {
            done.give(outcome.map_err(|error| error.from_place(place)));
        });
        self.network.fetch(self.site.clone(), fetch, named);
    }

    fn describe(&self) -> String {
        self.site.base.to_string()
    }

    fn network(&self) -> NetworkStatus {
        self.site.counts.status()
    }
}
