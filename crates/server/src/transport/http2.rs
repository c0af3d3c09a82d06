//! A connection of HTTP/2: several responses at once, each with a deadline.

use std::sync::Arc;
use std::time::Duration;

use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::{Instant, interval, timeout};

use super::connection::Requests;
use super::exchange::Exchange;
use super::gate::Gate;
use super::request::HEAD_MAX;

/// Maximum number of requests that a client may have open at once.
const STREAMS_MAX: u32 = 128;
/// Interval at which the deadlines of responses are compared with the clock.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Serves the connection to its end.
pub(crate) async fn serve(gate: Gate, exchange: &Arc<Exchange>) {
    let transport = exchange.transport.clone();
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(HEAD_MAX as u32)
        // Shows connections whose client is gone.
        .keep_alive_interval(transport.limits.stall)
        .keep_alive_timeout(transport.limits.stall);
    let connection = builder.serve_connection(gate, Requests(exchange.clone()));
    tokio::pin!(connection);
    let end = tokio::select! {
        // An error is the client's.
        _ = &mut connection => return,
        end = end(exchange) => end,
    };
    if end == End::Late {
        return;
    }
    connection.as_mut().graceful_shutdown();
    tokio::select! {
        // The client confirms the end; one that doesn't is gone.
        _ = timeout(transport.limits.grace, &mut connection) => {}
        () = late(exchange) => {}
    }
}

/// Reason for the end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// A client takes a response too slowly.
    Late,
    /// The connection is idle and has to close, or the server stops.
    Unwanted,
}

async fn end(exchange: &Exchange) -> End {
    tokio::select! {
        () = late(exchange) => End::Late,
        () = unwanted(exchange) => End::Unwanted,
    }
}

/// Waits until a response is overdue.
async fn late(exchange: &Exchange) {
    let mut open = exchange.open_streams();
    loop {
        // Nothing is due without a response; the sender lives as long as the exchange.
        drop(open.wait_for(|open| !open.is_empty()).await);
        let mut ticks = interval(POLL_INTERVAL.min(exchange.transport.limits.stall));
        loop {
            ticks.tick().await;
            let now = Instant::now();
            let open = open.borrow();
            if open.iter().any(|(_, due)| due.is_some_and(|due| due <= now)) {
                return;
            }
            if open.is_empty() {
                break;
            }
        }
    }
}

/// Waits until the connection is idle for too long or has to make room, or the server stops.
async fn unwanted(exchange: &Exchange) {
    let mut open = exchange.open_streams();
    let idle = async {
        loop {
            drop(open.wait_for(Vec::is_empty).await);
            let busy = async { drop(open.wait_for(|open| !open.is_empty()).await) };
            tokio::select! {
                () = busy => {}
                _ = timeout(exchange.transport.limits.idle, exchange.transport.unwanted(true)) => return,
            }
        }
    };
    tokio::select! {
        () = idle => {}
        () = exchange.transport.stopped() => {}
    }
}
