//! One client's connection, from its first byte to its last.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::{Body as _, Incoming};
use hyper::header::{CONNECTION, CONTENT_LENGTH, HeaderValue, SERVER};
use hyper::http::request::Parts;
use hyper::server::conn::http1;
use hyper::{Method, Request, Response, Version};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::accept::slot;
use super::balancer;
use super::body::{Body, Report};
use super::exchange::Exchange;
use super::gate::{Gate, Next};
use super::http2;
use super::pending_clients::PendingClient;
use super::plain::{self, Outcome};
use super::request::{self, Refusal};
use super::upload::Upload;
use super::wire::Wire;
use super::{Call, Transport};
use crate::answer::Answer;
use crate::counters::Limit;
use crate::metrics::Kind;

/// Maximum number of bytes that hyper keeps of a response beyond the current chunk, and of a request.
const BUFFER_MAX: usize = 32 * 1024;

pub(crate) struct Connection {
    stream: TcpStream,
    client: SocketAddr,
    tls: Option<TlsAcceptor>,
    transport: Arc<Transport>,
}

impl Connection {
    pub(crate) fn new(
        stream: TcpStream,
        client: SocketAddr,
        tls: Option<TlsAcceptor>,
        transport: Arc<Transport>,
    ) -> Self {
        // Answers are whole already; waiting for more only costs time.
        let _ = stream.set_nodelay(true);
        Self { stream, client, tls, transport }
    }

    /// Waits for the client's first request, then for a slot, and serves the client until it or the server closes.
    pub(crate) async fn run(self, pending: PendingClient, slots: &Arc<Semaphore>) {
        let transport = self.transport.clone();
        let first = tokio::select! {
            // A client that has asked leaves no more.
            biased;
            first = self.first() => first,
            () = pending.evicted() => return,
        };
        drop(pending);
        let Some((gate, exchange, first)) = first else { return };
        let client = exchange.client;
        let most = transport.limits.client_connections;
        let Some(share) = transport.connections.take_at_most(client.ip(), most) else {
            transport.counters.limited(Limit::Connections);
            return Box::pin(turn_away(gate, &exchange, &first)).await;
        };
        let _slot = slot(slots, &transport, client.ip()).await;
        tokio::select! {
            () = serve(gate, &exchange, first) => {}
            () = share.cut() => {}
        }
    }

    /// Waits for the first request; `None` if none comes.
    async fn first(self) -> Option<(Gate, Arc<Exchange>, Next)> {
        let Self { mut stream, mut client, tls, transport } = self;
        let limit = transport.limits.head;
        if transport.is_balancer(client.ip()) {
            let told = timeout(limit, balancer::client(&mut stream)).await.ok()?.ok()?;
            client = told.unwrap_or(client);
            if told.is_some() && transport.clients.as_ref().is_some_and(|clients| !clients.has(client.ip())) {
                transport.counters.limited(Limit::Networks);
                return None;
            }
        }
        let wire = match tls {
            None => Wire::Plain(stream),
            Some(acceptor) => {
                let secured = Box::pin(timeout(limit, acceptor.accept(stream)));
                Wire::Secure(Box::new(secured.await.ok()?.ok()?))
            }
        };
        let exchange = Exchange::new(transport, client);
        let mut gate = Gate::new(wire, exchange.clone());
        match gate.next(false).await {
            Next::End => None,
            next => Some((gate, exchange, next)),
        }
    }
}

/// Serves a client, beginning with a request that has arrived. A client that disconnects early is no error.
async fn serve(mut gate: Gate, exchange: &Arc<Exchange>, first: Next) {
    let mut next = first;
    loop {
        match next {
            Next::Head => {
                // On the heap, so that an idle connection has no room for either.
                match Box::pin(plain::answer(&mut gate, exchange)).await {
                    Outcome::Sent => {
                        next = gate.next(true).await;
                        continue;
                    }
                    Outcome::Last => return Box::pin(gate.part()).await,
                    Outcome::Broken => return,
                    Outcome::NotPlain => {}
                }
                let connection = http1::Builder::new()
                    // A client that has sent its last request still gets the response.
                    .half_close(true)
                    // The gate has deadlines for heads.
                    .header_read_timeout(None)
                    .max_buf_size(BUFFER_MAX)
                    .serve_connection(gate, Requests(exchange.clone()));
                match Box::pin(connection.without_shutdown()).await {
                    Ok(parts) => gate = parts.io,
                    Err(_) => return,
                }
                if exchange.is_last() || gate.has_body() {
                    return Box::pin(gate.part()).await;
                }
            }
            Next::Preface => return Box::pin(http2::serve(gate, exchange)).await,
            Next::Refused(refusal) => return Box::pin(refuse(gate, exchange, refusal)).await,
            Next::End => return,
        }
        next = gate.next(true).await;
    }
}

