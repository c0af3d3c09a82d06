//! HTTP/1.1, on one thread of its own.
//!
//! Callers hand requests to the network's thread and get called back. That thread runs an async runtime that
//! nobody else sees. Per server it keeps connections alive, opens no more than a stated number, and starts
//! demanded transfers before prefetched ones; a prefetch under way stands still while something is demanded
//! from the same server, so that it never delays a demanded byte.

mod exchange;
mod host;
mod meter;
mod names;
mod network;
mod receive;
mod url;

use std::sync::Arc;
use std::time::Duration;

use crate::done::Done;
use crate::error::StoreError;
use crate::source::{Fetch, Source, Stored};
use url::BaseUrl;

pub(crate) use network::Network;

/// Connections and deadlines.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Connections to one server for what is demanded.
    pub connections: usize,
    /// Connections to one server for prefetching, besides those.
    pub prefetch_connections: usize,
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
    /// How long a connection is kept without use. Shorter than what servers usually keep theirs.
    pub idle: Duration,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            // The reference client uses 16; a node that starts a job wants more, and sites let a node have
            // some dozens of connections to their proxies.
            connections: 32,
            prefetch_connections: 16,
            connect: Duration::from_secs(5),
            first_byte: Duration::from_secs(10),
            low_speed: 1024,
            low_speed_window: Duration::from_secs(10),
            attempt: Duration::from_secs(60),
            attempt_speed: 16 << 10,
            idle: Duration::from_secs(4),
        }
    }
}

/// A repository on a web server. One attempt a request: repeating is the business of
/// [`Retrying`](crate::retry::Retrying).
pub(crate) struct HttpSource {
    network: Arc<Network>,
    base: Arc<BaseUrl>,
}

impl HttpSource {
    pub(crate) fn new(network: Arc<Network>, url: &str) -> Result<Self, StoreError> {
        Ok(Self { network, base: Arc::new(BaseUrl::parse(url)?) })
    }
}

impl Source for HttpSource {
    fn fetch(&self, fetch: Fetch, done: Done<Stored>) {
        let place: Arc<str> = self.base.to_string().into();
        let named = Done::new(move |outcome: Result<Stored, StoreError>| {
            done.give(outcome.map_err(|error| error.from_place(place)));
        });
        self.network.fetch(self.base.clone(), fetch, named);
    }

    fn describe(&self) -> String {
        self.base.to_string()
    }
}
