//! Requests to publish.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use tokio::time::{Instant, timeout_at};

use super::handling::{Named, Service, WAIT_MAX, authorization, parse, small};
use super::reply::Reply;
use crate::error::GatewayError;
use crate::lease::Request;
use crate::token::Token;
use crate::wire::{self, Answer};

/// Publishes what a publisher has built. The same request again waits for the one under way, and gets its answer.
pub(super) async fn commit(
    State(service): State<Arc<Service>>,
    Named(token): Named,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, Reply> {
    let signer = service.gateway.signer(authorization(&headers), token.as_bytes())?;
    let request: wire::Commit = parse(&small(body).await?)?;
    let (token, request) = (Token::named(&token), Request::from(request));
    let until = Instant::now() + WAIT_MAX;
    let mut changes = service.gateway.changes();
    loop {
        changes.mark_unchanged();
        let permit = service.commits.clone().acquire_owned().await;
        let (gateway, signer, token, request) =
            (service.gateway.clone(), signer.clone(), token.clone(), request.clone());
        let work = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            gateway.commit(&signer, &token, &request)
        });
        match work.await {
            Ok(Ok(published)) => {
                let answer = Answer::committed(published.revision);
                return Ok(match published.dropped.is_empty() {
                    true => answer,
                    false => answer.with("dropped", published.dropped),
                }
                .into());
            }
            Ok(Err(GatewayError::UnderWay)) if Instant::now() < until => {
                let _ = timeout_at(until, changes.changed()).await;
            }
            Ok(Err(error)) => return Err(error.into()),
            Err(_) => return Err(GatewayError::Failed.into()),
        }
    }
}
