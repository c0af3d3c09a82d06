//! Signed requests to a gateway, repeated while it is away.

use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::header::{AUTHORIZATION, CONTENT_TYPE};
use axum::http::{Method, Request};
use bytes::{Bytes, BytesMut};
use esker_repository::GatewayFailure;
use esker_store::{Authorities, Client, ClientOptions, Dns, RequestThread, without_passwords};
use http_body_util::{BodyExt as _, Full};

use super::failure::{Failed, Heard, SignedUpload};
use crate::authorization::Authorization;
use crate::keys::{KeyError, Secret, plain_key};

/// Path of the interface that the reference's gateway has, too.
const INTERFACE: &str = "/api/v1";
/// Timeout for connecting.
const CONNECT: Duration = Duration::from_secs(10);
/// Time without progress after which a request fails; it is sent again then.
const STALL: Duration = Duration::from_secs(60);
/// Same for a request that can't be sent again.
const STALL_OF_COMMIT: Duration = Duration::from_secs(2 * 3600);
/// Keep-alive of idle connections.
const IDLE: Duration = Duration::from_secs(15);
/// Pause before a request is sent again; it doubles up to the longest one.
const PAUSE: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(5);
/// Attempts to store an object by a signed request; then it goes through the gateway.
const PUTS_MAX: u32 = 3;
/// Longest answer.
const ANSWER_MAX: usize = 16 << 20;

/// A gateway, and the key that a publisher shares with it.
pub struct GatewayAddress {
    base: String,
    key: String,
    secret: Secret,
    authorities: Authorities,
    patience: Duration,
}

impl GatewayAddress {
    /// Time for which requests are repeated while the gateway is away.
    pub const PATIENCE: Duration = Duration::from_secs(600);

    /// Reads a key file. The address may end with the path of the interface, as settings of CernVM-FS have it.
    pub fn new(url: &str, key: &Path, authorities: Authorities) -> Result<Self, KeyError> {
        let url = url.trim_end_matches('/');
        let base = url.strip_suffix(INTERFACE).unwrap_or(url).trim_end_matches('/').to_owned();
        let (key, secret) = plain_key(key)?;
        Ok(Self { base, key, secret: Secret::new(secret), authorities, patience: Self::PATIENCE })
    }

    /// Sets for how long requests are repeated.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }
}

/// A request, and what its signature is of.
pub(super) struct Wanted {
    pub(super) method: Method,
    pub(super) path: String,
    pub(super) input: Bytes,
    pub(super) body: Bytes,
    /// Length of the message in front of a pack.
    pub(super) message: Option<usize>,
}

impl Wanted {
    /// Returns a request of the common interface.
    pub(super) fn new(method: Method, path: &str, input: impl Into<Bytes>, body: impl Into<Bytes>) -> Self {
        Self {
            method,
            path: format!("{INTERFACE}{path}"),
            input: input.into(),
            body: body.into(),
            message: None,
        }
    }
}

/// The connections to a gateway.
pub(super) struct Requests {
    address: GatewayAddress,
    client: Arc<Client<Full<Bytes>>>,
    /// For requests that are sent once.
    patient: Arc<Client<Full<Bytes>>>,
}

impl Requests {
    pub(super) fn new(address: GatewayAddress) -> Self {
        let options = ClientOptions {
            authorities: address.authorities.clone(),
            dns: Dns::default(),
            connect: CONNECT,
            stall: STALL,
            idle: IDLE,
        };
        let patient = ClientOptions { stall: STALL_OF_COMMIT, ..options.clone() };
        Self { address, client: Client::new(options), patient: Client::new(patient) }
    }

    /// Returns the address for messages.
    pub(super) fn describe(&self) -> String {
        without_passwords(&self.address.base)
    }

    /// Returns the time for which requests are repeated.
    pub(super) fn patience(&self) -> Duration {
        self.address.patience
    }

    /// Sends a request until there is an answer.
    pub(super) async fn send(&self, wanted: &Wanted) -> Result<Heard, Failed> {
        self.send_within(wanted, self.address.patience).await
    }

    /// Sends a request until there is an answer, for some time.
    pub(super) async fn send_within(&self, wanted: &Wanted, patience: Duration) -> Result<Heard, Failed> {
        self.send_often(wanted, patience, PAUSE_MAX).await
    }

