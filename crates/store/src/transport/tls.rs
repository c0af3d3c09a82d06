//! TLS with servers and proxies.

mod authorities;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use esker_format::time::UnixTime;
use parking_lot::Mutex;
use rustls::pki_types::{ServerName, UnixTime as TlsTime};
use rustls::{CertificateError, ClientConfig, Error};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::Cause;
use crate::servers::{Authorities, KeptAuthorities};

/// Interval for reading authorities again, as systems renew them during mounts that last for months.
const READ_AGAIN: Duration = Duration::from_secs(3600);

/// ALPN name of HTTP/2.
const HTTP2: &[u8] = b"h2";

/// Returns whether HTTP/2 was negotiated.
pub(super) fn speaks_http2<S>(stream: &TlsStream<S>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(HTTP2)
}

/// TLS configurations by trusted authorities.
#[derive(Default)]
pub(super) struct Tls {
    /// Texts of authorities that stand in for files that are gone.
    kept: Arc<KeptAuthorities>,
    /// By trusted authorities and whether HTTP/2 is offered.
    known: Mutex<HashMap<(Authorities, bool), Known>>,
}

struct Known {
    config: Arc<ClientConfig>,
    since: Instant,
}

/// A failure of TLS.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TlsProblem {
    /// The certificate has no trusted issuer.
    #[error("its certificate is signed by no authority that is known here")]
    UnknownIssuer,
    /// The certificate expired at this time.
    #[error("its certificate expired at {0}")]
    Expired(UnixTime),
    /// The certificate is valid from this time on.
    #[error("its certificate is not valid before {0}")]
    NotYetValid(UnixTime),
    /// The certificate is for another name.
    #[error("its certificate is for {0}")]
    OtherName(String),
    /// The certificate is one for signing others.
    #[error("its certificate is that of an authority and not of a server, as `openssl req -x509` makes them")]
    OfAuthority,
    /// No authorities are trusted.
    #[error("no certificate authorities are known here: {0}")]
    NoAuthorities(String),
    /// Another failure.
    #[error("{0}")]
    Other(String),
}

impl TlsProblem {
    /// Returns the remedy.
    pub fn mend(&self) -> &'static str {
        match self {
            Self::UnknownIssuer => {
                "name the certificate of the authority that signed it with --ca FILE, or install it for the system"
            }
            Self::Expired(_) => {
                "ask the server's administrator to renew it, or use another server; if it is valid, set this machine's clock"
            }
            Self::NotYetValid(_) => {
                "set this machine's clock; if it is right, tell the server's administrator"
            }
            Self::OtherName(_) => "write the URL with a name that the certificate is for",
            Self::OfAuthority => {
                "have the authority sign a certificate for the server, or make one with basicConstraints=CA:FALSE"
            }
            Self::NoAuthorities(_) => {
                "install the system's package ca-certificates, or name a file of certificates with --ca FILE"
            }
            Self::Other(_) => "tell the server's administrator, or use another server",
        }
    }
}

impl Tls {
    pub(super) fn new(kept: Arc<KeptAuthorities>) -> Self {
        Self { kept, known: Mutex::default() }
    }

    /// Negotiates TLS over a stream with the peer that proves this name.
    pub(super) async fn secure<S>(
        &self,
        stream: S,
        name: &str,
        (authorities, http2): (&Authorities, bool),
    ) -> Result<TlsStream<S>, Cause>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let failed = |problem| Cause::Insecure { host: name.to_owned(), problem };
        let config =
            self.config(authorities, http2).await.map_err(|why| failed(TlsProblem::NoAuthorities(why)))?;
        let server = ServerName::try_from(name.to_owned());
        let server =
            server.map_err(|_| failed(TlsProblem::Other("no certificate can be for that name".into())))?;
        let secured = TlsConnector::from(config).connect(server, stream).await;
        secured.map_err(|error| match error.get_ref().and_then(|error| error.downcast_ref::<Error>()) {
            Some(error) => failed(problem(error)),
            None => Cause::Broken(format!("agreeing on TLS: {error}")),
        })
    }

    async fn config(&self, authorities: &Authorities, http2: bool) -> Result<Arc<ClientConfig>, String> {
        let key = (authorities.clone(), http2);
        if let Some(known) = self.known.lock().get(&key)
            && known.since.elapsed() < READ_AGAIN
        {
            return Ok(known.config.clone());
        }
        let (wanted, kept) = (authorities.clone(), self.kept.clone());
        // Files may be on a slow disk; the caller bounds the wait.
        let read = tokio::task::spawn_blocking(move || authorities::read(&wanted, &kept)).await;
        let roots = match read.map_err(|error| error.to_string())? {
            Ok(roots) => roots,
            Err(why) => {
                // Files that were removed since don't end what works.
                let mut known = self.known.lock();
                let known = known.get_mut(&key).ok_or(why)?;
                known.since = Instant::now();
                return Ok(known.config.clone());
            }
        };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        let mut config =
            config.map_err(|error| error.to_string())?.with_root_certificates(roots).with_no_client_auth();
        let offered = [HTTP2, b"http/1.1"].into_iter().skip(usize::from(!http2));
        config.alpn_protocols = offered.map(<[u8]>::to_vec).collect();
        let config = Arc::new(config);
        let known = Known { config: config.clone(), since: Instant::now() };
        self.known.lock().insert(key, known);
        Ok(config)
    }
}

fn problem(error: &Error) -> TlsProblem {
    let at = |time: TlsTime| UnixTime(i64::try_from(time.as_secs()).unwrap_or(i64::MAX));
    let now = || {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        UnixTime(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
    };
    let Error::InvalidCertificate(error) = error else { return TlsProblem::Other(error.to_string()) };
    match error {
        // Of another authority with the same name.
        CertificateError::UnknownIssuer | CertificateError::BadSignature => TlsProblem::UnknownIssuer,
        CertificateError::ExpiredContext { not_after, .. } => TlsProblem::Expired(at(*not_after)),
        CertificateError::NotValidYetContext { not_before, .. } => TlsProblem::NotYetValid(at(*not_before)),
        CertificateError::Expired => TlsProblem::Expired(now()),
        CertificateError::NotValidYet => TlsProblem::NotYetValid(now()),
        CertificateError::NotValidForNameContext { presented, .. } if !presented.is_empty() => {
            TlsProblem::OtherName(presented.join(", "))
        }
        CertificateError::NotValidForNameContext { .. } | CertificateError::NotValidForName => {
            TlsProblem::OtherName("no name at all".to_owned())
        }
        // The library that checks has no other word for it, and its type is not ours to see.
        other if other.to_string().contains("CaUsedAsEndEntity") => TlsProblem::OfAuthority,
        other => TlsProblem::Other(other.to_string()),
    }
}
