//! Options of a server, and why it can't start.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use esker_store::StoreError;

use crate::access_log::AccessLog;
use crate::geo::GeoDatabase;
use crate::networks::ClientNetworks;
use crate::proxy::{CacheError, StorageOptions};
use crate::repositories::RootError;
use crate::tls::TlsFiles;
use crate::transport::Limits;

/// Failure to start the server.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The address can't be used.
    #[error("can't listen at {address}")]
    Listen {
        /// Address to listen at.
        address: SocketAddr,
        /// The I/O error.
        source: io::Error,
    },
    /// The cache of object storage can't be used.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// Object storage can't be used with its settings.
    #[error(transparent)]
    Storage(#[from] StoreError),
    /// Two repositories have the same name.
    #[error(transparent)]
    Repositories(#[from] RootError),
    /// The threads could not be started.
    #[error("can't start the threads of the server")]
    Threads(#[source] io::Error),
}

/// Options of a server beside the served folders.
#[derive(Debug, Default)]
pub struct Options {
    /// Limits for clients.
    pub limits: Limits,
    /// Networks of clients that are answered; `None` for all.
    pub clients: Option<ClientNetworks>,
    /// Networks of load balancers, which tell the addresses of their clients with the PROXY protocol.
    pub balancers: Option<ClientNetworks>,
    /// Listening sockets without TLS, beside the others.
    pub plain: Vec<TcpListener>,
    /// Certificate and key; without them the server speaks no TLS.
    pub tls: Option<Arc<TlsFiles>>,
    /// Log of requests.
    pub access_log: Option<AccessLog>,
    /// Listening socket for metrics; without one they are at `/metrics` of the other sockets.
    pub metrics: Option<TcpListener>,
    /// Database of the Geo-API.
    pub geo: Option<Arc<GeoDatabase>>,
    /// Repositories in object storage.
    pub storages: Option<StorageOptions>,
    /// Number of threads for work that blocks; none for as many as reading files needs.
    pub blocking_threads: Option<usize>,
}
