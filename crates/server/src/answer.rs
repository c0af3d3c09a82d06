//! Responses: status, header fields, and the pieces of the body.
//!
//! Lifetimes and types are those of the reference's web server configuration. Objects carry an ETag made of their
//! name, which is the same on every replica; other files have no validator, and dates never are one, since they differ
//! between replicas (docs/decisions/0010-http-server.md).

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::ops::Range;

use esker_format::batch;
use tokio::sync::OwnedSemaphorePermit;

use crate::file::Opened;
use crate::pages::{POLICY, Page};
use crate::range::{RequestedRange, wanted};
use crate::request::{Method, Refusal, Request, elements};
use crate::route::Allowed;
use crate::shares::Share;

/// Seconds for which changing files may be cached: more than 60, because squid keeps nothing shorter by
/// default.
const CHANGING_SECONDS: u32 = 61;
/// Seconds for which objects may be cached.
const OBJECT_SECONDS: u32 = 3 * 24 * 3600;

/// A complete response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: Status,
    pub(crate) fields: Vec<(&'static str, String)>,
    /// File for the ranges of the body.
    pub(crate) file: Option<File>,
    pub(crate) body: Vec<Piece>,
    /// Permit for the memory of the response, held until it is sent.
    permit: Option<(OwnedSemaphorePermit, Share)>,
}

/// A part of a body.
#[derive(Debug)]
pub(crate) enum Piece {
    Bytes(Vec<u8>),
    Span(Range<u64>),
}

impl Piece {
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::Span(span) => span.end - span.start,
        }
    }
}

