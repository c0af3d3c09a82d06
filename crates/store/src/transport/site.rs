//! Represents one repository on one server, reached over one route.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::capabilities::Capabilities;
use super::dial::Endpoint;
use super::options::HttpOptions;
use super::traffic_counts::TrafficCounts;
use super::url::BaseUrl;
use crate::servers::{Authorities, Dns, InfoHeaders, Login, Timings};

/// One repository on one server on one route, and its traffic counters.
pub(crate) struct Site {
    pub(super) base: BaseUrl,
    /// The proxy to connect to in place of the server.
    pub(super) via: Option<ProxyHop>,
    /// Address to connect to.
    pub(super) endpoint: Endpoint,
    pub(super) connect_options: ConnectOptions,
    pub(super) counts: Arc<TrafficCounts>,
    pub(super) capabilities: Capabilities,
}

/// A proxy on the route.
#[derive(Clone, Debug)]
pub(crate) struct ProxyHop {
    pub(crate) address: SocketAddr,
    /// Name that the proxy must prove with TLS, if it is used over TLS.
    pub(crate) tls: Option<Arc<str>>,
    /// The user name and password that it is sent.
    pub(crate) login: Option<Login>,
}

impl fmt::Display for ProxyHop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tls.is_some() { write!(f, "https://{}", self.address) } else { self.address.fmt(f) }
    }
}

/// Options of a route.
#[derive(Clone, Debug)]
pub(crate) struct ConnectOptions {
    pub(crate) limits: Limits,
    pub(crate) dns: Dns,
    /// Additional fields of requests.
    pub(crate) info_headers: InfoHeaders,
}

/// Timeouts of one route.
#[derive(Clone, Debug)]
pub(crate) struct Limits {
    pub(crate) connect: Duration,
    pub(crate) first_byte: Duration,
    pub(crate) low_speed: u64,
    pub(crate) low_speed_window: Duration,
}

impl Limits {
    /// Returns the timeouts through a proxy, or without one.
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
        via: Option<ProxyHop>,
        connect_options: ConnectOptions,
        (authorities, http2): (&Authorities, bool),
        counts: Arc<TrafficCounts>,
    ) -> Arc<Self> {
        let endpoint = endpoint(&base, via.as_ref(), authorities, http2);
        Arc::new(Self { base, via, endpoint, connect_options, counts, capabilities: Capabilities::default() })
    }

    /// Returns whether a proxy reads the requests.
    pub(super) fn is_asked_of_proxy(&self) -> bool {
        self.via.is_some() && self.endpoint.beyond.is_none()
    }
}

/// Returns the address to connect to for requests to `base`, through `via` if there is a proxy.
pub(super) fn endpoint(
    base: &BaseUrl,
    via: Option<&ProxyHop>,
    authorities: &Authorities,
    http2: bool,
) -> Endpoint {
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
