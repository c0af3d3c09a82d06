//! Responses: status, header fields, and the pieces of the body.
//!
//! Lifetimes and types are those of the reference's web server configuration. Objects carry an ETag made of their
//! name, which is the same on every replica; other files have no validator, and dates never are one, since they differ
//! between replicas (docs/decisions/0120-http-server-on-hyper.md).

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, Write as _};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use axum::response::IntoResponse;
use esker_format::batch;
use hyper::header::{
    ACCEPT_RANGES, ALLOW, CACHE_CONTROL, CONTENT_RANGE, CONTENT_SECURITY_POLICY, CONTENT_TYPE, ETAG,
    HeaderName, HeaderValue, REFERRER_POLICY, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS,
};
use hyper::{Response, StatusCode};
use tokio::sync::OwnedSemaphorePermit;

use crate::date;
use crate::file::{Content, Opened};
use crate::pages::{POLICY, Page};
use crate::range::{RequestedRange, elements, wanted};
use crate::route::Allowed;
use crate::transport::body::{Body, Piece, Pieces};
use crate::transport::chunk::Turns;
use crate::transport::request::{Method, Refusal, Request};
use crate::transport::shares::Share;

/// Seconds for which changing files may be cached: more than 60, because squid keeps nothing shorter by
/// default.
pub(crate) const CHANGING_SECONDS: u32 = 61;
/// Seconds for which objects may be cached.
const OBJECT_SECONDS: u32 = 3 * 24 * 3600;

/// Usual length of a head, for which room is made at once.
const HEAD_USUAL: usize = 512;

/// Name of the field that announces batches.
const BATCH: HeaderName = HeaderName::from_static("esker-batch");
/// Name of the field that keeps nginx from collecting a response.
const BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// A complete response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) fields: Vec<(HeaderName, HeaderValue)>,
    /// File for the ranges of the body.
    pub(crate) file: Option<File>,
    pub(crate) body: Vec<Piece>,
    /// Permit for the memory of the response, held until it is sent.
    permit: Option<(OwnedSemaphorePermit, Share)>,
}

const OK: u16 = 200;
const PARTIAL: u16 = 206;
const NOT_MODIFIED: u16 = 304;
const FORBIDDEN: u16 = 403;
pub(crate) const NOT_FOUND: u16 = 404;
pub(crate) const METHOD: u16 = 405;
const UNSATISFIABLE: u16 = 416;
pub(crate) const BROKEN: u16 = 500;
pub(crate) const BUSY: u16 = 503;

const NO_STORE: HeaderValue = HeaderValue::from_static("no-store");
const BINARY: HeaderValue = HeaderValue::from_static("application/octet-stream");

/// Returns the name of a status.
fn words(status: u16) -> &'static str {
    StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or("Unknown")
}

/// Returns a value made of characters that a field may have.
fn value(text: impl AsRef<str>) -> HeaderValue {
    HeaderValue::from_str(text.as_ref()).unwrap_or(HeaderValue::from_static(""))
}

impl Answer {
    /// Returns an empty response.
    pub(crate) fn new(status: u16) -> Self {
        Self { status, fields: Vec::new(), file: None, body: Vec::new(), permit: None }
    }

    /// Returns the same response with one more field.
    pub(crate) fn with(mut self, name: HeaderName, text: impl AsRef<str>) -> Self {
        self.fields.push((name, value(text)));
        self
    }

    /// Returns a failure with a text for humans. It must not be cached: a missing object may appear soon.
    pub(crate) fn failure(status: u16) -> Self {
        Self::explained(status, words(status))
    }

    /// Returns a failure with a reason for humans.
    pub(crate) fn explained(status: u16, reason: &str) -> Self {
        let text = format!("{status} {reason}\n");
        let mut answer = Self::new(status);
        answer.fields.push((CONTENT_TYPE, HeaderValue::from_static("text/plain")));
        // What is missing may be there soon, and until then caches answer for it.
        let lifetime = if status == NOT_FOUND { HeaderValue::from_static("max-age=5") } else { NO_STORE };
        answer.fields.push((CACHE_CONTROL, lifetime));
        if status == METHOD {
            answer.fields.push((ALLOW, HeaderValue::from_static("GET, HEAD")));
        }
        answer.body.push(Piece::Bytes(text.into()));
        answer
    }

