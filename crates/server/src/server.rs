//! The server: a bounded number of connections, each an asynchronous task, and a shutdown that waits for responses in progress.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::sync::{Mutex, Semaphore, watch};
use tokio::time::timeout;

use crate::accept::accept;
use crate::admission::AdmissionQueue;
use crate::answer::{Answer, BUSY, NOT_FOUND, Status};
use crate::batch;
use crate::dashboard::{Dashboard, Traffic};
use crate::date;
use crate::events::{Events, Stream};
use crate::info;
use crate::listing::{Entry, Listing};
use crate::pages;
use crate::pending_clients::PendingClients;
use crate::repositories::Repositories;
use crate::request::{Method, Request};
use crate::route::{self, Allowed, Route};
use crate::shares::Shares;
use esker_format::name::RepositoryName;
use esker_format::object::ObjectName;

/// Smallest backlog of the listening socket: all nodes of a cluster may connect in one moment. The kernel has a limit
/// of its own, and a client beyond it retries after a second or more.
const WAITING_MIN: i32 = 4096;

/// Minimum number of clients that may be connected without a complete request.
pub const PENDING_MIN: usize = 64;

/// Number of pages that are made at once.
const PAGES: usize = 2;

/// Number of threads that read the content of responses.
const READERS: usize = 4;

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
    /// Longest time to send a request.
    pub head: Duration,
    /// Longest time without taking a byte of a response.
    pub stall: Duration,
    /// Minimum rate of a client over a whole response, in bytes a second.
    pub slowest: u64,
    /// Longest time for responses in progress when the server stops.
    pub grace: Duration,
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
        }
    }
}

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
    /// The threads could not be started.
    #[error("can't start the threads of the server")]
    Threads(#[source] io::Error),
}

/// Counters of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Served {
    /// Number of accepted connections.
    pub connections: u64,
    /// Number of responses.
    pub requests: u64,
    /// Number of responses with status 400 and above.
    pub failures: u64,
    /// Number of incomplete responses: the client closed or was too slow, or the file became shorter.
    pub broken_off: u64,
    /// Number of bytes in bodies.
    pub bytes: u64,
    /// Number of connections closed by force at the end of the shutdown's time limit.
    pub cut: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Counters {
    connections: AtomicU64,
    requests: AtomicU64,
    failures: AtomicU64,
    broken_off: AtomicU64,
    bytes: AtomicU64,
}

impl Counters {
    pub(crate) fn connected(&self) {
        self.connections.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts an answer, and the bytes of its body if all of them were sent.
    pub(crate) fn answered(&self, status: Status, sent: Option<u64>) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.failures.fetch_add(u64::from(status.0 >= 400), Ordering::Relaxed);
        self.broken_off.fetch_add(u64::from(sent.is_none()), Ordering::Relaxed);
        self.bytes.fetch_add(sent.unwrap_or(0), Ordering::Relaxed);
    }

    fn so_far(&self) -> Served {
        Served {
            connections: self.connections.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            broken_off: self.broken_off.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            cut: 0,
        }
    }
}

/// State of the server for its connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Serving,
    Stopping,
}

/// State that all connections share.
pub(crate) struct ServerState {
    pub(crate) limits: Limits,
    pub(crate) counters: Counters,
    pub(crate) admission: AdmissionQueue,
    pub(crate) pending_clients: Arc<PendingClients>,
    pub(crate) connections: Arc<Shares>,
    repositories: Arc<Repositories>,
    names: Arc<Mutex<Listing>>,
    pub(crate) traffic: Arc<Traffic>,
    dashboard: Arc<Dashboard>,
    page_permits: Semaphore,
    batches: Arc<Semaphore>,
    batch_shares: Arc<Shares>,
    events: Events,
}

impl ServerState {
    /// Opens the event stream of a request, if it is for one and the limit is not reached.
    pub(crate) async fn stream(&self, request: &Request) -> Option<Stream> {
        let Some(Route::Revisions { repository }) = route::find(&request.path) else { return None };
        let is_served =
            request.method == Method::Get && matches!(self.events.has(&repository).await, Ok(true));
        if is_served { self.events.listen(repository) } else { None }
    }

