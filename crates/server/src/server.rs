//! The server: a bounded number of connections, each an asynchronous task, and a shutdown that waits for responses in progress.

use std::future::poll_fn;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::task::Poll;

use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::time::timeout;

use crate::counters::Counters;
pub use crate::counters::Served;
pub use crate::options::{Options, ServeError};
use crate::repositories::Repositories;
use crate::routes;
use crate::site::{Files, Pages, Site};
use crate::storages::Storages;
use crate::tls::TlsFiles;
use crate::transport::accept::accept;
use crate::transport::{Handler, Limits, State, Transport};

/// Smallest backlog of the listening socket: all nodes of a cluster may connect in one moment. The kernel has a limit
/// of its own, and a client beyond it retries after a second or more.
const WAITING_MIN: i32 = 4096;

/// Maximum number of connections of monitoring at its own socket.
const MONITORS_MAX: usize = 64;

/// Number of threads that read the content of responses.
const READERS: usize = 4;
/// Number of threads that read if there are repositories in object storage; some of them wait for it.
const READERS_OF_STORAGE: usize = 16;

/// A server that listens and does not reply yet.
pub struct Server {
    runtime: Runtime,
    listeners: Vec<TcpListener>,
    /// Listening sockets without TLS.
    plain: Vec<TcpListener>,
    address: SocketAddr,
    tls: Option<Arc<TlsFiles>>,
    transport: Arc<Transport>,
    /// The socket for metrics.
    monitor: Option<(TcpListener, Arc<Transport>)>,
    storages: Option<Arc<Storages>>,
}

/// Stops a server from another thread.
#[derive(Clone)]
pub struct Stopper(Vec<Arc<Transport>>);

impl Stopper {
    /// Stops the server; responses in progress are finished.
    pub fn stop(&self) {
        for transport in &self.0 {
            transport.state.send_replace(State::Stopping);
        }
    }
}

impl Server {
    /// Listens at `address`; port 0 selects a free port.
    pub fn bind(address: SocketAddr, repositories: Repositories, limits: Limits) -> Result<Self, ServeError> {
        Self::on(Self::listen(address)?, repositories, limits)
    }

    /// Opens the listening socket, without a thread: for processes that drop privileges first.
    pub fn listen(address: SocketAddr) -> Result<TcpListener, ServeError> {
        TcpListener::bind(address).map_err(|source| ServeError::Listen { address, source })
    }

    /// Creates a server for a listening socket.
    pub fn on(listener: TcpListener, repositories: Repositories, limits: Limits) -> Result<Self, ServeError> {
        Self::new(vec![listener], repositories, Options { limits, ..Options::default() })
    }

    /// Creates a server of repositories for listening sockets.
    pub fn new(
        listeners: Vec<TcpListener>,
        mut repositories: Repositories,
        options: Options,
    ) -> Result<Self, ServeError> {
        let counters = Arc::new(Counters::new(options.access_log.clone()));
        let storages = options.storages.clone();
        let storages = storages.map(|storages| Storages::open(storages, &options, counters.clone()));
        let storages = storages.transpose()?;
        if let Some(storages) = &storages {
            repositories.add(storages.folders())?;
        }
        let site =
            Site::new(repositories, storages.clone(), &options.limits, counters.clone(), options.geo.clone());
        let files = Arc::new(Files::new(site.clone(), options.metrics.is_none()));
        let pages = Arc::new(Pages(routes::of_metrics(site)));
        Ok(Self { storages, ..Self::of(listeners, (files, pages), counters, options)? })
    }

