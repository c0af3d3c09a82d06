//! A router of another crate, which takes bodies.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::Extension;
use axum::routing::post;
use esker_server::{ClientAddress, Limits, Options, PageTable, RoutedService, Server};

use crate::client::{PATIENCE, Running};

/// Largest body.
const BODY_MAX: u64 = 1 << 20;

fn running(limits: Limits) -> Running {
    let address = "127.0.0.1:0".parse().expect("an address");
    let router = Router::new()
        .route(
            "/length",
            post(async |Extension(client): Extension<ClientAddress>, body: Bytes| {
                format!("{} from {}", body.len(), client.0.ip())
            }),
        )
        .route("/refused", post(async || "no"))
        .fallback(async || "elsewhere");
    let service = RoutedService {
        router,
        body_max: BODY_MAX,
        failure: |status, reason| ("application/json", format!("{{\"{status}\":\"{reason}\"}}")),
        title: "A page",
        tables: Arc::new(|| {
            let rows = vec![vec!["<b>".to_owned(), "2".to_owned()]];
            vec![PageTable { caption: "Things".to_owned(), columns: vec!["Name", "Number"], rows }]
        }),
        metrics: Arc::new(|| "# TYPE esker_own gauge\nesker_own 1\n".to_owned()),
    };
    let listener = Server::listen(address).expect("listening");
    let options = Options { limits, ..Options::default() };
    Running::on(Server::of_router(vec![listener], service, options).expect("a server"))
}

fn connect(server: &Running) -> TcpStream {
    let stream = TcpStream::connect(server.address).expect("connecting");
    stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
    stream
}

/// Sends a request and returns everything until the server closes.
fn exchange(server: &Running, request: &[u8]) -> String {
    let mut stream = connect(server);
    stream.write_all(request).expect("sending");
    rest(stream)
}

fn rest(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

fn request(path: &str, fields: &str, body: &str) -> Vec<u8> {
    format!("POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: {}\r\n{fields}\r\n{body}", body.len())
        .into_bytes()
}

#[test]
fn bodies_arrive_whole_and_requests_follow_each_other() {
    let server = running(Limits::default());
    let long = "x".repeat(300_000);
    let mut all = request("/length", "", &long);
    all.extend(request("/length", "", "abc"));
    all.extend(request("/length", "Connection: close\r\n", ""));
    let text = exchange(&server, &all);
    let bodies: Vec<&str> =
        text.split("HTTP/1.1 200 OK").skip(1).map(|one| one.split("\r\n\r\n").nth(1).unwrap()).collect();
    assert_eq!(bodies, ["300000 from 127.0.0.1", "3 from 127.0.0.1", "0 from 127.0.0.1"]);
    assert!(text.contains("content-length: 21\r\n"), "{text}");
}

#[test]
fn a_client_that_waits_for_leave_to_send_gets_it() {
    let server = running(Limits::default());
    let mut stream = connect(&server);
    let fields = "Content-Length: 4\r\nExpect: 100-continue\r\nConnection: close\r\n";
    write!(stream, "POST /length HTTP/1.1\r\nHost: h\r\n{fields}\r\n").unwrap();
    let mut leave = [0; 25];
    stream.read_exact(&mut leave).unwrap();
    assert_eq!(&leave, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(b"abcd").unwrap();
    assert!(rest(stream).ends_with("4 from 127.0.0.1"));
}

#[test]
fn refusals_of_the_transport_have_the_form_of_the_service() {
    let server = running(Limits::default());
    let length = BODY_MAX + 1;
    let text = exchange(
        &server,
        format!("POST /length HTTP/1.1\r\nHost: h\r\nContent-Length: {length}\r\n\r\n").as_bytes(),
    );
    assert!(text.starts_with("HTTP/1.1 413") && text.ends_with(r#"{"413":"Payload Too Large"}"#), "{text}");
    assert!(text.contains("application/json") && !text.contains("text/plain"), "{text}");
}

/// The bytes of a body that the handler didn't read are no request.
#[test]
fn a_body_that_is_not_read_ends_the_connection() {
    let server = running(Limits::default());
    let mut all = request("/refused", "", &"GET /smuggled HTTP/1.1\r\nHost: h\r\n\r\n".repeat(10_000));
    all.extend(request("/length", "", ""));
    let text = exchange(&server, &all);
    assert_eq!(text.matches("HTTP/1.1").count(), 1, "{text}");
    assert!(text.ends_with("no"), "{text}");
}

#[test]
fn a_body_that_stops_ends_the_request() {
    let server = running(Limits { stall: Duration::from_millis(50), ..Limits::default() });
    let text = exchange(&server, b"POST /length HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nab");
    assert!(text.starts_with("HTTP/1.1 400") && !text.contains("from 127.0.0.1"), "{text}");
}

#[test]
fn metrics_have_those_of_the_service() {
    let server = running(Limits::default());
    let get = |path: &str| {
        exchange(&server, format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n").as_bytes())
    };
    assert!(get("/metrics").contains("\nesker_own 1\n"));
    assert!(get("/healthz").ends_with("ok\n"));
    assert!(get("/other").ends_with("elsewhere"));
}

#[test]
fn the_page_has_the_tables_of_the_handlers_escaped() {
    let server = running(Limits::default());
    let get = |path: &str| {
        let text = format!("GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n");
        exchange(&server, text.as_bytes())
    };
    let page = get("/");
    for text in ["text/html", "default-src 'none'", "<h1>A page</h1>", "&lt;b&gt;</th><td>2</td>"] {
        assert!(page.contains(text), "{text}: {page}");
    }
    assert!(get("/dashboard/style.css").contains("text/css"));
}
