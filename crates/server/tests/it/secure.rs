//! TLS and HTTP/2.

use std::io::{BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use esker_server::{Limits, Options, Server, TlsFiles};
use esker_testkit::fixture::FULL;
use esker_testkit::waiting::until;
use esker_testkit::web::Authority;
use http_body_util::{BodyExt, Empty};
use hyper::{Request, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

use crate::client::{PATIENCE, Running};

const TOP: &str = "/cvmfs/full.test/.cvmfspublished";
const LARGE: &str = "data/00/00000000000000000000000000000000000001";

fn trusting(authority: &Path, offered: &[&str]) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(authority).expect("certificates") {
        roots.add(certificate.expect("a certificate")).expect("an authority");
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config = config.expect("versions").with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = offered.iter().map(|name| name.as_bytes().to_vec()).collect();
    Arc::new(config)
}

type Secure = StreamOwned<ClientConnection, TcpStream>;

fn connect(server: &Running, config: &Arc<ClientConfig>) -> std::io::Result<Secure> {
    let name = ServerName::try_from("server.test").expect("a name");
    let session = ClientConnection::new(config.clone(), name).expect("a session");
    let stream = TcpStream::connect(server.address)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut secure = StreamOwned::new(session, stream);
    secure.flush()?;
    secure.conn.complete_io(&mut secure.sock)?;
    Ok(secure)
}

fn get(stream: &mut Secure) -> Vec<u8> {
    write!(stream, "GET {TOP} HTTP/1.1\r\nHost: server.test\r\nConnection: close\r\n\r\n").expect("sending");
    let mut answer = Vec::new();
    BufReader::new(stream).read_to_end(&mut answer).expect("an answer with an end");
    answer
}

#[test]
fn files_are_served_with_tls_and_a_renewed_certificate_is_used() {
    let repository = FULL.unpack();
    let authority = Authority::new();
    let (certificate, key) = authority.sign("DNS:server.test", 1);
    let tls = Arc::new(TlsFiles::open(&certificate, &key).expect("a certificate"));
    let open = Server::listen("127.0.0.1:0".parse().expect("an address")).expect("listening");
    let address = open.local_addr().expect("an address");
    let options = Options { tls: Some(tls.clone()), plain: vec![open], ..Options::default() };
    let mut server = Running::with(&[repository.document_root().to_owned()], options);
    let config = trusting(&authority.certificate(), &[]);
    let mut stream = connect(&server, &config).expect("a connection");
    let first = stream.conn.peer_certificates().expect("certificates").to_vec();
    let answer = get(&mut stream);
    assert!(
        answer.starts_with(b"HTTP/1.1 200 OK\r\n") && answer.ends_with(&repository.read(".cvmfspublished"))
    );
    // A client that speaks no TLS is disconnected.
    let mut plain = server.client();
    plain.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    let mut alert = Vec::new();
    let _ = plain.0.read_to_end(&mut alert);
    assert!(!alert.starts_with(b"HTTP"));
    // A socket beside the others has none.
    let secure = std::mem::replace(&mut server.address, address);
    assert_eq!(server.get(TOP).body, repository.read(".cvmfspublished"));
    server.address = secure;
    let (renewed, renewed_key) = authority.sign("DNS:server.test", 2);
    std::fs::copy(&renewed, &certificate).expect("a file");
    assert!(tls.reload().is_err(), "the key is still the old one");
    let still = connect(&server, &config).expect("the old certificate");
    assert_eq!(still.conn.peer_certificates().expect("certificates"), first);
    std::fs::copy(&renewed_key, &key).expect("a file");
    tls.reload().expect("the new files");
    let stream = connect(&server, &config).expect("a connection");
    assert_ne!(stream.conn.peer_certificates().expect("certificates"), first);
    std::fs::write(&key, b"nothing").expect("a file");
    let error = tls.reload().expect_err("a damaged key").to_string();
    assert!(error.contains("private key in PEM form"), "{error}");
}

#[test]
fn tls_offers_http2_first() {
    let repository = FULL.unpack();
    let authority = Authority::new();
    let (certificate, key) = authority.sign("DNS:server.test", 1);
    let tls = TlsFiles::open(&certificate, &key).expect("a certificate");
    let options = Options { tls: Some(Arc::new(tls)), ..Options::default() };
    let server = Running::with(&[repository.document_root().to_owned()], options);
    for (offered, chosen) in
        [(&["http/1.1", "h2"][..], Some(&b"h2"[..])), (&["http/1.1"], Some(b"http/1.1")), (&[], None)]
    {
        let stream = connect(&server, &trusting(&authority.certificate(), offered)).expect("a connection");
        assert_eq!(stream.conn.alpn_protocol(), chosen, "{offered:?}");
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

type Sender = hyper::client::conn::http2::SendRequest<Empty<Bytes>>;

async fn http2(server: &Running) -> Sender {
    connected(server).await.0
}

/// Returns a connection, and its end.
async fn connected(server: &Running) -> (Sender, tokio::task::JoinHandle<hyper::Result<()>>) {
    let stream = tokio::net::TcpStream::connect(server.address).await.expect("connecting");
    let made = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await;
    let (sender, connection) = made.expect("HTTP/2");
    (sender, tokio::spawn(connection))
}

fn request(path: &str) -> hyper::http::request::Builder {
    Request::builder().version(Version::HTTP_2).uri(format!("http://server.test{path}"))
}

async fn ask(sender: &mut Sender, request: hyper::http::request::Builder) -> (u16, hyper::HeaderMap, Bytes) {
    let request = request.body(Empty::new()).expect("a request");
    let response = sender.send_request(request).await.expect("a response");
    let (head, body) = response.into_parts();
    (head.status.as_u16(), head.headers, body.collect().await.expect("a body").to_bytes())
}

#[test]
fn one_connection_of_http2_has_many_requests_at_once() {
    const REQUESTS: usize = 50;
    let repository = FULL.unpack();
    let content: Vec<u8> = (0..200_000_u32).flat_map(u32::to_be_bytes).collect();
    repository.write(LARGE, &content);
    let server = Running::of(&[repository.document_root().to_owned()]);
    runtime().block_on(async {
        let sender = http2(&server).await;
        let asked: Vec<_> = (0..REQUESTS)
            .map(|number| {
                let mut sender = sender.clone();
                tokio::spawn(async move {
                    let path =
                        if number % 2 == 0 { TOP.to_owned() } else { format!("/cvmfs/full.test/{LARGE}") };
                    (number, ask(&mut sender, request(&path)).await)
                })
            })
            .collect();
        let manifest = repository.read(".cvmfspublished");
        for asked in asked {
            let (number, (status, fields, body)) = asked.await.expect("a response");
            assert_eq!((status, fields.get("connection")), (200, None));
            assert!(body == if number % 2 == 0 { &manifest[..] } else { &content[..] }, "{number}");
        }
        let mut sender = sender;
        let path = format!("/cvmfs/full.test/{LARGE}");
        let (status, fields, body) = ask(&mut sender, request(&path).header("range", "bytes=4-7")).await;
        assert_eq!((status, &body[..]), (206, &content[4..8]));
        assert_eq!(fields.get("content-range").expect("a range"), "bytes 4-7/800000");
        for (name, value) in [("host", "other.test"), ("content-length", "5")] {
            let refused =
                sender.send_request(request(TOP).header(name, value).body(Empty::new()).expect("one"));
            // The client's library or the server refuses it.
            if let Ok(response) = refused.await {
                assert!(response.status().is_client_error(), "{name}: {value}");
            }
        }
        let twice = request(&path).header("range", "bytes=0-1").header("range", "bytes=2-3");
        assert_eq!(ask(&mut http2(&server).await, twice).await.0, 400);
        assert_eq!(ask(&mut http2(&server).await, request("/").method("POST")).await.0, 405);
        let (status, fields, body) = ask(&mut http2(&server).await, request(TOP).method("HEAD")).await;
        let length = fields.get("content-length").expect("a length").to_str().expect("text");
        assert_eq!((status, length, body.len()), (200, manifest.len().to_string().as_str(), 0));
    });
}

#[test]
fn a_stopped_server_finishes_responses_of_http2() {
    let repository = FULL.unpack();
    repository.write(LARGE, &vec![7; 8 << 20]);
    let limits = Limits { grace: PATIENCE, ..Limits::default() };
    let server = Running::start(&[repository.document_root().to_owned()], limits);
    runtime().block_on(async {
        let mut sender = http2(&server).await;
        let path = format!("/cvmfs/full.test/{LARGE}");
        let response = sender.send_request(request(&path).body(Empty::new()).expect("a request")).await;
        let body = response.expect("a response").into_body();
        server.stopper.stop();
        assert_eq!(body.collect().await.expect("a whole body").to_bytes().len(), 8 << 20);
    });
    let served = server.stop();
    assert_eq!((served.requests, served.broken_off, served.cut), (1, 0, 0));
}

#[test]
fn a_reader_of_http2_that_takes_nothing_is_disconnected() {
    let repository = FULL.unpack();
    repository.write(LARGE, &vec![7; 8 << 20]);
    let limits =
        Limits { stall: std::time::Duration::from_millis(200), slowest: u64::MAX, ..Limits::default() };
    let server = Running::start(&[repository.document_root().to_owned()], limits);
    runtime().block_on(async {
        let (mut sender, end) = connected(&server).await;
        let path = format!("/cvmfs/full.test/{LARGE}");
        let response = sender.send_request(request(&path).body(Empty::new()).expect("a request")).await;
        // The body is held and not read, so its window stays closed.
        let body = response.expect("a response").into_body();
        let _ = tokio::time::timeout(PATIENCE, end).await.expect("the server disconnects the client");
        assert!(body.collect().await.is_err(), "the response was whole");
    });
    // It is counted when its body is dropped, which another task does.
    let is_count = |line: &str| line.starts_with("esker_http_responses_broken_off") && line.ends_with(" 1");
    let is_counted = || server.get("/metrics").text().lines().any(is_count);
    assert!(until(PATIENCE, is_counted), "{}", server.get("/metrics").text());
}
