//! Runs a proxy on listening sockets.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use serde_json::Value;

use crate::counters::Counters;
use crate::options::Options;
use crate::proxy::{Monitor, ProxyError, ProxyOptions, ProxyState};
use crate::server::{Served, Server, Stopper};
use crate::transport::{Answering, Call, Handler};

/// A proxy that listens and does not reply yet.
pub struct ProxyServer {
    server: Server,
    state: Arc<ProxyState>,
}

impl Handler for ProxyState {
    fn answer(self: Arc<Self>, call: Call) -> Answering {
        Box::pin(async move { self.respond(&call).await })
    }
}

impl ProxyServer {
    /// Creates a proxy for listening sockets.
    pub fn new(
        listeners: Vec<TcpListener>,
        proxy: ProxyOptions,
        options: Options,
    ) -> Result<Self, ProxyError> {
        let counters = Arc::new(Counters::new(options.access_log.clone()));
        let state = Arc::new(ProxyState::open(proxy, &options, counters.clone())?);
        let monitor = Arc::new(Monitor(state.clone()));
        let server = Server::of(listeners, (state.clone(), monitor), counters, options)?;
        Ok(Self { server, state })
    }

    /// Returns the address of the first listening socket.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns true if TLS is spoken at that address.
    pub fn is_secure(&self) -> bool {
        self.server.addresses().first().is_some_and(|(_, is_secure)| *is_secure)
    }

    /// Returns a handle that stops the proxy.
    pub fn stopper(&self) -> Stopper {
        self.server.stopper()
    }

    /// Serves until the proxy is stopped; returns the counters and the last status.
    pub fn run(self) -> Result<(Served, Value), ProxyError> {
        let served = self.server.run()?;
        self.state.objects.cache.close()?;
        Ok((served, self.state.status()))
    }
}
