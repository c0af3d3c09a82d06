//! Makes the proxy's responses.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use esker_format::batch::{self, Writer};
use esker_format::manifest;
use esker_format::object::ObjectName;
use esker_store::Urgency;
use hyper::header::{self, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::http::uri::Scheme;
use hyper::{Response, StatusCode, Uri, Version};
use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::failure::Failure;
use super::heads::{HeadOptions, Served};
use super::objects::Object;
use super::place::Place;
use super::target::{self, Refusal, Wanted};
use super::upstream::ObjectQuery;
use super::{ProxyState, monitor, revisions};
use crate::counters::Limit;
use crate::metrics::Kind;
use crate::range::{RequestedRange, wanted};
use crate::transport::Call;
use crate::transport::body::Piece;
use crate::transport::body::{Body, Pieces, Step};
use crate::transport::chunk::Turns;
use crate::transport::exchange::Exchange;
use crate::transport::request::{Method, Request};

/// Seconds for which objects may be cached.
const OBJECT_AGE: &str = "max-age=259200";
/// Seconds after which a client may ask again for what object storage does not answer.
const RETRY_AFTER: u16 = 3;
/// Number of objects of one batch that are fetched at once.
const BATCH_AT_ONCE: usize = 16;
/// Path at which load balancers ask.
const READY: &str = "/readyz";
/// Refusal of a client that asks for the state of the proxy.
const MONITORED_ELSEWHERE: Refusal = (
    StatusCode::FORBIDDEN,
    "the state and the metrics of this proxy are at the address of --metrics, which it prints at its start",
);
/// Says where the answer came from, as squid does.
const X_CACHE: HeaderName = HeaderName::from_static("x-cache");
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

type Answer = Response<Body>;

impl ProxyState {
    /// Answers one request.
    pub(crate) async fn respond(self: &Arc<Self>, call: &Call) -> Answer {
        let mut answer = self.find(call).await;
        if let Ok(via) = HeaderValue::from_str(&self.objects.upstream.via) {
            answer.headers_mut().insert(header::VIA, via);
        }
        answer
    }

    /// Answers a request at the address for status and metrics.
    pub(crate) async fn respond_about_itself(&self, call: &Call) -> Answer {
        if call.parts.uri.path() == READY {
            return self.ready().await;
        }
        match monitor::answer(self, call.parts.uri.path()) {
            Some((kind, text)) => about_itself(kind, text),
            None => refused((
                StatusCode::NOT_FOUND,
                "there is nothing but a page at /, and /.esker/proxy, /metrics, /healthz and /readyz",
            )),
        }
    }

    /// Answers whether what clients ask for is stored, which they get all the same while it is not; and whether all servers are
    /// away for longer than the proxy may answer for them.
    async fn ready(&self) -> Answer {
        let cache = self.objects.cache.clone();
        match spawn_blocking(move || cache.trouble()).await {
            Ok(None) => match self.away() {
                (0, _) => about_itself("text/plain", "ok\n".to_owned()),
                (away, false) => about_itself(
                    "text/plain",
                    format!("ok, but the servers of {away} repositories don't answer\n"),
                ),
                (_, true) => text_answer(
                    StatusCode::SERVICE_UNAVAILABLE,
                    "no server answers, and what they confirmed is too old to be served",
                ),
            },
            Ok(Some(reason)) => text_answer(
                StatusCode::SERVICE_UNAVAILABLE,
                &format!("the cache can't be written to: {reason}"),
            ),
            Err(_) => {
                text_answer(StatusCode::SERVICE_UNAVAILABLE, "the state of the cache can't be found out")
            }
        }
    }

    /// Returns the target of a request. HTTP/2 always names a host, which is this proxy if it is no server of repositories, or
    /// speaks TLS, as none does behind a proxy.
    fn target(&self, parts: &Parts) -> Uri {
        let uri = &parts.uri;
        let is_own = parts.version == Version::HTTP_2
            && (uri.scheme() == Some(&Scheme::HTTPS)
                || self.objects.upstream.destinations().find(uri).is_none());
        match uri.path_and_query().filter(|_| is_own) {
            Some(path) => Uri::from(path.clone()),
            None => uri.clone(),
        }
    }

    async fn find(self: &Arc<Self>, call: &Call) -> Answer {
        let Parts { method, headers, .. } = &call.parts;
        let uri = &self.target(&call.parts);
        if uri.scheme().is_none() && uri.path() == READY {
            return self.ready().await;
        }
        if uri.scheme().is_none() && uri.path() == monitor::HEALTHY {
            return about_itself("text/plain", "ok\n".to_owned());
        }
        if uri.scheme().is_none() && monitor::is_about_state(uri.path()) {
            return refused(MONITORED_ELSEWHERE);
        }
        let own = &self.objects.upstream.via;
        let mut via = headers.get_all(header::VIA).iter();
        if via.any(|via| via.to_str().is_ok_and(|via| via.split(',').any(|hop| hop.trim() == own))) {
            return refused((StatusCode::LOOP_DETECTED, "this proxy is one of its own upstream servers"));
        }
        let target = match target::parse(method, uri, headers, self.objects.upstream.destinations()) {
            Ok(target) => target,
            Err(refusal) => {
                self.counters.refused.fetch_add(1, Ordering::Relaxed);
                return refused(refusal);
            }
        };
        let place = match self.place(&target.folder) {
            Ok(place) => place,
            Err(error) => return failed(&error.into()),
        };
        let Wanted::Batch(names) = &target.wanted else {
            return self.answer(call, &place, &target.wanted, target.is_peer).await;
        };
        match self.batches.take(call.client().ip()) {
            Some(permit) => {
                let answer = self.answer(call, &place, &target.wanted, target.is_peer).await;
                answer.map(|body| body.holding(permit))
            }
            None => {
                self.served.limited(Limit::Batches);
                crate::batch::nothing(names).into_response()
            }
        }
    }

    /// Answers a request for something in a folder.
    pub(crate) async fn answer(
        self: &Arc<Self>,
        call: &Call,
        place: &Arc<Place>,
        wanted: &Wanted,
        is_peer: bool,
    ) -> Answer {
        let (kind, mut answer) = match wanted {
            Wanted::Object(name, path) => {
                let query = ObjectQuery {
                    name: *name,
                    path: path.clone(),
                    fresh: call.request.no_cache,
                    is_peer,
                    urgency: Urgency::Demand,
                };
                let answer = match self.objects.get(place, query.clone()).await {
                    Ok(found) => object(*name, found, &call.request),
                    Err(failure) if failure.is_passed_on() => self.passed_on(place, query, call).await,
                    Err(failure) => failed(&failure),
                };
                (Kind::Object, answer)
            }
            Wanted::File(path) => {
                let served = self.heads.get(place, path, call.request.no_cache).await;
                let answer = served.map(|served| file(path, served, &self.heads.options));
                (Kind::Metadata, answer.unwrap_or_else(|failure| failed(&failure)))
            }
            Wanted::Batch(names) => {
                (Kind::Batch, self.batch(place, (is_peer, call.request.no_cache), names).await)
            }
            Wanted::Revisions => (Kind::Events, self.revisions(place, call).await),
        };
        answer.extensions_mut().insert(kind);
        answer
    }

    /// Answers with an object that the cache has no room for, while it arrives. All of it is sent, also if a part is wanted:
    /// nothing but the whole can be verified.
    async fn passed_on(self: &Arc<Self>, place: &Arc<Place>, query: ObjectQuery, call: &Call) -> Answer {
        let name = query.name;
        match self.passing.begin(&self.objects, place, query, call.client().ip()).await {
            Ok(relayed) => {
                let mut answer = Response::new(Body::relayed(relayed));
                let headers = answer.headers_mut();
                headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(OBJECT_AGE));
                headers.insert(header::CONTENT_TYPE, OCTETS);
                headers.insert(X_CACHE, HeaderValue::from_static("MISS"));
                if let Ok(tag) = HeaderValue::from_str(&format!("\"{name}\"")) {
                    headers.insert(header::ETAG, tag);
                }
                answer
            }
            Err(failure) => failed(&failure),
        }
    }

    /// Puts those objects into one answer that fit; the missing ones are fetched at the same time.
    async fn batch(
        self: &Arc<Self>,
        place: &Arc<Place>,
        (is_peer, fresh): (bool, bool),
        names: &[ObjectName],
    ) -> Answer {
        let mut writer = Writer::new();
        let mut is_whole = true;
        let mut after = names.len();
        for names in names.chunks(BATCH_AT_ONCE) {
            let fetch = |name: &ObjectName| {
                let query = ObjectQuery {
                    fresh,
                    is_peer,
                    urgency: Urgency::Demand,
                    ..ObjectQuery::ahead(*name, name.path())
                };
                let (objects, place) = (self.objects.clone(), place.clone());
                tokio::spawn(async move { objects.get(&place, query).await.ok() })
            };
            let fetching: Vec<_> = names.iter().map(fetch).collect();
            for found in fetching {
                after -= 1;
                let room = writer.room(after) as u64;
                match found.await.ok().flatten().and_then(|(object, _)| object.read(room).ok()) {
                    Some(bytes) => writer.put(&bytes),
                    None => {
                        is_whole = false;
                        writer.leave_out();
                    }
                }
            }
        }
        let mut answer = Response::new(bytes(writer.finish()));
        let age = if is_whole { OBJECT_AGE } else { "no-store" };
        answer.headers_mut().insert(header::CONTENT_TYPE, OCTETS);
        answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(age));
        answer
    }

    /// Opens a stream of new revisions.
    async fn revisions(self: &Arc<Self>, place: &Arc<Place>, call: &Call) -> Answer {
        if let Err(failure) = self.heads.get(place, manifest::PATH, false).await {
            return failed(&failure);
        }
        let share = self.listener_shares.take_below(call.client().ip(), self.listeners_of_one);
        let (Some(share), Ok(permit)) = (share, self.listeners.clone().try_acquire_owned()) else {
            self.served.limited(Limit::Streams);
            return refused((StatusCode::SERVICE_UNAVAILABLE, "too many clients listen for revisions"));
        };
        call.exchange.begin_stream();
        let events = revisions::listen(&self.heads, place, (permit, share));
        let mut answer = Response::new(Body::stream(told(events, call.exchange.clone())));
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        answer
    }
}

