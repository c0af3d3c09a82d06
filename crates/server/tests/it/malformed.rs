//! Requests that no client of ours sends: none gets a file, and none leaves a connection on which the next request could
//! be misunderstood.

use std::io::Read;
use std::net::Shutdown;

use esker_testkit::fixture::FULL;

use crate::client::Running;

const TOP: &str = "/cvmfs/full.test/.cvmfspublished";

/// A request with a path that exists, changed in one place.
fn request(line: &str, fields: &str) -> Vec<u8> {
    format!("{line}\r\n{fields}\r\n").into_bytes()
}

fn corpus() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = Vec::new();
    let get = format!("GET {TOP} HTTP/1.1");
    // Each control character and some others in each part of a head.
    let bytes: Vec<u8> =
        (0..=31u8).chain([127]).filter(|byte| !matches!(byte, b'\t' | b'\r' | b'\n')).collect();
    for byte in &bytes {
        for (before, after) in [
            (b"GE".to_vec(), format!("T {TOP} HTTP/1.1\r\nHost: x\r\n\r\n")),
            (format!("GET {TOP}").into_bytes(), "x HTTP/1.1\r\nHost: x\r\n\r\n".into()),
            (format!("{get}\r\nHo").into_bytes(), "st: x\r\n\r\n".into()),
            (format!("{get}\r\nHost: x").into_bytes(), "y\r\n\r\n".into()),
            (format!("{get}\r\nHost: x\r\nAccept: a").into_bytes(), "b\r\n\r\n".into()),
        ] {
            all.push([&before[..], &[*byte], after.as_bytes()].concat());
        }
    }
    for byte in (128..=255u8).step_by(8) {
        all.push([b"GET /cvmfs/".as_slice(), &[byte], b" HTTP/1.1\r\nHost: x\r\n\r\n"].concat());
        all.push([b"G".as_slice(), &[byte], b"T / HTTP/1.1\r\nHost: x\r\n\r\n"].concat());
    }
    for line in [
        "GET",
        "GET ",
        "GET /",
        "GET / ",
        " GET / HTTP/1.1",
        "GET  / HTTP/1.1",
        "GET /  HTTP/1.1",
        "GET\t/\tHTTP/1.1",
        "GET / HTTP/1.1 ",
        "GET / HTTP/1.1 x",
        "GET / HTTP/1.1x",
        "GET / http/1.1",
        "GET / HTTP/0.9",
        "GET / HTTP/1",
        "GET / HTTP/1.",
        "GET / HTTP/1.2",
        "GET / HTTP/1.10",
        "GET / HTTP/11",
        "GET / HTTP/2.0",
        "GET / HTTP/3.0",
        "GET / HTTPS/1.1",
        "GET / XTTP/1.1",
        "GET x HTTP/1.1",
        "GET cvmfs/ HTTP/1.1",
        "GET * HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "CONNECT example.org:443 HTTP/1.1",
        "GET ?x HTTP/1.1",
        "GET #x HTTP/1.1",
        "GET http:// HTTP/1.1",
        "GET http:/// HTTP/1.1",
        "GET http://a b/ HTTP/1.1",
        "GET http://[::1/ HTTP/1.1",
        "GET ftp://a/ HTTP/1.1",
        "GET file:///etc/passwd HTTP/1.1",
        "GET javascript:x HTTP/1.1",
        "GET /<script> HTTP/1.1",
        "GET /\"x\" HTTP/1.1",
        "GET /a\\b HTTP/1.1",
        "GET /a^b HTTP/1.1",
        "GET /a`b HTTP/1.1",
        "G(T / HTTP/1.1",
        "G,T / HTTP/1.1",
        "GET: / HTTP/1.1",
        "\"GET\" / HTTP/1.1",
        "HTTP/1.1 200 OK",
        "PRI * HTTP/2.0",
        "\u{16}\u{3}\u{1}\u{2}\u{0}\u{1}\u{0}\u{1}\u{fc}\u{3}\u{3}",
        "SSH-2.0-OpenSSH_9.2",
        "EHLO example.org",
        "\0\0\0\0",
        "{\"jsonrpc\": \"2.0\"}",
    ] {
        all.push(request(line, "Host: x\r\n"));
    }
    for fields in [
        "",
        "Host: a\r\nHost: b\r\n",
        "Host: a\r\nHost: a\r\n",
        "Host: a\r\nhost: a\r\n",
        "Host: a\r\nHOST: \r\n",
        "Host: a b\r\n",
        "Host: a, b\r\n",
        "Host: a/b\r\n",
        "Host: a@b\r\n",
        "Host: a?b\r\n",
        "Host: a#b\r\n",
        "Host: \"a\"\r\n",
        "Host: <a>\r\n",
        "Host : a\r\n",
        "Host\t: a\r\n",
        " Host: a\r\n",
        "\tHost: a\r\n",
        "Host\r\n",
        ": a\r\n",
        "Host: a\r\n: b\r\n",
        "Host: a\r\nBad Name: x\r\n",
        "Host: a\r\nBad(Name): x\r\n",
        "Host: a\r\nBad/Name: x\r\n",
        "Host: a\r\nBad[Name]: x\r\n",
        "Host: a\r\nBad{Name}: x\r\n",
        "Host: a\r\nBad=Name: x\r\n",
        "Host: a\r\nBad@Name: x\r\n",
        "Host: a\r\nBad;Name: x\r\n",
        "Host: a\r\nBad,Name: x\r\n",
        "Host: a\r\nBad\"Name\": x\r\n",
        "Host: a\r\nNo colon\r\n",
        "Host: a\r\nFolded: x\r\n y\r\n",
        "Host: a\r\nFolded: x\r\n\ty\r\n",
        "Host: a\r\nRange: bytes=0-1\r\nRange: bytes=2-3\r\n",
        "Host: a\r\nRange: bytes=0-1\r\nrange: bytes=0-1\r\n",
        "Host: a\r\nIf-Range: \"a\"\r\nIf-Range: \"b\"\r\n",
        "Host: a\r\nContent-Length: 1\r\n",
        "Host: a\r\nContent-Length: 5\r\n\r\nhello",
        "Host: a\r\nContent-Length: 0\r\nContent-Length: 5\r\n",
        "Host: a\r\nContent-Length: 5\r\nContent-Length: 0\r\n",
        "Host: a\r\nContent-Length: 0, 5\r\n",
        "Host: a\r\nContent-Length: 0,0\r\n",
        "Host: a\r\nContent-Length: +0\r\n",
        "Host: a\r\nContent-Length: -1\r\n",
        "Host: a\r\nContent-Length: 0x0\r\n",
        "Host: a\r\nContent-Length: 00\r\n",
        "Host: a\r\nContent-Length: 99999999999999999999999999\r\n",
        "Host: a\r\nContent-Length: x\r\n",
        "Host: a\r\nContent-Length:\r\n",
        "Host: a\r\nContent-Length : 5\r\n",
        "Host: a\r\nTransfer-Encoding: chunked\r\n",
        "Host: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Host: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n",
        "Host: a\r\nContent-Length: 0\r\nTransfer-Encoding: chunked\r\n",
        "Host: a\r\nTransfer-Encoding: identity\r\n",
        "Host: a\r\nTransfer-Encoding: xchunked\r\n",
        "Host: a\r\nTransfer-Encoding: gzip, chunked\r\n",
        "Host: a\r\nTransfer-Encoding: chunked, identity\r\n",
        "Host: a\r\nTransfer-Encoding:\r\n",
        "Host: a\r\nTransfer-Encoding : chunked\r\n",
        "Host: a\r\ntransfer-encoding: CHUNKED\r\n",
        "Host: a\r\nX: y\rZ: w\r\n",
    ] {
        all.push(request(&get, fields));
    }
    // Line ends that are one line for some and two for others.
    for text in [
        format!("{get}\nHost: x\n\n"),
        format!("{get}\r\nHost: x\n\n"),
        format!("{get}\nHost: x\r\n\r\n"),
        format!("{get}\r\nHost: x\n\r\n"),
        format!("{get}\r\nHost: x\r\n\n"),
        format!("{get}\rHost: x\r\r"),
        format!("{get}\r\n\rHost: x\r\n\r\n"),
        format!("{get}\r\r\nHost: x\r\n\r\n"),
        format!("\n{get}\r\nHost: x\r\n\r\n"),
    ] {
        all.push(text.into_bytes());
    }
    // Too much of something.
    all.push(request(&format!("GET /{} HTTP/1.1", "x".repeat(20_000)), "Host: x\r\n"));
    all.push(request(&format!("GET /?{} HTTP/1.1", "x".repeat(20_000)), "Host: x\r\n"));
    all.push(request(&format!("{} / HTTP/1.1", "X".repeat(20_000)), "Host: x\r\n"));
    all.push(request(&get, &format!("Host: x\r\n{}: y\r\n", "x".repeat(20_000))));
    all.push(request(&get, &format!("Host: x\r\nX: {}\r\n", "y".repeat(20_000))));
    all.push(request(&get, &format!("Host: {}\r\n", "y".repeat(20_000))));
    all.push(request(&get, &format!("Host: x\r\n{}", "A: b\r\n".repeat(64))));
    all.push(request(&get, &format!("Host: x\r\n{}", "A: b\r\n".repeat(3000))));
    // Heads that end in the middle.
    let whole = format!("{get}\r\nHost: x\r\nRange: bytes=0-1\r\n\r\n");
    // Before that, the next request makes it another method.
    all.extend((4..whole.len()).map(|len| whole.as_bytes()[..len].to_vec()));
    all
}

