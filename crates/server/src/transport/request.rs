//! Strict parser of request heads: an ambiguous head is refused, because proxies are in between.

use hyper::http::request::Parts;
use hyper::{Uri, Version, header, header::HeaderValue};

use crate::range::elements;

/// The first bytes of an HTTP/2 connection.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Maximum length of a request head in bytes. Requests of clients are a few hundred bytes; proxies add to them.
pub(crate) const HEAD_MAX: usize = 16 * 1024;
/// Maximum number of header fields.
const FIELDS_MAX: usize = 64;

/// Request method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Get,
    Head,
    /// A method that changes something, or an unknown one.
    Other,
}

/// Parts of a request that affect the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: Method,
    /// The path as sent, without query.
    pub(crate) path: String,
    /// True if the client keeps the connection for its next request.
    pub(crate) keep_alive: bool,
    pub(crate) range: Option<String>,
    pub(crate) if_range: Option<String>,
    pub(crate) if_none_match: Option<String>,
    /// True if the client or a proxy refuses cached copies.
    pub(crate) no_cache: bool,
}

/// Refusal of a malformed request; the connection is closed, because the start of the next request is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Malformed,
    TooLarge,
    Version,
    Body,
}

/// Result of checking the bytes received so far.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Checked {
    /// The request is incomplete.
    Partial,
    /// A request of HTTP/1 with a head of this length, and a body of this one.
    Whole(usize, u64),
    /// The first bytes of an HTTP/2 connection.
    Preface,
    Refused(Refusal),
}

/// Checks the request head at the start of `bytes`; its body may have `body_max` bytes.
pub(crate) fn check(bytes: &[u8], body_max: u64) -> Checked {
    if bytes.starts_with(PREFACE) {
        return Checked::Preface;
    }
    if PREFACE.starts_with(bytes) {
        return Checked::Partial;
    }
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut head = httparse::Request::new(&mut fields);
    let len = match head.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => return Checked::Partial,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Checked::Refused(Refusal::TooLarge);
        }
        Err(httparse::Error::Version) => return Checked::Refused(Refusal::Version),
        Err(_) => return Checked::Refused(Refusal::Malformed),
    };
    if len > HEAD_MAX {
        return Checked::Refused(Refusal::TooLarge);
    }
    // A line that ends without a carriage return is one line for some servers, and two for others.
    let lines = bytes.get(..len).unwrap_or_default();
    let is_bare = |(at, byte): (usize, &u8)| *byte == b'\n' && (at == 0 || lines.get(at - 1) != Some(&b'\r'));
    if lines.iter().enumerate().any(is_bare) {
        return Checked::Refused(Refusal::Malformed);
    }
    match judge(&head, body_max) {
        Ok(body) => Checked::Whole(len, body),
        Err(refusal) => Checked::Refused(refusal),
    }
}

/// Returns the length of the body.
fn judge(head: &httparse::Request<'_, '_>, body_max: u64) -> Result<u64, Refusal> {
    let (Some(target), Some(version)) = (head.path, head.version) else { return Err(Refusal::Malformed) };
    path(target).filter(|_| target.bytes().all(is_target)).ok_or(Refusal::Malformed)?;
    // A target with a server in front has more rules, and only clients of a proxy send one.
    if !target.starts_with('/') {
        target.parse::<Uri>().map_err(|_| Refusal::Malformed)?;
    }
    let fields = head.headers.iter().map(|field| (field.name, field.value));
    let (hosts, body) = judge_fields(fields, body_max)?;
    if hosts > 1 || (version == 1 && hosts == 0) { Err(Refusal::Malformed) } else { Ok(body) }
}

/// Refuses ambiguous fields and bodies of other lengths. Returns the number of `Host` fields, and the length of the body.
fn judge_fields<'a>(
    fields: impl Iterator<Item = (&'a str, &'a [u8])>,
    body_max: u64,
) -> Result<(usize, u64), Refusal> {
    let (mut hosts, mut ranges, mut conditions, mut body) = (0, 0, 0, None);
    for (name, value) in fields {
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        if is("host") {
            hosts += 1;
            if !value.trim_ascii().iter().all(|byte| is_host(*byte)) {
                return Err(Refusal::Malformed);
            }
        } else if is("content-length") {
            let len = content_length(value).filter(|len| *len <= body_max).ok_or(Refusal::Body)?;
            if body.replace(len).is_some_and(|other| other != len) {
                return Err(Refusal::Malformed);
            }
        } else if is("transfer-encoding") {
            return Err(Refusal::Body);
        } else if is("range") {
            ranges += 1;
            std::str::from_utf8(value).map_err(|_| Refusal::Malformed)?;
        } else if is("if-range") {
            conditions += 1;
            std::str::from_utf8(value).map_err(|_| Refusal::Malformed)?;
        } else if is("if-none-match") {
            std::str::from_utf8(value).map_err(|_| Refusal::Malformed)?;
        }
    }
    if ranges > 1 || conditions > 1 { Err(Refusal::Malformed) } else { Ok((hosts, body.unwrap_or(0))) }
}

