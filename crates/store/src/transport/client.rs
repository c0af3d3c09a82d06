//! Sends requests with bodies, like those to a bucket, from any number of tasks of a runtime.
//!
//! Idle connections are kept for the next request. A request has no deadline as a whole, but fails after a time in which
//! no byte moves in either direction: an upload may be large, and the path slow.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderValue};
use hyper::http::uri::PathAndQuery;
use hyper::{Request, Response, Uri};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until, timeout};

use super::dial::{AGENT, Endpoint, Line};
use super::dns::Names;
use super::response::{broken, kept};
use super::tls::Tls;
use crate::error::{Cause, Phase};
use crate::servers::{Authorities, Dns};

/// Number of bytes of a body in one read: few, so that progress is reported often.
const PIECE: usize = 64 << 10;
/// Maximum keep-alive, even if the server allows more: NAT routers drop idle connections.
const KEPT_MAX: Duration = Duration::from_secs(60);
/// Maximum number of idle connections tried that the server may have closed, before a new one is opened.
const STALE_MAX: usize = 3;

/// Options of a [`Client`].
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Certificates of authorities.
    pub authorities: Authorities,
    /// Name servers.
    pub dns: Dns,
    /// Timeout for connecting and, again, for TLS.
    pub connect: Duration,
    /// Time without progress after which a request fails.
    pub stall: Duration,
    /// Keep-alive of idle connections, if the server doesn't state one.
    pub idle: Duration,
}

/// An HTTP/1.1 client; the requests have bodies of type `B`.
pub struct Client<B> {
    options: ClientOptions,
    names: Names,
    tls: Tls,
    idle: Mutex<HashMap<Endpoint, Vec<Idle<B>>>>,
}

/// Request half of a connection, which is kept until this time.
struct Idle<B> {
    sender: SendRequest<Sent<B>>,
    until: Instant,
}

impl<B> Client<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::error::Error + Send + Sync + 'static,
{
    /// Returns a client without connections.
    pub fn new(options: ClientOptions) -> Arc<Self> {
        Arc::new(Self { options, names: Names::default(), tls: Tls::default(), idle: Mutex::default() })
    }

    /// Sends a request to the server that its URI names; returns once the fields of the response are there.
    pub async fn send(self: &Arc<Self>, request: Request<B>) -> Result<Response<Received<B>>, Cause> {
        let endpoint = self.endpoint(request.uri())?;
        let (moved, mut request) = addressed(request, &endpoint)?;
        for attempt in 0..=STALE_MAX {
            let idle = if attempt < STALE_MAX { self.take_idle(&endpoint).await } else { None };
            let mut sender = match idle {
                Some(sender) => sender,
                None => self.connect(&endpoint).await?,
            };
            moved.now();
            let limit = self.options.stall;
            let sending = sender.try_send_request(request);
            let late = Cause::TimedOut { phase: Phase::FirstByte, limit };
            match moved.within(limit, sending).await.ok_or(late)? {
                Ok(response) => return Ok(self.received(response, sender, endpoint)),
                Err(mut error) => match error.take_message() {
                    // The server had closed the idle connection: nothing was sent.
                    Some(back) => request = back,
                    None => return Err(broken(error.into_error())),
                },
            }
        }
        Err(Cause::Broken("the server closes every connection at once".to_owned()))
    }

    fn received(
        self: &Arc<Self>,
        response: Response<Incoming>,
        sender: SendRequest<Sent<B>>,
        endpoint: Endpoint,
    ) -> Response<Received<B>> {
        let keep = kept(&response).unwrap_or(self.options.idle).min(KEPT_MAX);
        let limit = self.options.stall;
        response.map(|body| {
            let back = Some(ReturnedConnection { client: self.clone(), endpoint, sender, keep });
            let mut received =
                Received { body, back, limit, late: Box::pin(sleep_until(Instant::now() + limit)) };
            if received.body.is_end_stream() {
                received.complete();
            }
            received
        })
    }

    fn endpoint(&self, uri: &Uri) -> Result<Endpoint, Cause> {
        let bad = |reason| Cause::BadUrl { url: uri.to_string(), reason };
        let is_secure = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err(bad("it starts neither with http:// nor with https://")),
        };
        let host = uri.host().ok_or_else(|| bad("it names no server"))?;
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let port = uri.port_u16().unwrap_or(if is_secure { 443 } else { 80 });
        let tls = is_secure.then(|| Arc::from(host.as_str()));
        let authorities = is_secure.then(|| self.options.authorities.clone());
        let (login, beyond) = (None, None);
        Ok(Endpoint { host, port, is_direct: true, tls, login, beyond, authorities, http2: false })
    }

    /// Returns the idle connection used last that is still open.
    async fn take_idle(&self, endpoint: &Endpoint) -> Option<SendRequest<Sent<B>>> {
        loop {
            let next = {
                let mut idle = self.idle.lock();
                let of_server = idle.get_mut(endpoint)?;
                let now = Instant::now();
                of_server.retain(|idle| idle.until > now && !idle.sender.is_closed());
                of_server.pop()
            };
            let mut sender = next?.sender;
            // Its last body was read to the end, so this takes a moment only.
            if sender.ready().await.is_ok() {
                return Some(sender);
            }
        }
    }

    async fn connect(&self, endpoint: &Endpoint) -> Result<SendRequest<Sent<B>>, Cause> {
        let dns = &self.options.dns;
        let limit = dns.timeout.saturating_mul(dns.retries.saturating_add(1));
        let resolved = timeout(limit, self.names.resolve(&endpoint.host, dns)).await;
        let resolved = resolved.unwrap_or(Err(Cause::TimedOut { phase: Phase::Resolve, limit }))?;
        let (line, _) = endpoint.connect(&resolved.addresses, &self.tls, self.options.connect).await?;
        match line {
            Line::Plain(stream) => shake_hands(TokioIo::new(stream)).await,
            Line::Secure(stream) | Line::Multiplexed(stream) => shake_hands(TokioIo::new(stream)).await,
        }
    }
}

