//! Requests that send objects, or ask which ones are there.

use std::io::{self, Read};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use bytes::{Buf as _, Bytes};
use esker_format::object::ObjectName;
use esker_store::SignedPut;
use http_body_util::BodyExt as _;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc::{Receiver, channel};

use super::handling::{Named, Service, authorization, blocking, done, field, parse, small};
use super::reply::Reply;
use crate::error::GatewayError;
use crate::gateway::Signer;
use crate::token::Token;
use crate::wire::{self, Answer};

/// Largest JSON in front of a pack.
const MESSAGE_MAX: usize = 16 << 10;
/// Parts of a body that wait for the thread which stores them.
const PARTS: usize = 4;
/// Bytes that are read and thrown away after a refusal.
///
/// The reference's publisher reads no answer before it has sent its pack.
const DRAINED_MAX: u64 = 1 << 30;

/// Receives a payload whose leading JSON names the lease.
pub(super) async fn with_token_in_body(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, Reply> {
    receive(&service, None, &headers, body).await
}

/// Receives a payload of a lease that the path names.
pub(super) async fn with_token_in_path(
    State(service): State<Arc<Service>>,
    Named(token): Named,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, Reply> {
    receive(&service, Some(token), &headers, body).await
}

async fn receive(
    service: &Service,
    token: Option<String>,
    headers: &HeaderMap,
    mut body: Body,
) -> Result<Reply, Reply> {
    let stored = store(service, token, headers, &mut body).await;
    if stored.is_err() {
        drain(&mut body).await;
    }
    stored
}

async fn store(
    service: &Service,
    token: Option<String>,
    headers: &HeaderMap,
    body: &mut Body,
) -> Result<Reply, Reply> {
    let len = field(headers, "message-size").and_then(|text| text.trim().parse().ok());
    let len: usize = len.ok_or_else(|| Reply::of_status(400, "the request has no field Message-Size"))?;
    if len > MESSAGE_MAX {
        return Err(Reply::of_status(400, "the message in front of the pack is too long"));
    }
    let (message, rest) = message(body, len).await?;
    let input = token.as_ref().map_or(&*message, |token| token.as_bytes());
    let signer = service.gateway.signer(authorization(headers), input)?;
    let payload: wire::Payload = parse(&message)?;
    let token = Token::named(token.as_ref().unwrap_or(&payload.session_token));
    submit(service, signer, token, payload, rest, body).await
}

/// Reads the message in front of the pack, and what arrived with it.
async fn message(body: &mut Body, len: usize) -> Result<(Bytes, Bytes), Reply> {
    let mut received = Vec::new();
    while received.len() < len {
        match part(body).await {
            Some(bytes) => received.extend_from_slice(&bytes),
            None => return Err(Reply::of_status(400, "the request ends in the middle of its message")),
        }
    }
    let mut received = Bytes::from(received);
    let rest = received.split_off(len);
    Ok((received, rest))
}

/// Returns the next part of a body; none at its end, or if the client stopped.
async fn part(body: &mut Body) -> Option<Bytes> {
    loop {
        let frame = body.frame().await?.ok()?;
        if let Ok(bytes) = frame.into_data() {
            return Some(bytes);
        }
    }
}

/// Hands the pack to a thread that stores it, as fast as that takes it.
async fn submit(
    service: &Service,
    signer: Signer,
    token: Token,
    payload: wire::Payload,
    rest: Bytes,
    body: &mut Body,
) -> Result<Reply, Reply> {
    let slot = service.uploads.take(&signer.name).await;
    let (sender, receiver) = channel(PARTS);
    let gateway = service.gateway.clone();
    let storing = tokio::spawn(blocking(move || {
        let _slot = slot;
        gateway.submit(&signer, &token, &payload, &mut Received { receiver, part: rest })
    }));
    // The thread ends early if it refuses the payload.
    while let Some(bytes) = part(body).await
        && sender.send(bytes).await.is_ok()
    {}
    drop(sender);
    match storing.await {
        Ok(stored) => stored.map(|_| done()),
        Err(_) => Err(GatewayError::Failed.into()),
    }
}

/// Reads the rest of a body that is refused.
async fn drain(body: &mut Body) {
    let mut left = DRAINED_MAX;
    while let Some(bytes) = part(body).await {
        match left.checked_sub(bytes.len() as u64) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// A body as a thread reads it.
struct Received {
    receiver: Receiver<Bytes>,
    part: Bytes,
}

impl Read for Received {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        while self.part.is_empty() {
            match self.receiver.blocking_recv() {
                Some(part) => self.part = part,
                None => return Ok(0),
            }
        }
        let count = self.part.len().min(to.len());
        self.part.copy_to_slice(to.get_mut(..count).unwrap_or_default());
        Ok(count)
    }
}

/// Returns a small body that is signed with the token in front, and its signer.
async fn signed(
    service: &Service,
    token: &str,
    headers: &HeaderMap,
    body: Body,
) -> Result<(Signer, Vec<u8>), Reply> {
    let body = small(body).await?;
    let signer = service.gateway.signer(authorization(headers), &[token.as_bytes(), &body].concat())?;
    Ok((signer, body))
}

/// Answers which of the named objects the storage lacks. The body has one name in a line, and is signed with the token in front.
pub(super) async fn missing(
    State(service): State<Arc<Service>>,
    Named(token): Named,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, Reply> {
    let (signer, body) = signed(&service, &token, &headers, body).await?;
    let names = lines(&body, ObjectName::parse)?;
    // What publishers stored themselves may have to be read.
    let slot = match service.gateway.signs_puts() {
        true => Some(service.uploads.take(&signer.name).await),
        false => None,
    };
    let gateway = service.gateway.clone();
    let missing = blocking(move || {
        let _slot = slot;
        gateway.missing(&signer, &Token::named(&token), &names)
    });
    let missing: Vec<String> = missing.await?.iter().map(ToString::to_string).collect();
    Ok(Answer::ok().with("missing", missing).into())
}

/// Answers with signed URLs by which a publisher stores objects itself. The body has the name and the length of one in a line, and is
/// signed with the token in front.
pub(super) async fn signed_puts(
    State(service): State<Arc<Service>>,
    Named(token): Named,
    headers: HeaderMap,
    body: Body,
) -> Result<Reply, Reply> {
    let (signer, body) = signed(&service, &token, &headers, body).await?;
    let object = |line: &str| {
        let (name, len) = line.split_once(' ')?;
        Some((ObjectName::parse(name)?, len.parse().ok()?))
    };
    let objects = lines(&body, object)?;
    let gateway = service.gateway.clone();
    let puts = blocking(move || gateway.signed_puts(&signer, &Token::named(&token), &objects)).await?;
    let put = |(name, put): (ObjectName, SignedPut)| {
        let fields: Map<String, Value> =
            put.fields.into_iter().map(|(name, value)| (name, value.into())).collect();
        json!({ "name": name.to_string(), "url": put.url, "fields": fields })
    };
    Ok(Answer::ok().with("uploads", puts.into_iter().map(put).collect::<Vec<_>>()).into())
}

/// Reads the lines of a question for objects.
fn lines<T>(body: &[u8], parse: impl Fn(&str) -> Option<T>) -> Result<Vec<T>, Reply> {
    let lines = str::from_utf8(body).ok().and_then(|text| text.lines().map(parse).collect());
    lines.ok_or_else(|| Reply::of_status(400, "a line is no name of an object"))
}