    /// Sends a request as `send_within` does, with pauses of a maximum.
    pub(super) async fn send_often(
        &self,
        wanted: &Wanted,
        patience: Duration,
        longest: Duration,
    ) -> Result<Heard, Failed> {
        let begun = Instant::now();
        for round in 0.. {
            let is_late = begun.elapsed() >= patience;
            match self.try_send(&self.client, wanted).await {
                Ok(heard) if heard.is_for_later() && !is_late => {}
                Err(Failed::Lost(text)) if !is_late => {
                    tracing::debug!(round, path = wanted.path, "no answer: {text}");
                }
                other => return other,
            }
            pause_up_to(round, longest).await;
        }
        unreachable!("the rounds end with the patience")
    }

    /// Sends a request once, and waits for a long time.
    pub(super) async fn send_once(&self, wanted: &Wanted) -> Result<Heard, Failed> {
        self.try_send(&self.patient, wanted).await
    }

    /// Stores an object by a signed request; returns true if the storage accepted it.
    pub(super) async fn put(&self, upload: &SignedUpload, bytes: &Bytes) -> bool {
        for round in 0..PUTS_MAX {
            if round > 0 {
                pause(round).await;
            }
            let mut request = Request::builder().method(Method::PUT).uri(&upload.url);
            for (name, value) in &upload.fields {
                request = request.header(name, value);
            }
            let Ok(request) = request.body(Full::new(bytes.clone())) else { return false };
            match self.client.send(request).await {
                Ok(response) if response.status().is_success() => return true,
                Ok(response) => {
                    let status = response.status();
                    tracing::debug!("object {} is refused with status {status}", upload.name);
                    if !status.is_server_error() {
                        return false;
                    }
                }
                Err(cause) => tracing::debug!("object {} can't be stored: {}", upload.name, told(&cause)),
            }
        }
        false
    }

    async fn try_send(&self, client: &Arc<Client<Full<Bytes>>>, wanted: &Wanted) -> Result<Heard, Failed> {
        let GatewayAddress { base, key, secret, .. } = &self.address;
        let authorization = Authorization::sign(key, secret.text().as_bytes(), &wanted.input);
        let mut request = Request::builder()
            .method(wanted.method.clone())
            .uri(format!("{base}{}", wanted.path))
            .header(AUTHORIZATION, authorization.header())
            .header(CONTENT_TYPE, "application/octet-stream");
        if let Some(message) = wanted.message {
            request = request.header("Message-Size", message);
        }
        let request = request.body(Full::new(wanted.body.clone()));
        let request = request.map_err(|error| GatewayFailure::Unavailable(error.to_string()))?;
        let response = client.send(request).await;
        let lost = |cause: esker_store::Cause| match cause.may_pass() {
            true => Failed::Lost(told(&cause)),
            false => GatewayFailure::Unavailable(told(&cause)).into(),
        };
        let response = response.map_err(lost)?;
        let status = response.status();
        let mut body = response.into_body();
        let mut bytes = BytesMut::new();
        while let Some(frame) = body.frame().await {
            if let Some(data) = frame.map_err(lost)?.data_ref() {
                bytes.extend_from_slice(data);
            }
            if bytes.len() > ANSWER_MAX {
                return Err(GatewayFailure::Unavailable("its answer is too long".to_owned()).into());
            }
        }
        let heard = Heard::parse(&bytes);
        if status.is_server_error() {
            return Err(Failed::Lost(format!(
                "it answers with status {}: {}",
                status.as_u16(),
                heard.reason
            )));
        }
        Ok(heard)
    }
}

fn told(cause: &esker_store::Cause) -> String {
    use std::error::Error as _;
    cause.source().map_or_else(|| cause.to_string(), |source| format!("{cause}: {source}"))
}

/// Waits before a repetition: longer each time, and not as long as others that failed at the same time.
pub(super) async fn pause(round: u32) {
    pause_up_to(round, PAUSE_MAX).await;
}

async fn pause_up_to(round: u32, longest: Duration) {
    let pause = PAUSE.saturating_mul(1 << round.min(10)).min(longest);
    let random = RandomState::new().hash_one(round) % 1024;
    tokio::time::sleep(pause / 2 + pause.saturating_mul(random as u32) / 2048).await;
}

/// Starts the thread of the connections.
pub(super) fn start_thread() -> Result<RequestThread, GatewayFailure> {
    RequestThread::start("esker-gateway")
        .map_err(|error| GatewayFailure::Unavailable(format!("a thread can't be started: {error}")))
}
