//! Makes one attempt of a request: a connection, a request, a response.

use std::net::IpAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf, Bytes};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::header::{self, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};

use super::connections::Open;
use super::dial::{AGENT, Line, Stream, authorization};
use super::downloads;
use super::host::Host;
use super::in_flight::InFlight;
use super::low_speed::{LowSpeedMeter, is_fair_at};
use super::range;
use super::receive::Receiver;
use super::response::{broken, check_status, kept, length};
use super::site::{Limits, Site};
use crate::error::{Cause, Phase};
use crate::priority::Urgency;
use crate::transport::source::{Fetch, Stored};

/// Maximum number of idle connections tried that the server may have closed, before a new one is opened.
const STALE_MAX: usize = 3;

/// Maximum number of slow connections replaced for one response.
const GIVEN_UP_MAX: u32 = 3;

/// Time between two checks whether a waiting request was overtaken.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Maximum length of an error page that is read to keep the connection.
const WORDS_MAX: u64 = 16 << 10;

/// An open connection.
pub(super) struct Connection {
    sender: Sender,
    /// True if the connection was used before; the server may have closed it by now.
    pub(super) is_reused: bool,
    /// Keep-alive time of the server, if stated.
    pub(super) kept: Option<Duration>,
    /// Bytes of the last round trip, and the time of the last byte.
    brought: (u64, Instant),
    _open: Open,
}

/// Maximum number of requests that share a connection over HTTP/2. One loss slows all of them, so several
/// connections are used.
const STREAMS: usize = 16;

/// The request half of a connection.
enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    /// One of several requests on a connection.
    Shared(http2::SendRequest<Full<Bytes>>),
}

impl Sender {
    fn is_closed(&self) -> bool {
        match self {
            Self::One(sender) => sender.is_closed(),
            Self::Shared(sender) => sender.is_closed(),
        }
    }

    async fn send(&mut self, request: Request<Full<Bytes>>) -> hyper::Result<Response<Incoming>> {
        match self {
            Self::One(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Shared(sender) => {
                sender.ready().await?;
                sender.send_request(request).await
            }
        }
    }
}

/// Idle time after which TCP returns to slow start: its minimum retransmission timeout.
const SLOW_AGAIN: Duration = Duration::from_millis(200);

impl Connection {
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Returns the bytes of its last round trip, a measure of its speed.
    fn brought(&self) -> u64 {
        let (bytes, last) = self.brought;
        if last.elapsed() < SLOW_AGAIN { bytes } else { 0 }
    }
}

/// Makes one attempt, and logs it for developers.
pub(super) async fn attempt(site: &Arc<Site>, fetch: &Fetch, in_flight: &InFlight) -> Result<Stored, Cause> {
    let began = Instant::now();
    if fetch.attempt.watch.as_ref().is_some_and(|watch| watch.is_over()) {
        return Err(Cause::Cancelled);
    }
    let _listed = downloads::begin(site, fetch);
    let outcome = exchange(site, fetch, in_flight).await;
    let (server, path, took) = (&site.base, &*fetch.path, began.elapsed());
    match &outcome {
        Ok(stored) => tracing::debug!(%server, path, bytes = stored.len(), ?took, "received"),
        Err(cause) => tracing::debug!(%server, path, ?took, "failed: {cause}"),
    }
    outcome
}

/// Sends the request; a response that is much slower than the path allows continues over another connection.
async fn exchange(site: &Arc<Site>, fetch: &Fetch, in_flight: &InFlight) -> Result<Stored, Cause> {
    let host = &in_flight.host;
    let mut stale = 0;
    let mut part: Option<Part> = None;
    loop {
        let fresh = stale >= STALE_MAX || part.is_some();
        let mut connection = host.connection(site, in_flight.urgency(), fresh).await?;
        in_flight.goes_over(connection.brought());
        let asked = Instant::now();
        let from = part.as_ref().map_or(0, |part| part.receiver.received());
        match send(&mut connection, site, fetch, from, in_flight).await {
            Ok(response) => {
                site.capabilities.note_response(&response);
                let skipped = match skipped(&response, site, fetch, from) {
                    Ok(skipped) => skipped,
                    Err(cause) => {
                        keep_after_words(host, connection, response, &site.connect_options.limits);
                        return Err(cause);
                    }
                };
                let complete =
                    if fetch.part.is_none() && from == 0 { range::complete(&response) } else { None };
                let announced = length(&response).filter(|_| from == 0 && !fetch.http.header_only);
                let whole = fetch.part.as_ref().and_then(|_| range::whole(&response));
                in_flight.answered(asked.elapsed(), announced, fetch);
                connection.kept = kept(&response);
                let begun = match part.take() {
                    Some(part) => part,
                    None => Part::begin(fetch, in_flight, announced)?,
                };
                match receive(response, connection, site, fetch, in_flight, (begun, skipped)).await? {
                    BodyOutcome::Whole(stored)
                        if fetch.relay.is_none() && complete.is_some_and(|len| len != stored.len()) =>
                    {
                        let text =
                            format!("it sent {} bytes of a file of which it announced all", stored.len());
                        return Err(Cause::Broken(text));
                    }
                    BodyOutcome::Whole(stored) => return Ok(stored.part_of(whole)),
                    BodyOutcome::Slowly(so_far) => part = Some(so_far),
                }
            }
            // The server may have closed an idle connection; that is no failure.
            Err(Cause::Broken(_)) if connection.is_reused => stale += 1,
            Err(cause) => return Err(cause),
        }
    }
}

/// Received part of a response.
struct Part {
    receiver: Receiver,
    /// Deadline for the whole response if another route is left to try, and its length.
    deadline: Instant,
    limit: Duration,
    /// Start of the response, and the bytes received from the server until then.
    began: (Instant, u64),
    /// Number of connections replaced.
    given_up: u32,
    /// Time from which the response is late, if another route may serve the object, too.
    due: Option<Instant>,
}

enum BodyOutcome {
    Whole(Stored),
    /// The response is slow: the rest would be faster over another connection.
    Slowly(Part),
}

impl Part {
    fn begin(fetch: &Fetch, in_flight: &InFlight, announced: Option<u64>) -> Result<Self, Cause> {
        if announced.is_some_and(|len| len > fetch.limit) {
            return Err(Cause::TooLarge { limit: fetch.limit });
        }
        let options = &in_flight.host.context.options;
        let bytes = announced.unwrap_or(fetch.limit);
        let limit = options.attempt_limit(bytes);
        let share = in_flight.host.context.budget.share();
        let receiver = Receiver::new(fetch.limit, announced, share, fetch.spool.clone());
        let receiver = receiver.relayed(fetch.relay.clone(), announced);
        let now = Instant::now();
        Ok(Self {
            receiver,
            deadline: now + limit,
            limit,
            began: (now, in_flight.host.path.received()),
            given_up: 0,
            due: fetch
                .attempt
                .watch
                .as_ref()
                .and_then(|watch| watch.due(options, in_flight.host.expected(fetch), announced)),
        })
    }