    pub(crate) async fn answer(&self, request: &Request, client: IpAddr) -> Answer {
        if request.method == Method::Other {
            return Answer::method();
        }
        if pages::is_page(&request.path) {
            return self.page(request).await;
        }
        match route::find(&request.path) {
            None => Answer::failure(NOT_FOUND),
            Some(Route::File { repository, file }) => self.file(request, &repository, &file),
            Some(Route::Batch { repository, names }) => self.batch(&repository, &names, client),
            // Not a stream, which the connection serves itself. A 404 tells clients that nothing is announced here,
            // and they stay away for long.
            Some(Route::Revisions { repository }) => match self.events.has(&repository).await {
                Ok(false) => Answer::failure(NOT_FOUND),
                Ok(true) | Err(_) => Answer::failure(BUSY),
            },
            Some(Route::Meta) => info::meta(&self.repositories),
            Some(Route::Index) => self.page(request).await,
            Some(Route::Repositories) => self.listed(&self.names, info::repositories).await,
        }
    }

    fn file(&self, request: &Request, repository: &RepositoryName, file: &Allowed) -> Answer {
        let mut failure = None;
        for folder in self.repositories.candidates(repository) {
            match folder.open(&file.path()) {
                Ok(opened) => return Answer::file(request, file, opened),
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => failure = Some(error),
            }
        }
        failure.map_or_else(|| Answer::failure(NOT_FOUND), |error| Answer::unreadable(&error))
    }

    fn batch(&self, repository: &RepositoryName, names: &[ObjectName], client: IpAddr) -> Answer {
        let share = self.batch_shares.take_below(client, batch::FOR_ONE_ADDRESS);
        match (share, self.batches.clone().try_acquire_owned()) {
            (Some(share), Ok(permit)) => {
                batch::make(&self.repositories, repository, names).holding((permit, share))
            }
            _ => batch::nothing(names),
        }
    }

    /// Returns a page of the dashboard. It reads the disk, so a blocking task makes it, and few at a time.
    async fn page(&self, request: &Request) -> Answer {
        let Ok(_permit) = self.page_permits.acquire().await else { return Answer::failure(BUSY) };
        let (dashboard, path, query) = (self.dashboard.clone(), request.path.clone(), request.query.clone());
        let made =
            tokio::task::spawn_blocking(move || pages::respond(&dashboard, &path, &query, date::now()));
        made.await.map_or_else(|_| Answer::failure((500, "Internal Server Error")), Answer::page)
    }

    /// Returns a response from the current repositories. That reads the disk, so one blocking task does it,
    /// while other requests wait for it without a thread.
    async fn listed(&self, listing: &Arc<Mutex<Listing>>, make: fn(&[Entry]) -> Answer) -> Answer {
        let (mut listing, repositories) = (listing.clone().lock_owned().await, self.repositories.clone());
        let made = tokio::task::spawn_blocking(move || make(&listing.now(&repositories))).await;
        made.unwrap_or_else(|_| Answer::failure((500, "Internal Server Error")))
    }
}

/// A server that listens and does not reply yet.
pub struct Server {
    runtime: Runtime,
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<ServerState>,
    state: watch::Sender<State>,
}

/// Stops a server from another thread.
#[derive(Clone, Debug)]
pub struct Stopper(watch::Sender<State>);

impl Stopper {
    /// Stops the server; responses in progress are finished.
    pub fn stop(&self) {
        self.0.send_replace(State::Stopping);
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
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            // Workers wait for the disk where the page cache has nothing, so more of them than cores.
            .worker_threads((2 * cores).max(8))
            .max_blocking_threads(READERS)
            .thread_name("serve")
            .enable_all()
            .build()
            .map_err(ServeError::Threads)?;
        let unspecified = SocketAddr::from(([0, 0, 0, 0], 0));
        let failed =
            |source| ServeError::Listen { address: listener.local_addr().unwrap_or(unspecified), source };
        // The standard library has the kernel keep no more than 128 clients waiting.
        let waiting = i32::try_from(limits.connections).unwrap_or(i32::MAX).max(WAITING_MIN);
        rustix::net::listen(&listener, waiting).map_err(|errno| failed(errno.into()))?;
        listener.set_nonblocking(true).map_err(failed)?;
        let bound = listener.local_addr().map_err(failed)?;
        let repositories = Arc::new(repositories);
        let traffic = Arc::new(Traffic::default());
        let shared = ServerState {
            limits,
            counters: Counters::default(),
            admission: AdmissionQueue::default(),
            pending_clients: PendingClients::new(limits.connections.max(PENDING_MIN)),
            connections: Arc::default(),
            events: Events::new(repositories.clone(), limits.listeners),
            repositories: repositories.clone(),
            names: Arc::default(),
            dashboard: Arc::new(Dashboard::new(repositories.clone(), traffic.clone())),
            traffic,
            page_permits: Semaphore::new(PAGES),
            batches: Arc::new(Semaphore::new(batch::AT_ONCE)),
            batch_shares: Arc::default(),
        };
        let (state, _) = watch::channel(State::Serving);
        Ok(Self { runtime, listener, address: bound, shared: Arc::new(shared), state })
    }

