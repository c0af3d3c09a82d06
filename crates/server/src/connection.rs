//! One client's connection: requests one after the other, each with a deadline.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

use crate::accept::slot;
use crate::answer::Answer;
use crate::dashboard::Answered;
use crate::date;
use crate::events::Stream;
use crate::pending_clients::PendingClient;
use crate::request::{self, Method, Parsed, Refusal, Request};
use crate::send::{Pace, bytes, send};
use crate::server::{ServerState, State};

/// Maximum number of bytes in one receive. A request usually has a few hundred.
const RECEIVE_MAX: usize = 2048;
/// Maximum number of bytes read and dropped before closing, so that the client still receives the response.
const LINGER_BYTES_MAX: u64 = 256 * 1024;
/// Time limit for reading these bytes.
const LINGER_MAX: Duration = Duration::from_secs(2);

pub(crate) struct Connection {
    stream: TcpStream,
    /// Received bytes that are not parsed yet.
    buffer: Vec<u8>,
    shared: Arc<ServerState>,
    state: watch::Receiver<State>,
    client: IpAddr,
    /// True once the connection had a response.
    served: bool,
}

/// Next step of a connection.
enum Next {
    Request(Request),
    Refused(Refusal),
    /// The client has disconnected, or the server expects no more requests.
    End,
}

impl Connection {
    pub(crate) fn new(
        (stream, client): (TcpStream, IpAddr),
        shared: Arc<ServerState>,
        state: watch::Receiver<State>,
    ) -> Self {
        // Answers are whole already; waiting for more only costs time.
        let _ = stream.set_nodelay(true);
        Self { stream, buffer: Vec::new(), shared, state, client, served: false }
    }

    /// Waits for the client's first request, then for a slot, and serves the client until it or the server closes.
    pub(crate) async fn run(mut self, pending: PendingClient, slots: &Arc<Semaphore>) {
        let shared = self.shared.clone();
        let first = tokio::select! {
            // A client that has asked leaves no more.
            biased;
            first = self.next() => first,
            () = pending.evicted() => return,
        };
        drop(pending);
        if matches!(first, Ok(Next::End) | Err(_)) {
            return;
        }
        let _slot = slot(slots, &shared, self.client).await;
        let share = shared.connections.take(self.client);
        tokio::select! {
            () = self.serve(first) => {}
            () = share.cut() => {}
        }
    }

    /// Serves the client, beginning with a request that has arrived. A client that disconnects early is no
    /// error.
    async fn serve(mut self, first: io::Result<Next>) {
        let mut first = Some(first);
        loop {
            let next = match first.take() {
                Some(first) => first,
                None => self.next().await,
            };
            let begun = Instant::now();
            let (answer, head_only, mut last, path) = match next {
                Ok(Next::Request(request)) => {
                    if let Some(stream) = self.shared.stream(&request).await {
                        // A client that closed its stream is no event.
                        let _ = self.tell(stream).await;
                        return self.part().await;
                    }
                    let answer = self.shared.answer(&request, self.client).await;
                    let status = answer.status.0;
                    tracing::debug!(client = %self.client, path = request.path, status, "request");
                    (answer, request.method == Method::Head, !request.keep_alive, request.path)
                }
                Ok(Next::Refused(refusal)) => (Answer::refusal(refusal), false, true, String::new()),
                Ok(Next::End) | Err(_) => return,
            };
            last |= self.shared.admission.waits() || *self.state.borrow() == State::Stopping;
            let status = answer.status.0;
            let sent = self.send(answer, head_only, last).await;
            let bytes = sent.as_ref().ok().copied().unwrap_or(0);
            self.shared.traffic.record(&Answered { path: &path, status, bytes, took: begun.elapsed() });
            if sent.is_err() {
                return;
            }
            if last {
                return self.part().await;
            }
            self.served = true;
        }
    }

    async fn send(&self, mut answer: Answer, head_only: bool, last: bool) -> io::Result<u64> {
        let head = answer.head(&date::http(date::now()), last);
        if head_only {
            answer.body.clear();
        }
        let limits = &self.shared.limits;
        let pace = Pace { stall: limits.stall, slowest: limits.slowest };
        let sent = send(&self.stream, &head, &answer, pace).await;
        self.shared.counters.answered(answer.status, sent.as_ref().ok().copied());
        sent
    }

