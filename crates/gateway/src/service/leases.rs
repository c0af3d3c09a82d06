//! Requests for leases.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio::time::{Duration, Instant, timeout_at};

use super::handling::{Named, Service, WAIT_MAX, authorization, blocking, done, parse, small};
use super::reply::Reply;
use crate::error::GatewayError;
use crate::gateway::Signer;
use crate::lease::{Lease, Refused};
use crate::lease_path::LeasePath;
use crate::token::Token;
use crate::wire::{self, Answer};

/// A publisher waits in steps, so that its place in the queue is kept.
const STEP: Duration = Duration::from_secs(3);

/// Returns the leases that are held.
pub(super) async fn list(State(service): State<Arc<Service>>) -> Reply {
    let mut all = Map::new();
    for (_, lease) in service.gateway.leases() {
        all.insert(lease.path.to_string(), wire::lease_data(&lease));
    }
    Answer::ok().with("data", all).into()
}

/// Returns a lease.
pub(super) async fn show(State(service): State<Arc<Service>>, Named(token): Named) -> Result<Reply, Reply> {
    let lease = service.gateway.lease(&Token::named(&token))?;
    Ok(Answer::ok().with("data", wire::lease_data(&lease)).into())
}

/// Leases a directory.
pub(super) async fn acquire(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, Reply> {
    let body = small(body).await?;
    let signer = service.gateway.signer(authorization(&headers), &body)?;
    let request: wire::Acquire = parse(&body)?;
    Ok(acquired(&service, signer, request).await?.0.into())
}

async fn acquired(
    service: &Service,
    signer: Signer,
    request: wire::Acquire,
) -> Result<(Answer, Lease), GatewayError> {
    let gateway = service.gateway.clone();
    let work = tokio::task::spawn_blocking(move || gateway.acquire(&signer, &request));
    let (token, lease) = work.await.unwrap_or(Err(GatewayError::Failed))?;
    Ok((Answer::lease(token.secret(), lease.protocol), lease))
}

/// Adds the time that a lease lives, by which a publisher knows when to renew it.
fn with_life(service: &Service, answer: Answer, lease: &Lease) -> Answer {
    let life = lease.expires.0.saturating_sub(service.gateway.now().0).max(0) / 1000;
    answer.with("lease_seconds", life)
}

/// A request of Esker's publishers, which may wait.
#[derive(Deserialize)]
struct Waiting {
    /// Longest time to wait for other publishers.
    #[serde(default)]
    wait_seconds: u64,
}

/// Leases a directory, once the publishers that came before are done.
pub(super) async fn acquire_or_wait(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, Reply> {
    let body = small(body).await?;
    let signer = service.gateway.signer(authorization(&headers), &body)?;
    let request: wire::Acquire = parse(&body)?;
    let Waiting { wait_seconds } = parse(&body)?;
    let path = LeasePath::parse(&request.path).map_err(GatewayError::from)?;
    let until = Instant::now() + Duration::from_secs(wait_seconds).min(WAIT_MAX);
    let mut changes = service.gateway.changes();
    loop {
        changes.mark_unchanged();
        let publisher = (signer.name.clone(), request.hostname.clone());
        let is_next =
            service.gateway.queue().is_next((&publisher.0, &publisher.1), &path, service.gateway.now());
        let refused = match is_next {
            false => GatewayError::Queued,
            true => match acquired(&service, signer.clone(), request.clone()).await {
                Err(error @ GatewayError::Lease(Refused::Busy { .. })) => error,
                other => {
                    service.gateway.leave_queue((&publisher.0, &publisher.1), &path);
                    let (answer, lease) = other?;
                    return Ok(with_life(&service, answer, &lease).into());
                }
            },
        };
        if Instant::now() >= until {
            return Err(refused.into());
        }
        // A lease may also expire, which changes nothing that is watched.
        let _ = timeout_at(until.min(Instant::now() + STEP), changes.changed()).await;
    }
}

/// Returns the settings by which a publisher makes the same revision as the owner of the repository.
pub(super) async fn settings(
    State(service): State<Arc<Service>>,
    Named(token): Named,
    headers: HeaderMap,
) -> Result<Reply, Reply> {
    let signer = service.gateway.signer(authorization(&headers), token.as_bytes())?;
    let gateway = service.gateway.clone();
    let settings = blocking(move || gateway.settings(&signer, &Token::named(&token))).await?;
    Ok(Answer::ok().with("settings", serde_json::json!(settings)).into())
}

/// Gives up a lease.
pub(super) async fn give_up(
    State(service): State<Arc<Service>>,
    Named(token): Named,
    headers: HeaderMap,
) -> Result<Reply, Reply> {
    let signer = service.gateway.signer(authorization(&headers), token.as_bytes())?;
    let gateway = service.gateway.clone();
    blocking(move || gateway.give_up(&signer, &Token::named(&token))).await?;
    Ok(done())
}

/// Renews a lease.
pub(super) async fn renew(
    State(service): State<Arc<Service>>,
    Named(token): Named,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, Reply> {
    let signer = service.gateway.signer(authorization(&headers), token.as_bytes())?;
    let body = small(body).await?;
    let refresh = if body.trim_ascii().is_empty() { wire::Refresh::default() } else { parse(&body)? };
    let gateway = service.gateway.clone();
    let renew = move || gateway.renew(&signer, &Token::named(&token), refresh.expires_in_sec);
    let lease = blocking(renew).await?;
    let data: Value = wire::lease_data(&lease);
    Ok(with_life(&service, Answer::ok().with("data", data), &lease).into())
}