    /// Returns the address of the listening socket.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns a handle that stops the server.
    pub fn stopper(&self) -> Stopper {
        Stopper(self.state.clone())
    }

    #[cfg(test)]
    pub(crate) fn parts(&self) -> (&Arc<ServerState>, &watch::Sender<State>) {
        (&self.shared, &self.state)
    }

    /// Serves until the server is stopped.
    pub fn run(self) -> Result<Served, ServeError> {
        let Self { runtime, listener, address, shared, state } = self;
        let taken = shared.clone();
        let cut = runtime.block_on(async move {
            let listener = tokio::net::TcpListener::from_std(listener)
                .map_err(|source| ServeError::Listen { address, source })?;
            let slots = Arc::new(Semaphore::new(taken.limits.connections));
            accept(&listener, &taken, &state, &slots).await;
            // A client that connects now is refused at once instead of waiting.
            drop(listener);
            let all = u32::try_from(taken.limits.connections).unwrap_or(u32::MAX);
            let ended = timeout(taken.limits.grace, slots.acquire_many(all)).await.is_ok();
            Ok(if ended { 0 } else { (taken.limits.connections - slots.available_permits()) as u64 })
        })?;
        runtime.shutdown_background();
        Ok(Served { cut, ..shared.counters.so_far() })
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::task::Poll;

    use super::*;

    /// Slowly received batches of one address hold only a part of the permits.
    #[test]
    fn clients_at_one_address_leave_batches_to_others() {
        let repository = esker_testkit::fixture::FULL.unpack();
        let repositories = Repositories::open(&[repository.path()]).expect("a repository");
        let address = "127.0.0.1:0".parse().expect("an address");
        let server = Server::bind(address, repositories, Limits::default()).expect("listening");
        let name = RepositoryName::parse("full.test").expect("a name");
        let client = |number: u8| IpAddr::from([192, 0, 2, number]);
        // An object that isn't there, so that a batch of it never stays.
        let is_full =
            |client: IpAddr| server.shared.batch_shares.take_below(client, batch::FOR_ONE_ADDRESS).is_none();
        let under_way: Vec<_> =
            (0..batch::AT_ONCE).map(|_| server.shared.batch(&name, &[], client(1))).collect();
        assert!(is_full(client(1)) && !is_full(client(2)));
        assert_eq!(server.shared.batches.available_permits(), batch::AT_ONCE - batch::FOR_ONE_ADDRESS);
        drop(under_way);
        assert!(!is_full(client(1)));
    }

    /// A page takes as long as its catalogs do, on threads that other requests need.
    #[test]
    fn a_read_waiting_for_a_page_blocks_no_other() {
        let folder = tempfile::tempdir().expect("a folder");
        let repositories = Repositories::open(&[folder.path().to_owned()]).expect("a folder of none");
        let address = "127.0.0.1:0".parse().expect("an address");
        let Server { runtime, shared, .. } =
            Server::bind(address, repositories, Limits::default()).expect("listening");
        let pages = u32::try_from(PAGES).expect("a small number");
        let permits = shared.page_permits.try_acquire_many(pages).expect("no page is made yet");
        let request = match crate::request::parse(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n") {
            crate::request::Parsed::Whole(request, _) => request,
            other => panic!("{other:?}"),
        };
        runtime.block_on(async {
            let mut waiting = [(); 2 * READERS].map(|()| Box::pin(shared.page(&request)));
            let asked = poll_fn(|context| {
                Poll::Ready(waiting.iter_mut().all(|page| page.as_mut().poll(context).is_pending()))
            });
            assert!(asked.await);
            let name = RepositoryName::parse("some.test").expect("a name");
            let found = timeout(Duration::from_secs(60), shared.events.has(&name)).await;
            assert!(matches!(found, Ok(Ok(false))), "{found:?}");
        });
        drop(permits);
    }
}
