//! `esker proxy` between a mount and the servers: servers and proxy come and go, and the tree stays right.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use esker_testkit::fixture::{self, FULL};
use esker_testkit::mirror::Mirror;
use esker_testkit::object::{self, Algorithm};
use esker_testkit::tree_scan::{differences, scan_tree};
use esker_testkit::web::Authority;
use rustix::net::sockopt::set_socket_recv_buffer_size;
use rustix::net::{AddressFamily, SocketType, connect, socket};
use serde_json::Value;

use crate::test_env::{TestEnv, esker_binary, words};
use crate::test_user::TestUser;

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// A proxy that does not outlive the test.
struct Proxy(Child, String);

impl Drop for Proxy {
    fn drop(&mut self) {
        // As by kill -9: it leaves the cache as it is.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(server: &str, cache: &Path, key: &Path, listen: &str) -> Proxy {
    start_with(server, cache, key, &["--listen", listen])
}

fn start_with(server: &str, cache: &Path, key: &Path, options: &[&str]) -> Proxy {
    let mut proxy = Command::new(esker_binary())
        .args(["proxy", "--json", "--head-age", "0", "--upstream", server])
        .args(options)
        .arg("--cache")
        .arg(cache)
        .arg("--public-key")
        .arg(key)
        .env_clear()
        .env("HOME", "/")
        .stdout(Stdio::piped())
        .spawn()
        .expect("esker proxy");
    let mut line = String::new();
    BufReader::new(proxy.stdout.take().expect("its output")).read_line(&mut line).expect("a line");
    let ready: Value = serde_json::from_str(&line).unwrap_or_else(|_| panic!("it is not ready: {line:?}"));
    let url = ready["url"].as_str().expect("a URL").to_owned();
    Proxy(proxy, url)
}

#[track_caller]
fn reads_as(env: &TestEnv, tag: &str, url: &str, options: &[&str]) {
    env.empty_cache();
    let mounted = env.mount_of(url, options);
    let found = mounted.does(|| scan_tree(&mounted.path("")));
    let complaints = differences(&env.fixture().listing(tag), &found, env.person.ownership());
    assert!(complaints.is_empty(), "{tag}:\n  {}", complaints.join("\n  "));
}

/// With TLS and a second address without, for clients that know only that.
#[test]
fn nodes_use_the_proxy_as_a_server_with_tls() {
    let repository = FULL.unpack();
    let root = tempfile::tempdir().expect("a folder");
    symlink(repository.document_root(), root.path().join("cvmfs")).expect("a link");
    let env = TestEnv::at(TestUser::ordinary(), repository, Mirror::serve(root.path()));
    let authority = Authority::new();
    let (certificate, key) = authority.sign("IP:127.0.0.1", 1);
    let text = |path: &Path| path.to_str().expect("text").to_owned();
    let (certificate, key) = (text(&certificate), text(&key));
    let options = [
        "--listen",
        "127.0.0.1:0",
        "--listen",
        "http://127.0.0.1:0",
        "--tls-cert",
        &certificate,
        "--tls-key",
        &key,
    ];
    let server = format!("http://{}", env.mirror.address());
    let proxy = start_with(&server, &root.path().join("cache"), &env.path("key.pub"), &options);
    assert!(proxy.1.starts_with("https://"), "{}", proxy.1);
    let trusted = env.path("authority.pem");
    std::fs::copy(authority.certificate(), &trusted).expect("a certificate");
    let [.., newest] = fixture::TAGS;
    reads_as(&env, newest, &format!("{}/cvmfs/full.test", proxy.1), &["--ca", &text(&trusted)]);
}

#[test]
fn a_mount_through_the_proxy_reads_while_servers_and_proxy_come_and_go() {
    let repository = FULL.unpack();
    let root = tempfile::tempdir().expect("a folder");
    symlink(repository.document_root(), root.path().join("cvmfs")).expect("a link");
    let [_, second, third] = fixture::TAGS;
    let newest = repository.read(".cvmfspublished");
    repository.publish(&repository.head_at(second));
    let env = TestEnv::at(TestUser::ordinary(), repository, Mirror::serve(root.path()));
    let server = format!("http://{}", env.mirror.address());
    let (cache, key) = (root.path().join("cache"), env.path("key.pub"));
    let proxy = start(&server, &cache, &key, "127.0.0.1:0");
    let url = format!("{server}/cvmfs/full.test");
    let proxy_url = proxy.1.clone();
    let options = ["--proxy", &proxy_url];
    reads_as(&env, second, &url, &options);
    let fetched = env.mirror.sent();
    env.mirror.leave();
    // Everything comes from the proxy, for this client that has nothing.
    reads_as(&env, second, &url, &options);
    let address = proxy.1.trim_start_matches("http://").to_owned();
    drop(proxy);
    let proxy = start(&server, &cache, &key, &address);
    reads_as(&env, second, &url, &options);
    assert_eq!(env.mirror.sent(), fetched);
    env.mirror.come_back();
    env.repository.write(".cvmfspublished", &newest);
    // A new process does not wait until it asks a server again that failed.
    drop(proxy);
    let proxy = start(&server, &cache, &key, &address);
    reads_as(&env, third, &url, &options);
    // As a server in place of a proxy.
    reads_as(&env, third, &format!("{}/cvmfs/full.test", proxy.1), &[]);
    // A client that names another server gets nothing from there.
    let output = env
        .esker(&["ls", "http://other.test/cvmfs/full.test", "--proxy", &proxy.1, "--public-key"])
        .arg(&key)
        .arg("--cache")
        .arg(env.path("home").join("other"))
        .output()
        .expect("running esker");
    assert!(!output.status.success() && words(&output).contains("403"), "{}", words(&output));
}

/// Number and length of the objects that slow clients read, and of the files that change.
const OBJECTS: u32 = 32;
const OBJECT_LEN: usize = 8 << 20;
const FILES: u32 = 8;
const FILE_LEN: usize = 16 << 20;
/// Number of clients, each with one of these.
const READERS: u32 = 300;
/// Most memory of the proxy in KiB, less than half of what is sent.
const MEMORY_MAX: u64 = 230 << 10;

/// Bytes that differ from those of other numbers.
fn content(number: u32, len: usize) -> Vec<u8> {
    let mut bytes = vec![b'x'; len];
    bytes[..4].copy_from_slice(&number.to_le_bytes());
    bytes
}

/// Returns a connection that holds few bytes in the kernel.
fn slow_client(address: SocketAddr) -> TcpStream {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    set_socket_recv_buffer_size(&socket, 4096).expect("a buffer");
    connect(&socket, &address).expect("connecting");
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(PATIENCE)).expect("a deadline");
    stream
}

