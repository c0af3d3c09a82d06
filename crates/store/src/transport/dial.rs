//! Connections to a server or a proxy, tunnels through a proxy, and TLS.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{self, HeaderValue};
use hyper::{Request, StatusCode};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};

use super::response::{broken, said_by_proxy};
use super::tls::{Tls, speaks_http2};
use crate::error::{Cause, Phase};
use crate::servers::{Authorities, Login};

/// Value of `User-Agent`.
pub(super) const AGENT: &str = concat!("esker/", env!("CARGO_PKG_VERSION"));
/// Time after which the next address of a server is tried in parallel to the first.
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// Address to connect to, and how. Requests with equal endpoints share connections and a queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Endpoint {
    /// Name or address.
    pub(super) host: String,
    pub(super) port: u16,
    /// True if the endpoint is the server, not a proxy.
    pub(super) is_direct: bool,
    /// Name that the peer must prove with TLS; none without TLS.
    pub(super) tls: Option<Arc<str>>,
    /// User name and password for a tunnel through the proxy.
    pub(super) login: Option<Login>,
    /// The server behind a proxy to which a TLS tunnel leads.
    pub(super) beyond: Option<(Arc<str>, u16)>,
    /// Trusted authorities, for TLS.
    pub(super) authorities: Option<Authorities>,
    /// True if HTTP/2 is offered to the server.
    pub(super) http2: bool,
}

/// A bidirectional stream of bytes.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

/// A stream for requests: plain, TLS, or a tunnel.
pub(super) enum Line {
    Plain(TcpStream),
    Secure(Box<dyn Stream>),
    /// A stream to a server that speaks HTTP/2.
    Multiplexed(Box<dyn Stream>),
}

impl Endpoint {
    /// Connects to one of these addresses; returns the time it took.
    pub(super) async fn connect(
        &self,
        addresses: &[IpAddr],
        tls: &Tls,
        limit: Duration,
    ) -> Result<(Line, Duration), Cause> {
        let late = |phase| move |_| Cause::TimedOut { phase, limit };
        let addresses = addresses.iter().map(|address| SocketAddr::new(*address, self.port)).collect();
        let connected = timeout(limit, first_to_connect(addresses)).await.map_err(late(Phase::Connect))?;
        let (stream, took) = connected.map_err(Cause::Unreachable)?;
        // Requests are single small packets; waiting to fill them only costs a round trip.
        let _ = stream.set_nodelay(true);
        let Some(authorities) = &self.authorities else { return Ok((Line::Plain(stream), took)) };
        let line = timeout(limit, self.secure(stream, tls, authorities)).await;
        Ok((line.map_err(late(Phase::Secure))??, took))
    }

    async fn secure(&self, stream: TcpStream, tls: &Tls, authorities: &Authorities) -> Result<Line, Cause> {
        // A proxy that reads the requests is spoken to as all proxies are.
        let offered = |is_server: bool| (authorities, self.http2 && is_server);
        let (mut stream, mut http2): (Box<dyn Stream>, _) = match &self.tls {
            Some(name) => {
                let stream = tls.secure(stream, name, offered(self.is_direct)).await?;
                let http2 = speaks_http2(&stream);
                (Box::new(stream), http2)
            }
            None => (Box::new(stream), false),
        };
        if let Some((server, port)) = &self.beyond {
            stream = tunnel(stream, (server, *port), self.login.as_ref()).await?;
            let secure = tls.secure(stream, server, offered(true)).await?;
            http2 = speaks_http2(&secure);
            stream = Box::new(secure);
        }
        Ok(if http2 { Line::Multiplexed(stream) } else { Line::Secure(stream) })
    }
}

/// Opens a tunnel to a server through a proxy.
async fn tunnel(
    stream: Box<dyn Stream>,
    (server, port): (&str, u16),
    login: Option<&Login>,
) -> Result<Box<dyn Stream>, Cause> {
    let host = if server.contains(':') { format!("[{server}]:{port}") } else { format!("{server}:{port}") };
    let (mut sender, connection): (SendRequest<Empty<Bytes>>, _) =
        http1::handshake(TokioIo::new(stream)).await.map_err(broken)?;
    tokio::spawn(async move {
        // Its errors reach the request.
        let _ = connection.with_upgrades().await;
    });
    let unfit = || Cause::BadUrl { url: host.clone(), reason: "it can't be written into a request" };
    let mut request = Request::connect(&host).header(header::HOST, &host).header(header::USER_AGENT, AGENT);
    if let Some(login) = login {
        request = request.header(header::PROXY_AUTHORIZATION, authorization(login)?);
    }
    let request = request.body(Empty::new()).map_err(|_| unfit())?;
    let response = sender.send_request(request).await.map_err(broken)?;
    let status = response.status();
    if status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        return Err(Cause::ProxyLogin { user: login.map(|login| login.user().to_owned()) });
    }
    if !status.is_success() {
        let said = said_by_proxy(&response).unwrap_or_else(|| format!("it doesn't pass on to {host}"));
        return Err(Cause::ProxyStatus { status: status.as_u16(), said });
    }
    let upgraded = hyper::upgrade::on(response).await.map_err(broken)?;
    Ok(Box::new(TokioIo::new(upgraded)))
}

/// Returns the value of `Proxy-Authorization`, marked as sensitive so that it is never printed.
pub(super) fn authorization(login: &Login) -> Result<HeaderValue, Cause> {
    let mut value = HeaderValue::try_from(login.basic()).map_err(|_| Cause::BadUrl {
        url: "a proxy".to_owned(),
        reason: "its user name and password can't be written into a request",
    })?;
    value.set_sensitive(true);
    Ok(value)
}

/// Connects to the address that answers first, starting attempts one after the other.
async fn first_to_connect(addresses: Vec<SocketAddr>) -> io::Result<(TcpStream, Duration)> {
    let mut addresses = addresses.into_iter();
    let mut racing = JoinSet::new();
    let mut failure = io::Error::from(io::ErrorKind::AddrNotAvailable);
    loop {
        let next = addresses.next();
        let more = next.is_some();
        if let Some(address) = next {
            let began = Instant::now();
            racing.spawn(async move {
                let stream = TcpStream::connect(address).await?;
                Ok((stream, began.elapsed()))
            });
        }
        let joined =
            if more { timeout(NEXT_ADDRESS, racing.join_next()).await } else { Ok(racing.join_next().await) };
        match joined {
            Ok(Some(Ok(Ok(connected)))) => return Ok(connected),
            Ok(Some(Ok(Err(error)))) => failure = error,
            Ok(Some(Err(error))) => failure = io::Error::other(error),
            Ok(None) => return Err(failure),
            Err(_) => {}
        }
    }
}
