//! Measures the minimum cost of a fetch: blocking reads from persistent connections.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, ensure};

use super::Object;

/// The longest line of an answer's head.
const LINE_MAX: u64 = 8 << 10;

/// Fetches all objects `times` times over `connections` connections.
pub fn fetch(
    server: SocketAddr,
    url: &str,
    objects: &[Object],
    times: usize,
    connections: usize,
) -> Result<()> {
    let host_and_path = url.strip_prefix("http://").context("not an http:// URL")?;
    let (host, base) = host_and_path.split_at(host_and_path.find('/').unwrap_or(host_and_path.len()));
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        let mut stream = BufReader::with_capacity(64 << 10, TcpStream::connect(server)?);
        stream.get_ref().set_nodelay(true)?;
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= objects.len() * times {
                return Ok(());
            }
            let object = &objects[at % objects.len()];
            let request = format!("GET {base}/{} HTTP/1.1\r\nHost: {host}\r\n\r\n", object.path);
            stream.get_mut().write_all(request.as_bytes())?;
            let length = head(&mut stream).with_context(|| format!("{} can't be fetched", object.path))?;
            ensure!(length == object.bytes, "{} has {length} bytes, not {}", object.path, object.bytes);
            let read = io::copy(&mut stream.by_ref().take(length), &mut io::sink())?;
            ensure!(read == length, "{} was cut short", object.path);
        }
    };
    std::thread::scope(|scope| {
        let working: Vec<_> = (0..connections).map(|_| scope.spawn(work)).collect();
        let ended =
            working.into_iter().map(|one| one.join().unwrap_or_else(|p| std::panic::resume_unwind(p)));
        ended.collect()
    })
}

/// Reads the head of a reply and returns the length of its body.
fn head(stream: &mut impl BufRead) -> Result<u64> {
    let mut length = None;
    let mut line = String::new();
    let mut first = true;
    loop {
        line.clear();
        stream.by_ref().take(LINE_MAX).read_line(&mut line)?;
        let text = line.trim_end();
        ensure!(!line.is_empty(), "the connection ended");
        if std::mem::take(&mut first) {
            ensure!(text.split(' ').nth(1) == Some("200"), "the answer is {text}");
        } else if text.is_empty() {
            return length.context("the answer has no length");
        } else if let Some((name, value)) = text.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = Some(value.trim().parse()?);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_replies_are_parsed() {
        let answer = |text: &str| head(&mut text.as_bytes());
        assert_eq!(answer("HTTP/1.1 200 OK\r\ncontent-LENGTH: 7\r\nX: y\r\n\r\n").expect("a length"), 7);
        assert!(answer("HTTP/1.1 404 Not Found\r\nContent-Length: 7\r\n\r\n").is_err());
        assert!(answer("HTTP/1.1 200 OK\r\n\r\n").is_err());
        assert!(answer("HTTP/1.1 200 OK\r\nContent-Length: 7\r\n").is_err(), "cut short");
    }
}