    /// Tells the watch of the request if the response is late, and ends it if the object came over another route.
    fn tell(&self, fetch: &Fetch, in_flight: &InFlight) -> Result<(), Cause> {
        let Some(watch) = &fetch.attempt.watch else { return Ok(()) };
        let (host, (since, before)) = (&in_flight.host, self.began);
        watch.look(self.due, (since, self.receiver.received(), before), host.totals(), &host.context.options);
        if watch.is_over() { Err(Cause::Cancelled) } else { Ok(()) }
    }

    /// Returns true if the response takes so long that another route may be better, and is slower than other
    /// responses of the server.
    fn is_late(&mut self, fetch: &Fetch, in_flight: &InFlight) -> bool {
        let now = Instant::now();
        if !fetch.attempt.replaceable || now < self.deadline {
            return false;
        }
        let (since, before) = self.began;
        let speed = in_flight.host.context.options.attempt_speed;
        let is_fair = is_fair_at(speed, (since, self.receiver.received(), before), in_flight.host.totals());
        if is_fair {
            self.deadline = now + self.limit;
        }
        !is_fair
    }
}

/// Checks the status of a response from which the bytes before `from` are not needed; returns how many of them it
/// contains.
fn skipped(response: &Response<Incoming>, site: &Site, fetch: &Fetch, from: u64) -> Result<u64, Cause> {
    if let Some(links) = &fetch.http.links {
        links.add(response.headers());
    }
    let user = || site.via.as_ref()?.login.as_ref().map(|login| login.user().to_owned());
    if response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED && site.via.is_some() {
        return Err(Cause::ProxyLogin { user: user() });
    }
    range::skipped(response, fetch, from).unwrap_or_else(|| check_status(response).map(|()| from))
}

/// Returns those addresses of a host that may be connected to.
fn allowed(host: &Host, mut addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, Cause> {
    let (name, destinations) = (&host.endpoint.host, &host.context.options.destinations);
    let first = addresses.first().copied();
    addresses.retain(|address| destinations.allow(name, *address));
    match first {
        Some(address) if addresses.is_empty() => Err(Cause::NotAllowed { host: name.clone(), address }),
        _ => Ok(addresses),
    }
}

/// Opens a connection.
pub(super) async fn connect(host: &Rc<Host>, site: &Site) -> Result<Connection, Cause> {
    let limit = site.connect_options.limits.connect;
    let endpoint = &host.endpoint;
    let resolving =
        timeout(limit, host.context.names.resolve(&endpoint.host, &site.connect_options.dns)).await;
    let late = |_| Cause::TimedOut { phase: Phase::Resolve, limit };
    let addresses = allowed(host, resolving.map_err(late)??.addresses)?;
    let (line, took) = endpoint.connect(&addresses, &host.context.tls, limit).await?;
    host.path.connected(took);
    site.counts.connected();
    let connection = |sender| {
        let _open = host.connections.counted();
        Connection { sender, is_reused: false, kept: None, brought: (0, Instant::now()), _open }
    };
    let sender = match line {
        Line::Plain(stream) => speak(stream).await?,
        Line::Secure(stream) => speak(stream).await?,
        Line::Multiplexed(stream) => {
            host.connections.multiplexed();
            let sender = share(stream).await?;
            // Each of them takes one request at a time, like a connection of its own.
            (1..STREAMS).for_each(|_| host.keep_new(connection(Sender::Shared(sender.clone()))));
            Sender::Shared(sender)
        }
    };
    Ok(connection(sender))
}

async fn speak<S: Stream + 'static>(stream: S) -> Result<Sender, Cause> {
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    tokio::task::spawn_local(async move {
        // Its errors reach the request that is under way.
        let _ = connection.await;
    });
    Ok(Sender::One(sender))
}

async fn share(stream: Box<dyn Stream>) -> Result<http2::SendRequest<Full<Bytes>>, Cause> {
    let handshake = http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (sender, connection) = handshake.await.map_err(broken)?;
    tokio::task::spawn_local(async move {
        // Its errors reach the requests that are under way.
        let _ = connection.await;
    });
    Ok(sender)
}

async fn send(
    connection: &mut Connection,
    site: &Site,
    fetch: &Fetch,
    from: u64,
    in_flight: &InFlight,
) -> Result<Response<Incoming>, Cause> {
    let limit = site.connect_options.limits.first_byte;
    let request = request(site, fetch, from, matches!(connection.sender, Sender::Shared(_)))?;
    site.counts.asked();
    let (host, is_demand) = (&in_flight.host, in_flight.urgency() == Urgency::Demand);
    let entry = host.awaiting.sent(is_demand && !fetch.priority.is_withheld());
    // While it waits in the server's queue it makes progress with the queue.
    let queue = ServersQueue { fetch, host };
    host.queue.waits_at_server(fetch);
    let mut sending = std::pin::pin!(connection.sender.send(request));
    loop {
        let deadline = entry.deadline(limit, fetch.attempt.replaceable);
        // Being overtaken changes the deadline, and so do bytes of other responses.
        let look = deadline.min(Instant::now() + POLL_INTERVAL);
        tokio::select! {
            biased;
            response = &mut sending => {
                if response.is_ok() {
                    entry.answered();
                }
                return response.map_err(broken);
            }
            () = entry.taken_back() => return Err(Cause::TakenBack),
            () = sleep_until(look) => {}
        }
        if entry.is_overtaken() {
            queue.leave();
        }
        if Instant::now() >= entry.deadline(limit, fetch.attempt.replaceable) {
            return Err(Cause::TimedOut { phase: Phase::FirstByte, limit });
        }
    }
}

/// A request in the queue of the server, removed on drop.
struct ServersQueue<'a> {
    fetch: &'a Fetch,
    host: &'a Host,
}

