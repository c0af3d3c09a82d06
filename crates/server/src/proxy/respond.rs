//! Makes the proxy's responses.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use esker_format::batch::{self, Writer};
use esker_format::object::ObjectName;
use esker_format::manifest;
use esker_store::Urgency;
use hyper::header::{self, HeaderMap, HeaderName, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};

use super::ProxyState;
use super::body::ProxyBody;
use super::failure::Failure;
use super::heads::Served;
use super::objects::Object;
use super::place::Place;
use super::revisions;
use super::target::{self, Refusal, Target, Wanted};
use super::upstream::ObjectQuery;
use crate::range::{RequestedRange, wanted};

/// Seconds for which objects may be cached.
const OBJECT_AGE: &str = "max-age=259200";
/// Number of objects of one batch that are fetched at once.
const BATCH_AT_ONCE: usize = 16;
/// Path of the proxy's status.
pub(crate) const STATUS: &str = "/.esker/proxy";
/// Says where the answer came from, as squid does.
const X_CACHE: HeaderName = HeaderName::from_static("x-cache");
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");

type Answer = Response<ProxyBody>;

impl ProxyState {
    /// Answers one request.
    pub(crate) async fn answer(self: &Arc<Self>, request: &Parts) -> Answer {
        let mut answer = self.find(request).await;
        if let Ok(via) = HeaderValue::from_str(&self.objects.upstream.via) {
            answer.headers_mut().insert(header::VIA, via);
        }
        if request.method == Method::HEAD {
            // The length stays, which hyper would else take from the body.
            let len = hyper::body::Body::size_hint(answer.body()).exact();
            if let Some(len) = len.filter(|len| *len > 0) {
                answer.headers_mut().insert(header::CONTENT_LENGTH, len.into());
            }
            *answer.body_mut() = ProxyBody::empty();
        }
        answer
    }

