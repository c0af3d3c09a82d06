//! Limits and deadlines of HTTP requests.

use std::time::Duration;

use crate::destinations::Destinations;

/// Connections and deadlines.
#[derive(Clone, Debug)]
pub struct HttpOptions {
    /// Requests, and connections, to one server at most. A quarter of them is for demands only.
    pub connections_near: usize,
    /// The same for a server that is far away: each waits longer, and hides that of the others.
    pub connections_far: usize,
    /// Round trip from which a server counts as far.
    pub far: Duration,
    /// Connections to a far server that are opened in advance.
    pub spare: usize,
    /// Round trip from which a demanded object is fetched in pieces over several connections.
    pub pieces: Duration,
    /// Objects in one request at most, where the server offers that; 0 for none.
    pub batch: usize,
    /// Timeout for resolving a name and, again, for connecting.
    pub connect: Duration,
    /// Timeout for the first byte of a response.
    pub first_byte: Duration,
    /// Time without a response after which a request counts as stalled; at least some round trips.
    pub stall: Duration,
    /// Fewest bytes a second…
    pub low_speed: u64,
    /// …over this time.
    pub low_speed_window: Duration,
    /// Timeout for the smallest whole response if another route is left to try…
    pub attempt: Duration,
    /// …and longer for larger ones: a second for each so many bytes.
    pub attempt_speed: u64,
    /// Which addresses are connected to.
    pub destinations: Destinations,
    /// Keep-alive of idle connections, if the server doesn't state one.
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
