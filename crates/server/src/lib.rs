//! Serves repositories over HTTP: objects, batches, events, pages to browse and metrics; and proxies those of other servers.
//!
//! Read [`server`] for threads and limits, [`transport`] for connections, [`route`] and [`routes`] for the served paths,
//! [`answer`] for headers, [`pages`] for the dashboard.
#![forbid(unsafe_code)]

mod access_log;
mod answer;
mod batch;
mod counters;
mod dashboard;
mod date;
mod events;
mod exposition;
mod file;
mod geo;
mod info;
mod listing;
mod metrics;
mod networks;
mod options;
mod pages;
pub mod proxy;
mod proxy_server;
mod range;
mod repositories;
mod route;
mod routed;
mod routes;
pub mod server;
mod servermon;
mod site;
mod storages;
mod tls;
mod transport;

pub use access_log::{AccessLog, LogForm, LogOutput, LogTarget};
pub use exposition::WriteMetrics;
pub use geo::{GeoDatabase, GeoError};
pub use networks::{ClientNetwork, ClientNetworks};
pub use pages::PageTable;
pub use proxy_server::ProxyServer;
pub use repositories::{Repositories, RootError};
pub use routed::{ClientAddress, RoutedService};
pub use server::{Options, ServeError, Served, Server, Stopper};
pub use tls::{TlsError, TlsFiles};
pub use transport::{Limits, PENDING_MIN};
