use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::time::Timespec;

use super::*;

fn loopback() -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, 0))
}

/// A distance at which a relay without a delay would be noticed.
fn far() -> Profile {
    Profile { round_trip: Duration::from_millis(30), loss: 1e-3, ..Profile::ALL[3] }
}

/// Data arrives complete in both directions at once, and so does the end of the stream.
#[test]
fn bytes_pass_whole_and_never_early() {
    let server = TcpListener::bind(loopback()).expect("a listener");
    let link = Link::start(far(), server.local_addr().expect("an address"), loopback()).expect("a link");
    let upload: Vec<u8> = (0..700_000u32).map(|n| (n / 3) as u8).collect();
    let download: Vec<u8> = (0..900_000u32).map(|n| (n / 7) as u8).collect();
    let answering = {
        let (upload, download) = (upload.clone(), download.clone());
        std::thread::spawn(move || {
            let (mut stream, _) = server.accept().expect("a connection");
            let mut writing = stream.try_clone().expect("a copy");
            let writer = std::thread::spawn(move || writing.write_all(&download));
            let mut received = Vec::new();
            stream.read_to_end(&mut received).expect("an end");
            writer.join().expect("a writer").expect("written");
            assert!(received == upload, "the upload arrives");
        })
    };
    let start = Instant::now();
    let mut client = TcpStream::connect(link.address()).expect("a connection");
    let mut writing = client.try_clone().expect("a copy");
    let writer = std::thread::spawn(move || {
        writing.write_all(&upload).expect("written");
        writing.shutdown(Shutdown::Write).expect("an end");
    });
    let mut received = vec![0; download.len()];
    client.read_exact(&mut received[..1]).expect("a byte");
    // The server speaks when the handshake has ended there, and a small packet needs half a round trip.
    assert!(start.elapsed() >= far().round_trip * 2 - Duration::from_millis(1), "{:?}", start.elapsed());
    client.read_exact(&mut received[1..]).expect("the rest");
    assert!(received == download, "the download arrives");
    writer.join().expect("a writer");
    answering.join().expect("a server");
    assert_eq!(client.read(&mut [0]).expect("an end"), 0);
    let counts = link.counts();
    assert_eq!((counts.connections, counts.up, counts.down), (1, 700_000, 900_000));
}

#[test]
fn a_refused_connection_to_the_server_breaks_that_of_the_client() {
    let gone = TcpListener::bind(loopback()).expect("a listener").local_addr().expect("an address");
    let link = Link::start(far(), gone, loopback()).expect("a link");
    let mut client = TcpStream::connect(link.address()).expect("a connection");
    let told = client.write_all(b"GET / HTTP/1.1\r\n\r\n").and_then(|()| client.read(&mut [0]));
    assert!(told.is_err(), "{told:?}");
}

/// A server with much data for a client that doesn't read is stopped, and the link buffers a bounded part of it.
#[test]
fn a_client_that_does_not_read_stops_the_server() {
    let server = TcpListener::bind(loopback()).expect("a listener");
    let link =
        Link::start(Profile::ALL[1], server.local_addr().expect("an address"), loopback()).expect("a link");
    let client = TcpStream::connect(link.address()).expect("a connection");
    let (stream, _) = server.accept().expect("a connection");
    stream.set_nonblocking(true).expect("set");
    // The size of the kernel's buffers is unknown, so the server counts as stopped when it can't write for a second.
    let second = Timespec { tv_sec: 1, tv_nsec: 0 };
    let mut written = 0u64;
    while rustix::event::poll(&mut [PollFd::new(&stream, PollFlags::OUT)], Some(&second)).expect("a poll") > 0
    {
        written += (&stream).write(&[1; 65_536]).expect("room") as u64;
        assert!(written < 64 << 20, "{written} bytes and no end");
    }
    assert!(link.counts().down > 0);
    // It goes on when the client reads.
    let before = link.counts().down;
    let mut left = written;
    let mut buffer = vec![0; 65_536];
    while left > 0 {
        left -= (&client).read(&mut buffer).expect("bytes") as u64;
    }
    assert!(link.counts().down > before);
}