/// Passes events on until either side closes.
fn told(mut events: mpsc::Receiver<Bytes>, exchange: Arc<Exchange>) -> Step {
    Step(Box::pin(async move {
        let next = tokio::select! {
            next = events.recv() => next?,
            () = exchange.transport.unwanted(true) => return None,
        };
        Some((next, told(events, exchange)))
    }))
}

/// Returns a body of bytes in memory.
fn bytes(bytes: impl Into<Bytes>) -> Body {
    let bytes = bytes.into();
    let left = bytes.len() as u64;
    let pieces = if left > 0 { VecDeque::from([Piece::Bytes(bytes)]) } else { VecDeque::new() };
    Body::pieces(Pieces { pieces, file: None, permit: None, reading: None, turns: Turns::default(), left })
}

/// Returns a body of the bytes from `start` to `end` of an object.
fn part(object: Object, start: u64, end: u64) -> Body {
    match object {
        Object::Bytes(all) => {
            let at = |offset: u64| usize::try_from(offset).map_or(all.len(), |at| at.min(all.len()));
            bytes(all.slice(at(start)..at(end)))
        }
        Object::File(_, _) if start >= end => bytes(Bytes::new()),
        Object::File(file, _) => {
            let pieces = VecDeque::from([Piece::Span(start..end)]);
            Body::pieces(Pieces {
                pieces,
                file: Some(file),
                permit: None,
                reading: None,
                turns: Turns::default(),
                left: end - start,
            })
        }
    }
}

