//! HTTP/1.1, on one thread of its own.
//!
//! Callers hand requests to the network's thread and get called back. That thread runs an async runtime that
//! nobody else sees. Per server it keeps connections alive, sends no more than a stated number of requests at
//! once, and starts demands before prefetches; prefetches fill the path without making a queue on it, so that
//! what they add to a demanded byte is a fraction of a round trip (decision 0050).

mod awaiting;
mod batch;
mod connections;
mod counts;
mod datagrams;
mod dial;
mod exchange;
mod fair;
mod host;
mod listen;
mod meter;
mod names;
mod network;
mod offer;
mod pace;
mod path;
mod pieces;
mod places;
mod range;
mod receive;
mod tls;
mod turn;
mod url;
mod window;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::destinations::Destinations;
use crate::done::Done;
use crate::error::StoreError;
use crate::servers::{Authorities, Dns, Login, Timings, Told};
use crate::source::{Fetch, Source, Stored};
use crate::status::NetworkStatus;
use dial::Endpoint;
use offer::Offer;

pub(crate) use counts::Counts;
pub use datagrams::{Compose, Datagrams, Destination};
pub use listen::{Heard, Listen, ListenStatus, Listening};
pub(crate) use names::Resolved;
pub use names::full_name;
pub(crate) use network::Network;
pub use tls::TlsProblem;
pub use url::host_of;
pub(crate) use url::{BaseUrl, escaped};

/// How we call ourselves.
const AGENT: &str = concat!("esker/", env!("CARGO_PKG_VERSION"));

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
    /// The round trip from which on a demanded object comes in pieces over several connections.
    pub pieces: Duration,
    /// Objects in one request at most, where the server offers that; 0 for none.
    pub batch: usize,
    /// Until a name is resolved and, again, until a connection is made.
    pub connect: Duration,
    /// Until the first byte of the answer.
    pub first_byte: Duration,
    /// How long a request must have been sent without an answer to count as stalled; at least some round trips.
    pub stall: Duration,
    /// Fewest bytes a second…
    pub low_speed: u64,
    /// …over this time.
    pub low_speed_window: Duration,
    /// Until the answer is complete, for the smallest answer, if another way is left to try…
    pub attempt: Duration,
    /// …and longer for larger ones: a second for each so many bytes.
    pub attempt_speed: u64,
    /// Which addresses are connected to.
    pub destinations: Destinations,
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
            // Below, the round trips that are saved take hardly longer than the requests.
            pieces: Duration::from_millis(8),
            batch: 32,
            connect: Duration::from_secs(5),
            first_byte: Duration::from_secs(10),
            stall: Duration::from_secs(1),
            low_speed: 1024,
            low_speed_window: Duration::from_secs(10),
            attempt: Duration::from_secs(60),
            attempt_speed: 16 << 10,
            destinations: Destinations::All,
            idle: Duration::from_secs(15),
        }
    }
}

/// A repository on a web server, on one way to it. One attempt a request: repeating, and choosing among ways, is the
/// business of [`Routed`](crate::route::Routed).
pub(crate) struct HttpSource {
    network: Arc<Network>,
    site: Arc<Site>,
    place: Arc<str>,
}

/// Where a repository is, on which way it is reached, and what its traffic came to.
pub(crate) struct Site {
    base: BaseUrl,
    /// The proxy to connect to in place of the server.
    via: Option<Via>,
    /// Whom to connect to.
    endpoint: Endpoint,
    manners: Manners,
    counts: Arc<Counts>,
    offer: Offer,
}

/// A proxy.
#[derive(Clone, Debug)]
pub(crate) struct Via {
    pub(crate) address: SocketAddr,
    /// The name that it has to prove with TLS, if that is spoken to it.
    pub(crate) tls: Option<Arc<str>>,
    /// The user name and password that it is sent.
    pub(crate) login: Option<Login>,
}

impl fmt::Display for Via {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tls.is_some() { write!(f, "https://{}", self.address) } else { self.address.fmt(f) }
    }
}

/// How a way is used.
#[derive(Clone, Debug)]
pub(crate) struct Manners {
    pub(crate) limits: Limits,
    pub(crate) dns: Dns,
    /// What is told of requests.
    pub(crate) told: Told,
}

/// How long is waited on one way.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) connect: Duration,
    pub(crate) first_byte: Duration,
    pub(crate) low_speed: u64,
    pub(crate) low_speed_window: Duration,
}

impl Limits {
    /// The limits through a proxy, or without one.
    pub(crate) fn new(options: &HttpOptions, timings: &Timings, through_proxy: bool) -> Self {
        let usual = Self {
            connect: options.connect,
            first_byte: options.first_byte,
            low_speed: timings.low_speed.unwrap_or(options.low_speed),
            low_speed_window: options.low_speed_window,
        };
        let said = if through_proxy { Some(timings.proxy) } else { timings.direct };
        match said {
            Some(time) => Self { connect: time, first_byte: time, low_speed_window: time, ..usual },
            None => usual,
        }
    }
}

impl Site {
    pub(crate) fn new(
        base: BaseUrl,
        via: Option<Via>,
        manners: Manners,
        (authorities, http2): (&Authorities, bool),
        counts: Arc<Counts>,
    ) -> Arc<Self> {
        let endpoint = endpoint(&base, via.as_ref(), authorities, http2);
        Arc::new(Self { base, via, endpoint, manners, counts, offer: Offer::default() })
    }

    /// Whether a proxy reads the requests.
    fn is_asked_of_proxy(&self) -> bool {
        self.via.is_some() && self.endpoint.beyond.is_none()
    }
}

fn endpoint(base: &BaseUrl, via: Option<&Via>, authorities: &Authorities, http2: bool) -> Endpoint {
    let of_server = base.tls.then(|| Arc::<str>::from(base.host.as_str()));
    let (host, port, tls, beyond) = match via {
        Some(proxy) => {
            let beyond = of_server.map(|name| (name, base.port));
            (proxy.address.ip().to_string(), proxy.address.port(), proxy.tls.clone(), beyond)
        }
        None => (base.host.clone(), base.port, of_server, None),
    };
    let login = via.and_then(|proxy| proxy.login.clone());
    let authorities = (tls.is_some() || beyond.is_some()).then(|| authorities.clone());
    Endpoint { host, port, is_direct: via.is_none(), tls, login, beyond, authorities, http2 }
}

impl HttpSource {
    pub(crate) fn new(network: Arc<Network>, site: Arc<Site>) -> Self {
        let place = match &site.via {
            Some(proxy) => format!("{} through the proxy {proxy}", site.base),
            None => site.base.to_string(),
        };
        Self { network, site, place: place.into() }
    }
}

impl Source for HttpSource {
    fn fetch(&self, fetch: Fetch, done: Done<Stored>) {
        let place = self.place.clone();
        let named = Done::new(move |outcome: Result<Stored, StoreError>| {
            done.give(outcome.map_err(|error| error.from_place(place)));
        });
        self.network.fetch(self.site.clone(), fetch, named);
    }

    fn describe(&self) -> String {
        self.place.to_string()
    }

    fn network(&self) -> NetworkStatus {
        self.site.counts.status()
    }
}
