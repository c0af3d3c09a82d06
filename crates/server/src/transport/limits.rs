//! Limits for clients, and the state of the server for its connections.

use std::time::Duration;

/// Minimum number of clients that may be connected without a complete request.
pub const PENDING_MIN: usize = 64;

/// Limits for clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of clients that are served or idle between requests. Each needs up to two descriptors; as
    /// many more clients, but at least [`PENDING_MIN`], may be connected without a complete request.
    pub connections: usize,
    /// Maximum number of these with an event stream.
    pub listeners: usize,
    /// Longest idle time of a connection.
    pub idle: Duration,
    /// Time limit for sending a request.
    pub head: Duration,
    /// Maximum time without progress of a response.
    pub stall: Duration,
    /// Minimum rate of a client over a whole response, in bytes a second.
    pub slowest: u64,
    /// Time limit for responses in progress when the server stops.
    pub grace: Duration,
    /// Maximum number of connections of one client address; `None` for no limit.
    pub client_connections: Option<usize>,
    /// Maximum number of requests of one client address in a second; `None` for no limit.
    pub client_rate: Option<u32>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 4096,
            listeners: 2048,
            idle: Duration::from_secs(60),
            head: Duration::from_secs(10),
            stall: Duration::from_secs(30),
            slowest: 8 * 1024,
            grace: Duration::from_secs(10),
            client_connections: None,
            client_rate: None,
        }
    }
}

/// State of the server for its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Serving,
    Stopping,
}