    /// Creates a server whose requests `handler` answers, and `monitor` those at the socket for metrics.
    pub(crate) fn of(
        listeners: Vec<TcpListener>,
        (handler, monitor): (Arc<dyn Handler>, Arc<dyn Handler>),
        counters: Arc<Counters>,
        options: Options,
    ) -> Result<Self, ServeError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let readers = if options.storages.is_some() { READERS_OF_STORAGE } else { READERS };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            // Workers wait for the disk where a file system can't tell what is in memory, so more of them than cores.
            .worker_threads((2 * cores).max(8))
            .max_blocking_threads(options.blocking_threads.unwrap_or(readers))
            .thread_name("serve")
            .enable_all()
            .build()
            .map_err(ServeError::Threads)?;
        let limits = options.limits;
        let mut address = SocketAddr::from(([0, 0, 0, 0], 0));
        for listener in options.metrics.iter().chain(options.plain.iter().rev()).chain(listeners.iter().rev())
        {
            let failed =
                |source| ServeError::Listen { address: listener.local_addr().unwrap_or(address), source };
            // The standard library has the kernel keep no more than 128 clients waiting.
            let waiting = i32::try_from(limits.connections).unwrap_or(i32::MAX).max(WAITING_MIN);
            rustix::net::listen(listener, waiting).map_err(|errno| failed(errno.into()))?;
            listener.set_nonblocking(true).map_err(failed)?;
            address = listener.local_addr().map_err(failed)?;
        }
        let admitted = (options.clients, options.balancers);
        let transport = Transport::admitting(admitted, limits, handler, counters);
        let monitor = options.metrics.map(|listener| {
            let limits = Limits { connections: MONITORS_MAX, ..Limits::default() };
            (listener, Transport::new(limits, monitor, Arc::default()))
        });
        let (plain, tls) = (options.plain, options.tls);
        Ok(Self { runtime, listeners, plain, address, tls, transport, monitor, storages: None })
    }

    /// Returns the address of the first listening socket.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the addresses of all listening sockets for clients, and whether TLS is spoken there.
    pub fn addresses(&self) -> Vec<(SocketAddr, bool)> {
        let usual = self.listeners.iter().map(|listener| (listener, self.tls.is_some()));
        let all = usual.chain(self.plain.iter().map(|listener| (listener, false)));
        all.filter_map(|(listener, secure)| Some((listener.local_addr().ok()?, secure))).collect()
    }

    /// Returns a handle that stops the server.
    pub fn stopper(&self) -> Stopper {
        let monitor = self.monitor.iter().map(|(_, transport)| transport);
        Stopper(std::iter::once(&self.transport).chain(monitor).cloned().collect())
    }

    /// Serves until the server is stopped.
    pub fn run(self) -> Result<Served, ServeError> {
        let Self { runtime, listeners, plain, address, tls, transport, monitor, storages } = self;
        let taken = transport.clone();
        if let Some(storages) = storages.clone() {
            runtime.spawn(async move { storages.look().await });
        }
        let cut = runtime.block_on(async move {
            let slots = Arc::new(Semaphore::new(taken.limits.connections));
            let monitors = Arc::new(Semaphore::new(MONITORS_MAX));
            if let Some(tls) = &tls {
                tokio::spawn(tls.clone().follow());
            }
            let served = listeners.into_iter().map(|listener| (listener, tls.as_deref()));
            let served = served.chain(plain.into_iter().map(|listener| (listener, None)));
            let served = served.map(|(listener, tls)| (listener, tls, &taken, &slots));
            let (measured, watcher) = monitor.unzip();
            let measured = measured.zip(watcher.as_ref());
            let measured = measured.map(|(listener, transport)| (listener, None, transport, &monitors));
            let mut accepting = Vec::new();
            for (listener, tls, transport, slots) in served.chain(measured) {
                let listener = tokio::net::TcpListener::from_std(listener);
                let listener = listener.map_err(|source| ServeError::Listen { address, source })?;
                // A client that connects after the end is refused at once instead of waiting.
                accepting.push(Box::pin(async move { accept(&listener, tls, transport, slots).await }));
            }
            poll_fn(|cx| {
                accepting.retain_mut(|accepting| accepting.as_mut().poll(cx).is_pending());
                if accepting.is_empty() { Poll::Ready(()) } else { Poll::Pending }
            })
            .await;
            let all = u32::try_from(taken.limits.connections).unwrap_or(u32::MAX);
            let ended = timeout(taken.limits.grace, slots.acquire_many(all)).await.is_ok();
            Ok::<_, ServeError>(if ended {
                0
            } else {
                (taken.limits.connections - slots.available_permits()) as u64
            })
        })?;
        runtime.shutdown_background();
        if let Some(storages) = storages {
            storages.close();
        }
        Ok(Served { cut, ..transport.counters.so_far() })
    }
}
