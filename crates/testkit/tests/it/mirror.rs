//! The mirror serves correctly without a fault, and exactly the fault otherwise.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use esker_testkit::mirror::{Fault, Mirror};

struct Client {
    reader: BufReader<TcpStream>,
}

struct Answer {
    status: u16,
    announced: usize,
    body: Vec<u8>,
}

impl Client {
    fn new(mirror: &Mirror) -> Client {
        let stream = TcpStream::connect(("127.0.0.1", mirror.port())).expect("connecting");
        Client { reader: BufReader::new(stream) }
    }

    fn ask(&mut self, method: &str, path: &str, headers: &str) {
        write!(self.reader.get_mut(), "{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n")
            .expect("asking");
    }

    /// Reads an answer; the body may come out shorter than announced if the server closes.
    fn answer(&mut self, with_body: bool) -> Option<Answer> {
        let mut line = String::new();
        if self.reader.read_line(&mut line).unwrap_or(0) == 0 {
            return None;
        }
        let status = line.split(' ').nth(1).expect("a status").parse().expect("a number");
        let mut announced = 0;
        loop {
            let mut line = String::new();
            self.reader.read_line(&mut line).expect("headers");
            if let Some(length) = line.strip_prefix("Content-Length: ") {
                announced = length.trim().parse().expect("a length");
            }
            if line.trim().is_empty() {
                break;
            }
        }
        let mut body = Vec::new();
        if with_body {
            self.reader.by_ref().take(announced as u64).read_to_end(&mut body).expect("a body");
        }
        Some(Answer { status, announced, body })
    }

    fn get(&mut self, path: &str) -> Answer {
        self.ask("GET", path, "");
        self.answer(true).expect("an answer")
    }
}

const FILE: &[u8] = b"0123456789";

fn mirror() -> (tempfile::TempDir, Mirror) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("file"), FILE).expect("writing");
    std::fs::write(folder.path().join("other"), b"other").expect("writing");
    let mirror = Mirror::serve(folder.path());
    (folder, mirror)
}

#[test]
fn a_mirror_serves_files_ranges_and_heads_on_one_connection() {
    let (_folder, mirror) = mirror();
    let mut client = Client::new(&mirror);
    assert_eq!(client.get("/file").body, FILE);
    assert_eq!(client.get("/nothing").status, 404);
    assert_eq!(client.get("/../file").status, 404);
    client.ask("HEAD", "/file", "");
    let head = client.answer(false).expect("an answer");
    assert_eq!((head.status, head.announced), (200, FILE.len()));
    for (range, status, body) in
        [("2-4", 206, &b"234"[..]), ("8-", 206, b"89"), ("8-99", 206, b"89"), ("10-", 416, b"")]
    {
        client.ask("GET", "/file", &format!("Range: bytes={range}\r\n"));
        let answer = client.answer(true).expect("an answer");
        assert_eq!((answer.status, answer.body.as_slice()), (status, body), "range {range}");
    }
    mirror.put("/file", "new");
    assert_eq!(client.get("http://x:1/file?query").body, b"new");
    assert_eq!(mirror.connections(), 1);
    assert_eq!(mirror.count(|path| path == "/file"), 7);
}

#[test]
fn faults_damage_the_requested_number_of_replies() {
    let (_folder, mirror) = mirror();
    let mut client = Client::new(&mirror);
    for (fault, status, body) in [
        (Fault::Status(503), 503, &b"status 503 on request\n"[..]),
        (Fault::Missing, 404, b"no such file\n"),
        (Fault::FlipByte(3), 200, b"012\xcc456789"),
        (Fault::FlipByte(13), 200, b"012\xcc456789"),
        (Fault::Truncate(4), 200, b"0123"),
        (Fault::Swap("other".to_owned()), 200, b"other"),
        (Fault::Content(b"else".to_vec()), 200, b"else"),
        (Fault::Slow(50), 200, FILE),
        (Fault::Delay(Duration::from_millis(1)), 200, FILE),
    ] {
        let rule = mirror.fault_times(1, |path| path == "/file", fault.clone());
        let answer = client.get("/file");
        assert_eq!((answer.status, answer.body.as_slice()), (status, body), "{fault:?}");
        rule.assert_hit();
        assert_eq!(client.get("/file").body, FILE, "after {fault:?}");
        assert_eq!(rule.hits(), 1);
    }
    mirror.fault_times(1, |path| path == "/file", Fault::Html);
    assert!(client.get("/file").body.starts_with(b"<!DOCTYPE html>"));
}

#[test]
fn a_mirror_breaks_and_holds_connections() {
    let (_folder, mirror) = mirror();
    mirror.fault_times(1, |path| path == "/file", Fault::CloseAfter(4));
    let answer = Client::new(&mirror).get("/file");
    assert_eq!((answer.announced, answer.body.as_slice()), (FILE.len(), &FILE[..4]));

    let silent = mirror.fault(|path| path == "/file", Fault::NoAnswer);
    let mut waiting = Client::new(&mirror);
    waiting.ask("GET", "/file", "");
    silent.wait_for_hits(1);
    waiting.reader.get_ref().set_read_timeout(Some(Duration::from_millis(20))).expect("a timeout");
    let silence = waiting.reader.fill_buf().expect_err("nothing arrives");
    assert!(matches!(silence.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{silence}");
    silent.lift();
    waiting.reader.get_ref().set_read_timeout(None).expect("no timeout");
    assert!(waiting.answer(true).is_none(), "a lifted stall closes its connection");

    let stalled = mirror.fault(|path| path == "/file", Fault::StallAfter(4));
    let mut waiting = Client::new(&mirror);
    waiting.ask("GET", "/file", "");
    stalled.wait_for_hits(1);
    let mut beginning = Vec::new();
    while !beginning.ends_with(b"\r\n\r\n0123") {
        let arrived = waiting.reader.fill_buf().expect("the part before the stall");
        assert!(!arrived.is_empty(), "a stall does not close");
        beginning.extend_from_slice(arrived);
        let length = arrived.len();
        waiting.reader.consume(length);
    }
    let started = Instant::now();
    let port = mirror.port();
    mirror.stop();
    assert_eq!(waiting.reader.read_to_end(&mut Vec::new()).unwrap_or(0), 0, "nothing follows");
    assert!(started.elapsed() < Duration::from_secs(30), "stopping ends all connections");
    TcpStream::connect(("127.0.0.1", port)).expect_err("a stopped mirror refuses");
}