/// A status code and its reason phrase.
pub(crate) type Status = (u16, &'static str);

const OK: Status = (200, "OK");
const PARTIAL: Status = (206, "Partial Content");
const NOT_MODIFIED: Status = (304, "Not Modified");
const FORBIDDEN: Status = (403, "Forbidden");
pub(crate) const NOT_FOUND: Status = (404, "Not Found");
const METHOD: Status = (405, "Method Not Allowed");
const UNSATISFIABLE: Status = (416, "Range Not Satisfiable");
const BROKEN: Status = (500, "Internal Server Error");
pub(crate) const BUSY: Status = (503, "Service Unavailable");

impl Answer {
    /// Returns a failure with a text for humans. It must not be cached: a missing object may appear soon.
    pub(crate) fn failure(status: Status) -> Self {
        let text = format!("{} {}\n", status.0, status.1);
        let mut fields = vec![("Content-Type", "text/plain".into()), ("Cache-Control", "no-store".into())];
        if status == METHOD {
            fields.push(("Allow", "GET, HEAD".into()));
        }
        Self { status, fields, file: None, body: vec![Piece::Bytes(text.into_bytes())], permit: None }
    }

    pub(crate) fn method() -> Self {
        Self::failure(METHOD)
    }

    pub(crate) fn refusal(refusal: Refusal) -> Self {
        Self::failure(match refusal {
            Refusal::Malformed => (400, "Bad Request"),
            Refusal::TooLarge => (431, "Request Header Fields Too Large"),
            Refusal::Version => (505, "HTTP Version Not Supported"),
            Refusal::Body => (413, "Content Too Large"),
        })
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
        let fields = vec![
            ("Content-Type", kind.to_owned()),
            ("Cache-Control", format!("max-age={lifetime}")),
            ("X-Content-Type-Options", "nosniff".into()),
        ];
        Self { status: OK, fields, file: None, body: vec![Piece::Bytes(text.into_bytes())], permit: None }
    }

    /// Returns a page of the dashboard.
    pub(crate) fn page(page: Page) -> Self {
        let words = match page.status {
            200 => "OK",
            404 => "Not Found",
            503 => "Service Unavailable",
            _ => "Internal Server Error",
        };
        let mut answer = Self::made(page.kind, page.lifetime, page.body);
        answer.status = (page.status, words);
        answer.fields.extend([
            ("Content-Security-Policy", POLICY.to_owned()),
            ("Referrer-Policy", "no-referrer".to_owned()),
        ]);
        answer
    }

    /// Returns a response with generated JSON.
    pub(crate) fn json(value: &serde_json::Value) -> Self {
        Self::made("application/json", CHANGING_SECONDS, format!("{value:#}\n"))
    }

    /// Makes a response of many objects; `whole` if none was left out, because then it never changes.
    pub(crate) fn batch(bytes: Vec<u8>, whole: bool) -> Self {
        let lifetime = if whole { format!("max-age={OBJECT_SECONDS}") } else { "no-store".to_owned() };
        let kind = "application/octet-stream".to_owned();
        let fields = vec![("Content-Type", kind), ("Cache-Control", lifetime)];
        Self { status: OK, fields, file: None, body: vec![Piece::Bytes(bytes)], permit: None }
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
        let mut answer = Self {
            status: OK,
            fields: vec![("Cache-Control", format!("max-age={lifetime}"))],
            file: Some(content),
            body: Vec::new(),
            permit: None,
        };
        answer.fields.extend(tag.iter().map(|tag| ("ETag", tag.clone())));
        if matches!(file, Allowed::Top(_)) {
            answer.fields.push((batch::HEADER, batch::NAMES_MAX.to_string()));
        }
        if is_known(request, tag.as_deref()) {
            answer.status = NOT_MODIFIED;
            return answer;
        }
        answer.fields.push(("Accept-Ranges", "bytes".into()));
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
                self.fields.push(("Content-Type", kind.into()));
                self.body.push(Piece::Span(0..len));
            }
            RequestedRange::Unsatisfiable => {
                self.status = UNSATISFIABLE;
                // An object may have been cut, and is whole again once that was seen.
                self.fields =
                    vec![("Cache-Control", "no-store".into()), ("Content-Range", format!("bytes */{len}"))];
            }
            RequestedRange::Parts(parts) => {
                self.status = PARTIAL;
                match parts.as_slice() {
                    [part] => {
                        self.fields.push(("Content-Type", kind.into()));
                        self.fields.push(("Content-Range", content_range(part, len)));
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
        self.fields.push(("Content-Type", format!("multipart/byteranges; boundary={boundary}")));
        for part in parts {
            let range = content_range(part, len);
            let head = format!("\r\n--{boundary}\r\nContent-Type: {kind}\r\nContent-Range: {range}\r\n\r\n");
            self.body.push(Piece::Bytes(head.into_bytes()));
            self.body.push(Piece::Span(part.clone()));
        }
        self.body.push(Piece::Bytes(format!("\r\n--{boundary}--\r\n").into_bytes()));
    }

    /// Returns the head of a stream of events. It ends with the connection; caches must not keep it, and proxies pass
    /// each event on at once.
    pub(crate) fn events(date: &str) -> Vec<u8> {
        let head = format!(
            "HTTP/1.1 200 OK\r\nDate: {date}\r\nServer: esker\r\nContent-Type: text/event-stream\r\n\
             Cache-Control: no-store\r\nX-Accel-Buffering: no\r\nConnection: close\r\n\r\n"
        );
        head.into_bytes()
    }

    /// Returns the bytes before the body.
    pub(crate) fn head(&self, date: &str, last: bool) -> Vec<u8> {
        let (code, words) = self.status;
        let mut head = format!("HTTP/1.1 {code} {words}\r\nDate: {date}\r\nServer: esker\r\n");
        for (name, value) in &self.fields {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        if self.status != NOT_MODIFIED {
            head.push_str(&format!("Content-Length: {}\r\n", self.len()));
        }
        // HTTP/1.0 clients that asked for keep-alive need the confirmation.
        head.push_str(if last { "Connection: close\r\n\r\n" } else { "Connection: keep-alive\r\n\r\n" });
        head.into_bytes()
    }

    /// Returns the length of the body.
    pub(crate) fn len(&self) -> u64 {
        self.body.iter().map(Piece::len).sum()
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
