//! The ready configurations of `deploy/`: each program is started with its file, and a mount reads through it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use esker_testkit::fixture;
use esker_testkit::web::Web;
use esker_testkit::{skip, skip_optional};

use crate::served::Served;
use crate::test_env::TestEnv;
use crate::test_user::TestUser;
use crate::tiers::reads_exactly;

/// Returns a file of `deploy/` with other values; each old one must be in it.
fn configuration(name: &str, changes: &[(&str, String)]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(name);
    let mut text = fs::read_to_string(&path).expect("a file of deploy/");
    for (old, new) in changes {
        assert!(text.contains(old), "deploy/{name} has no {old:?}");
        text = text.replace(old, new);
    }
    text
}

/// Returns a world whose repository every user can read: web servers give up root's rights.
fn world() -> TestEnv {
    let world = TestEnv::new(TestUser::ordinary(), fixture::FULL);
    let top = world.repository.document_root().to_owned();
    fs::set_permissions(&top, fs::Permissions::from_mode(0o755)).expect("a mode");
    world.repository.write("data/txn/upload", b"half of an object");
    world.repository.write("full.test.key", b"private");
    world
}

struct Answer {
    status: u16,
    head: String,
    len: usize,
}

impl Answer {
    fn field(&self, name: &str) -> Option<&str> {
        let mut fields = self.head.lines().filter_map(|line| line.split_once(": "));
        fields.find(|(field, _)| field.eq_ignore_ascii_case(name)).map(|(_, value)| value)
    }
}

