//! Sends documents to a collector, one after the other.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::header::CONTENT_TYPE;
use hyper::{Method, Request, Uri};
use tokio::runtime::Runtime;

use super::client::{Client, ClientOptions};
use crate::error::{Cause, StoreError};
use crate::servers::{Authorities, Dns, without_passwords};

/// Timeout for connecting.
const CONNECT: Duration = Duration::from_secs(5);
/// Time without progress after which a request fails.
const STALL: Duration = Duration::from_secs(10);
/// Keep-alive of the connection.
const IDLE: Duration = Duration::from_secs(30);
/// Maximum number of bytes of a response that are read; the rest is left with its connection.
const RESPONSE_MAX: usize = 64 << 10;

/// Sender of documents to one URL, over a connection that is kept.
pub struct Poster {
    runtime: Runtime,
    client: Arc<Client<Full<Bytes>>>,
    uri: Uri,
    /// URL for messages.
    what: String,
}

impl Poster {
    /// Makes a sender to an `http://` or `https://` URL.
    pub fn new(url: &str, authorities: Authorities) -> Result<Self, StoreError> {
        let what = without_passwords(url);
        let failed = |cause| StoreError::new(what.clone(), cause);
        let bad = |reason| Cause::BadUrl { url: what.clone(), reason };
        let uri: Uri = url.parse().map_err(|_| failed(bad("it is no URL")))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) || uri.host().is_none() {
            return Err(failed(bad("it starts neither with http:// nor with https://")));
        }
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| failed(Cause::Broken(error.to_string())))?;
        let dns = Dns::default();
        let client =
            Client::new(ClientOptions { authorities, dns, connect: CONNECT, stall: STALL, idle: IDLE });
        Ok(Self { runtime, client, uri, what })
    }

    /// Sends a document of this content type; fails unless the server accepts it.
    pub fn post(&self, kind: &str, document: Vec<u8>) -> Result<(), StoreError> {
        let failed = |cause| StoreError::new(self.what.clone(), cause);
        let request =
            Request::builder().method(Method::POST).uri(self.uri.clone()).header(CONTENT_TYPE, kind);
        let request = request.body(Full::new(Bytes::from(document)));
        let request = request.map_err(|error| failed(Cause::Broken(error.to_string())))?;
        self.runtime.block_on(async {
            let response = self.client.send(request).await.map_err(failed)?;
            let status = response.status();
            let mut body = response.into_body();
            let mut read = 0;
            // Read to the end, so that the connection can be used again; what went wrong there is no failure.
            while let Some(Ok(frame)) = body.frame().await {
                read += frame.data_ref().map_or(0, Bytes::len);
                if read > RESPONSE_MAX {
                    break;
                }
            }
            if status.is_success() { Ok(()) } else { Err(failed(Cause::Status(status.as_u16()))) }
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn documents_go_over_one_connection_and_refusals_are_failures() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}/v1/metrics", listener.local_addr().expect("an address"));
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut reader = BufReader::new(stream.try_clone().expect("a socket"));
            let mut bodies = Vec::new();
            for status in ["200 OK", "400 Bad Request"] {
                let mut len = 0;
                let mut line = String::new();
                while reader.read_line(&mut line).expect("a line") > 2 {
                    let lower = line.to_ascii_lowercase();
                    len = lower
                        .strip_prefix("content-length: ")
                        .map_or(len, |n| n.trim().parse().expect("a number"));
                    line.clear();
                }
                let mut body = vec![0; len];
                reader.read_exact(&mut body).expect("a body");
                bodies.push(body);
                write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\n{{}}").expect("written");
            }
            bodies
        });
        let poster = Poster::new(&url, Authorities::default()).expect("a URL");
        poster.post("application/json", b"one".to_vec()).expect("accepted");
        let refused = poster.post("application/json", b"two".to_vec()).expect_err("refused");
        assert!(matches!(refused.cause(), Cause::Status(400)), "{refused}");
        assert_eq!(server.join().expect("the server"), [b"one".to_vec(), b"two".to_vec()]);
    }

    #[test]
    fn a_collector_needs_an_http_url() {
        for url in ["collector:4318", "ftp://collector/", "http:///v1"] {
            assert!(Poster::new(url, Authorities::default()).is_err(), "{url}");
        }
    }
}