#[test]
fn no_malformed_request_gets_a_file_or_keeps_its_connection() {
    let repository = FULL.unpack();
    let server = Running::of(&[repository.document_root().to_owned()]);
    let (corpus, manifest) = (corpus(), repository.read(".cvmfspublished"));
    assert!(corpus.len() >= 300, "{} requests", corpus.len());
    for malformed in &corpus {
        let shown = String::from_utf8_lossy(&malformed[..malformed.len().min(200)]).into_owned();
        let mut client = server.client();
        client.send(malformed);
        // A request behind it must never be answered.
        client.send(format!("GET {TOP} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        client.0.get_ref().shutdown(Shutdown::Write).expect("a socket");
        let mut answer = Vec::new();
        // The server may have closed with bytes unread.
        let _ = client.0.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        if !text.is_empty() {
            let status = text.split(' ').nth(1).unwrap_or_default();
            assert!(status.starts_with('4') || status == "505", "{shown:?}: {text}");
            assert!(text.to_ascii_lowercase().contains("connection: close"), "{shown:?}: {text}");
        }
        let is_leaked = answer.windows(manifest.len()).any(|window| window == manifest);
        assert!(!is_leaked, "{shown:?} got a file");
        assert_eq!(text.matches("HTTP/1.1 ").count(), usize::from(!text.is_empty()), "{shown:?}: {text}");
    }
    assert_eq!(server.get(TOP).body, manifest);
}

/// What some parsers refuse and is right.
#[test]
fn unusual_requests_are_answered() {
    let repository = FULL.unpack();
    let server = Running::of(&[repository.document_root().to_owned()]);
    for (request, status) in [
        (format!("\r\n\r\nGET {TOP} HTTP/1.1\r\nHost: x\r\n\r\n"), 200),
        (format!("GET {TOP} HTTP/1.1\r\nHost:\r\n\r\n"), 200),
        (format!("GET {TOP} HTTP/1.1\r\nhOST:x:80\r\n\r\n"), 200),
        (format!("GET {TOP} HTTP/1.1\r\nHost: [::1]:80\r\nContent-Length: 0\r\n\r\n"), 200),
        (format!("GET http://other{TOP}?a=b HTTP/1.1\r\nHost: x\r\n\r\n"), 200),
        (format!("GET {TOP} HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n"), 200),
        (format!("GET {TOP} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n\r\n"), 200),
        (format!("GET {TOP}%00 HTTP/1.1\r\nHost: x\r\n\r\n"), 404),
        (format!("GET {TOP}%zz HTTP/1.1\r\nHost: x\r\n\r\n"), 404),
        ("TRACE / HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), 405),
        ("PROPFIND / HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), 405),
        ("get / HTTP/1.1\r\nHost: x\r\n\r\n".to_owned(), 405),
    ] {
        let mut client = server.client();
        client.send(request.as_bytes());
        assert_eq!(client.response(false).status, status, "{request:?}");
        assert_eq!(client.ask("GET", TOP, "").status, 200, "{request:?} ended the connection");
    }
}