/// Parses digits without a leading zero: servers understand signs, zeros in front and lists in several ways.
fn content_length(value: &[u8]) -> Option<u64> {
    let digits = value.trim_ascii();
    let is_plain = digits.iter().all(u8::is_ascii_digit) && (digits == b"0" || !digits.starts_with(b"0"));
    if is_plain { std::str::from_utf8(digits).ok()?.parse().ok() } else { None }
}

/// Returns whether a byte may stand in a host and port.
fn is_host(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~:[]%!$&'()*+;=".contains(&byte)
}

/// Returns whether hyper takes a byte for a part of a target.
fn is_target(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"<>\"\\^`".contains(&byte)
}

impl Request {
    /// Returns a GET without a range, a condition or another field that affects the response.
    pub(crate) fn get() -> Self {
        Self {
            method: Method::Get,
            path: String::new(),
            keep_alive: true,
            range: None,
            if_range: None,
            if_none_match: None,
            no_cache: false,
        }
    }

    /// Reads the parts of a request that hyper parsed. The fields of HTTP/2 are judged here for the first time.
    pub(crate) fn of(parts: &Parts, body_max: u64) -> Result<Self, Refusal> {
        if parts.version == Version::HTTP_2 {
            let fields = parts.headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
            let (hosts, _) = judge_fields(fields, body_max)?;
            let is_contrary = |host: &HeaderValue| {
                parts
                    .uri
                    .authority()
                    .is_some_and(|authority| authority.as_str().as_bytes() != host.as_bytes())
            };
            if hosts > 1 || parts.headers.get(header::HOST).is_some_and(is_contrary) {
                return Err(Refusal::Malformed);
            }
        }
        let mut request = Self {
            method: match parts.method {
                hyper::Method::GET => Method::Get,
                hyper::Method::HEAD => Method::Head,
                _ => Method::Other,
            },
            path: parts.uri.path().to_owned(),
            keep_alive: parts.version != Version::HTTP_10,
            range: None,
            if_range: None,
            if_none_match: None,
            no_cache: false,
        };
        for (name, value) in &parts.headers {
            // Values that are read here are text; others are looked at no further.
            let value = std::str::from_utf8(value.as_bytes()).unwrap_or_default().trim();
            match *name {
                header::CONNECTION => connection(&mut request, value),
                header::RANGE => request.range = Some(value.to_owned()),
                header::IF_RANGE => request.if_range = Some(value.to_owned()),
                header::IF_NONE_MATCH => match &mut request.if_none_match {
                    Some(list) => *list = format!("{list}, {value}"),
                    none => *none = Some(value.to_owned()),
                },
                header::CACHE_CONTROL | header::PRAGMA => {
                    let fresh = ["no-cache", "no-store", "max-age=0"];
                    request.no_cache |= elements(value)
                        .any(|element| fresh.iter().any(|word| element.eq_ignore_ascii_case(word)));
                }
                _ => {}
            }
        }
        Ok(request)
    }
}

/// A GET whose response depends on its target alone, as nearly all requests of clients are.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PlainGet<'h> {
    pub(crate) target: &'h str,
    /// True if the client keeps the connection for its next request.
    pub(crate) keep_alive: bool,
    /// True if the client speaks HTTP/1.0.
    pub(crate) is_old: bool,
}

/// Returns the request of a checked head if it is plain. `None` says nothing of it: hyper parses the head then.
pub(crate) fn plain(head: &[u8]) -> Option<PlainGet<'_>> {
    let head = std::str::from_utf8(head).ok()?.strip_prefix("GET ")?.strip_suffix("\r\n\r\n")?;
    let mut lines = head.split("\r\n");
    let (target, version) = lines.next()?.split_once(' ')?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/.-_".contains(&byte);
    if !target.starts_with('/') || !target.bytes().all(is_plain) {
        return None;
    }
    let is_old = match version {
        "HTTP/1.1" => false,
        "HTTP/1.0" => true,
        _ => return None,
    };
    let mut keep_alive = !is_old;
    for line in lines {
        let (name, value) = line.split_once(':')?;
        let is = |known: &str| name.eq_ignore_ascii_case(known);
        match name.as_bytes().first()?.to_ascii_lowercase() {
            b'c' if is("connection") => match value.trim() {
                value if value.eq_ignore_ascii_case("keep-alive") => keep_alive = true,
                value if value.eq_ignore_ascii_case("close") => keep_alive = false,
                _ => return None,
            },
            b'c' if is("cache-control") || is("content-length") => return None,
            // If-None-Match and other conditions, Range, Pragma, Transfer-Encoding, Expect, Upgrade.
            b'i' | b'r' | b'p' | b't' | b'e' => return None,
            b'u' if is("upgrade") => return None,
            byte if !byte.is_ascii_alphabetic() => return None,
            _ => {}
        }
    }
    Some(PlainGet { target, keep_alive, is_old })
}

