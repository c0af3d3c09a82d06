use std::io::{BufRead, Read};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use esker_server::PENDING_MIN;
use esker_server::{Limits, Repositories, Server};
use esker_testkit::fixture::{FULL, Repository};

use crate::client::{Client, PATIENCE, Running};

const LARGE: &str = "data/00/00000000000000000000000000000000000001";
/// More than the buffers of two sockets hold.
const LARGE_LEN: u64 = 64 << 20;
const TOP: &str = "/cvmfs/full.test/.cvmfspublished";

fn with_large_object() -> Repository {
    let repository = FULL.unpack();
    repository.write(LARGE, b"");
    let file = std::fs::OpenOptions::new().write(true).open(repository.path().join(LARGE)).expect("a file");
    file.set_len(LARGE_LEN).expect("a long file");
    repository
}

fn start(repository: &Repository, limits: Limits) -> Running {
    Running::start(&[repository.document_root().to_owned()], limits)
}

/// Limits that never strike by themselves.
fn patient() -> Limits {
    Limits { idle: PATIENCE, head: PATIENCE, stall: PATIENCE, grace: PATIENCE, ..Limits::default() }
}

const SHORT: Duration = Duration::from_millis(50);

#[test]
fn a_client_without_a_complete_request_is_disconnected() {
    let repository = FULL.unpack();
    for limits in [Limits { idle: SHORT, ..patient() }, Limits { head: SHORT, ..patient() }] {
        let server = start(&repository, limits);
        let mut client = server.client();
        if limits.head == SHORT {
            client.send(b"GET / HTTP/1.1\r\nHo");
        }
        assert_eq!(client.rest(), b"");
    }
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let repository = with_large_object();
    let stalling = Limits { stall: SHORT, ..patient() };
    // Takes its bytes, but too few a second.
    let trickling = Limits { stall: SHORT, slowest: u64::MAX, ..patient() };
    for limits in [stalling, trickling] {
        let server = start(&repository, limits);
        let mut client = server.client();
        client.send(format!("GET /cvmfs/full.test/{LARGE} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        assert_eq!(client.head().status, 200);
        // The end of the server waits for the answer, and the answer ends because no client reads it.
        let served = server.stop();
        assert_eq!((served.requests, served.broken_off, served.cut), (1, 1, 0));
        let mut received = Vec::new();
        let end = client.0.read_to_end(&mut received);
        assert!(end.is_err() || (received.len() as u64) < LARGE_LEN);
    }
}

/// A new client has not asked yet, and would take the server for broken if closed.
#[test]
fn a_full_server_answers_every_client_once() {
    const CLIENTS: usize = 50;
    let repository = FULL.unpack();
    let server = start(&repository, Limits { connections: 1, ..patient() });
    // All clients are connected before the first request, so a client waits for a slot all the time.
    let clients: Vec<_> = (0..CLIENTS).map(|_| server.client()).collect();
    for mut client in clients {
        assert_eq!(client.ask("GET", TOP, "").status, 200);
    }
    assert_eq!(server.stop().connections, CLIENTS as u64);
}

#[test]
fn a_full_server_disconnects_clients_without_a_request() {
    let repository = FULL.unpack();
    let server = start(&repository, Limits { connections: 1, ..patient() });
    // More than may be connected without asking, and as many that ask half; each is there before the client that asks.
    let mut silent: Vec<_> = (0..4 * PENDING_MIN).map(|_| server.client()).collect();
    for client in silent.iter_mut().skip(2 * PENDING_MIN) {
        client.send(b"GET / HTTP/1.1\r\nHo");
    }
    let begun = Instant::now();
    assert_eq!(server.get(TOP).status, 200);
    assert!(begun.elapsed() < PATIENCE / 4, "it took {:?}", begun.elapsed());
    assert_eq!(silent[0].rest(), b"", "the first one left");
}

/// Slow readers at one address take all places; clients at others get theirs.
#[test]
fn slow_readers_at_one_address_leave_slots_to_others() {
    const PLACES: usize = 8;
    let repository = with_large_object();
    let server = start(&repository, Limits { connections: PLACES, ..patient() });
    let mut slow = Vec::new();
    for _ in 0..PLACES {
        let mut client = server.client_from([127, 0, 0, 2].into());
        client.send(format!("GET /cvmfs/full.test/{LARGE} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
        assert_eq!(client.head().status, 200);
        slow.push(client);
    }
    let begun = Instant::now();
    for _ in 0..3 {
        assert_eq!(server.get(TOP).status, 200);
    }
    assert!(begun.elapsed() < PATIENCE / 4, "it took {:?}", begun.elapsed());
}

/// As when a job starts on all nodes of a cluster: a client that the kernel can't queue tries again only after a second.
#[test]
fn many_clients_can_connect_at_the_same_time() {
    let repository = FULL.unpack();
    let repositories = Repositories::open(&[repository.document_root().to_owned()]).expect("folders");
    let address = "127.0.0.1:0".parse().expect("an address");
    let server = Server::bind(address, repositories, Limits::default()).expect("listening");
    let kernel = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("a limit of the kernel");
    let most = kernel.trim().parse::<usize>().expect("a number").min(400);
    let connect = |_| TcpStream::connect_timeout(&server.address(), Duration::from_secs(10)).ok();
    let queued: Vec<_> = (0..most).map_while(connect).collect();
    assert_eq!(queued.len(), most);
}

#[test]
fn a_full_server_closes_only_as_many_idle_connections_as_needed() {
    const CLIENTS: usize = 64;
    let repository = FULL.unpack();
    let server = start(&repository, Limits { connections: CLIENTS, ..patient() });
    let mut idle: Vec<_> = (0..CLIENTS).map(|_| server.client()).collect();
    for client in &mut idle {
        assert_eq!(client.ask("GET", TOP, "").status, 200);
    }
    assert_eq!(server.get(TOP).status, 200);
    let is_gone = |client: &mut Client| {
        client.0.get_ref().set_nonblocking(true).expect("a socket");
        client.0.fill_buf().is_ok_and(<[u8]>::is_empty)
    };
    let gone = idle.iter_mut().map(is_gone).filter(|gone| *gone).count();
    // One; or a few, where this machine is so busy that it didn't go at once.
    assert!((1..CLIENTS / 4).contains(&gone), "{gone} of {CLIENTS} are gone");
}

#[test]
fn responses_in_progress_finish_when_the_server_stops() {
    let repository = with_large_object();
    let server = start(&repository, patient());
    let (mut busy, mut idle) = (server.client(), server.client());
    assert_eq!(idle.ask("GET", TOP, "").status, 200);
    busy.send(format!("GET /cvmfs/full.test/{LARGE} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    assert_eq!(busy.head().status, 200);
    let address = server.address;
    server.stopper.stop();
    assert_eq!(idle.rest(), b"", "idle connections end");
    // No process listens any more; a connection may have been queued before that became true.
    while TcpStream::connect(address).is_ok() {}
    assert_eq!(busy.rest().len() as u64, LARGE_LEN);
    let served = server.stop();
    assert_eq!((served.requests, served.broken_off, served.cut), (2, 0, 0));
}

#[test]
fn shutdown_does_not_wait_forever() {
    let repository = with_large_object();
    let server = start(&repository, Limits { grace: SHORT, ..patient() });
    let mut client = server.client();
    client.send(format!("GET /cvmfs/full.test/{LARGE} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    assert_eq!(client.head().status, 200);
    assert_eq!(server.stop().cut, 1);
}

#[test]
fn an_invalid_request_is_answered_and_closes_the_connection() {
    let repository = FULL.unpack();
    let server = start(&repository, patient());
    for (request, status) in [
        ("GARBAGE\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/1.1\r\nHost: a\r\nBad Name: x\r\n\r\n".to_owned(), 400),
        ("GET / HTTP/3.0\r\nHost: a\r\n\r\n".to_owned(), 505),
        ("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\nhello".to_owned(), 413),
        ("GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(), 413),
        (format!("GET /{} HTTP/1.1\r\n", "x".repeat(100_000)), 431),
    ] {
        let mut client = server.client();
        client.send(request.as_bytes());
        let response = client.response(false);
        assert_eq!(response.status, status, "{request:.60}");
        assert_eq!(response.field("Connection"), Some("close"));
        assert_eq!(client.rest(), b"");
    }
    let mut client = server.client();
    let response = client.ask("DELETE", TOP, "");
    assert_eq!((response.status, response.field("Allow")), (405, Some("GET, HEAD")));
    assert_eq!(client.ask("GET", TOP, "").status, 200, "another method doesn't end the connection");
}

#[test]
fn requests_may_come_in_one_packet_or_in_many() {
    let repository = FULL.unpack();
    let server = start(&repository, patient());
    let mut client = server.client();
    let one = format!("GET {TOP} HTTP/1.1\r\nHost: x\r\n\r\n");
    client.send(one.repeat(3).as_bytes());
    for _ in 0..3 {
        assert_eq!(client.response(false).body, repository.read(".cvmfspublished"));
    }
    for byte in one.as_bytes() {
        client.send(&[*byte]);
    }
    assert_eq!(client.response(false).status, 200);
    client.send(format!("GET {TOP} HTTP/1.0\r\n\r\n").as_bytes());
    assert_eq!(client.response(false).field("Connection"), Some("close"));
    assert_eq!(client.rest(), b"");
}

/// A file that shrinks under the answer: the client gets an end that can't be mistaken for the whole.
#[test]
fn a_file_that_becomes_shorter_ends_the_connection() {
    let repository = with_large_object();
    let server = start(&repository, patient());
    let mut client = server.client();
    client.send(format!("GET /cvmfs/full.test/{LARGE} HTTP/1.1\r\nHost: x\r\n\r\n").as_bytes());
    assert_eq!(client.head().field("Content-Length"), Some(LARGE_LEN.to_string().as_str()));
    repository.write(LARGE, b"");
    let mut received = Vec::new();
    let end = client.0.read_to_end(&mut received);
    assert!(end.is_err() || (received.len() as u64) < LARGE_LEN);
    drop(client);
    assert_eq!(server.stop().broken_off, 1);
}
