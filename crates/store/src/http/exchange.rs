//! One attempt: a connection, a request, an answer.

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
use super::dial::{Line, Stream, authorization};
use super::host::Host;
use super::meter::{Meter, is_fair_at};
use super::range;
use super::receive::Receiver;
use super::turn::Turn;
use super::url::escaped;
use super::{Limits, Site};
use crate::error::{Cause, Phase};
use crate::source::{Fetch, Stored};
use crate::urgency::Urgency;

/// Idle connections that the server may have closed unnoticed before a new one is opened.
const STALE_MAX: usize = 3;

/// So often at most a connection is given up for one answer because it is slow: perhaps the server is to blame.
const GIVEN_UP_MAX: u32 = 3;

/// How often it is looked whether a request that waits for its answer was overtaken.
const LOOK: Duration = Duration::from_secs(1);

/// Longest address of a redirect, and longest demand for a token.
const LOCATION_MAX: usize = 2000;
/// Longest page with an error that is read, for the sake of the connection.
const WORDS_MAX: u64 = 16 << 10;
/// How much of what a proxy says of an error is repeated.
const SAID_MAX: usize = 200;

/// An open connection.
pub(super) struct Connection {
    sender: Sender,
    /// Whether an answer came over it before; then the server may have closed it by now.
    pub(super) is_reused: bool,
    /// How long the server keeps it, if it says so.
    pub(super) kept: Option<Duration>,
    /// Bytes it brought in a round trip, and when the last came.
    brought: (u64, Instant),
    _open: Open,
}

/// Requests that share a connection over HTTP/2. What comes over one path is bounded by one loss more than what comes over
/// several; so there are a few.
const STREAMS: usize = 16;

/// What takes a request.
enum Sender {
    One(http1::SendRequest<Full<Bytes>>),
    /// One of several on a connection.
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

/// After so long without a byte a sender begins slowly again: the least time that TCP waits for an acknowledgement.
const SLOW_AGAIN: Duration = Duration::from_millis(200);

impl Connection {
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }

    /// Bytes it brought in a round trip lately, which tells how fast it is.
    fn brought(&self) -> u64 {
        let (bytes, last) = self.brought;
        if last.elapsed() < SLOW_AGAIN { bytes } else { 0 }
    }
}

/// Asks once; what then comes much slower than the way allows goes on over another connection.
pub(super) async fn attempt(site: &Arc<Site>, fetch: &Fetch, turn: &Turn) -> Result<Stored, Cause> {
    let host = &turn.host;
    let mut stale = 0;
    let mut part: Option<Part> = None;
    loop {
        let fresh = stale >= STALE_MAX || part.is_some();
        let mut connection = host.connection(site, turn.urgency(), fresh).await?;
        turn.goes_over(connection.brought());
        let asked = Instant::now();
        let from = part.as_ref().map_or(0, |part| part.receiver.len());
        match send(&mut connection, site, fetch, from, turn).await {
            Ok(response) => {
                site.offer.hear(&response);
                let skipped = match skipped(&response, site, fetch, from) {
                    Ok(skipped) => skipped,
                    Err(cause) => {
                        keep_after_words(host, connection, response, &site.manners.limits);
                        return Err(cause);
                    }
                };
                let complete =
                    if fetch.part.is_none() && from == 0 { range::complete(&response) } else { None };
                let announced = length(&response).filter(|_| from == 0);
                let whole = fetch.part.as_ref().and_then(|_| range::whole(&response));
                turn.answered(asked.elapsed(), announced, fetch);
                connection.kept = kept(&response);
                let begun = match part.take() {
                    Some(part) => part,
                    None => Part::begin(fetch, turn, announced)?,
                };
                match receive(response, connection, site, fetch, turn, (begun, skipped)).await? {
                    Came::Whole(stored) if complete.is_some_and(|len| len != stored.len()) => {
                        let text =
                            format!("it sent {} bytes of a file of which it announced all", stored.len());
                        return Err(Cause::Broken(text));
                    }
                    Came::Whole(stored) => return Ok(stored.part_of(whole)),
                    Came::Slowly(so_far) => part = Some(so_far),
                }
            }
            // The server may have closed it while nobody looked; that is no failure.
            Err(Cause::Broken(_)) if connection.is_reused => stale += 1,
            Err(cause) => return Err(cause),
        }
    }
}