fn connection(request: &mut Request, value: &str) {
    for element in elements(value) {
        if element.eq_ignore_ascii_case("close") {
            request.keep_alive = false;
        } else if element.eq_ignore_ascii_case("keep-alive") {
            request.keep_alive = true;
        }
    }
}

/// Returns the path of a request target; a proxy may put the server in front.
fn path(target: &str) -> Option<&str> {
    let path = match target.strip_prefix("http://").or_else(|| target.strip_prefix("https://")) {
        Some(rest) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    };
    let path = path.split(['?', '#']).next().unwrap_or_default();
    path.starts_with('/').then_some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads a request as hyper does.
    fn parsed(text: &str) -> Request {
        let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
        let mut head = httparse::Request::new(&mut fields);
        assert!(head.parse(text.as_bytes()).is_ok_and(|status| status.is_complete()), "{text:?}");
        let version = if head.version == Some(0) { Version::HTTP_10 } else { Version::HTTP_11 };
        let mut request = hyper::Request::builder().version(version);
        request = request.method(head.method.expect("a method")).uri(head.path.expect("a target"));
        for field in head.headers {
            request = request.header(field.name, field.value);
        }
        Request::of(&request.body(()).expect("a request").into_parts().0, 0).expect("an accepted request")
    }

    fn whole(text: &str) -> Request {
        assert_eq!(check(text.as_bytes(), 0), Checked::Whole(text.len(), 0), "{text:?}");
        parsed(text)
    }

    fn refused(text: &str) -> Refusal {
        match check(text.as_bytes(), 0) {
            Checked::Refused(refusal) => refusal,
            other => panic!("{text:?}: {other:?}"),
        }
    }

    #[test]
    fn requests_of_clients_are_parsed() {
        let request =
            whole("GET /cvmfs/a.test/.cvmfspublished?x=1 HTTP/1.1\r\nHost: h\r\nPragma: no-cache\r\n\r\n");
        assert_eq!((request.method, request.path.as_str()), (Method::Get, "/cvmfs/a.test/.cvmfspublished"));
        assert!(request.keep_alive && request.no_cache);
        let request = whole("HEAD http://h:80/x HTTP/1.0\r\nCache-Control: max-age=61, NO-CACHE\r\n\r\n");
        assert_eq!((request.method, request.path.as_str()), (Method::Head, "/x"));
        assert!(!request.keep_alive && request.no_cache);
        assert!(whole("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n").keep_alive);
        assert!(!whole("GET / HTTP/1.1\r\nHost: h\r\nConnection: te, close\r\n\r\n").keep_alive);
        assert_eq!(whole("DELETE / HTTP/1.1\r\nHost: h\r\n\r\n").method, Method::Other);
        let tags = whole("GET / HTTP/1.1\r\nHost: h\r\nIf-None-Match: \"a\"\r\nIf-None-Match: \"b\"\r\n\r\n");
        assert_eq!(tags.if_none_match.as_deref(), Some("\"a\", \"b\""));
    }

    #[test]
    fn requests_that_depend_on_more_than_their_target_are_not_plain() {
        let get = |line: &str, fields: &str| format!("{line}\r\n{fields}\r\n");
        let old = "GET /cvmfs/a.test/x HTTP/1.0";
        let new = "GET /cvmfs/a.test/x HTTP/1.1";
        for (head, keep_alive, is_old) in [
            (get(new, "Host: h\r\n"), true, false),
            (
                get(new, "Host: h\r\nAccept: */*\r\nUser-Agent: cvmfs: x\r\nConnection: Keep-Alive\r\n"),
                true,
                false,
            ),
            (get(new, "Host: h\r\nconnection: close\r\n"), false, false),
            (get(old, ""), false, true),
            (get(old, "Connection: keep-alive\r\n"), true, true),
        ] {
            let target = "/cvmfs/a.test/x";
            assert_eq!(plain(head.as_bytes()), Some(PlainGet { target, keep_alive, is_old }), "{head}");
            assert_eq!(parsed(&head).keep_alive, keep_alive, "{head}");
        }
        for field in [
            "Range: bytes=0-1",
            "range:bytes=0-1",
            "If-None-Match: \"x\"",
            "If-Range: x",
            "if-modified-since: x",
            "Cache-Control: no-cache",
            "PRAGMA: no-cache",
            "Connection: close, te",
            "Content-Length: 0",
            "Transfer-Encoding: chunked",
            "Expect: 100-continue",
            "Upgrade: h2c",
            "_x: y",
        ] {
            assert_eq!(plain(get(new, &format!("Host: h\r\n{field}\r\n")).as_bytes()), None, "{field}");
        }
        for line in [
            "HEAD /x HTTP/1.1",
            "GET /x?y HTTP/1.1",
            "GET /%41 HTTP/1.1",
            "GET http://h/x HTTP/1.1",
            "GET /x HTTP/1.2",
            "GET  /x HTTP/1.1",
            "\r\nGET /x HTTP/1.1",
        ] {
            assert_eq!(plain(get(line, "Host: h\r\n").as_bytes()), None, "{line}");
        }
        assert_eq!(plain(b"GET /x HTTP/1.1\r\nHost: h\r\n"), None);
    }

    #[test]
    fn malformed_requests_are_refused() {
        assert_eq!(refused("GET / HTTP/1.1\r\n\r\n"), Refusal::Malformed);
        assert_eq!(refused("GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n"), Refusal::Malformed);
        assert_eq!(refused("GET x HTTP/1.1\r\nHost: h\r\n\r\n"), Refusal::Malformed);
        assert_eq!(refused("GET / HTTP/2.0\r\n\r\n"), Refusal::Version);
        assert_eq!(refused("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\n"), Refusal::Body);
        assert_eq!(refused("GET / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"), Refusal::Body);
        assert_eq!(refused("GET / HTTP/1.1\r\nHost: h\r\nContent-Length: 0, 4\r\n\r\n"), Refusal::Body);
        assert_eq!(refused("\0"), Refusal::Malformed);
        let many = format!("GET / HTTP/1.1\r\nHost: h\r\n{}\r\n", "A: b\r\n".repeat(FIELDS_MAX));
        assert_eq!(refused(&many), Refusal::TooLarge);
        assert_eq!(refused(&format!("GET /{}", "x".repeat(HEAD_MAX))), Refusal::TooLarge);
        assert_eq!(check(b"GET / HTTP/1.1\r\nHost: h\r\n", 0), Checked::Partial);
        assert_eq!(check(PREFACE, 0), Checked::Preface);
        assert_eq!(check(b"PRI * HT", 0), Checked::Partial);
        assert_eq!(refused("GET / HTTP/1.1\nHost: h\r\n\r\n"), Refusal::Malformed);
    }

    proptest::proptest! {
        #[test]
        fn no_request_causes_a_panic(bytes: Vec<u8>, text in "(GET|HEAD) [/%a-z.:]{0,20} HTTP/1.[01]\r\n(([A-Za-z-]{1,12}: ?[ -~]{0,12})\r\n){0,4}\r\n") {
            check(&bytes, 0);
            plain(&bytes);
            if let Checked::Whole(..) = check(text.as_bytes(), 0) {
                let request = parsed(&text);
                if let Some(plain) = plain(text.as_bytes()) {
                    let expected = Request {
                        path: plain.target.to_owned(),
                        keep_alive: plain.keep_alive,
                        ..Request::get()
                    };
                    proptest::prop_assert_eq!(request, expected);
                }
            }
        }
    }

    #[test]
    fn a_handler_may_take_bodies_up_to_a_length() {
        let checked = |fields: &str| {
            let text = format!("POST / HTTP/1.1\r\nHost: h\r\n{fields}\r\n");
            match check(text.as_bytes(), 10) {
                Checked::Whole(len, body) if len == text.len() => Ok(body),
                Checked::Refused(refusal) => Err(refusal),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(checked(""), Ok(0));
        assert_eq!(checked("Content-Length: 10\r\n"), Ok(10));
        assert_eq!(checked("Content-Length: 10\r\nContent-Length: 10\r\n"), Ok(10));
        assert_eq!(checked("Content-Length: 10\r\nContent-Length: 1\r\n"), Err(Refusal::Malformed));
        for other in [
            "Content-Length: 11",
            "Content-Length: +1",
            "Content-Length: 01",
            "Content-Length:",
            "Transfer-Encoding: chunked",
        ] {
            assert_eq!(checked(&format!("{other}\r\n")), Err(Refusal::Body), "{other}");
        }
    }
}