impl ServersQueue<'_> {
    fn leave(&self) {
        self.host.queue.left_server(self.fetch);
    }
}

impl Drop for ServersQueue<'_> {
    fn drop(&mut self) {
        self.leave();
    }
}

fn request(site: &Site, fetch: &Fetch, from: u64, http2: bool) -> Result<Request<Full<Bytes>>, Cause> {
    let base = &site.base;
    let path = base.path_of(&fetch.path);
    // A proxy needs the server in the request target, unless it is a tunnel; HTTP/2 always needs it there.
    let target = if http2 || site.is_asked_of_proxy() { format!("{}{path}", base.origin()) } else { path };
    let method = match &fetch.http.form {
        Some(_) => Method::POST,
        None if fetch.http.header_only => Method::HEAD,
        None => Method::GET,
    };
    let mut request = Request::builder()
        .method(method)
        .uri(target)
        // No more than that: each field costs a proxy as much as a few packets.
        .header(header::USER_AGENT, AGENT);
    if !http2 {
        request = request.header(header::HOST, base.authority());
    }
    if fetch.http.fresh {
        request = request
            .header(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))
            .header(header::PRAGMA, HeaderValue::from_static("no-cache"));
    }
    if let Some(login) = site.via.as_ref().and_then(|via| via.login.as_ref())
        && site.is_asked_of_proxy()
    {
        request = request.header(header::PROXY_AUTHORIZATION, authorization(login)?);
    }
    for (name, value) in &site.connect_options.info_headers.fields {
        request = request.header(format!("X-CVMFS-{name}"), value);
    }
    if site.connect_options.info_headers.what {
        let about = fetch.http.about.as_deref().unwrap_or(&fetch.what);
        request = request.header("cvmfs-info", site.connect_options.info_headers.value(about.as_bytes()));
    }
    for (name, value) in fetch.http.fields.iter().flat_map(|fields| fields.iter()) {
        request = request.header(name, value);
    }
    if let Some(range) = range::range(fetch, from) {
        request = request.header(header::RANGE, range);
        if let Some(version) = range::if_range(fetch) {
            request = request.header(header::IF_RANGE, version);
        }
    }
    if fetch.http.form.is_some() {
        let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
        request = request.header(header::CONTENT_TYPE, kind);
    }
    let form = fetch.http.form.as_ref().map(|form| Bytes::copy_from_slice(form.as_bytes()));
    request.body(Full::new(form.unwrap_or_default())).map_err(|_| Cause::BadUrl {
        url: format!("{base}/{}", fetch.path),
        reason: "it can't be written into a request",
    })
}

