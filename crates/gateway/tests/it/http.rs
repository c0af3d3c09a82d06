//! The HTTP service over real connections, with the texts of the reference's publisher.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use esker_format::object::ObjectKind;
use esker_gateway::{BLOCKING_THREADS, Gateway, KeyLimits, Target as _, service};
use esker_server::{Limits, Options, Served, Server, Stopper};

use crate::publisher::{Station, object, pack, request, root, sign};

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// A gateway behind a socket.
pub(crate) struct Running {
    pub(crate) address: SocketAddr,
    serving: Serving,
    pub(crate) station: Station,
}

/// The thread of a server, which ends with this.
pub(crate) struct Serving {
    stopper: Stopper,
    thread: Option<JoinHandle<Served>>,
}

impl Serving {
    /// Serves a gateway at a free port.
    pub(crate) fn start(gateway: Arc<Gateway>, limits: Limits) -> (SocketAddr, Self) {
        let listener = Server::listen("127.0.0.1:0".parse().unwrap()).unwrap();
        let options = Options { limits, blocking_threads: Some(BLOCKING_THREADS), ..Options::default() };
        let server = Server::of_router(vec![listener], service(gateway), options).unwrap();
        let (address, stopper) = (server.address(), server.stopper());
        let thread = std::thread::spawn(move || server.run().unwrap());
        (address, Self { stopper, thread: Some(thread) })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stopper.stop();
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

/// An answer of the gateway.
#[derive(Debug)]
struct Heard {
    head: String,
    body: String,
}

impl Running {
    pub(crate) fn new() -> Self {
        Self::of(Station::new(), Limits::default())
    }

    pub(crate) fn of(station: Station, limits: Limits) -> Self {
        let (address, serving) = Serving::start(station.gateway.clone(), limits);
        Self { station, address, serving }
    }

    /// Ends the gateway and its server, and starts both again.
    pub(crate) fn restart(self) -> Self {
        let Self { station, serving, .. } = self;
        drop(serving);
        Self::of(station.restart(), Limits::default())
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    fn ask(&self, method: &str, path: &str, fields: &str, body: &[u8]) -> Heard {
        let mut stream = self.connect();
        send(&mut stream, method, path, fields, body);
        hear(&mut stream)
    }

    /// Sends a request that the key `one` signs.
    fn signed(&self, method: &str, path: &str, input: &[u8], body: &[u8]) -> String {
        self.ask(method, path, &signature("one", input), body).body
    }

    pub(crate) fn token(&self, path: &str) -> String {
        let text = format!(r#"{{"path" : "{path}", "api_version" : "2", "hostname" : "h"}}"#);
        let answer = self.signed("POST", "/api/v1/leases", text.as_bytes(), text.as_bytes());
        let value: serde_json::Value = serde_json::from_str(&answer).unwrap();
        value["session_token"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
    }
}

fn signature(key: &str, input: &[u8]) -> String {
    format!("Authorization: {}\r\n", sign(key, input))
}

fn send(stream: &mut TcpStream, method: &str, path: &str, fields: &str, body: &[u8]) {
    // What curl says of a body.
    let kind = "Content-Type: application/x-www-form-urlencoded\r\n";
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: h\r\nAccept: */*\r\n{kind}{fields}Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), body].concat()).unwrap();
}

/// Reads one answer, whose length is in its head.
fn hear(stream: &mut TcpStream) -> Heard {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        text.extend(byte);
    }
    let head = String::from_utf8(text).unwrap().to_ascii_lowercase();
    assert!(!head.contains("transfer-encoding"), "{head}");
    let (_, rest) = head.split_once("content-length: ").unwrap_or_else(|| panic!("{head}"));
    let mut body = vec![0; rest.split_once("\r\n").unwrap().0.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    Heard { head, body: String::from_utf8(body).unwrap() }
}

/// Returns the body of a payload of the reference, and the message in front of it.
fn payload(token: &str, objects: &[(esker_format::object::ObjectName, Vec<u8>)]) -> (String, Vec<u8>) {
    let (described, pack) = pack(objects);
    let message = format!(
        r#"{{"session_token" : "{token}", "payload_digest" : "{}", "header_size" : "{}", "api_version" : "2"}}"#,
        described.payload_digest, described.header_size
    );
    let body = [message.as_bytes(), &pack].concat();
    (message, body)
}

#[test]
fn a_publisher_of_the_reference_leases_sends_and_commits() {
    let running = Running::new();
    running.station.r.make_folders();
    let acquire = br#"{"path" : "r.test/a", "api_version" : "2", "hostname" : "h"}"#;
    let heard = running.ask("POST", "/api/v1/leases", &signature("one", acquire), acquire);
    assert!(heard.head.starts_with("http/1.1 200 ok"), "{heard:?}");
    assert!(heard.head.contains("content-type: text/plain; charset=utf-8\r\n"), "{heard:?}");
    let (start, rest) = heard.body.split_once("session_token\":\"").unwrap();
    let (token, end) = rest.split_once('"').unwrap();
    assert_eq!((start, end), (r#"{"max_api_version":2,""#, r#","status":"ok"}"#));
    let files = [object(b"file", ObjectKind::File)];
    let (message, body) = payload(token, &files);
    let size = format!("Message-Size: {}\r\n", message.len());
    let fields = format!("{}{size}", signature("one", message.as_bytes()));
    assert_eq!(running.ask("POST", "/api/v1/payloads", &fields, &body).body, r#"{"status":"ok"}"#);
    // Version 3 has the token in the path.
    let (message, body) = payload("", &[object(b"catalog", ObjectKind::Catalog)]);
    let fields = format!("{}Message-Size: {}\r\n", signature("one", token.as_bytes()), message.len());
    let path = format!("/api/v1/payloads/{token}");
    assert_eq!(running.ask("POST", &path, &fields, &body).body, r#"{"status":"ok"}"#);
    assert_eq!(running.station.r.sink().len_of(&files[0].0).unwrap(), Some(4));
    let commit = format!(
        r#"{{"old_root_hash":"{}C","new_root_hash":"{}C","tag_name":"","tag_channel":0,"tag_description":""}}"#,
        root(1),
        root(2)
    );
    let path = format!("/api/v1/leases/{token}");
    for _ in 0..2 {
        let answer = running.signed("POST", &path, token.as_bytes(), commit.as_bytes());
        assert_eq!(answer, r#"{"final_revision":2,"status":"ok"}"#);
    }
    assert_eq!(running.station.r.head().len(), 1);
}

#[test]
fn refusals_have_the_reasons_of_the_reference() {
    let running = Running::new();
    let acquire = |path: &str, version: &str, key: &str, fields: Option<&str>| {
        let text = format!(r#"{{"path" : "{path}", "api_version" : "{version}", "hostname" : "h"}}"#);
        let signature = signature(key, text.as_bytes());
        let body = running.ask("POST", "/api/v1/leases", fields.unwrap_or(&signature), text.as_bytes()).body;
        let value: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(value["status"], "error", "{body}");
        value["reason"].as_str().unwrap().to_owned()
    };
    for (path, key, reason) in [
        ("/r.test/a", "one", "input has leading slash"),
        ("r.test", "one", "missing repository name or subpath"),
        ("t.test/", "one", "repository not found: t.test"),
        ("s.test/", "two", "authorization error: invalid_key"),
        ("r.test/a", "two", "authorization error: invalid_path"),
        ("r.test/a", "three", "invalid_hmac"),
        ("r.test/../s.test", "one", "the path has a component that can't be published: `..`"),
    ] {
        assert_eq!(acquire(path, "2", key, None), reason, "{path}");
    }
    assert_eq!(acquire("r.test/a", "1", "one", None), "incompatible request version: 1, min version: 2");
    for fields in ["", "Authorization: one\r\n", "Authorization: one x y\r\n"] {
        assert_eq!(acquire("r.test/a", "2", "one", Some(fields)), "invalid_hmac");
    }
    let other = signature("one", b"another body");
    assert_eq!(acquire("r.test/a", "2", "one", Some(&other)), "invalid_hmac");
    assert!(running.station.gateway.leases().is_empty());
}

#[test]
fn every_answer_is_json_whatever_is_asked() {
    let running = Running::new();
    let long = "x".repeat(20_000);
    for (method, path, fields, body, status) in [
        ("GET", "/nothing", "", &b""[..], "404"),
        ("GET", "/api/v1/nothing", "", b"", "404"),
        ("PUT", "/api/v1/leases", "", b"", "405"),
        ("POST", "/api/v1/payloads", "", b"{}", "400"),
        ("POST", "/api/v1/payloads", "Message-Size: 9999999\r\n", b"{}", "400"),
        ("POST", "/api/v1/payloads", "Message-Size: 9\r\n", b"{}", "400"),
        ("GET", "/api/v1/leases/unknown", "", b"", "200"),
        ("GET", "/api/v1/leases/%FF", "", b"", "400"),
        ("GET", &format!("/{long}"), "", b"", "431"),
        ("GET", "/api/v1/leases", "Range: x\r\nRange: y\r\n", b"", "400"),
    ] {
        let heard = running.ask(method, path, fields, body);
        assert!(heard.head.starts_with(&format!("http/1.1 {status} ")), "{method} {path}: {heard:?}");
        let value: serde_json::Value = serde_json::from_str(&heard.body).unwrap();
        assert_eq!(value["status"], "error", "{method} {path}");
        assert!(value["reason"].is_string() && !heard.body.ends_with('\n'), "{heard:?}");
    }
    assert_eq!(running.ask("GET", "/api/v1/leases", "", b"").body, r#"{"data":{},"status":"ok"}"#);
    let repository = r#"{"data":{"enabled":true,"keys":{"one":"/"}},"status":"ok"}"#;
    assert_eq!(running.ask("GET", "/api/v1/repos/s.test", "", b"").body, repository);
    let unknown = r#"{"reason":"invalid_repo","status":"error"}"#;
    assert_eq!(running.ask("GET", "/api/v1/repos/t.test", "", b"").body, unknown);
}

/// The reference's publisher reads no answer before it has sent its pack.
#[test]
fn a_refused_payload_is_read_to_its_end() {
    let running = Running::new();
    let token = running.token("r.test/a");
    let (message, body) = payload(&token, &[object(&vec![7; 3 << 20], ObjectKind::File)]);
    let mut stream = running.connect();
    let fields = format!("{}Message-Size: {}\r\n", signature("one", b"other"), message.len());
    send(&mut stream, "POST", "/api/v1/payloads", &fields, &body);
    assert_eq!(hear(&mut stream).body, r#"{"reason":"invalid_hmac","status":"error"}"#);
    // The same connection goes on, with an object whose bytes are wrong at their beginning.
    let (message, mut body) = payload(&token, &[object(&vec![7; 3 << 20], ObjectKind::File)]);
    *body.last_mut().unwrap() ^= 1;
    let fields = format!("{}Message-Size: {}\r\n", signature("one", message.as_bytes()), message.len());
    send(&mut stream, "POST", "/api/v1/payloads", &fields, &body);
    assert!(hear(&mut stream).body.contains("have another hash"));
    send(&mut stream, "GET", "/api/v1", "", b"");
    assert!(hear(&mut stream).body.contains("welcome"));
}

#[test]
fn a_payload_that_stops_stores_nothing() {
    let running =
        Running::of(Station::new(), Limits { stall: Duration::from_millis(100), ..Limits::default() });
    let token = running.token("r.test/a");
    let objects = [object(&[7; 5000], ObjectKind::File)];
    let (message, body) = payload(&token, &objects);
    let mut stream = running.connect();
    let fields = format!("{}Message-Size: {}\r\n", signature("one", message.as_bytes()), message.len());
    let head = format!(
        "POST /api/v1/payloads HTTP/1.1\r\nHost: h\r\n{fields}Content-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(&[head.as_bytes(), &body[..body.len() - 1]].concat()).unwrap();
    assert!(hear(&mut stream).body.contains("ends in the middle of object"));
    assert_eq!(running.station.r.sink().len_of(&objects[0].0).unwrap(), None);
}

#[test]
fn leases_are_listed_renewed_and_given_up() {
    let running = Running::of(
        Station::limited(KeyLimits { lease_seconds: Some(600), ..KeyLimits::default() }),
        Limits::default(),
    );
    let token = running.token("r.test/a");
    let path = format!("/api/v1/leases/{token}");
    let busy = br#"{"path" : "r.test/", "api_version" : "2", "hostname" : "h"}"#;
    let answer = running.signed("POST", "/api/v1/leases", busy, busy);
    assert_eq!(answer, r#"{"status":"path_busy","time_remaining":"10m0s"}"#);
    let listed = running.ask("GET", "/api/v1/leases", "", b"").body;
    let expected = r#"{"data":{"r.test/a":{"expires":"1970-01-01 00:10:00 +0000 UTC","hostname":"h","key_id":"one","path":"r.test/a"}},"status":"ok"}"#;
    assert_eq!(listed, expected);
    assert!(running.ask("GET", &path, "", b"").body.contains(r#""key_id":"one""#));
    for body in [&b""[..], br#"{"expires_in_sec":5}"#] {
        let answer = running.signed("PATCH", &path, token.as_bytes(), body);
        assert!(
            answer.starts_with(r#"{"data":{"expires":""#) && answer.ends_with(r#""status":"ok"}"#),
            "{answer}"
        );
    }
    let refused = running.ask("DELETE", &path, &signature("two", token.as_bytes()), b"").body;
    assert!(refused.contains(r#""reason":"invalid lease","status":"error""#), "{refused}");
    assert_eq!(running.signed("DELETE", &path, token.as_bytes(), b""), r#"{"status":"ok"}"#);
    let again = running.signed("DELETE", &path, token.as_bytes(), b"");
    assert!(again.contains(r#""reason":"invalid lease","status":"error""#), "{again}");
}

#[test]
fn a_publisher_of_ours_waits_for_a_directory_and_asks_for_objects() {
    let running = Running::new();
    let token = running.token("r.test/a");
    let text = br#"{"path":"r.test/","api_version":3,"hostname":"h2","wait_seconds":30}"#;
    let mut stream = running.connect();
    send(&mut stream, "POST", "/api/esker/v1/leases", &signature("one", text), text);
    // It waits once it is in the queue.
    while running.station.gateway.waiting() == 0 {
        std::thread::yield_now();
    }
    let now = br#"{"path":"r.test/a","api_version":3,"hostname":"h3"}"#;
    let answer = running.signed("POST", "/api/esker/v1/leases", now, now);
    assert!(answer.contains(r#""status":"path_busy""#), "{answer}");
    running.signed("DELETE", &format!("/api/v1/leases/{token}"), token.as_bytes(), b"");
    let answer = hear(&mut stream).body;
    let value: serde_json::Value = serde_json::from_str(&answer).unwrap();
    assert_eq!((&value["status"], &value["max_api_version"]), (&"ok".into(), &3.into()), "{answer}");
    let token = value["session_token"].as_str().unwrap();
    let absent = object(b"absent", ObjectKind::Catalog).0;
    let names = format!("{absent}\n");
    let path = format!("/api/esker/v1/leases/{token}/missing");
    let input = format!("{token}{names}");
    let answer = running.signed("POST", &path, input.as_bytes(), names.as_bytes());
    assert_eq!(answer, format!(r#"{{"missing":["{absent}"],"status":"ok"}}"#));
    let answer = running.signed("POST", &path, token.as_bytes(), names.as_bytes());
    assert_eq!(answer, r#"{"reason":"invalid_hmac","status":"error"}"#);
}

/// The same request again while the first one is carried out waits for its answer.
#[test]
fn a_repeated_commit_gets_the_answer_of_the_one_under_way() {
    let running = Running::new();
    let token = running.token("r.test/a");
    let commit = format!(r#"{{"old_root_hash":"","new_root_hash":"{}"}}"#, request(1).new_root);
    let path = format!("/api/v1/leases/{token}");
    let (reached, is_reached) = std::sync::mpsc::channel();
    let (go_on, may_go_on) = std::sync::mpsc::channel::<()>();
    running.station.r.on_head(move || {
        reached.send(()).unwrap();
        may_go_on.recv().unwrap();
        crate::target::Outcome::Replaced
    });
    let (mut first, mut second) = (running.connect(), running.connect());
    let fields = signature("one", token.as_bytes());
    send(&mut first, "POST", &path, &fields, commit.as_bytes());
    is_reached.recv().unwrap();
    send(&mut second, "POST", &path, &fields, commit.as_bytes());
    go_on.send(()).unwrap();
    for stream in [&mut first, &mut second] {
        assert_eq!(hear(stream).body, r#"{"final_revision":2,"status":"ok"}"#);
    }
    assert_eq!(running.station.r.head().len(), 1);
}

#[test]
fn operators_see_and_end_leases() {
    let running = Running::new();
    running.token("r.test/a/b");
    let as_boss = |method: &str, path: &str, input: &str, body: &str| {
        running.ask(method, path, &signature("boss", input.as_bytes()), body.as_bytes()).body
    };
    let leases = as_boss("GET", "/api/esker/v1/leases", "/api/esker/v1/leases", "");
    assert!(leases.contains(r#""state":"open""#) && leases.contains(r#""waiting":0"#), "{leases}");
    let refused = running.signed("GET", "/api/esker/v1/leases", b"/api/esker/v1/leases", b"");
    assert_eq!(refused, r#"{"reason":"no_admin_key","status":"error"}"#);
    let disable = r#"{"enable":false,"wait":true}"#;
    assert_eq!(as_boss("POST", "/api/v1/repos/r.test", disable, disable), r#"{"status":"ok"}"#);
    let acquire = br#"{"path" : "r.test/c", "api_version" : "2", "hostname" : "h"}"#;
    let answer = running.signed("POST", "/api/v1/leases", acquire, acquire);
    assert_eq!(answer, r#"{"reason":"repo_disabled","status":"error"}"#);
    let path = "/api/v1/leases-by-path/r.test/a";
    assert_eq!(as_boss("DELETE", path, path, ""), r#"{"ended":1,"status":"ok"}"#);
    let records = as_boss("GET", "/api/esker/v1/records", "/api/esker/v1/records", "");
    assert!(records.contains(r#""event":"ended by an operator""#), "{records}");
    running.token("s.test/<d>");
    let page = running.ask("GET", "/", "", b"").body;
    assert!(page.contains("s.test/&lt;d&gt;</th><td>one</td>") && page.contains("<td>open</td>"), "{page}");
    assert_eq!(
        as_boss("DELETE", "/api/v1/leases-by-path/s.test", "/api/v1/leases-by-path/s.test", ""),
        r#"{"ended":1,"status":"ok"}"#
    );
    let metrics = running.ask("GET", "/metrics", "", b"").body;
    assert!(metrics.contains("\nesker_gateway_leases 0\n"), "{metrics}");
    let collect = r#"{"repo":"r.test","num_revisions":3}"#;
    let refused = as_boss("POST", "/api/v1/gc", collect, collect);
    assert!(refused.contains("esker collect r.test") && refused.contains("error"), "{refused}");
    let refused = running.signed("POST", "/api/v1/gc", collect.as_bytes(), collect.as_bytes());
    assert_eq!(refused, r#"{"reason":"no_admin_key","status":"error"}"#);
}

/// The form of CernVM-FS 2.14.
#[test]
fn a_key_gets_the_public_files_of_its_repositories() {
    let running = Running::new();
    let ask = |key: &str, name: &str| {
        let path = format!("/api/v1/repos/{name}/keys");
        running.ask("GET", &path, &signature(key, path.as_bytes()), b"").body
    };
    let expected = r#"{"data":{"crt":"Y2VydGlmaWNhdGU=","pub":"cHVibGlj"},"status":"ok"}"#;
    assert_eq!(ask("one", "s.test"), expected);
    assert_eq!(ask("two", "s.test"), r#"{"reason":"authorization error: invalid_key","status":"error"}"#);
    assert_eq!(ask("one", "t.test"), r#"{"reason":"invalid_repo","status":"error"}"#);
    let unsigned = running.ask("GET", "/api/v1/repos/s.test/keys", "", b"").body;
    assert_eq!(unsigned, r#"{"reason":"invalid_hmac","status":"error"}"#);
    for (method, path) in [("POST", "publish"), ("GET", "subscribe")] {
        let refused = running.ask(method, &format!("/api/v1/notifications/{path}"), "", b"{}").body;
        assert!(refused.contains("esker serve") && refused.contains("error"), "{refused}");
    }
}