async fn shake_hands<B, I>(io: I) -> Result<SendRequest<Sent<B>>, Cause>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: std::error::Error + Send + Sync + 'static,
    I: hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
{
    let (sender, connection) = http1::handshake(io).await.map_err(broken)?;
    tokio::spawn(async move {
        // Its errors reach the request.
        let _ = connection.await;
    });
    Ok(sender)
}

/// Returns a request as it is sent to a server, and the time of its last progress.
fn addressed<B>(mut request: Request<B>, endpoint: &Endpoint) -> Result<(Moved, Request<Sent<B>>), Cause> {
    let bad = |reason| Cause::BadUrl { url: endpoint.host.clone(), reason };
    if !request.headers().contains_key(header::HOST) {
        let authority = request.uri().authority().map(|authority| authority.as_str().to_owned());
        let host = HeaderValue::try_from(authority.unwrap_or_default());
        request
            .headers_mut()
            .insert(header::HOST, host.map_err(|_| bad("it can't be written into a request"))?);
    }
    if !request.headers().contains_key(header::USER_AGENT) {
        request.headers_mut().insert(header::USER_AGENT, HeaderValue::from_static(AGENT));
    }
    let path = request.uri().path_and_query().cloned();
    *request.uri_mut() = Uri::from(path.unwrap_or_else(|| PathAndQuery::from_static("/")));
    let moved = Moved(Arc::new(Mutex::new(Instant::now())));
    let theirs = moved.clone();
    Ok((moved, request.map(|body| Sent { body, rest: Bytes::new(), moved: theirs })))
}

/// Time at which a request made progress last.
#[derive(Clone)]
struct Moved(Arc<Mutex<Instant>>);

impl Moved {
    fn now(&self) {
        *self.0.lock() = Instant::now();
    }

    /// Waits for work while there is progress; none if there was none for so long.
    async fn within<T>(&self, limit: Duration, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        loop {
            let deadline = *self.0.lock() + limit;
            if let Ok(done) = tokio::time::timeout_at(deadline, &mut work).await {
                return Some(done);
            }
            if *self.0.lock() + limit <= Instant::now() {
                return None;
            }
        }
    }
}

/// A body that is sent, in pieces, and notes its progress.
pub(crate) struct Sent<B> {
    body: B,
    rest: Bytes,
    moved: Moved,
}

impl<B: Body<Data = Bytes> + Unpin> Body for Sent<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        if self.rest.is_empty() {
            let frame = std::task::ready!(Pin::new(&mut self.body).poll_frame(context));
            self.rest = match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => bytes,
                    Err(other) => return Poll::Ready(Some(Ok(other))),
                },
                other => return Poll::Ready(other),
            };
        }
        self.moved.now();
        let piece = self.rest.len().min(PIECE);
        let piece = self.rest.split_to(piece);
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.rest.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let rest = self.rest.len() as u64;
        self.body.size_hint().exact().map_or_else(SizeHint::default, |body| SizeHint::with_exact(body + rest))
    }
}

/// A body that is received; its connection is kept once it was read to the end.
pub struct Received<B> {
    body: Incoming,
    back: Option<ReturnedConnection<B>>,
    limit: Duration,
    late: Pin<Box<Sleep>>,
}

/// A connection, and where it goes.
struct ReturnedConnection<B> {
    client: Arc<Client<B>>,
    endpoint: Endpoint,
    sender: SendRequest<Sent<B>>,
    keep: Duration,
}

impl<B> Received<B> {
    fn complete(&mut self) {
        let Some(ReturnedConnection { client, endpoint, sender, keep }) = self.back.take() else { return };
        let until = Instant::now() + keep;
        if !sender.is_closed() {
            client.idle.lock().entry(endpoint).or_default().push(Idle { sender, until });
        }
    }
}

impl<B: 'static> Body for Received<B> {
    type Data = Bytes;
    type Error = Cause;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Cause>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(context) else {
            let limit = self.limit;
            std::task::ready!(self.late.as_mut().poll(context));
            return Poll::Ready(Some(Err(Cause::TimedOut { phase: Phase::Transfer, limit })));
        };
        let next = Instant::now() + self.limit;
        self.late.as_mut().reset(next);
        if frame.is_none() || self.body.is_end_stream() {
            self.complete();
        }
        Poll::Ready(frame.map(|frame| frame.map_err(broken)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