/// Answers a client that has too many connections, and closes this one.
async fn turn_away(mut gate: Gate, exchange: &Arc<Exchange>, first: &Next) {
    // A connection of HTTP/2 is closed without a word, because its answers are more than a text.
    if matches!(first, Next::Head | Next::Refused(_)) {
        let answer = exchange.transport.handler.failure(Answer::too_many(Duration::from_secs(1)));
        let report = Report::new(exchange.clone(), None, None);
        let sent = gate.send(&answer.whole()).await;
        report.done(answer.status, answer.len(), sent.is_ok());
        gate.part().await;
    }
}

/// Answers a request that hyper must not see, and closes the connection.
async fn refuse(mut gate: Gate, exchange: &Arc<Exchange>, refusal: Refusal) {
    let answer = exchange.transport.handler.failure(Answer::refusal(refusal));
    let (status, len) = (answer.status, answer.len());
    let report = Report::new(exchange.clone(), None, None);
    let sent = gate.send(&answer.whole()).await;
    report.done(status, len, sent.is_ok());
    if sent.is_ok() {
        gate.part().await;
    }
}

/// The requests of a connection, as hyper hands them over.
pub(crate) struct Requests(pub(crate) Arc<Exchange>);

impl hyper::service::Service<Request<Incoming>> for Requests {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn call(&self, request: Request<Incoming>) -> Self::Future {
        let exchange = self.0.clone();
        Box::pin(async move { Ok(respond(exchange, request).await) })
    }
}

async fn respond(exchange: Arc<Exchange>, request: Request<Incoming>) -> Response<Body> {
    let (parts, body) = request.into_parts();
    let (head_only, version) = (parts.method == Method::HEAD, parts.version);
    let open = (version == Version::HTTP_2).then(|| exchange.open());
    let line = exchange.transport.counters.line(&parts, exchange.client);
    let mut report = Report::new(exchange.clone(), open, line);
    let path = parts.uri.path().to_owned();
    let handler = &exchange.transport.handler;
    let failed = |answer| handler.failure(answer).into_response();
    // The length of a body of HTTP/2 may be unknown.
    let fits = body.size_hint().exact().is_some_and(|len| len <= handler.body_max());
    let (response, keep_alive) = match request::Request::of(&parts, handler.body_max()) {
        Ok(_) if !body.is_end_stream() && !fits => (failed(Answer::refusal(Refusal::Body)), false),
        Ok(request) => match exchange.transport.over_rate(exchange.client.ip()) {
            None => handled(&exchange, request, parts, body).await,
            Some(wait) => (failed(Answer::too_many(wait)), request.keep_alive),
        },
        Err(refusal) => (failed(Answer::refusal(refusal)), false),
    };
    report.of(response.extensions().get().copied().unwrap_or(Kind::Refused));
    report.path(path);
    let (mut head, mut body) = response.into_parts();
    let len = body.size_hint().exact();
    if let Some(len) = len
        && !head.headers.contains_key(CONTENT_LENGTH)
        && head.status != hyper::StatusCode::NOT_MODIFIED
    {
        head.headers.insert(CONTENT_LENGTH, HeaderValue::from(len));
    }
    head.headers.insert(SERVER, HeaderValue::from_static("esker"));
    if head_only {
        body = Body::empty();
    }
    if version != Version::HTTP_2 {
        if !keep_alive || exchange.transport.admission.waits() || exchange.transport.stops() {
            head.headers.insert(CONNECTION, HeaderValue::from_static("close"));
            exchange.end();
        }
        exchange.set_due(len);
    }
    let body = body.reported(report, head.status.as_u16());
    Response::from_parts(head, body)
}

async fn handled(
    exchange: &Arc<Exchange>,
    request: request::Request,
    parts: Parts,
    body: Incoming,
) -> (Response<Body>, bool) {
    let keep_alive = request.keep_alive;
    let longest = exchange.patience(body.size_hint().exact().unwrap_or(0));
    let upload = Upload::new(body, exchange.transport.limits.stall, longest);
    let call = Call { request, parts, upload, exchange: exchange.clone() };
    let mut response = exchange.transport.handler.clone().answer(call).await;
    response.extensions_mut().get_or_insert_default::<Kind>();
    (response, keep_alive && !exchange.streams())
}
