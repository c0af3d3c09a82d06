//! Manages the open connections to one server.
//!
//! A request takes the idle connection used last (its path is warm). Without one it waits for the first that becomes
//! free or is opened, demands before prefetches; every waiting request has an opening in progress for it. On a long
//! path a few are opened in advance.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::attempt::{self, Connection};
use super::host::Host;
use super::site::Site;
use crate::error::Cause;
use crate::priority::Urgency;

/// Maximum keep-alive, even if the server allows more: NAT routers drop idle connections.
const KEPT_MAX: Duration = Duration::from_secs(60);

type Answer = oneshot::Sender<Result<Connection, Cause>>;

/// Idle connections, and the requests that wait for one.
#[derive(Default)]
pub(super) struct Connections {
    idle: RefCell<Vec<Idle>>,
    demand: RefCell<VecDeque<Answer>>,
    prefetch: RefCell<VecDeque<Answer>>,
    opening: Cell<usize>,
    open: Rc<Cell<usize>>,
    pruning: Cell<bool>,
    /// True if the server multiplexes requests on one connection.
    multiplexes: Cell<bool>,
}

struct Idle {
    until: Instant,
    connection: Connection,
}

/// Counts one open connection.
pub(super) struct Open(Rc<Cell<usize>>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.set(self.0.get() - 1);
    }
}

impl Connections {
    pub(super) fn counted(&self) -> Open {
        self.open.set(self.open.get() + 1);
        Open(self.open.clone())
    }

    /// Records that the server multiplexes requests on one connection.
    pub(super) fn multiplexed(&self) {
        self.multiplexes.set(true);
    }

    pub(super) fn multiplexes(&self) -> bool {
        self.multiplexes.get()
    }

    /// Returns the idle connection used last.
    fn idle(&self) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        let now = Instant::now();
        idle.retain(|idle| idle.until > now && !idle.connection.is_closed());
        idle.pop().map(|idle| idle.connection)
    }

    fn waiting(&self) -> usize {
        self.demand.borrow().len() + self.prefetch.borrow().len()
    }

    /// Gives a free connection to the next waiting request.
    fn offer(&self, host: &Rc<Host>, mut connection: Connection, kept: Duration) {
        loop {
            let next = self.demand.borrow_mut().pop_front();
            let Some(next) = next.or_else(|| self.prefetch.borrow_mut().pop_front()) else { break };
            match next.send(Ok(connection)) {
                Ok(()) => return,
                // The request was cancelled.
                Err(back) => match back {
                    Ok(back) => connection = back,
                    Err(_) => return,
                },
            }
        }
        self.idle.borrow_mut().push(Idle { until: Instant::now() + kept.min(KEPT_MAX), connection });
        self.prune(host);
    }

    /// Closes connections that were idle for long.
    fn prune(&self, host: &Rc<Host>) {
        if self.pruning.replace(true) {
            return;
        }
        let host = Rc::downgrade(host);
        tokio::task::spawn_local(async move {
            loop {
                let Some(next) = host.upgrade().and_then(|host| host.connections.close_old()) else { return };
                tokio::time::sleep_until(next).await;
            }
        });
    }

    /// Closes expired idle connections; returns the time of the next expiry.
    fn close_old(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut idle = self.idle.borrow_mut();
        idle.retain(|idle| idle.until > now && !idle.connection.is_closed());
        let next = idle.iter().map(|idle| idle.until).min();
        self.pruning.set(next.is_some());
        next
    }
}

impl Host {
    /// Returns a connection for a request. `fresh` opens a new one, after too many idle ones turned out to be closed.
    pub(super) async fn connection(
        self: &Rc<Self>,
        site: &Arc<Site>,
        urgency: Urgency,
        fresh: bool,
    ) -> Result<Connection, Cause> {
        if fresh {
            return attempt::connect(self, site).await;
        }
        if let Some(connection) = self.connections.idle() {
            return Ok(connection);
        }
        let (answer, told) = oneshot::channel();
        match urgency {
            Urgency::Demand => self.connections.demand.borrow_mut().push_back(answer),
            Urgency::Prefetch => self.connections.prefetch.borrow_mut().push_back(answer),
        }
        if self.connections.opening.get() < self.connections.waiting() {
            self.open(site);
        }
        told.await.unwrap_or(Err(Cause::Closed))
    }

    /// Keeps a connection for the next request.
    pub(super) fn keep(self: &Rc<Self>, mut connection: Connection) {
        if !connection.is_closed() {
            connection.is_reused = true;
            let kept = connection.kept.unwrap_or(self.context.options.idle);
            self.connections.offer(self, connection, kept);
        }
    }

    /// Keeps a new connection for the next request.
    pub(super) fn keep_new(self: &Rc<Self>, connection: Connection) {
        self.connections.offer(self, connection, self.context.options.idle);
    }

    /// Opens connections in advance until so many are idle or being opened.
    pub(super) fn open_ahead(self: &Rc<Self>, site: &Arc<Site>, wanted: usize) {
        let connections = &self.connections;
        let most = self.most();
        let ready = |connections: &Connections| connections.idle.borrow().len() + connections.opening.get();
        while ready(connections) < wanted + connections.waiting()
            && connections.open.get() + connections.opening.get() < most
        {
            self.open(site);
        }
    }

    fn open(self: &Rc<Self>, site: &Arc<Site>) {
        let (host, site) = (self.clone(), site.clone());
        self.connections.opening.set(self.connections.opening.get() + 1);
        tokio::task::spawn_local(async move {
            let outcome = attempt::connect(&host, &site).await;
            let connections = &host.connections;
            connections.opening.set(connections.opening.get() - 1);
            match outcome {
                Ok(connection) => {
                    let kept = host.context.options.idle;
                    connections.offer(&host, connection, kept);
                }
                // Fails a request that would otherwise wait for nothing; a connection opened in advance fails
                // silently.
                Err(cause) if connections.opening.get() < connections.waiting() => {
                    let last = connections.prefetch.borrow_mut().pop_back();
                    let last = last.or_else(|| connections.demand.borrow_mut().pop_back());
                    if let Some(last) = last {
                        let _ = last.send(Err(cause));
                    }
                }
                Err(_) => {}
            }
        });
    }
}