fn object(name: ObjectName, (object, is_hit): (Object, bool), request: &Request) -> Answer {
    let tag = format!("\"{name}\"");
    let mut answer = Response::new(Body::empty());
    let headers = answer.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(OBJECT_AGE));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(X_CACHE, HeaderValue::from_static(if is_hit { "HIT" } else { "MISS" }));
    let is_get = request.method == Method::Get;
    let is_tag = |known: &str| known.trim().trim_start_matches("W/") == tag;
    let is_known = request.if_none_match.as_deref().is_some_and(|known| known.split(',').any(is_tag));
    if is_known && is_get && !request.no_cache {
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
        return answer;
    }
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_TYPE, OCTETS);
    let len = object.len();
    let is_wanted = is_get && request.if_range.as_deref().is_none_or(|known| known == tag);
    let range = request.range.as_deref().filter(|_| is_wanted);
    // Several ranges are answered with the whole object, as a server may.
    let (start, end) = match range.map_or(RequestedRange::Whole, |range| wanted(range, len)) {
        RequestedRange::Parts(parts) if parts.len() == 1 => {
            let part = parts.into_iter().next().unwrap_or(0..len);
            if let Ok(range) = HeaderValue::from_str(&format!("bytes {}-{}/{len}", part.start, part.end - 1))
            {
                headers.insert(header::CONTENT_RANGE, range);
            }
            *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
            (part.start, part.end)
        }
        RequestedRange::Parts(_) | RequestedRange::Whole => (0, len),
        RequestedRange::Unsatisfiable => {
            let mut answer =
                refused((StatusCode::RANGE_NOT_SATISFIABLE, "the range is outside of the object"));
            if let Ok(range) = HeaderValue::from_str(&format!("bytes */{len}")) {
                answer.headers_mut().insert(header::CONTENT_RANGE, range);
            }
            return answer;
        }
    };
    *answer.body_mut() = part(object, start, end);
    answer
}