/// What came of an answer.
struct Part {
    receiver: Receiver,
    /// When all of it must have come if another way is left to try, and how long that is.
    deadline: Instant,
    limit: Duration,
    /// When it began, and what had come from the server then.
    began: (Instant, u64),
    /// Connections that were given up.
    given_up: u32,
}

enum Came {
    Whole(Stored),
    /// The rest would come faster over another connection.
    Slowly(Part),
}

impl Part {
    fn begin(fetch: &Fetch, turn: &Turn, announced: Option<u64>) -> Result<Self, Cause> {
        if announced.is_some_and(|len| len > fetch.limit) {
            return Err(Cause::TooLarge { limit: fetch.limit });
        }
        let options = &turn.host.world.options;
        let bytes = announced.unwrap_or(fetch.limit);
        let limit = options.attempt.saturating_add(Duration::from_secs(bytes / options.attempt_speed.max(1)));
        let share = turn.host.world.budget.share();
        let receiver = Receiver::new(fetch.limit, announced, share, fetch.spool.clone());
        let now = Instant::now();
        Ok(Self {
            receiver,
            deadline: now + limit,
            limit,
            began: (now, turn.host.received.get()),
            given_up: 0,
        })
    }

    /// Whether it takes so long that another way may be better; if it comes as fast as the server sends others it isn't.
    fn is_late(&mut self, fetch: &Fetch, turn: &Turn) -> bool {
        let now = Instant::now();
        if !fetch.replaceable || now < self.deadline {
            return false;
        }
        let (since, before) = self.began;
        let speed = turn.host.world.options.attempt_speed;
        let is_fair = is_fair_at(speed, (since, self.receiver.len(), before), turn.host.whole());
        if is_fair {
            self.deadline = now + self.limit;
        }
        !is_fair
    }
}

/// Checks the status of an answer from which the bytes before `from` are not needed; tells how many of them it begins
/// with all the same.
fn skipped(response: &Response<Incoming>, site: &Site, fetch: &Fetch, from: u64) -> Result<u64, Cause> {
    let user = || site.via.as_ref()?.login.as_ref().map(|login| login.user().to_owned());
    if response.status() == StatusCode::PROXY_AUTHENTICATION_REQUIRED && site.via.is_some() {
        return Err(Cause::ProxyLogin { user: user() });
    }
    range::skipped(response, fetch, from).unwrap_or_else(|| check_status(response).map(|()| from))
}

/// Returns those of a host's addresses that may be connected to.
fn allowed(host: &Host, mut addresses: Vec<IpAddr>) -> Result<Vec<IpAddr>, Cause> {
    let (name, destinations) = (&host.endpoint.host, &host.world.options.destinations);
    let first = addresses.first().copied();
    addresses.retain(|address| destinations.allow(name, *address));
    match first {
        Some(address) if addresses.is_empty() => Err(Cause::NotAllowed { host: name.clone(), address }),
        _ => Ok(addresses),
    }
}

