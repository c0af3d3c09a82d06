//! Status of a source: its requests, servers and proxies.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Requests of a repository to its servers, and the state of the path. Field names are an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetworkStatus {
    /// Number of requests sent.
    pub requests: u64,
    /// Number of connections opened.
    pub connections: u64,
    /// Bytes of answers, without their headers.
    pub received_bytes: u64,
    /// Shortest recent round trip in microseconds; 0 before the first connection.
    pub round_trip_us: u64,
    /// Maximum recent delivery rate.
    pub bytes_per_second: u64,
    /// Limit of concurrent requests for starting prefetches.
    pub window: u64,
    /// Servers and proxies.
    pub route: RouteStatus,
}

impl NetworkStatus {
    /// Returns the minimum recent round trip, if there was one.
    pub fn round_trip(&self) -> Option<Duration> {
        (self.round_trip_us > 0).then(|| Duration::from_micros(self.round_trip_us))
    }
}

/// Servers and proxies of a repository, and their failures. Field names are an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RouteStatus {
    /// Servers of the repository.
    pub servers: Vec<EndpointStatus>,
    /// The proxies, group by group; `DIRECT` for none.
    pub proxies: Vec<Vec<EndpointStatus>>,
    /// Number of times that a server was marked down.
    pub server_failovers: u64,
    /// Number of times that a proxy was marked down.
    pub proxy_failovers: u64,
    /// Number of times that a server or proxy recovered.
    pub recoveries: u64,
    /// Number of attempts beyond the first of a request.
    pub retries: u64,
    /// The last failure of an attempt: seconds since 1970, and the text.
    pub last_error: Option<(u64, String)>,
}

/// A server or a proxy. Field names are an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EndpointStatus {
    /// URL of the server or proxy.
    pub name: String,
    /// True if requests use it.
    pub active: bool,
    /// True if it is marked down.
    pub out: bool,
    /// Time of the failure, in seconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Text of the failure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}
