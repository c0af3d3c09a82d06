//! Strict parser of request heads: an ambiguous head is refused, because proxies are in between.

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
    /// What follows the question mark.
    pub(crate) query: String,
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

/// Result of parsing the bytes received so far.
#[derive(Debug)]
pub(crate) enum Parsed {
    /// The request is incomplete.
    Partial,
    /// A request, and the length of its head.
    Whole(Request, usize),
    Refused(Refusal),
}

/// Reads a request head from the start of `bytes`.
pub(crate) fn parse(bytes: &[u8]) -> Parsed {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut head = httparse::Request::new(&mut fields);
    let len = match head.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) if bytes.len() < HEAD_MAX => return Parsed::Partial,
        Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
            return Parsed::Refused(Refusal::TooLarge);
        }
        Err(httparse::Error::Version) => return Parsed::Refused(Refusal::Version),
        Err(_) => return Parsed::Refused(Refusal::Malformed),
    };
    match read(&head) {
        Ok(request) => Parsed::Whole(request, len),
        Err(refusal) => Parsed::Refused(refusal),
    }
}

fn read(head: &httparse::Request<'_, '_>) -> Result<Request, Refusal> {
    let (Some(method), Some(target), Some(version)) = (head.method, head.path, head.version) else {
        return Err(Refusal::Malformed);
    };
    let mut request = Request {
        method: match method {
            "GET" => Method::Get,
            "HEAD" => Method::Head,
            _ => Method::Other,
        },
        path: path(target).ok_or(Refusal::Malformed)?.to_owned(),
        query: query(target).to_owned(),
        keep_alive: version == 1,
        range: None,
        if_range: None,
        if_none_match: None,
        no_cache: false,
    };
    let mut hosts = 0;
    for field in head.headers.iter() {
        let value = std::str::from_utf8(field.value).map(str::trim);
        let text = || value.map(str::to_owned).map_err(|_| Refusal::Malformed);
        match field.name.to_ascii_lowercase().as_str() {
            "host" => hosts += 1,
            "connection" => connection(&mut request, value.unwrap_or_default()),
            "content-length" if value != Ok("0") => return Err(Refusal::Body),
            "transfer-encoding" => return Err(Refusal::Body),
            "range" if request.range.is_some() => return Err(Refusal::Malformed),
            "range" => request.range = Some(text()?),
            "if-range" => request.if_range = Some(text()?),
            "if-none-match" => match &mut request.if_none_match {
                Some(list) => *list = format!("{list}, {}", text()?),
                none => *none = Some(text()?),
            },
            "cache-control" | "pragma" => {
                let fresh = ["no-cache", "no-store", "max-age=0"];
                request.no_cache |= elements(value.unwrap_or_default())
                    .any(|element| fresh.iter().any(|word| element.eq_ignore_ascii_case(word)));
            }
            _ => {}
        }
    }
    if hosts > 1 || (version == 1 && hosts == 0) {
        return Err(Refusal::Malformed);
    }
    Ok(request)
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

/// Returns the elements of a comma-separated list.
pub(crate) fn elements(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|element| !element.is_empty())
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

/// Returns what follows the first question mark of a request target.
fn query(target: &str) -> &str {
    let target = target.split('#').next().unwrap_or_default();
    target.split_once('?').map_or("", |(_, query)| query)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Request {
        match parse(text.as_bytes()) {
            Parsed::Whole(request, len) => {
                assert_eq!(len, text.len());
                request
            }
            other => panic!("{text:?}: {other:?}"),
        }
    }

    fn refused(text: &str) -> Refusal {
        match parse(text.as_bytes()) {
            Parsed::Refused(refusal) => refusal,
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
        assert!(matches!(parse(b"GET / HTTP/1.1\r\nHost: h\r\n"), Parsed::Partial));
    }

    proptest::proptest! {
        #[test]
        fn no_request_causes_a_panic(bytes: Vec<u8>, text in "(GET|HEAD) [/%a-z.:]{0,20} HTTP/1.[01]\r\n(([A-Za-z-]{1,12}: ?[ -~]{0,12})\r\n){0,4}\r\n") {
            parse(&bytes);
            parse(text.as_bytes());
        }
    }
}