    /// Returns the name of the status.
    pub(crate) fn reason(&self) -> &'static str {
        words(self.status)
    }

    pub(crate) fn method() -> Self {
        Self::failure(METHOD)
    }

    /// Returns the refusal of a client that sends too many requests.
    pub(crate) fn too_many(wait: Duration) -> Self {
        let seconds = wait.as_millis().div_ceil(1000).max(1);
        Self::failure(429).with(RETRY_AFTER, seconds.to_string())
    }

    pub(crate) fn refusal(refusal: Refusal) -> Self {
        Self::failure(match refusal {
            Refusal::Malformed => 400,
            Refusal::TooLarge => 431,
            Refusal::Version => 505,
            Refusal::Body => 413,
        })
    }

    /// Returns the response for hyper.
    pub(crate) fn into_response(mut self) -> Response<Body> {
        let (status, fields) = (self.status, std::mem::take(&mut self.fields));
        let mut response = Response::new(Body::pieces(self.into_pieces()));
        *response.status_mut() = StatusCode::from_u16(status).unwrap_or_default();
        response.headers_mut().extend(fields);
        response
    }

    /// Returns the bytes of a last response of HTTP/1.1, which hyper has no part in.
    pub(crate) fn whole(&self) -> Vec<u8> {
        let mut whole = self.head("HTTP/1.1", Some("close"));
        for piece in &self.body {
            if let Piece::Bytes(bytes) = piece {
                whole.extend_from_slice(bytes);
            }
        }
        whole
    }

    /// Returns the head of a response of HTTP/1, which hyper has no part in.
    pub(crate) fn head(&self, version: &str, connection: Option<&str>) -> Vec<u8> {
        let mut head = Vec::with_capacity(HEAD_USUAL);
        let len = self.len();
        date::with_now(|date| {
            // Writing to memory succeeds.
            let _ = write!(
                head,
                "{version} {} {}\r\nDate: {date}\r\nServer: esker\r\nContent-Length: {len}\r\n",
                self.status,
                words(self.status),
            );
        });
        let fields = self.fields.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
        let last = connection.map(|connection| ("connection", connection.as_bytes()));
        for (name, value) in fields.chain(last) {
            for part in [name.as_bytes(), b": ", value, b"\r\n"] {
                head.extend_from_slice(part);
            }
        }
        head.extend_from_slice(b"\r\n");
        head
    }

    /// Returns the body.
    pub(crate) fn into_pieces(self) -> Pieces {
        let left = self.len();
        let Self { file, body, permit, .. } = self;
        Pieces {
            pieces: body.into(),
            file: file.map(Arc::new),
            permit,
            reading: None,
            turns: Turns::default(),
            left,
        }
    }

    /// Returns the length of the body.
    pub(crate) fn len(&self) -> u64 {
        self.body.iter().map(Piece::len).sum()
    }

    /// Returns the response for a file that can't be opened.
    pub(crate) fn unreadable(error: &io::Error) -> Self {
        Self::failure(match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => {
                NOT_FOUND
            }
            io::ErrorKind::PermissionDenied => FORBIDDEN,
            // Out of descriptors or memory: another server, or this one later, can do better.
            _ if error.raw_os_error().is_some_and(is_shortage) => BUSY,
            _ => BROKEN,
        })
    }

    /// Returns a response with a generated text.
    pub(crate) fn made(kind: &str, lifetime: u32, text: String) -> Self {
        let mut answer = Self::new(OK)
            .with(CONTENT_TYPE, kind)
            .with(CACHE_CONTROL, format!("max-age={lifetime}"))
            .with(X_CONTENT_TYPE_OPTIONS, "nosniff");
        answer.body.push(Piece::Bytes(text.into()));
        answer
    }

    /// Returns a page of the dashboard.
    pub(crate) fn page(page: Page) -> Self {
        let mut answer = Self::made(page.kind, page.lifetime, page.body);
        answer.status = page.status;
        answer.with(CONTENT_SECURITY_POLICY, POLICY).with(REFERRER_POLICY, "no-referrer")
    }

    /// Returns a response with generated JSON.
    pub(crate) fn json(value: &serde_json::Value) -> Self {
        Self::made("application/json", CHANGING_SECONDS, format!("{value:#}\n"))
    }

    /// Returns a response with a text that must not be cached.
    pub(crate) fn current(kind: &str, text: String) -> Self {
        let mut answer = Self::new(OK).with(CONTENT_TYPE, kind);
        answer.fields.push((CACHE_CONTROL, NO_STORE));
        answer.body.push(Piece::Bytes(text.into()));
        answer
    }

    /// Makes a response of many objects; `whole` if none was left out, because then it never changes.
    pub(crate) fn batch(bytes: Vec<u8>, whole: bool) -> Self {
        let mut answer = Self::new(OK);
        answer.fields.push((CONTENT_TYPE, BINARY));
        let lifetime = if whole { value(format!("max-age={OBJECT_SECONDS}")) } else { NO_STORE };
        answer.fields.push((CACHE_CONTROL, lifetime));
        answer.body.push(Piece::Bytes(bytes.into()));
        answer
    }

    /// Returns the same response, which holds this permit until it is dropped.
    pub(crate) fn holding(mut self, permit: (OwnedSemaphorePermit, Share)) -> Self {
        self.permit = Some(permit);
        self
    }

    /// Returns a response with a file of a repository.
    pub(crate) fn file(request: &Request, file: &Allowed, opened: Opened) -> Self {
        let Opened { file: content, len } = opened;
        let tag = match file {
            Allowed::Object(name) => Some(format!("\"{name}\"")),
            Allowed::Top(_) | Allowed::Statistics(_) => None,
        };
        let lifetime = if tag.is_some() { OBJECT_SECONDS } else { CHANGING_SECONDS };
        let mut answer = Self::new(OK).with(CACHE_CONTROL, format!("max-age={lifetime}"));
        match content {
            Content::File(file) => answer.file = Some(file),
            Content::Bytes(_) => return Self::failure(BROKEN),
        }
        if let Some(tag) = &tag {
            answer.fields.push((ETAG, value(tag)));
        }
        if matches!(file, Allowed::Top(_)) {
            answer.fields.push((BATCH, batch::NAMES_MAX.into()));
        }
        if is_known(request, tag.as_deref()) {
            answer.status = NOT_MODIFIED;
            return answer;
        }
        answer.fields.push((ACCEPT_RANGES, HeaderValue::from_static("bytes")));
        let range = request.range.as_deref().filter(|_| {
            request.method == Method::Get
                && request.if_range.as_deref().is_none_or(|known| Some(known) == tag.as_deref())
        });
        answer.send(kind(file), len, range.map_or(RequestedRange::Whole, |range| wanted(range, len)));
        answer
    }

    fn send(&mut self, kind: &'static str, len: u64, wanted: RequestedRange) {
        match wanted {
            RequestedRange::Whole => {
                self.fields.push((CONTENT_TYPE, HeaderValue::from_static(kind)));
                self.body.push(Piece::Span(0..len));
            }
            RequestedRange::Unsatisfiable => {
                self.status = UNSATISFIABLE;
                // An object may have been cut, and is whole again once that was seen.
                self.fields =
                    vec![(CACHE_CONTROL, NO_STORE), (CONTENT_RANGE, value(format!("bytes */{len}")))];
            }
            RequestedRange::Parts(parts) => {
                self.status = PARTIAL;
                match parts.as_slice() {
                    [part] => {
                        self.fields.push((CONTENT_TYPE, HeaderValue::from_static(kind)));
                        self.fields.push((CONTENT_RANGE, value(content_range(part, len))));
                        self.body.push(Piece::Span(part.clone()));
                    }
                    parts => self.send_several(kind, len, parts),
                }
            }
        }
    }

    fn send_several(&mut self, kind: &str, len: u64, parts: &[Range<u64>]) {
        // Not to be guessed, so that no object can contain it on purpose.
        let boundary = format!("{:016x}", RandomState::new().hash_one(len));
        self.fields.push((CONTENT_TYPE, value(format!("multipart/byteranges; boundary={boundary}"))));
        for part in parts {
            let range = content_range(part, len);
            let head = format!("\r\n--{boundary}\r\nContent-Type: {kind}\r\nContent-Range: {range}\r\n\r\n");
            self.body.push(Piece::Bytes(head.into()));
            self.body.push(Piece::Span(part.clone()));
        }
        self.body.push(Piece::Bytes(format!("\r\n--{boundary}--\r\n").into()));
    }

    /// Returns a stream of events. It ends with the connection; caches must not keep it, and proxies pass each event on
    /// at once.
    pub(crate) fn events(body: Body) -> Response<Body> {
        let head = Self::new(OK).with(CONTENT_TYPE, "text/event-stream");
        let head = head.with(CACHE_CONTROL, "no-store").with(BUFFERING, "no");
        head.into_response().map(|_| body)
    }
}

