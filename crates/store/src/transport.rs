//! Implements HTTP on a thread of its own.
//!
//! Callers hand requests to the network thread and get called back. That thread runs a private async runtime. Per
//! server it keeps connections alive, bounds the requests in flight, and starts demands before prefetches; prefetches
//! fill the path without making a queue on it, so that they delay a demanded byte by a fraction of a round trip
//! (decision 0050).

mod attempt;
pub(crate) mod attempt_watch;
mod awaiting;
mod batch;
mod capabilities;
mod client;
mod concurrency_window;
mod connections;
mod context;
mod datagrams;
mod dial;
mod dns;
mod downloads;
mod fair_queue;
mod host;
mod host_load;
mod host_path;
mod host_queue;
mod http_source;
mod in_flight;
pub(crate) mod links;
pub(crate) mod local;
mod low_speed;
mod network;
mod options;
mod path_estimate;
mod pieces;
mod post;
mod range;
pub(crate) mod range_file;
mod receive;
pub(crate) mod relay;
mod response;
mod site;
pub(crate) mod source;
mod sse;
pub(crate) mod status;
mod stream_rate;
mod tls;
mod traffic_counts;
mod url;
mod user_share;
pub(crate) mod verify;

pub use client::{Client, ClientOptions, Received};
pub use datagrams::{ComposeDatagram, DatagramTarget, Datagrams};
pub(crate) use dns::Resolved;
pub use dns::{addresses_of, full_name};
pub use downloads::{Download, in_flight as downloads_in_flight};
pub(crate) use http_source::HttpSource;
pub(crate) use network::Network;
pub use options::HttpOptions;
pub use post::Poster;
pub use receive::Receiver;
pub(crate) use site::{ConnectOptions, Limits, ProxyHop, Site};
pub use sse::{EventHandler, SseListener, SseOptions, SseStatus};
pub use tls::TlsProblem;
pub(crate) use traffic_counts::TrafficCounts;
pub(crate) use url::BaseUrl;
pub use url::host_of;

use std::path::PathBuf;

/// Returns the files of the machine that are read again when they change: its name servers, names and authorities.
pub fn files_of_machine() -> Vec<PathBuf> {
    let names = [dns::HOSTS, dns::RESOLV_CONF];
    names.into_iter().chain(crate::servers::BUNDLES).map(PathBuf::from).collect()
}