/// Asks the program at a port, with this request target.
fn ask(port: u16, target: &str, fields: &str) -> Answer {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("connecting");
    let request = format!("GET {target} HTTP/1.1\r\nHost: repositories\r\n{fields}Connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).expect("a request");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("an answer");
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head");
    let head = String::from_utf8_lossy(&answer[..end]).replace('\r', "");
    let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
    Answer { status, head, len: answer.len() - end - 4 }
}

/// Returns the path of some object of the repository.
fn object(world: &TestEnv) -> String {
    let root = world.repository.manifest().get('C').expect("a root");
    format!("data/{}/{}C", &root[..2], &root[2..])
}

/// Mounts through the program, and compares the tree with the listing of the reference.
fn read_through(world: &TestEnv, url: &str, options: &[&str]) {
    let mount = world.mount_of(url, options);
    reads_exactly(world, &mount);
}

/// What all programs have in common: rules for caches, and files that don't exist for clients.
fn check_rules(world: &TestEnv, port: u16, base: &str) {
    let of = |path: &str| ask(port, &format!("{base}/cvmfs/full.test/{path}"), "");
    let object = object(world);
    let stored = world.repository.read(&object).len();
    let answer = of(&object);
    assert_eq!((answer.status, answer.len), (200, stored), "{}", answer.head);
    let lifetime = answer.field("Cache-Control").expect("a lifetime");
    assert!(lifetime.starts_with("max-age=259200"), "{lifetime}");
    assert_eq!((answer.field("Last-Modified"), answer.field("Content-Encoding")), (None, None));
    let head = of(".cvmfspublished");
    assert_eq!((head.status, head.field("Cache-Control")), (200, Some("max-age=61")), "{}", head.head);
    for hidden in ["data/txn/upload", "full.test.key", "data/", "", "data/../full.test.key"] {
        let status = of(hidden).status;
        assert!(matches!(status, 403 | 404 | 400), "{hidden} has status {status}");
    }
    let missing = of("data/ff/ffffffffffffffffffffffffffffffffffffff");
    assert_eq!(missing.status, 404);
    let lifetime = missing.field("Cache-Control").expect("a lifetime");
    assert!(["max-age=5", "no-store"].contains(&lifetime), "{lifetime}");
    let part = ask(port, &format!("{base}/cvmfs/full.test/{object}"), "Range: bytes=0-3\r\n");
    assert_eq!((part.status, part.len), (206, 4), "{}", part.head);
}

/// Checks a server of the repository's folder, and reads all of it through a mount.
fn check_server(world: &TestEnv, port: u16) {
    check_rules(world, port, "");
    let object = ask(port, &format!("/cvmfs/full.test/{}", object(world)), "");
    assert_eq!(object.field("Cache-Control"), Some("max-age=259200, immutable"));
    read_through(world, &format!("http://127.0.0.1:{port}/cvmfs/full.test"), &[]);
}

#[test]
fn nginx_serves_a_repository_with_the_file_of_deploy() {
    if !Web::has("nginx") {
        skip!("nginx is not installed");
    }
    let world = world();
    let root = world.repository.document_root().display().to_string();
    let web = Web::nginx(1, |_, ports| {
        let listen = format!("listen 127.0.0.1:{}", ports[0]);
        configuration("nginx.conf", &[("/srv/cvmfs", root.clone()), ("listen 8000", listen)])
    });
    check_server(&world, web.ports()[0]);
}

#[test]
fn apache_serves_a_repository_with_the_file_of_deploy() {
    if !Web::has("apache2") {
        skip_optional!("Apache is not installed");
        return;
    }
    let world = world();
    let root = world.repository.document_root().display().to_string();
    let web = Web::apache(1, |ports| {
        let (listen, host) = (format!("Listen 127.0.0.1:{}", ports[0]), format!("127.0.0.1:{}", ports[0]));
        let changes = [("/srv/cvmfs", root.clone()), ("Listen 8000", listen), ("*:8000", host)];
        configuration("apache.conf", &changes)
    });
    check_server(&world, web.ports()[0]);
}

#[test]
fn varnish_keeps_what_a_server_has_with_the_file_of_deploy() {
    if !Web::has("varnishd") {
        skip_optional!("Varnish is not installed");
        return;
    }
    let world = world();
    let server = Served::start(world.repository.document_root());
    let address = server.url("full.test");
    let upstream = address.split(['/', ':']).nth(4).expect("a port").to_owned();
    let web = Web::varnish(|_| configuration("varnish.vcl", &[("\"8000\"", format!("\"{upstream}\""))]));
    let port = web.ports()[0];
    check_rules(&world, port, "");
    let url = format!("http://127.0.0.1:{port}/cvmfs/full.test");
    read_through(&world, &url, &[]);
    let object = format!("/cvmfs/full.test/{}", object(&world));
    assert_eq!(ask(port, &object, "").field("X-Cache"), Some("hit"));
    // A client that found a copy damaged gets another one.
    assert_eq!(ask(port, &object, "Cache-Control: no-cache\r\n").field("X-Cache"), Some("miss"));
    // What is kept is served without the server; pages of the server are not kept.
    assert_eq!(ask(port, "/", "").status, 200);
    drop(server);
    assert_eq!(ask(port, &object, "").status, 200);
    assert_eq!(ask(port, "/", "").status, 503);
}

#[test]
fn squid_keeps_what_a_server_has_with_the_file_of_deploy() {
    if !Web::has("squid") {
        skip!("squid is not installed");
    }
    let world = world();
    let server = Served::start(world.repository.document_root());
    let url = server.url("full.test");
    let base = url.trim_end_matches("/cvmfs/full.test").to_owned();
    let web = Web::squid_with(|folder, ports| {
        let changes = [
            ("http_port 3128", format!("http_port 127.0.0.1:{}", ports[0])),
            ("cache_mem 4096 MB", "cache_mem 64 MB".to_owned()),
            // A folder needs a run of squid before, and memory is enough here.
            ("cache_dir ufs /var/spool/squid 50000 16 256", String::new()),
            ("max_filedescriptors 65536", "max_filedescriptors 1024".to_owned()),
            ("buffered_logs on", "buffered_logs off".to_owned()),
            ("shutdown_lifetime 2 seconds", format!("coredump_dir {}", folder.display())),
        ];
        configuration("squid.conf", &changes)
    });
    let port = web.ports()[0];
    check_rules(&world, port, &base);
    read_through(&world, &url, &["--proxy", &format!("http://127.0.0.1:{port}")]);
    let object = format!("{base}/cvmfs/full.test/{}", object(&world));
    let again = ask(port, &object, "");
    assert!(again.field("X-Cache").is_some_and(|cache| cache.starts_with("HIT")), "{}", again.head);
    // The proxy is for repositories only.
    assert_eq!(ask(port, &format!("{base}/dashboard/site"), "").status, 403);
    drop(server);
    assert_eq!(ask(port, &object, "").status, 200);
}