impl IntoResponse for Answer {
    fn into_response(self) -> axum::response::Response {
        Self::into_response(self).map(axum::body::Body::new)
    }
}

fn is_shortage(code: i32) -> bool {
    use rustix::io::Errno;
    [Errno::MFILE, Errno::NFILE, Errno::NOMEM].iter().any(|errno| errno.raw_os_error() == code)
}

/// Returns whether the client has the current version. False for `no-cache`: a client that found a proxy's copy
/// damaged sends it, and a 304 through that proxy would confirm the damage.
fn is_known(request: &Request, tag: Option<&str>) -> bool {
    let (Some(tag), Some(known)) = (tag, &request.if_none_match) else { return false };
    !request.no_cache
        && elements(known).any(|known| known == "*" || known.strip_prefix("W/").unwrap_or(known) == tag)
}

fn content_range(part: &Range<u64>, len: u64) -> String {
    format!("bytes {}-{}/{len}", part.start, part.end - 1)
}

fn kind(file: &Allowed) -> &'static str {
    match file {
        Allowed::Object(_) => "application/octet-stream",
        Allowed::Top(name) if name.ends_with(".json") => "application/json",
        Allowed::Top(_) => "application/x-cvmfs",
        Allowed::Statistics(name) => match name.rsplit_once('.') {
            Some((_, "html")) => "text/html",
            Some((_, "png")) => "image/png",
            _ => "application/octet-stream",
        },
    }
}
