//! Status of servers and lower caches, as a cache's writer reports it to its clients and as `esker status --json` shows it.

use esker_store::LowerStatus;
use serde::{Deserialize, Serialize};

/// Servers and proxies, and their failures since the cache was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The servers.
    pub servers: Vec<Reach>,
    /// The proxies, group by group; `DIRECT` for none.
    pub proxies: Vec<Vec<Reach>>,
    /// Number of servers marked down.
    pub server_failovers: u64,
    /// Number of proxies marked down.
    pub proxy_failovers: u64,
    /// Number of servers and proxies that recovered.
    pub recoveries: u64,
    /// Attempts beyond the first of a request.
    pub retries: u64,
    /// Time and cause of the last failed attempt.
    pub last_error: Option<(u64, String)>,
}

/// A server or a proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reach {
    /// URL of the server or proxy.
    pub name: String,
    /// True if requests are sent there.
    pub active: bool,
    /// True if it failed and has not replied since.
    pub out: bool,
    /// Time of the failure, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<u64>,
    /// Cause of the failure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}

impl From<&esker_store::Reach> for Reach {
    fn from(one: &esker_store::Reach) -> Self {
        let esker_store::Reach { name, active, out, since, why } = one.clone();
        Self { name, active, out, since, why }
    }
}

impl From<Reach> for esker_store::Reach {
    fn from(one: Reach) -> Self {
        let Reach { name, active, out, since, why } = one;
        Self { name, active, out, since, why }
    }
}

/// Objects from lower cache folders, since the cache's writer opened it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lower {
    /// Number of objects found in the lower cache.
    pub found: u64,
    /// Plain size of these objects in bytes.
    pub found_bytes: u64,
    /// Number of files that were unreadable or failed verification.
    pub refused: u64,
    /// Number of requests sent to the network because the lower cache made no progress.
    pub late: u64,
    /// Number of objects written for other nodes.
    pub given: u64,
}

impl From<LowerStatus> for Lower {
    fn from(status: LowerStatus) -> Self {
        let LowerStatus { found, found_bytes, refused, late, given } = status;
        Self { found, found_bytes, refused, late, given }
    }
}

impl From<Lower> for LowerStatus {
    fn from(lower: Lower) -> Self {
        let Lower { found, found_bytes, refused, late, given } = lower;
        Self { found, found_bytes, refused, late, given }
    }
}

impl From<&esker_store::RouteStatus> for Route {
    fn from(route: &esker_store::RouteStatus) -> Self {
        Self {
            servers: route.servers.iter().map(Reach::from).collect(),
            proxies: route.proxies.iter().map(|group| group.iter().map(Reach::from).collect()).collect(),
            server_failovers: route.server_failovers,
            proxy_failovers: route.proxy_failovers,
            recoveries: route.recoveries,
            retries: route.retries,
            last_error: route.last_error.clone(),
        }
    }
}

impl From<Route> for esker_store::RouteStatus {
    fn from(route: Route) -> Self {
        let group = |group: Vec<Reach>| group.into_iter().map(esker_store::Reach::from).collect();
        Self {
            servers: route.servers.into_iter().map(esker_store::Reach::from).collect(),
            proxies: route.proxies.into_iter().map(group).collect(),
            server_failovers: route.server_failovers,
            proxy_failovers: route.proxy_failovers,
            recoveries: route.recoveries,
            retries: route.retries,
            last_error: route.last_error,
        }
    }
}