    async fn find(self: &Arc<Self>, request: &Parts) -> Answer {
        let Parts { method, uri, headers, .. } = request;
        if let Some(refusal) = ambiguous(headers) {
            return refused(refusal);
        }
        if uri.scheme().is_none() && uri.path() == STATUS {
            return json(&self.status());
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
        match &target.wanted {
            Wanted::Object(name, path) => {
                let query = ObjectQuery {
                    name: *name,
                    path: path.clone(),
                    fresh: target.fresh,
                    is_peer: target.is_peer,
                    urgency: Urgency::Demand,
                };
                match self.objects.get(&place, query).await {
                    Ok(found) => object(*name, found, request),
                    Err(failure) => failed(&failure),
                }
            }
            Wanted::File(path) => match self.heads.get(&place, path, target.fresh).await {
                Ok(served) => file(path, served, self.heads.options.age),
                Err(failure) => failed(&failure),
            },
            Wanted::Batch(names) => self.batch(&place, &target, names).await,
            Wanted::Revisions => self.revisions(&place).await,
        }
    }

    /// Puts those objects into one answer that fit; the missing ones are fetched at the same time.
    async fn batch(self: &Arc<Self>, place: &Arc<Place>, target: &Target, names: &[ObjectName]) -> Answer {
        let mut writer = Writer::new();
        let mut is_whole = true;
        let mut after = names.len();
        for names in names.chunks(BATCH_AT_ONCE) {
            let fetch = |name: &ObjectName| {
                let query = ObjectQuery {
                    fresh: target.fresh,
                    is_peer: target.is_peer,
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
        let mut answer = Response::new(ProxyBody::Bytes(writer.finish().into()));
        let age = if is_whole { OBJECT_AGE } else { "no-store" };
        answer.headers_mut().insert(header::CONTENT_TYPE, OCTETS);
        answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static(age));
        answer
    }

    /// Opens a stream of new revisions.
    async fn revisions(self: &Arc<Self>, place: &Arc<Place>) -> Answer {
        if let Err(failure) = self.heads.get(place, manifest::PATH, false).await {
            return failed(&failure);
        }
        let Ok(permit) = self.listeners.clone().try_acquire_owned() else {
            return refused((StatusCode::SERVICE_UNAVAILABLE, "too many clients listen for revisions"));
        };
        let mut answer =
            Response::new(ProxyBody::Stream(revisions::listen(&self.heads, place, permit)));
        let headers = answer.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        answer
    }
}

/// Returns the refusal of a head that another program on the way may read differently.
fn ambiguous(headers: &HeaderMap) -> Option<Refusal> {
    let several = |name: HeaderName| headers.get_all(name).iter().nth(1).is_some();
    if several(header::HOST) || several(header::RANGE) || several(header::CONTENT_LENGTH) {
        return Some((StatusCode::BAD_REQUEST, "a field that may stand once stands twice"));
    }
    let is_empty = headers.get(header::CONTENT_LENGTH).is_none_or(|len| len.as_bytes() == b"0");
    if headers.contains_key(header::TRANSFER_ENCODING) || !is_empty {
        return Some((StatusCode::PAYLOAD_TOO_LARGE, "requests have no body here"));
    }
    None
}

fn object(name: ObjectName, (object, is_hit): (Object, bool), request: &Parts) -> Answer {
    let tag = format!("\"{name}\"");
    let mut answer = Response::new(ProxyBody::empty());
    let headers = answer.headers_mut();
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static(OBJECT_AGE));
    if let Ok(tag) = HeaderValue::from_str(&tag) {
        headers.insert(header::ETAG, tag);
    }
    headers.insert(X_CACHE, HeaderValue::from_static(if is_hit { "HIT" } else { "MISS" }));
    let field = |name: HeaderName| request.headers.get(name).and_then(|value| value.to_str().ok());
    let is_known = field(header::IF_NONE_MATCH)
        .is_some_and(|known| known.split(',').any(|known| known.trim().trim_start_matches("W/") == tag));
    if is_known && request.method == Method::GET {
        *answer.status_mut() = StatusCode::NOT_MODIFIED;
        return answer;
    }
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(header::CONTENT_TYPE, OCTETS);
    let len = object.len();
    let range = field(header::RANGE).filter(|_| {
        request.method == Method::GET && field(header::IF_RANGE).is_none_or(|known| known == tag)
    });
    // Several ranges are answered with the whole object, as a server may.
    let (start, end) = match range.map_or(RequestedRange::Whole, |range| wanted(range, len)) {
        RequestedRange::Parts(parts) if parts.len() == 1 => {
            let part = parts.into_iter().next().unwrap_or(0..len);
            if let Ok(range) = HeaderValue::from_str(&format!("bytes {}-{}/{len}", part.start, part.end - 1)) {
                headers.insert(header::CONTENT_RANGE, range);
            }
            *answer.status_mut() = StatusCode::PARTIAL_CONTENT;
            (part.start, part.end)
        }
        RequestedRange::Parts(_) | RequestedRange::Whole => (0, len),
        RequestedRange::Unsatisfiable => {
            let mut answer = refused((StatusCode::RANGE_NOT_SATISFIABLE, "the range is outside of the object"));
            if let Ok(range) = HeaderValue::from_str(&format!("bytes */{len}")) {
                answer.headers_mut().insert(header::CONTENT_RANGE, range);
            }
            return answer;
        }
    };
    *answer.body_mut() = ProxyBody::part(object, start, end);
    answer
}

fn file(path: &str, served: Served, age: Duration) -> Answer {
    let Served { content, age: old, is_stale, is_hit } = served;
    let mut answer = Response::new(ProxyBody::Bytes(content));
    let headers = answer.headers_mut();
    let left = if is_stale { 0 } else { age.saturating_sub(old).as_secs() };
    if let Ok(age) = HeaderValue::from_str(&format!("max-age={left}")) {
        headers.insert(header::CACHE_CONTROL, age);
    }
    if is_stale {
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
    let found = if is_stale { "STALE" } else if is_hit { "HIT" } else { "MISS" };
    headers.insert(X_CACHE, HeaderValue::from_static(found));
    if path.starts_with(".cvmfs") {
        headers.insert(HeaderName::from_static("esker-batch"), batch::NAMES_MAX.into());
    }
    answer
}

fn json(value: &serde_json::Value) -> Answer {
    let mut answer = Response::new(ProxyBody::Bytes(format!("{value:#}\n").into()));
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}

/// Returns the answer for a failure. One of the proxy itself is marked, so that clients try another proxy and not another
/// server.
fn failed(failure: &Failure) -> Answer {
    let text = failure.to_string();
    let mut answer = text_answer(failure.status(), &text);
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
    let mut answer = Response::new(ProxyBody::Bytes(Bytes::from(format!("{text}\n"))));
    *answer.status_mut() = status;
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    answer
}
