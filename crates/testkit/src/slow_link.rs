//! A slow link to a server: a relay that passes bytes on with a delay and a limit of speed.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use crate::loopback::Loopback;

/// Number of bytes that pass at once.
const PIECE: usize = 16 << 10;

/// A relay, which breaks its connections when it is dropped.
#[derive(Debug)]
pub struct SlowLink(Loopback);

impl SlowLink {
    /// Starts a relay to a server. Each piece of each connection waits for the delay and for the time that the link needs.
    pub fn to(server: SocketAddr, bytes_per_second: u64, delay: Duration) -> Self {
        let start = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Self(Loopback::listen(start, move |client| {
            let server = TcpStream::connect(server)?;
            let (from, to) = (client.try_clone()?, server.try_clone()?);
            let upload = std::thread::spawn(move || pass(from, to, bytes_per_second, delay));
            let passed = pass(server, client, bytes_per_second, delay);
            upload.join().expect("the relay does not panic")?;
            passed
        }))
    }

    /// Returns the address of the relay.
    pub fn address(&self) -> SocketAddr {
        self.0.address()
    }

    /// Breaks all connections.
    pub fn break_connections(&self) {
        self.0.break_connections();
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, bytes_per_second: u64, delay: Duration) -> io::Result<()> {
    let mut piece = [0; PIECE];
    loop {
        let count = match from.read(&mut piece) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) => {
                drop(to.shutdown(Shutdown::Both));
                return Err(error);
            }
        };
        std::thread::sleep(delay + Duration::from_micros(count as u64 * 1_000_000 / bytes_per_second));
        if let Err(error) = to.write_all(&piece[..count]) {
            drop(from.shutdown(Shutdown::Both));
            return Err(error);
        }
    }
    // The other direction may go on.
    drop(to.shutdown(Shutdown::Write));
    Ok(())
}
