//! Serves one connection.

use std::io::{self, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::MirrorState;
use super::fault::{Fault, Rule};
use super::link::Link;
use super::request::Request;

const PAGE: &[u8] = b"<!DOCTYPE html><html><body>Please log in to use this network.</body></html>\n";
/// Interval of pieces of a dawdling response; small enough to look like a steady trickle.
const TRICKLE: Duration = Duration::from_millis(100);
/// Longer than any test: a stall ends when its rule is lifted, not by itself.
const FOREVER: Duration = Duration::from_secs(24 * 3600);

pub(super) fn serve(stream: TcpStream, shared: &MirrorState) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut writer = stream;
    while let Some(request) = Request::read(&mut reader)? {
        shared.record(&request);
        let rule = shared.rules.striking(&request.path);
        let response = Response::to(&request, rule.as_ref(), shared);
        let turn = shared.link.turn();
        let goes_on = response.send(&mut writer, rule.as_ref(), &shared.link)?;
        drop(turn);
        if !goes_on || request.closes() {
            break;
        }
    }
    Ok(())
}

struct Response {
    status: u16,
    headers: String,
    body: Vec<u8>,
    /// True for a `HEAD` request, which gets the headers only.
    without_body: bool,
}

impl Response {
    fn to(request: &Request, rule: Option<&Rule>, shared: &MirrorState) -> Response {
        let fault = rule.map(Rule::fault);
        let content = match fault {
            Some(Fault::Swap(other)) => shared.content(&format!("/{}", other.trim_start_matches('/'))),
            Some(Fault::Content(bytes)) => Some(bytes.clone()),
            Some(Fault::Html) => Some(PAGE.to_vec()),
            Some(Fault::Missing) => None,
            _ => shared.content(&request.path),
        };
        let without_body = request.method == "HEAD";
        if let Some(Fault::Status(status)) = fault {
            let body = format!("status {status} on request\n").into_bytes();
            return Response { status: *status, headers: String::new(), body, without_body };
        }
        if let Some(Fault::RetryAfter(seconds)) = fault {
            let headers = format!("Retry-After: {seconds}\r\n");
            return Response { status: 503, headers, body: Vec::new(), without_body };
        }
        if let Some(Fault::Redirect(target)) = fault {
            let headers = format!("Location: {target}\r\n{}", shared.fields());
            return Response { status: 302, headers, body: Vec::new(), without_body };
        }
        let Some(mut body) = content else {
            let body = b"no such file\n".to_vec();
            return Response { status: 404, headers: String::new(), body, without_body };
        };
        damage(&mut body, fault);
        let range = match fault {
            Some(Fault::Part(bytes)) => Some((0, Some(*bytes))),
            Some(Fault::Whole | Fault::Called(_)) => None,
            _ => request.range,
        };
        let mut response = Response::ranged(body, range);
        if let Some(Fault::Called(status)) = fault {
            response.status = *status;
        }
        response.headers.push_str(&shared.fields());
        response.without_body = without_body;
        response
    }

    fn ranged(body: Vec<u8>, range: Option<(u64, Option<u64>)>) -> Response {
        let total = body.len() as u64;
        let mut response = Response {
            status: 200,
            headers: "Accept-Ranges: bytes\r\n".to_owned(),
            body,
            without_body: false,
        };
        let Some((first, end)) = range else { return response };
        let end = end.unwrap_or(total).min(total);
        if first >= end {
            response.status = 416;
            response.headers = format!("Content-Range: bytes */{total}\r\n");
            response.body.clear();
            return response;
        }
        let slice = usize::try_from(first).expect("fits")..usize::try_from(end).expect("fits");
        response.status = 206;
        response.headers = format!("Content-Range: bytes {first}-{}/{total}\r\n", end - 1);
        response.body = response.body[slice].to_vec();
        response
    }

    /// Sends the response as the fault requires; returns true if the connection can continue.
    fn send(&self, to: &mut TcpStream, rule: Option<&Rule>, link: &Link) -> io::Result<bool> {
        let fault = rule.map(Rule::fault);
        if let (Some(rule), Some(Fault::NoAnswer)) = (rule, fault) {
            rule.pause(FOREVER);
            return Ok(false);
        }
        if let (Some(rule), Some(Fault::Delay(time))) = (rule, fault) {
            rule.pause(*time);
        }
        let head = format!(
            "HTTP/1.1 {} {}\r\nContent-Length: {}\r\n{}\r\n",
            self.status,
            reason(self.status),
            self.body.len(),
            self.headers
        );
        to.write_all(head.as_bytes())?;
        if self.without_body {
            return Ok(true);
        }
        let cut = |at: u64| &self.body[..usize::try_from(at).unwrap_or(usize::MAX).min(self.body.len())];
        match (rule, fault) {
            (_, Some(Fault::CloseAfter(at))) => {
                to.write_all(cut(*at))?;
                Ok(false)
            }
            (Some(rule), Some(Fault::StallAfter(at))) => {
                to.write_all(cut(*at))?;
                to.flush()?;
                rule.pause(FOREVER);
                Ok(false)
            }
            (Some(rule), Some(Fault::Slow(bytes_per_second))) => {
                trickle(to, rule, &self.body, *bytes_per_second)?;
                Ok(true)
            }
            (Some(rule), Some(Fault::SlowCut(bytes_per_second))) => {
                trickle(to, rule, cut(self.body.len().saturating_sub(1) as u64), *bytes_per_second)?;
                Ok(false)
            }
            _ => {
                link.send(to, &self.body)?;
                Ok(true)
            }
        }
    }
}

fn trickle(to: &mut TcpStream, rule: &Rule, body: &[u8], bytes_per_second: u64) -> io::Result<()> {
    let piece = usize::try_from(bytes_per_second / 10).unwrap_or(usize::MAX).max(1);
    for bytes in body.chunks(piece) {
        to.write_all(bytes)?;
        rule.pause(TRICKLE);
    }
    Ok(())
}

fn damage(body: &mut Vec<u8>, fault: Option<&Fault>) {
    match fault {
        Some(Fault::FlipByte(at)) if !body.is_empty() => {
            let at = usize::try_from(*at % body.len() as u64).expect("an index fits");
            body[at] = !body[at];
        }
        Some(Fault::Truncate(at)) => body.truncate(usize::try_from(*at).unwrap_or(usize::MAX)),
        _ => {}
    }
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        206 => "Partial Content",
        404 => "Not Found",
        416 => "Range Not Satisfiable",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        _ => "Unspecified",
    }
}
