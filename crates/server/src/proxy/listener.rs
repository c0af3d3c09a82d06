//! Runs a proxy on a listening socket.

use std::convert::Infallible;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use serde_json::Value;
use tokio::runtime::Runtime;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use super::body::ProxyBody;
use super::{ProxyError, ProxyOptions, ProxyState};
use crate::{Limits, ServeError};

/// A proxy that listens and does not reply yet.
pub struct ProxyServer {
    runtime: Runtime,
    listener: TcpListener,
    address: SocketAddr,
    state: Arc<ProxyState>,
    limits: Limits,
    stop: watch::Sender<bool>,
}

/// Stops a proxy from another thread.
#[derive(Clone, Debug)]
pub struct ProxyStopper(watch::Sender<bool>);

impl ProxyStopper {
    /// Stops the proxy; responses in progress are finished.
    pub fn stop(&self) {
        self.0.send_replace(true);
    }
}

impl ProxyServer {
    /// Creates a proxy for a listening socket.
    pub fn new(listener: TcpListener, options: ProxyOptions, limits: Limits) -> Result<Self, ProxyError> {
        let state = Arc::new(ProxyState::open(options)?);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads((2 * cores).max(8))
            .max_blocking_threads(16)
            .thread_name("proxy")
            .enable_all()
            .build()
            .map_err(ServeError::Threads)?;
        let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
        let failed =
            |source| ServeError::Listen { address: listener.local_addr().unwrap_or(unspecified), source };
        rustix::net::listen(&listener, 4096).map_err(|errno| failed(errno.into()))?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        Ok(Self { runtime, listener, address, state, limits, stop: watch::Sender::new(false) })
    }

    /// Returns the address of the listening socket.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a handle that stops the proxy.
    pub fn stopper(&self) -> ProxyStopper {
        ProxyStopper(self.stop.clone())
    }

    /// Serves until the proxy is stopped; returns the final status.
    pub fn run(self) -> Result<Value, ProxyError> {
        let Self { runtime, listener, address, state, limits, stop } = self;
        let shared = state.clone();
        runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener)
                .map_err(|source| ServeError::Listen { address, source })?;
            let slots = Arc::new(Semaphore::new(limits.connections));
            let graceful = GracefulShutdown::new();
            let mut stopped = stop.subscribe();
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    _ = stopped.wait_for(|stopped| *stopped) => break,
                };
                let Ok((stream, _)) = accepted else {
                    // Descriptors are free again when connections end.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                };
                let Ok(slot) = slots.clone().acquire_owned().await else { break };
                let _ = stream.set_nodelay(true);
                let state = shared.clone();
                let service = service_fn(move |request: Request<Incoming>| {
                    let state = state.clone();
                    async move {
                        let (parts, _) = request.into_parts();
                        Ok::<Response<ProxyBody>, Infallible>(state.answer(&parts).await)
                    }
                });
                let connection = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(limits.idle)
                    .serve_connection(TokioIo::new(stream), service);
                let connection = graceful.watch(connection);
                tokio::spawn(async move {
                    // A client that closes early is no error.
                    let _ = connection.await;
                    drop(slot);
                });
            }
            drop(listener);
            let _ = timeout(limits.grace, graceful.shutdown()).await;
            Ok::<(), ServeError>(())
        })?;
        runtime.shutdown_timeout(limits.grace);
        let status = state.status();
        state.objects.cache.close().map_err(|source: io::Error| super::CacheError::Io {
            path: state.objects.cache.heads(),
            source,
        })?;
        Ok(status)
    }
}
