//! What all handlers share: the gateway, threads for work that blocks, and the parts of requests.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{FromRequestParts, Path};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use tokio::sync::Semaphore;

use super::reply::Reply;
use super::slots::Slots;
use crate::error::GatewayError;
use crate::gateway::Gateway;
use crate::wire::Answer;

/// Largest body of a request that is no payload.
const SMALL_MAX: usize = 1 << 20;
/// Longest time for which a request waits for a directory or for the commit of the same lease.
pub(super) const WAIT_MAX: Duration = Duration::from_secs(30);

/// What all handlers share.
pub(super) struct Service {
    pub(super) gateway: Arc<Gateway>,
    pub(super) uploads: Arc<Slots>,
    pub(super) commits: Arc<Semaphore>,
}

/// The part of a path that names a lease, a repository or a directory.
pub(super) struct Named(pub(super) String);

impl<S: Send + Sync> FromRequestParts<S> for Named {
    type Rejection = Reply;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Reply> {
        let name = Path::from_request_parts(parts, state).await;
        name.map(|Path(name)| Self(name)).map_err(|_| Reply::of_status(400, "the path is no text"))
    }
}

/// Runs work that blocks.
pub(super) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, GatewayError> + Send + 'static,
) -> Result<T, Reply> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done.map_err(Reply::from),
        Err(_) => Err(GatewayError::Failed.into()),
    }
}

/// Reads a body that is no payload.
pub(super) async fn small(body: Body) -> Result<Vec<u8>, Reply> {
    let read = axum::body::to_bytes(body, SMALL_MAX).await;
    read.map(Vec::from)
        .map_err(|_| Reply::of_status(400, "the request's body can't be read, or is too large"))
}

/// Parses the JSON of a request, whatever its type is said to be.
pub(super) fn parse<T: serde::de::DeserializeOwned>(text: &[u8]) -> Result<T, Reply> {
    serde_json::from_slice(text)
        .map_err(|error| Reply::of_status(400, &format!("the request's JSON can't be read: {error}")))
}

/// Returns the value of a header field.
pub(super) fn field<'h>(headers: &'h HeaderMap, name: &str) -> Option<&'h str> {
    headers.get(name)?.to_str().ok()
}

/// Returns the value of `Authorization`.
pub(super) fn authorization(headers: &HeaderMap) -> Option<&str> {
    field(headers, "authorization")
}

/// Answers that a request was carried out.
pub(super) fn done() -> Reply {
    Answer::ok().into()
}