/// Keeps a connection for reuse after an error, once its short body is read.
fn keep_after_words(host: &Rc<Host>, connection: Connection, response: Response<Incoming>, limits: &Limits) {
    if length(&response).is_none_or(|len| len > WORDS_MAX) {
        return;
    }
    let (host, limit) = (host.clone(), limits.first_byte);
    tokio::task::spawn_local(async move {
        if let Ok(Ok(_)) = timeout(limit, response.into_body().collect()).await {
            host.keep(connection);
        }
    });
}

async fn receive(
    response: Response<Incoming>,
    mut connection: Connection,
    site: &Site,
    fetch: &Fetch,
    in_flight: &InFlight,
    (mut part, mut skipped): (Part, u64),
) -> Result<BodyOutcome, Cause> {
    let limits = &site.connect_options.limits;
    let mut meter = LowSpeedMeter::start(limits.low_speed, limits.low_speed_window, in_flight.host.totals());
    let mut body = response.into_body();
    loop {
        let asked = Instant::now();
        if in_flight.give_way(fetch).await {
            part.deadline += asked.elapsed();
            meter.restart(in_flight.host.totals());
        }
        let look =
            if fetch.attempt.replaceable { part.deadline.min(meter.deadline()) } else { meter.deadline() };
        match timeout_at(look, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Ok(mut data) = frame.into_data() {
                    site.counts.received(data.len() as u64);
                    in_flight.received(data.len() as u64);
                    if meter.add(data.len() as u64, in_flight.host.totals()) {
                        in_flight.came_further(fetch);
                    }
                    let old = skipped.min(data.len() as u64);
                    skipped -= old;
                    data.advance(old as usize);
                    let before = Instant::now();
                    part.receiver.take(&data).await?;
                    if part.receiver.has_waited() {
                        // The reader was slow, and not the server.
                        part.deadline += before.elapsed();
                        meter.restart(in_flight.host.totals());
                    }
                }
                if part.given_up < GIVEN_UP_MAX && fetch.relay.is_none() && in_flight.is_stuck() {
                    part.given_up += 1;
                    return Ok(BodyOutcome::Slowly(part));
                }
            }
            Ok(Some(Err(error))) => return Err(broken(error)),
            Ok(None) => break,
            Err(_) => {}
        }
        part.tell(fetch, in_flight)?;
        if part.is_late(fetch, in_flight) {
            return Err(Cause::TimedOut { phase: Phase::Attempt, limit: part.limit });
        }
        if !meter.fast_enough(in_flight.host.totals(), fetch.attempt.replaceable) {
            return Err(Cause::TimedOut { phase: Phase::Transfer, limit: limits.low_speed_window });
        }
    }
    // However small it is.
    in_flight.came_further(fetch);
    connection.brought = (in_flight.in_a_round(), Instant::now());
    in_flight.host.keep(connection);
    part.receiver.finish().await.map(BodyOutcome::Whole)
}
