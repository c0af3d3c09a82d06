//! Status of a source: its requests, servers and proxies.

use std::time::Duration;

/// Requests of a repository to its servers, and the state of the path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkStatus {
    /// Requests sent.
    pub requests: u64,
    /// Connections opened for them.
    pub connections: u64,
    /// Bytes of answers, without their headers.
    pub received_bytes: u64,
    /// The least round trip lately, in microseconds; 0 before there was a connection.
    pub round_trip_us: u64,
    /// The fastest delivery lately.
    pub bytes_per_second: u64,
    /// Requests at once up to which prefetches are started.
    pub window: u64,
    /// Servers and proxies.
    pub route: RouteStatus,
}

impl NetworkStatus {
    /// Returns the least recent round trip, if there was one.
    pub fn round_trip(&self) -> Option<Duration> {
        (self.round_trip_us > 0).then(|| Duration::from_micros(self.round_trip_us))
    }
}

/// Servers and proxies of a repository, and their failures.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RouteStatus {
    /// The servers.
    pub servers: Vec<Reach>,
    /// The proxies, group by group; `DIRECT` for none.
    pub proxies: Vec<Vec<Reach>>,
    /// How often a server was left.
    pub server_failovers: u64,
    /// How often a proxy was left.
    pub proxy_failovers: u64,
    /// How often something that was left answered again.
    pub recoveries: u64,
    /// Attempts beyond the first of a request.
    pub retries: u64,
    /// The last failure of an attempt: seconds since 1970, and the text.
    pub last_error: Option<(u64, String)>,
}

/// A server or a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reach {
    /// Its URL.
    pub name: String,
    /// Whether requests go there.
    pub active: bool,
    /// Whether it failed, and was not seen to answer since.
    pub out: bool,
    /// When it failed, in seconds since 1970.
    pub since: Option<u64>,
    /// How it failed.
    pub why: Option<String>,
}
