//! Reading requests off a connection.

use std::io::{self, BufRead, BufReader, Read};
use std::net::TcpStream;
use std::time::Instant;

/// A request line and its headers may not be longer than this together.
const HEAD_BYTES_MAX: u64 = 64 * 1024;

/// One request as it arrived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// `GET` or `HEAD`.
    pub method: String,
    /// The path with its leading slash, percent escapes left alone.
    pub path: String,
    /// First and one-past-last byte of the requested range, if any.
    pub range: Option<(u64, Option<u64>)>,
    /// All headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// Time of arrival.
    pub at: Instant,
}

impl Request {
    /// Returns the value of a header given in lower case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// True if the client wants the connection closed after the response.
    pub(crate) fn closes(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }

    /// Reads the next request, or `None` once the client has disconnected.
    pub(crate) fn read(from: &mut BufReader<TcpStream>) -> io::Result<Option<Request>> {
        let mut head = from.by_ref().take(HEAD_BYTES_MAX);
        let mut line = String::new();
        if head.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let (Some(method), Some(target)) = (words.next(), words.next()) else {
            return Err(io::Error::other("not a request line"));
        };
        let (method, path) = (method.to_owned(), path_of(target));
        let mut headers = Vec::new();
        loop {
            let mut line = String::new();
            if head.read_line(&mut line)? == 0 {
                return Err(io::Error::other("the head never ended"));
            }
            let Some((name, value)) = line.trim_end().split_once(':') else { break };
            headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
        }
        let mut request = Request { method, path, range: None, headers, at: Instant::now() };
        request.range = request.header("range").and_then(parse_range);
        Ok(Some(request))
    }
}

/// Strips scheme and host from an absolute target, which a proxy gets, and the query.
fn path_of(target: &str) -> String {
    let path = match target.split_once("://") {
        Some((_, rest)) => rest.find('/').map_or("/", |at| &rest[at..]),
        None => target,
    };
    path.split('?').next().unwrap_or(path).to_owned()
}

fn parse_range(value: &str) -> Option<(u64, Option<u64>)> {
    let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
    let last = if last.is_empty() { None } else { Some(last.parse::<u64>().ok()? + 1) };
    Some((first.parse().ok()?, last))
}