    /// Sends new revisions until the client or the server closes.
    async fn tell(&mut self, mut events: Stream) -> io::Result<()> {
        let stall = self.shared.limits.stall;
        bytes(&self.stream, &Answer::events(&date::http(date::now())), false, stall).await?;
        let shared = self.shared.clone();
        let unwanted = unwanted(&shared, self.state.clone(), true);
        tokio::pin!(unwanted);
        loop {
            let next = tokio::select! {
                next = events.next() => next?,
                // It has nothing more to say, so this is its end.
                _ = self.receive() => return Ok(()),
                () = &mut unwanted => return Ok(()),
            };
            bytes(&self.stream, &next, false, stall).await?;
        }
    }

    /// Waits for the next request: long for its first byte, not so long for the rest.
    async fn next(&mut self) -> io::Result<Next> {
        if self.buffer.is_empty() {
            // An idle client costs a descriptor but no memory.
            self.buffer = Vec::new();
            let (shared, state) = (self.shared.clone(), self.state.clone());
            let (idle, served) = (shared.limits.idle, self.served);
            let received = tokio::select! {
                // A client with a request is no longer idle.
                biased;
                received = timeout(idle, self.receive()) => received.unwrap_or(Ok(0))?,
                () = unwanted(&shared, state, served) => 0,
            };
            if received == 0 {
                return Ok(Next::End);
            }
        }
        match timeout(self.shared.limits.head, self.request()).await {
            Ok(next) => next,
            Err(_) => Ok(Next::End),
        }
    }

    async fn request(&mut self) -> io::Result<Next> {
        loop {
            match request::parse(&self.buffer) {
                Parsed::Whole(request, len) => {
                    self.buffer.drain(..len);
                    return Ok(Next::Request(request));
                }
                Parsed::Refused(refusal) => return Ok(Next::Refused(refusal)),
                Parsed::Partial => {}
            }
            if self.receive().await? == 0 {
                return Ok(Next::End);
            }
        }
    }

    /// Waits for bytes. Readiness alone is no proof of bytes: it may be reported spuriously.
    async fn receive(&mut self) -> io::Result<usize> {
        loop {
            self.stream.readable().await?;
            match self.take() {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                taken => return taken,
            }
        }
    }

    fn take(&mut self) -> io::Result<usize> {
        let mut bytes = [0; RECEIVE_MAX];
        let received = self.stream.try_read(&mut bytes)?;
        self.buffer.extend_from_slice(bytes.get(..received).unwrap_or_default());
        Ok(received)
    }

    /// Closes the connection. Closing it with bytes unread would make the kernel reset it, and the client might
    /// lose our last answer.
    async fn part(mut self) {
        let parting = async {
            self.stream.shutdown().await?;
            let mut rest = self.stream.take(LINGER_BYTES_MAX);
            tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
        };
        // The client is gone.
        let _ = timeout(LINGER_MAX, parting).await;
    }
}

/// Waits until an idle connection has to close: because the server stops, or because a client waits for its slot, if
/// it has one, and no other has been idle for longer.
async fn unwanted(shared: &ServerState, mut state: watch::Receiver<State>, has_place: bool) {
    let wanted = async {
        match has_place {
            true => shared.admission.evicted_while_idle().await,
            false => std::future::pending().await,
        }
    };
    tokio::select! {
        () = wanted => {}
        _ = state.wait_for(|state| *state == State::Stopping) => {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::{Context, Wake, Waker};

    use super::*;
    use crate::repositories::Repositories;
    use crate::server::{Limits, Server};

    #[derive(Default)]
    struct Wakes(AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A full server has thousands of idle connections, and new clients all the time.
    #[test]
    fn a_new_client_on_a_full_server_evicts_an_idle_one() {
        let folder = tempfile::tempdir().expect("a folder");
        let repositories = Repositories::open(&[folder.path().to_owned()]).expect("a folder of none");
        let address = "127.0.0.1:0".parse().expect("an address");
        let server = Server::bind(address, repositories, Limits::default()).expect("listening");
        let (shared, state) = server.parts();
        let mut idle = [(); 3].map(|()| Box::pin(unwanted(shared, state.subscribe(), true)));
        let wakes = [(); 3].map(|()| Arc::<Wakes>::default());
        for (idle, wakes) in idle.iter_mut().zip(&wakes) {
            let waker = Waker::from(wakes.clone());
            assert!(idle.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        shared.admission.begin();
        assert_eq!(wakes.each_ref().map(|wakes| wakes.0.load(Ordering::Relaxed)), [1, 0, 0]);
    }
}
