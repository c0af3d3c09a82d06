//! Limits and deadlines of HTTP requests.

use std::sync::Arc;
use std::time::Duration;

use crate::destinations::Destinations;
use crate::servers::KeptAuthorities;

/// Options of connections and deadlines.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Maximum number of requests and connections to one server; a quarter of them is for demands only.
    pub connections_near: usize,
    /// Maximum number of requests and connections to a server that is far away.
    pub connections_far: usize,
    /// Minimum round-trip time of a server that counts as far.
    pub far: Duration,
    /// Number of connections to a far server that are opened in advance.
    pub spare: usize,
    /// Minimum round-trip time for fetching a demanded object in pieces over several connections.
    pub pieces: Duration,
    /// Maximum number of objects in one request, if the server offers batches; 0 for no batches.
    pub batch: usize,
    /// Timeout for resolving a name and, again, for connecting.
    pub connect: Duration,
    /// Timeout for the first byte of a response.
    pub first_byte: Duration,
    /// Time without a response after which a request counts as stalled; at least some round trips.
    pub stall: Duration,
    /// Minimum rate in bytes a second
    pub low_speed: u64,
    /// Period of the low-speed limit.
    pub low_speed_window: Duration,
    /// Timeout for the smallest whole response if another route is left to try.
    pub attempt: Duration,
    /// Bytes for which the deadline of an attempt is extended by one second.
    pub attempt_speed: u64,
    /// Timeout for the smallest object after which another route is tried beside the first.
    pub hedge: Duration,
    /// Bytes for which [`Self::hedge`] is extended by one second.
    pub hedge_speed: u64,
    /// Addresses that may be connected to.
    pub destinations: Destinations,
    /// Keep-alive of idle connections, if the server doesn't state one.
    pub idle: Duration,
    /// Texts of authorities that stand in for files that are gone.
    pub kept_authorities: Arc<KeptAuthorities>,
}

impl HttpOptions {
    /// Returns the time limit of an attempt for so many bytes, if another route is left to try.
    pub(crate) fn attempt_limit(&self, bytes: u64) -> Duration {
        self.attempt.saturating_add(Duration::from_secs(bytes / self.attempt_speed.max(1)))
    }
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
            hedge: Duration::from_secs(10),
            hedge_speed: 1 << 20,
            destinations: Destinations::All,
            idle: Duration::from_secs(15),
            kept_authorities: Arc::default(),
        }
    }
}
