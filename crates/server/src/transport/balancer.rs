//! Reads the address of a client that a load balancer tells before the client's bytes: the PROXY protocol, versions 1 and 2.
//!
//! ```text
//! 1: PROXY TCP4 192.0.2.1 198.51.100.7 56324 443 CR LF     PROXY UNKNOWN … CR LF
//! 2: signature (12)  version and command (1)  family (1)  length (2)  addresses, ports and further fields (length)
//! ```

use std::io;
use std::net::{IpAddr, SocketAddr};

use tokio::io::{AsyncRead, AsyncReadExt};

const SIGNATURE: &[u8; 12] = b"\r\n\r\n\0\r\nQUIT\n";
/// Longest line of version 1.
const LINE_MAX: usize = 107;
/// Longest header of version 2 beyond the first 16 bytes.
const FIELDS_MAX: u16 = 4096;

/// Reads the header, and not more; none if the balancer asks for itself, or does not know the client.
pub(super) async fn client(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    let mut start = [0; 12];
    stream.read_exact(&mut start).await?;
    match &start == SIGNATURE {
        true => binary(stream).await,
        false => text(stream, start.to_vec()).await,
    }
}

async fn text(stream: &mut (impl AsyncRead + Unpin), mut line: Vec<u8>) -> io::Result<Option<SocketAddr>> {
    while !line.ends_with(b"\r\n") {
        if line.len() >= LINE_MAX {
            return Err(malformed());
        }
        line.push(stream.read_u8().await?);
    }
    let line = std::str::from_utf8(&line).map_err(|_| malformed())?;
    let mut words = line.trim_end().split(' ');
    match (words.next(), words.next()) {
        (Some("PROXY"), Some("UNKNOWN")) => Ok(None),
        (Some("PROXY"), Some("TCP4" | "TCP6")) => {
            let address: Option<IpAddr> = words.next().and_then(|word| word.parse().ok());
            let port = words.nth(1).and_then(|word| word.parse().ok());
            address.zip(port).map(SocketAddr::from).map(Some).ok_or_else(malformed)
        }
        _ => Err(malformed()),
    }
}

async fn binary(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<Option<SocketAddr>> {
    let [command, family] = [stream.read_u8().await?, stream.read_u8().await?];
    let len = stream.read_u16().await?;
    if len > FIELDS_MAX || command >> 4 != 2 {
        return Err(malformed());
    }
    let mut fields = vec![0; usize::from(len)];
    stream.read_exact(&mut fields).await?;
    match (command & 15, family >> 4) {
        // A check of the balancer's own.
        (0, _) => Ok(None),
        (1, 1) => address::<4>(&fields).map(Some),
        (1, 2) => address::<16>(&fields).map(Some),
        (1, _) => Ok(None),
        _ => Err(malformed()),
    }
}

/// Returns the source of two addresses and two ports.
fn address<const LEN: usize>(fields: &[u8]) -> io::Result<SocketAddr>
where
    IpAddr: From<[u8; LEN]>,
{
    let source = fields.first_chunk::<LEN>();
    let port = fields.get(2 * LEN..2 * LEN + 4).and_then(|ports| ports.first_chunk::<2>());
    let (source, port) = source.zip(port).ok_or_else(malformed)?;
    Ok(SocketAddr::new(IpAddr::from(*source), u16::from_be_bytes(*port)))
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "it is no header of the PROXY protocol")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the client, and the bytes that are left for it.
    fn read(bytes: &[u8]) -> io::Result<(Option<SocketAddr>, Vec<u8>)> {
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let mut left = bytes;
        let found = runtime.block_on(client(&mut left))?;
        Ok((found, left.to_vec()))
    }

    fn binary(command: u8, family: u8, fields: &[u8]) -> Vec<u8> {
        let len = u16::try_from(fields.len()).expect("a small header").to_be_bytes();
        [&SIGNATURE[..], &[command, family], &len, fields, b"GET"].concat()
    }

    #[test]
    fn both_versions_tell_the_client_and_leave_its_bytes() {
        let told = |text: &str| Some(text.parse::<SocketAddr>().expect("an address"));
        let left = b"GET".to_vec();
        let four = [192, 0, 2, 1, 10, 0, 0, 1, 0x10, 0, 0, 80];
        let six = [&[0x20, 1, 0xd, 0xb8][..], &[0; 28], &[0x10, 0, 0, 80], b"more"].concat();
        for (bytes, expected) in [
            (b"PROXY TCP4 192.0.2.1 10.0.0.1 4096 80\r\nGET".to_vec(), told("192.0.2.1:4096")),
            (b"PROXY TCP6 2001:db8:: :: 4096 80\r\nGET".to_vec(), told("[2001:db8::]:4096")),
            (b"PROXY UNKNOWN\r\nGET".to_vec(), None),
            (binary(0x21, 0x11, &four), told("192.0.2.1:4096")),
            (binary(0x21, 0x21, &six), told("[2001:db8::]:4096")),
            (binary(0x20, 0, &[]), None),
            (binary(0x21, 0x31, &[0; 216]), None),
        ] {
            assert_eq!(read(&bytes).expect("a header"), (expected, left.clone()));
        }
    }

    #[test]
    fn anything_else_is_refused_without_reading_on_for_ever() {
        let endless = [b"PROXY TCP4 ".to_vec(), vec![b'1'; 1000]].concat();
        for bytes in [
            b"GET / HTTP/1.1\r\n".to_vec(),
            b"PROXY TCP4 nonsense 10.0.0.1 1 2\r\n".to_vec(),
            b"PROXY TCP4 192.0.2.1\r\n".to_vec(),
            endless,
            binary(0x11, 0x11, &[0; 12]),
            binary(0x21, 0x11, &[0; 11]),
            binary(0x21, 0x11, &[0; 5000]),
            SIGNATURE.to_vec(),
        ] {
            assert!(read(&bytes).is_err(), "{bytes:?}");
        }
    }
}
