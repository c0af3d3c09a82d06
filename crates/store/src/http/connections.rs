//! The open connections to one server.
//!
//! Whoever needs a connection takes the idle one used last (its path is warm). Without one it waits for the
//! first that comes free or that is opened, demands before prefetches; there is never a waiting request
//! without an opening under way for it. On a long way a few are opened before anybody needs them.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::Instant;

use super::Site;
use super::exchange::{self, Connection};
use super::host::Host;
use crate::error::Cause;
use crate::urgency::Urgency;

/// The longest that a connection is kept, whatever the server allows: routers on the way forget it.
const KEPT_MAX: Duration = Duration::from_secs(60);

type Answer = oneshot::Sender<Result<Connection, Cause>>;

/// Idle connections, and who waits for one.
#[derive(Default)]
pub(super) struct Connections {
    idle: RefCell<Vec<Idle>>,
    demand: RefCell<VecDeque<Answer>>,
    prefetch: RefCell<VecDeque<Answer>>,
    opening: Cell<usize>,
    open: Rc<Cell<usize>>,
    pruning: Cell<bool>,
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

    /// A connection that is open and free, the one used last.
    fn idle(&self) -> Option<Connection> {
        let mut idle = self.idle.borrow_mut();
        let now = Instant::now();
        idle.retain(|idle| idle.until > now && !idle.connection.is_closed());
        idle.pop().map(|idle| idle.connection)
    }

    fn waiting(&self) -> usize {
        self.demand.borrow().len() + self.prefetch.borrow().len()
    }

    /// Gives a free connection to whoever waits for one.
    fn offer(&self, host: &Rc<Host>, mut connection: Connection, kept: Duration) {
        loop {
            let next = self.demand.borrow_mut().pop_front();
            let Some(next) = next.or_else(|| self.prefetch.borrow_mut().pop_front()) else { break };
            match next.send(Ok(connection)) {
                Ok(()) => return,
                // Whoever it was has gone away.
                Err(back) => match back {
                    Ok(back) => connection = back,
                    Err(_) => return,
                },
            }
        }
        self.idle.borrow_mut().push(Idle { until: Instant::now() + kept.min(KEPT_MAX), connection });
        self.prune(host);
    }

    /// Closes what nobody used for long.
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

    /// Returns when the next one will be old.
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
    /// A connection for a request. `fresh` is for those who got too many that the server had closed.
    pub(super) async fn connection(
        self: &Rc<Self>,
        site: &Arc<Site>,
        urgency: Urgency,
        fresh: bool,
    ) -> Result<Connection, Cause> {
        if fresh {
            return exchange::connect(self, site).await;
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
            let kept = connection.kept.unwrap_or(self.world.options.idle);
            self.connections.offer(self, connection, kept);
        }
    }

    /// Has a connection that brought nothing yet for whoever wants one.
    pub(super) fn keep_new(self: &Rc<Self>, connection: Connection) {
        self.connections.offer(self, connection, self.world.options.idle);
    }

    /// Sees to it that so many connections are idle or about to be.
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
            let outcome = exchange::connect(&host, &site).await;
            let connections = &host.connections;
            connections.opening.set(connections.opening.get() - 1);
            match outcome {
                Ok(connection) => {
                    let kept = host.world.options.idle;
                    connections.offer(&host, connection, kept);
                }
                // Told to somebody who would otherwise wait for nothing; one opened ahead fails silently.
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