/// Reads the status of a response and leaves the rest.
fn status_of(stream: &mut TcpStream) -> u16 {
    let mut line = [0; 12];
    stream.read_exact(&mut line).expect("a status line");
    let line = std::str::from_utf8(&line).expect("text");
    line.rsplit(' ').next().and_then(|status| status.parse().ok()).expect("a status")
}

#[test]
fn slow_readers_take_little_memory_of_the_proxy() {
    let folder = tempfile::tempdir().expect("a folder");
    let mirror = Mirror::serve(folder.path());
    let paths: Vec<String> = (0..OBJECTS)
        .map(|number| object::path(&Algorithm::Sha1.hash(&content(number, OBJECT_LEN)), ""))
        .map(|path| format!("/cvmfs/full.test/{path}"))
        .chain((0..FILES).map(|number| format!("/cvmfs/r{number}.test/.cvmfsreflog")))
        .collect();
    let known = paths.clone();
    mirror.make(move |path| {
        let number = u32::try_from(known.iter().position(|known| known == path)?).ok()?;
        Some(content(number, if number < OBJECTS { OBJECT_LEN } else { FILE_LEN }))
    });
    let server = format!("http://{}", mirror.address());
    let (cache, key) = (folder.path().join("cache"), FULL.public_key());
    let proxy = start(&server, &cache, &key, "127.0.0.1:0");
    let address = proxy.1.trim_start_matches("http://").parse().expect("an address");
    let mut readers: Vec<_> = (0..READERS)
        .map(|number| {
            let mut reader = slow_client(address);
            let path = &paths[number as usize % paths.len()];
            write!(reader, "GET {path} HTTP/1.1\r\nHost: x\r\n\r\n").expect("sending");
            reader
        })
        .collect();
    for reader in &mut readers {
        assert_eq!(status_of(reader), 200);
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.0.id())).expect("a status");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    let peak: u64 = peak.trim().trim_end_matches(" kB").parse().expect("a number");
    assert!(peak < MEMORY_MAX, "{peak} KiB");
    // Others don't wait for them.
    let mut quick = TcpStream::connect(address).expect("connecting");
    quick.set_read_timeout(Some(PATIENCE)).expect("a deadline");
    write!(quick, "GET {} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", paths[0]).expect("sending");
    let mut answer = Vec::new();
    quick.read_to_end(&mut answer).expect("an answer");
    assert!(answer.len() > OBJECT_LEN && answer.ends_with(&content(0, OBJECT_LEN)[4..]));
}