/// Opens a connection.
pub(super) async fn connect(host: &Rc<Host>, site: &Site) -> Result<Connection, Cause> {
    let limit = site.manners.limits.connect;
    let endpoint = &host.endpoint;
    let resolving = timeout(limit, host.world.names.resolve(&endpoint.host, &site.manners.dns)).await;
    let late = |_| Cause::TimedOut { phase: Phase::Resolve, limit };
    let addresses = allowed(host, resolving.map_err(late)??.addresses)?;
    let (line, took) = endpoint.connect(&addresses, &host.world.tls, limit).await?;
    host.path.borrow_mut().connected(took, Instant::now());
    site.counts.connected();
    let connection = |sender| {
        let _open = host.connections.counted();
        Connection { sender, is_reused: false, kept: None, brought: (0, Instant::now()), _open }
    };
    let sender = match line {
        Line::Plain(stream) => speak(stream).await?,
        Line::Secure(stream) => speak(stream).await?,
        Line::Multiplexed(stream) => {
            host.multiplexes.set(true);
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
    turn: &Turn,
) -> Result<Response<Incoming>, Cause> {
    let limit = site.manners.limits.first_byte;
    let request = request(site, fetch, from, matches!(connection.sender, Sender::Shared(_)))?;
    site.counts.asked();
    let (host, is_demand) = (&turn.host, turn.urgency() == Urgency::Demand);
    let entry = host.awaiting.sent(is_demand && !fetch.priority.is_withheld());
    // As long as it stands in the server's queue it comes further with it.
    let queue = ServersQueue { fetch, host };
    if !fetch.priority.is_withheld() {
        fetch.progress.follow(&host.progress);
    }
    let mut sending = std::pin::pin!(connection.sender.send(request));
    loop {
        let deadline = entry.deadline(limit, fetch.replaceable);
        // Being overtaken changes the deadline, and so does what the server sends others.
        let look = deadline.min(Instant::now() + LOOK);
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
        if Instant::now() >= entry.deadline(limit, fetch.replaceable) {
            return Err(Cause::TimedOut { phase: Phase::FirstByte, limit });
        }
    }
}

/// A request that stands in the queue of the server; no longer once it is dropped.
struct ServersQueue<'a> {
    fetch: &'a Fetch,
    host: &'a Host,
}

impl ServersQueue<'_> {
    fn leave(&self) {
        self.fetch.progress.unfollow(&self.host.progress);
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
    // A proxy is told the server, too, unless it only passes on what it can't read; and HTTP/2 has no other place for it.
    let target = if http2 || site.is_asked_of_proxy() { format!("{}{path}", base.origin()) } else { path };
    let method = if fetch.form.is_some() { Method::POST } else { Method::GET };
    let mut request = Request::builder()
        .method(method)
        .uri(target)
        // No more than that: each field costs a proxy as much as a few packets.
        .header(header::USER_AGENT, super::AGENT);
    if !http2 {
        request = request.header(header::HOST, base.authority());
    }
    if fetch.fresh {
        request = request
            .header(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"))
            .header(header::PRAGMA, HeaderValue::from_static("no-cache"));
    }
    if let Some(login) = site.via.as_ref().and_then(|via| via.login.as_ref())
        && site.is_asked_of_proxy()
    {
        request = request.header(header::PROXY_AUTHORIZATION, authorization(login)?);
    }
    for (name, value) in &site.manners.told.fields {
        request = request.header(format!("X-CVMFS-{name}"), value);
    }
    if site.manners.told.what {
        request =
            request.header("cvmfs-info", escaped(fetch.about.as_deref().unwrap_or(&fetch.what).as_bytes()));
    }
    for (name, value) in fetch.fields.iter().flat_map(|fields| fields.iter()) {
        request = request.header(name, value);
    }
    if let Some(range) = range::range(fetch, from) {
        request = request.header(header::RANGE, range);
        if let Some(version) = range::if_range(fetch) {
            request = request.header(header::IF_RANGE, version);
        }
    }
    if fetch.form.is_some() {
        let kind = HeaderValue::from_static("application/x-www-form-urlencoded");
        request = request.header(header::CONTENT_TYPE, kind);
    }
    let form = fetch.form.as_ref().map(|form| Bytes::copy_from_slice(form.as_bytes()));
    request.body(Full::new(form.unwrap_or_default())).map_err(|_| Cause::BadUrl {
        url: format!("{base}/{}", fetch.path),
        reason: "it can't be written into a request",
    })
}

/// Keeps a connection on which an error came, once the few words that come with it are read.
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
    turn: &Turn,
    (mut part, mut skipped): (Part, u64),
) -> Result<Came, Cause> {
    let limits = &site.manners.limits;
    let mut meter = Meter::start(limits.low_speed, limits.low_speed_window, turn.host.whole());
    let mut body = response.into_body();
    loop {
        let asked = Instant::now();
        if turn.give_way(fetch).await {
            part.deadline += asked.elapsed();
            meter.restart(turn.host.whole());
        }
        let look = if fetch.replaceable { part.deadline.min(meter.deadline()) } else { meter.deadline() };
        match timeout_at(look, body.frame()).await {
            Ok(Some(Ok(frame))) => {
                if let Ok(mut data) = frame.into_data() {
                    site.counts.received(data.len() as u64);
                    turn.received(data.len() as u64);
                    if meter.add(data.len() as u64, turn.host.whole()) {
                        turn.came_further(fetch);
                    }
                    let old = skipped.min(data.len() as u64);
                    skipped -= old;
                    data.advance(old as usize);
                    part.receiver.take(&data).await?;
                }
                if part.given_up < GIVEN_UP_MAX && turn.is_stuck() {
                    part.given_up += 1;
                    return Ok(Came::Slowly(part));
                }
            }
            Ok(Some(Err(error))) => return Err(broken(error)),
            Ok(None) => break,
            Err(_) => {}
        }
        if part.is_late(fetch, turn) {
            return Err(Cause::TimedOut { phase: Phase::Attempt, limit: part.limit });
        }
        if !meter.fast_enough(turn.host.whole(), fetch.replaceable) {
            return Err(Cause::TimedOut { phase: Phase::Transfer, limit: limits.low_speed_window });
        }
    }
    // However small it is.
    turn.came_further(fetch);
    connection.brought = (turn.in_a_round(), Instant::now());
    turn.host.keep(connection);
    part.receiver.finish().await.map(Came::Whole)
}

fn check_status(response: &Response<Incoming>) -> Result<(), Cause> {
    let status = response.status();
    if status == StatusCode::OK {
        return Ok(());
    }
    if let Some(said) = said_by_proxy(response) {
        return Err(Cause::ProxyStatus { status: status.as_u16(), said });
    }
    match status {
        StatusCode::NOT_FOUND | StatusCode::GONE => Err(Cause::Missing { status: status.to_string() }),
        StatusCode::UNAUTHORIZED => {
            // A server may offer several ways, each in a field of its own.
            let offered = response.headers().get_all(header::WWW_AUTHENTICATE);
            let offered: Vec<&str> = offered.iter().filter_map(|value| value.to_str().ok()).collect();
            let challenge = offered.join(", ");
            Err(Cause::Unauthorized { challenge: challenge.chars().take(LOCATION_MAX).collect() })
        }
        _ if status.is_redirection() => {
            let location = response.headers().get(header::LOCATION);
            let location = location.and_then(|value| value.to_str().ok()).unwrap_or("nowhere");
            Err(Cause::Redirected { location: location.chars().take(LOCATION_MAX).collect() })
        }
        _ => Err(match (status, retry_after(response)) {
            (StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, Some(after)) => {
                Cause::Overloaded { status: status.as_u16(), after }
            }
            _ => Cause::Status(status.as_u16()),
        }),
    }
}

/// What a proxy says of an error, if the answer is its own and not the server's.
pub(super) fn said_by_proxy<T>(response: &Response<T>) -> Option<String> {
    let field = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
    let said =
        field("x-squid-error").or_else(|| field("proxy-status").filter(|said| said.contains("error=")))?;
    Some(said.chars().filter(|letter| !letter.is_control()).take(SAID_MAX).collect())
}

/// What the server says in seconds; a date would need its clock to agree with ours.
fn retry_after(response: &Response<Incoming>) -> Option<Duration> {
    let seconds = response.headers().get(header::RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

/// How long the server keeps the connection without use, less what its message may take.
fn kept<T>(response: &Response<T>) -> Option<Duration> {
    let value = response.headers().get("keep-alive")?.to_str().ok()?;
    let timeout = value.split(',').find_map(|part| part.trim().strip_prefix("timeout="))?;
    Some(Duration::from_secs(timeout.trim().parse::<u64>().ok()?.saturating_sub(1)))
}

fn length(response: &Response<Incoming>) -> Option<u64> {
    response.headers().get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

pub(super) fn broken(error: hyper::Error) -> Cause {
    use std::error::Error as _;
    let mut text = error.to_string();
    if let Some(source) = error.source() {
        text = format!("{text}: {source}");
    }
    Cause::Broken(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_is_kept_as_long_as_the_server_says() {
        let kept = |value: &str| kept(&Response::builder().header("keep-alive", value).body(()).unwrap());
        assert_eq!(kept("timeout=5, max=100"), Some(Duration::from_secs(4)));
        assert_eq!(kept("max=100, timeout=60"), Some(Duration::from_secs(59)));
        assert_eq!(kept("timeout=0"), Some(Duration::ZERO));
        assert_eq!(kept("timeout=99999999999999999999"), None);
        assert_eq!(kept("max=3"), None);
    }

    #[test]
    fn a_proxy_says_that_an_error_is_its_own() {
        let said = |name: &str, value: &str| {
            said_by_proxy(&Response::builder().header(name, value).body(()).unwrap())
        };
        assert_eq!(said("X-Squid-Error", "ERR_CONNECT_FAIL 111").as_deref(), Some("ERR_CONNECT_FAIL 111"));
        assert!(said("Proxy-Status", "proxy.example; error=connection_refused").is_some());
        assert_eq!(said("Proxy-Status", "proxy.example; received-status=503"), None);
        assert_eq!(said("Via", "1.1 squid"), None);
    }
}
