//! Many clients at once, and what they cost.

use std::io::Read;
use std::thread;

use esker_server::Limits;
use esker_testkit::fixture::FULL;
use rustix::process::{Resource, getrlimit};

use crate::client::{PATIENCE, Running};

const TOP: &str = "/cvmfs/full.test/.cvmfspublished";
/// Upper bound of the memory of an idle client in bytes, without the kernel's part. Other tests in this process may
/// allocate meanwhile.
const IDLE_MAX: u64 = 12 * 1024;

fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("a status");
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).expect("a size");
    line.split_ascii_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") * 1024
}

#[test]
fn idle_and_half_open_clients_cost_little_and_delay_no_busy_client() {
    const BUSY: usize = 64;
    const REQUESTS: usize = 20;
    esker_testkit::descriptors::allow(4096);
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    // Both ends are in this process, and so are other tests.
    let idle = usize::try_from(limit / 4).unwrap_or(usize::MAX).min(10_000);
    let repository = FULL.unpack();
    let limits = Limits {
        connections: idle + BUSY,
        idle: PATIENCE,
        head: PATIENCE,
        stall: PATIENCE,
        ..Limits::default()
    };
    let server = Running::start(&[repository.document_root().to_owned()], limits);
    assert_eq!(server.get(TOP).status, 200);
    let before = resident();
    let mut crowd = Vec::with_capacity(idle);
    for number in 0..idle {
        let mut client = server.client();
        match number % 4 {
            // Connected, and silent.
            0 => {}
            1 => client.send(b"GET / HTTP/1.1\r\nHo"),
            _ => assert_eq!(client.ask("GET", TOP, "").status, 200),
        }
        // The test's own buffer is no cost of the server.
        crowd.push(client.0.into_inner());
    }
    let cost = resident().saturating_sub(before) / idle as u64;
    let manifest = repository.read(".cvmfspublished");
    thread::scope(|scope| {
        for _ in 0..BUSY {
            scope.spawn(|| {
                let mut client = server.client();
                for _ in 0..REQUESTS {
                    assert_eq!(client.ask("GET", TOP, "").body, manifest);
                }
            });
        }
    });
    // Those with a complete request are still connected.
    for stream in crowd.iter_mut().skip(2).step_by(4) {
        stream.set_nonblocking(true).expect("a socket");
        let waits = stream.read(&mut [0]).expect_err("no byte").kind() == std::io::ErrorKind::WouldBlock;
        assert!(waits, "an idle client was disconnected");
    }
    drop(crowd);
    println!("{idle} idle clients, {cost} bytes each");
    assert!(cost <= IDLE_MAX, "an idle client costs {cost} bytes");
}
