//! Carries the requests of `object_store` over the connections of this crate.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use esker_store::{Authorities, Cause, Client, ClientOptions, Dns, Phase};
use http_body_util::BodyExt;
use hyper::StatusCode;
use object_store::ClientOptions as StoreOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody, HttpResponse,
    HttpResponseBody, HttpService,
};

/// Timeout for connecting to a server.
const CONNECT: Duration = Duration::from_secs(5);
/// Timeouts for the instance metadata service of a cloud, which other machines don't have.
const METADATA: Duration = Duration::from_secs(1);
/// Prefix of the addresses of that service.
const METADATA_HOSTS: &str = "169.254.";
/// Keep-alive of idle connections.
const IDLE: Duration = Duration::from_secs(15);

/// Makes the HTTP client of a bucket.
#[derive(Clone)]
pub(super) struct Connector {
    servers: Arc<Client<HttpRequestBody>>,
    metadata: Arc<Client<HttpRequestBody>>,
    /// True once the server has answered a request.
    has_answered: Arc<AtomicBool>,
}

impl Connector {
    /// Makes a connector that trusts these authorities, and gives up after this time without progress.
    pub(super) fn new(authorities: Authorities, stall: Duration) -> Self {
        let options = ClientOptions { authorities, dns: Dns::default(), connect: CONNECT, stall, idle: IDLE };
        let metadata = ClientOptions { connect: METADATA, stall: METADATA, ..options.clone() };
        Self { servers: Client::new(options), metadata: Client::new(metadata), has_answered: Arc::default() }
    }

    /// Returns the client for requests that `object_store` doesn't make.
    pub(super) fn client(&self) -> Arc<Client<HttpRequestBody>> {
        self.servers.clone()
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl HttpConnector for Connector {
    fn connect(&self, _options: &StoreOptions) -> object_store::Result<HttpClient> {
        Ok(HttpClient::new(self.clone()))
    }
}

#[async_trait]
impl HttpService for Connector {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let is_metadata = request.uri().host().is_some_and(|host| host.starts_with(METADATA_HOSTS));
        let client = if is_metadata { &self.metadata } else { &self.servers };
        let method = request.method().clone();
        let path = request.uri().path().to_owned();
        let outcome = client.send(request).await;
        match &outcome {
            Ok(response) => tracing::debug!(%method, path, status = response.status().as_u16(), "answered"),
            Err(cause) => tracing::debug!(%method, path, "failed: {cause}"),
        }
        let mut response = outcome.map_err(|cause| {
            // A server that accepted the first request and is silent since then would be silent again.
            let is_silent =
                kind(&cause) == HttpErrorKind::Timeout && !self.has_answered.load(Ordering::Relaxed);
            // Where that service doesn't answer at once, there is none.
            let kind = if is_metadata || is_silent { HttpErrorKind::Unknown } else { kind(&cause) };
            HttpError::new(kind, cause)
        })?;
        self.has_answered.fetch_or(!is_metadata, Ordering::Relaxed);
        if response.status() == StatusCode::NOT_IMPLEMENTED {
            // `object_store` repeats requests after every status from 500 on; this one is an answer for good.
            *response.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        }
        Ok(response.map(|body| {
            // Interrupted bodies are asked for again.
            HttpResponseBody::new(body.map_err(|cause| HttpError::new(HttpErrorKind::Interrupted, cause)))
        }))
    }
}

/// Returns whether `object_store` repeats a request after a failure.
///
/// A request whose answer is lost is repeated even if it may have been applied: all requests may be applied twice, and
/// a conditional put is settled by reading what is stored.
fn kind(cause: &Cause) -> HttpErrorKind {
    match cause {
        Cause::Unresolved { .. } | Cause::Unreachable(_) => HttpErrorKind::Connect,
        Cause::TimedOut { phase: Phase::Resolve | Phase::Connect | Phase::Secure, .. } => {
            HttpErrorKind::Connect
        }
        Cause::TimedOut { .. } => HttpErrorKind::Timeout,
        Cause::Broken(_) => HttpErrorKind::Request,
        _ => HttpErrorKind::Unknown,
    }
}
