//! Connections over hyper: admission, deadlines, strict request heads, and bodies that are read from files.
//!
//! A [`gate`] hands one complete request head at a time to hyper and takes the socket back when the response is
//! flushed. So an idle connection holds no buffers of hyper, and deadlines and evictions of idle clients are plain code
//! in [`connection`]. HTTP/2 connections belong to hyper from their preface to their end.

pub(crate) mod accept;
pub(crate) mod admission;
mod balancer;
pub(crate) mod body;
pub(crate) mod chunk;
mod client_rate;
pub(crate) mod connection;
pub(crate) mod exchange;
pub(crate) mod gate;
pub(crate) mod http2;
mod limits;
pub(crate) mod pending_clients;
mod plain;
pub(crate) mod request;
pub(crate) mod shares;
mod strangers;
pub(crate) mod upload;
pub(crate) mod wire;

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::Response;
use hyper::http::request::Parts;
use tokio::time::Instant;

use self::admission::AdmissionQueue;
use self::body::Body;
use self::exchange::Exchange;
use self::pending_clients::PendingClients;
use self::request::Request;
use self::shares::Shares;
use self::upload::Upload;
use crate::answer::Answer;
use crate::counters::{Counters, Limit};
use crate::metrics::Kind;
use crate::networks::ClientNetworks;

use self::client_rate::ClientRate;
pub(crate) use self::limits::State;
pub use self::limits::{Limits, PENDING_MIN};

/// A request, with what a handler may ask about its connection.
pub(crate) struct Call {
    /// The parts of the request that responses with files depend on.
    pub(crate) request: Request,
    /// Method, target, version and fields as received.
    pub(crate) parts: Parts,
    /// Body of the request; empty unless the handler takes one.
    pub(crate) upload: Upload,
    /// State of the connection.
    pub(crate) exchange: Arc<Exchange>,
}

impl Call {
    /// Returns the address of the client or of its proxy.
    pub(crate) fn client(&self) -> SocketAddr {
        self.exchange.client
    }
}

/// Future of a response.
pub(crate) type Answering = Pin<Box<dyn Future<Output = Response<Body>> + Send>>;

/// Answers requests.
pub(crate) trait Handler: Send + Sync + 'static {
    /// Answers a request.
    fn answer(self: Arc<Self>, call: Call) -> Answering;

    /// Returns the largest length of a request's body. Requests with a longer one are refused.
    fn body_max(&self) -> u64 {
        0
    }

    /// Returns a refusal of the transport in the form that the clients read.
    fn failure(&self, answer: Answer) -> Answer {
        answer
    }

    /// Answers a GET that depends on its path alone, if that needs no waiting; `None` to be asked for the same by
    /// [`Self::answer`].
    fn file(&self, _path: &str) -> Option<(Kind, Answer)> {
        None
    }
}

/// State that all connections share.
pub(crate) struct Transport {
    pub(crate) limits: Limits,
    pub(crate) counters: Arc<Counters>,
    pub(crate) admission: AdmissionQueue,
    pub(crate) pending_clients: Arc<PendingClients>,
    pub(crate) connections: Arc<Shares>,
    pub(crate) handler: Arc<dyn Handler>,
    /// Networks of clients that are answered; none for all.
    pub(crate) clients: Option<ClientNetworks>,
    /// Networks of load balancers, which tell the addresses of their clients.
    pub(crate) balancers: Option<ClientNetworks>,
    client_rate: Option<ClientRate>,
    pub(crate) state: tokio::sync::watch::Sender<State>,
}

impl Transport {
    pub(crate) fn new(limits: Limits, handler: Arc<dyn Handler>, counters: Arc<Counters>) -> Arc<Self> {
        Self::admitting((None, None), limits, handler, counters)
    }

    /// Creates the state of a server for clients in these networks, and behind these load balancers.
    pub(crate) fn admitting(
        (clients, balancers): (Option<ClientNetworks>, Option<ClientNetworks>),
        limits: Limits,
        handler: Arc<dyn Handler>,
        counters: Arc<Counters>,
    ) -> Arc<Self> {
        Arc::new(Self {
            clients,
            balancers,
            limits,
            counters,
            admission: AdmissionQueue::default(),
            pending_clients: PendingClients::new(limits.connections.max(PENDING_MIN)),
            connections: Arc::default(),
            handler,
            client_rate: limits.client_rate.map(ClientRate::new),
            state: tokio::sync::watch::Sender::new(State::Serving),
        })
    }

    /// Returns true if a peer is a load balancer, which tells the address of its client.
    pub(crate) fn is_balancer(&self, peer: IpAddr) -> bool {
        self.balancers.as_ref().is_some_and(|balancers| balancers.has(peer))
    }

    /// Waits until the server stops.
    pub(crate) async fn stopped(&self) {
        let mut state = self.state.subscribe();
        // The sender lives as long as this.
        let _ = state.wait_for(|state| *state == State::Stopping).await;
    }

    /// Counts a request; returns the time to wait if its client has sent too many.
    pub(crate) fn over_rate(&self, client: IpAddr) -> Option<Duration> {
        let wait = self.client_rate.as_ref()?.count(client, Instant::now()).err()?;
        self.counters.limited(Limit::Rate);
        Some(wait)
    }

    /// Returns true once the server stops.
    pub(crate) fn stops(&self) -> bool {
        *self.state.borrow() == State::Stopping
    }

    /// Waits until an idle connection has to close: because the server stops, or because a client waits for its slot,
    /// if it has one, and no other has been idle for longer.
    pub(crate) async fn unwanted(&self, has_slot: bool) {
        let evicted = async {
            match has_slot {
                true => self.admission.evicted_while_idle().await,
                false => std::future::pending().await,
            }
        };
        tokio::select! {
            () = evicted => {}
            () = self.stopped() => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake, Waker};

    use super::*;

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Silent;

    impl Handler for Silent {
        fn answer(self: Arc<Self>, _: Call) -> Answering {
            Box::pin(std::future::pending())
        }
    }

    /// A full server has thousands of idle connections, and new clients all the time.
    #[test]
    fn a_new_client_on_a_full_server_evicts_an_idle_one() {
        let transport = Transport::new(Limits::default(), Arc::new(Silent), Arc::default());
        let mut idle = [(); 3].map(|()| Box::pin(transport.unwanted(true)));
        let wakes = [(); 3].map(|()| Arc::<Wakes>::default());
        for (idle, wakes) in idle.iter_mut().zip(&wakes) {
            let waker = Waker::from(wakes.clone());
            assert!(idle.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        transport.admission.begin();
        assert_eq!(wakes.each_ref().map(|wakes| wakes.0.load(Ordering::Relaxed)), [1, 0, 0]);
    }
}