fn file(path: &str, served: Served, options: &HeadOptions) -> Answer {
    let Served { content, age: old, is_stale, is_hit } = served;
    let len = content.len();
    let mut answer = Response::new(part(content, 0, len));
    let headers = answer.headers_mut();
    let lifetime = match options.lifetime {
        Some(lifetime) => lifetime,
        None if is_stale => Duration::ZERO,
        None => options.age.saturating_sub(old),
    };
    if let Ok(age) = HeaderValue::from_str(&format!("max-age={}", lifetime.as_secs())) {
        headers.insert(header::CACHE_CONTROL, age);
    }
    if options.lifetime.is_some() {
        headers.insert(header::AGE, old.as_secs().into());
    } else if is_stale {
        headers.insert(header::AGE, old.as_secs().into());
        headers.insert(header::WARNING, HeaderValue::from_static("111 esker \"Revalidation Failed\""));
    }
    let kind = if path.ends_with(".json") {
        "application/json"
    } else if path.starts_with(".cvmfs") {
        "application/x-cvmfs"
    } else {
        "text/plain"
    };
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    let found = if is_stale {
        "STALE"
    } else if is_hit {
        "HIT"
    } else {
        "MISS"
    };
    headers.insert(X_CACHE, HeaderValue::from_static(found));
    if path.starts_with(".cvmfs") {
        headers.insert(HeaderName::from_static("esker-batch"), batch::NAMES_MAX.into());
    }
    answer
}

fn about_itself(kind: &'static str, text: String) -> Answer {
    let mut answer = Response::new(bytes(text));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// Returns the answer for a failure. One of the proxy itself is marked, so that clients try another proxy and not another
/// server.
pub(crate) fn failed(failure: &Failure) -> Answer {
    if failure.is_of_storage() {
        let mut answer = text_answer(failure.status(), "the storage of this server can't be read now");
        answer.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER.into());
        return answer;
    }
    let mut answer = text_answer(failure.status(), &failure.told());
    if matches!(failure, Failure::Busy) {
        answer.headers_mut().insert(header::RETRY_AFTER, RETRY_AFTER.into());
    }
    if failure.is_own() {
        let own = HeaderValue::from_static("esker; error=proxy_internal_error");
        answer.headers_mut().insert(HeaderName::from_static("proxy-status"), own);
    }
    answer
}

/// Returns the answer for a request that is not allowed or not understood.
pub(crate) fn refused((status, reason): Refusal) -> Answer {
    let mut answer = text_answer(status, reason);
    if status == StatusCode::METHOD_NOT_ALLOWED {
        answer.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    answer
}

fn text_answer(status: StatusCode, text: &str) -> Answer {
    let mut answer = Response::new(bytes(format!("{text}\n")));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
