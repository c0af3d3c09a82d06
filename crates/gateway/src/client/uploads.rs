//! Objects on their way to a gateway: collected into packs, of which several are sent at once.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use axum::http::Method;
use bytes::Bytes;
use esker_format::object::ObjectName;
use esker_repository::GatewayFailure;
use esker_store::{Put, RequestThread};
use parking_lot::Mutex;
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;

use super::failure::{Failed, SignedUpload};
use super::requests::Wanted;
use super::session::Leased;
use crate::gateway::NAMES_MAX;
use crate::pack::{PackHeader, PackedObject};

/// Bytes from which a batch is sent.
const BATCH: usize = 16 << 20;
/// Number of batches that are sent at once; one with a large object counts as several.
const AT_ONCE: usize = 4;
/// Unit in which bytes on their way are counted.
const UNIT: usize = 1 << 20;
/// Number of units that may be on their way.
const UNITS: u32 = (AT_ONCE * BATCH / UNIT) as u32;
/// Length from which an object is stored without the gateway, if it signs a request for that.
const STORED_FROM: u64 = 64 << 10;
/// Number of objects of a batch that are stored so at once.
const STORED_AT_ONCE: usize = 8;

/// Objects that are sent together.
#[derive(Default)]
struct Batch {
    objects: Vec<PackedObject>,
    bytes: Vec<u8>,
}

#[derive(Default)]
struct Objects {
    batch: Batch,
    /// Objects that were put.
    sent: HashSet<ObjectName>,
    /// Objects that are not put, because they should be stored already.
    expected: BTreeSet<ObjectName>,
}

/// The objects of a session.
pub(super) struct Uploads {
    leased: Arc<Leased>,
    thread: Arc<RequestThread>,
    objects: Mutex<Objects>,
    room: Arc<Semaphore>,
    failed: Arc<Mutex<Option<GatewayFailure>>>,
}

impl Uploads {
    pub(super) fn new(leased: Arc<Leased>, thread: Arc<RequestThread>) -> Self {
        let room = Arc::new(Semaphore::new(UNITS as usize));
        Self { leased, thread, objects: Mutex::default(), room, failed: Arc::default() }
    }

    /// Takes an object. Blocks while too much is on its way.
    pub(super) fn put(&self, name: &ObjectName, stored: &[u8]) -> Result<Put, GatewayFailure> {
        self.check()?;
        let full = {
            let mut objects = self.objects.lock();
            if !objects.sent.insert(*name) {
                return Ok(Put::Present);
            }
            let batch = &mut objects.batch;
            batch.objects.push(PackedObject { name: *name, len: stored.len() as u64 });
            batch.bytes.extend_from_slice(stored);
            let is_full = batch.bytes.len() >= BATCH || batch.objects.len() >= NAMES_MAX;
            is_full.then(|| mem::take(batch))
        };
        full.map_or(Ok(()), |batch| self.start(batch))?;
        Ok(Put::Stored)
    }

    /// Returns true if an object was sent. One of an earlier session is expected to be stored, if that can be asked for.
    pub(super) fn expect(&self, name: &ObjectName) -> bool {
        let mut objects = self.objects.lock();
        if !objects.sent.contains(name) && self.leased.is_esker {
            objects.expected.insert(*name);
        }
        objects.sent.contains(name) || self.leased.is_esker
    }

    /// Waits until all objects are stored.
    pub(super) fn flush(&self) -> Result<(), GatewayFailure> {
        let batch = mem::take(&mut self.objects.lock().batch);
        if !batch.objects.is_empty() {
            self.start(batch)?;
        }
        drop(self.reserve(UNITS)?);
        self.check()
    }

    /// Fails if objects that were expected to be stored are not.
    pub(super) fn check_expected(&self) -> Result<(), GatewayFailure> {
        let expected = mem::take(&mut self.objects.lock().expected);
        let expected: Vec<ObjectName> = expected.into_iter().collect();
        let mut missing = 0;
        for names in expected.chunks(NAMES_MAX) {
            let found = self.thread.wait_for(missing_of(&self.leased, names));
            missing += found.map_err(Failed::into_failure)?.len();
        }
        if missing > 0 { Err(GatewayFailure::Lacks(missing as u64)) } else { Ok(()) }
    }

    /// Forgets what was sent, because the storage has lost some of it.
    pub(super) fn forget(&self) {
        self.objects.lock().sent.clear();
    }

    fn check(&self) -> Result<(), GatewayFailure> {
        self.failed.lock().clone().map_or(Ok(()), Err)
    }

    fn reserve(&self, units: u32) -> Result<OwnedSemaphorePermit, GatewayFailure> {
        let reserved = self.thread.wait_for(async {
            let permit = self.room.clone().acquire_many_owned(units).await;
            Ok::<_, Failed>(permit.expect("the room for objects is never closed"))
        });
        reserved.map_err(Failed::into_failure)
    }

    /// Sends a batch on the thread of the connections, once there is room for it.
    fn start(&self, batch: Batch) -> Result<(), GatewayFailure> {
        let units = u32::try_from(batch.bytes.len() / UNIT).unwrap_or(UNITS);
        // The reference's gateway takes one pack after the other.
        let units = if self.leased.is_esker { units.clamp(1, UNITS) } else { UNITS };
        let permit = self.reserve(units)?;
        let (leased, failed) = (self.leased.clone(), self.failed.clone());
        self.thread.start_task(async move {
            if let Err(failure) = send(leased, batch).await {
                failed.lock().get_or_insert(failure.into_failure());
            }
            drop(permit);
        });
        Ok(())
    }
}

/// Sends the objects of a batch that the gateway lacks.
async fn send(leased: Arc<Leased>, batch: Batch) -> Result<(), Failed> {
    let Batch { mut objects, bytes } = batch;
    let mut bytes = Bytes::from(bytes);
    if leased.is_esker {
        let names: Vec<ObjectName> = objects.iter().map(|object| object.name).collect();
        let mut missing = missing_of(&leased, &names).await?;
        let stored = store(&leased, &missing, &objects, &bytes).await?;
        missing.retain(|name| !stored.contains(name));
        if missing.len() < objects.len() {
            (objects, bytes) = only(&missing, &objects, &bytes);
        }
    }
    if objects.is_empty() {
        return Ok(());
    }
    let (text, digest) = PackHeader { objects }.to_text();
    let message = json!({
        "session_token": leased.token,
        "payload_digest": digest,
        "header_size": text.len().to_string(),
        "api_version": "2",
    });
    let message = message.to_string();
    let body = Bytes::from([message.as_bytes(), text.as_bytes(), &bytes].concat());
    drop(bytes);
    let (input, message) = (body.slice(..message.len()), Some(message.len()));
    let wanted = Wanted { message, ..Wanted::new(Method::POST, "/payloads", input, body) };
    let heard = leased.requests.send(&wanted).await?;
    if heard.is_ok() { Ok(()) } else { Err(leased.refused(heard).into()) }
}

/// Returns the objects of a batch with their bytes.
fn with_bytes<'o>(
    objects: &'o [PackedObject],
    bytes: &'o Bytes,
) -> impl Iterator<Item = (&'o PackedObject, Bytes)> {
    let mut rest = bytes.clone();
    objects.iter().map(move |object| {
        let len = usize::try_from(object.len).unwrap_or(usize::MAX).min(rest.len());
        (object, rest.split_to(len))
    })
}

/// Returns some of the objects with their bytes.
fn only(wanted: &HashSet<ObjectName>, objects: &[PackedObject], bytes: &Bytes) -> (Vec<PackedObject>, Bytes) {
    let (mut kept, mut kept_bytes) = (Vec::new(), Vec::new());
    for (object, own) in with_bytes(objects, bytes).filter(|(object, _)| wanted.contains(&object.name)) {
        kept.push(*object);
        kept_bytes.extend_from_slice(&own);
    }
    (kept, kept_bytes.into())
}

/// Stores the large ones of the missing objects by requests that the gateway has signed, if it does. Returns those that are stored;
/// the others go through the gateway.
async fn store(
    leased: &Arc<Leased>,
    missing: &HashSet<ObjectName>,
    objects: &[PackedObject],
    bytes: &Bytes,
) -> Result<Vec<ObjectName>, Failed> {
    let is_large = |object: &PackedObject| {
        object.len >= STORED_FROM && object.name.kind.is_content() && missing.contains(&object.name)
    };
    let large: Vec<_> = with_bytes(objects, bytes).filter(|(object, _)| is_large(object)).collect();
    if large.is_empty() || !leased.signs_puts.load(Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let body: String = large.iter().map(|(object, _)| format!("{} {}\n", object.name, object.len)).collect();
    let heard = leased.requests.send(&question(leased, "uploads", body)).await?;
    let signed: HashMap<String, SignedUpload> =
        heard.uploads.into_iter().map(|upload| (upload.name.clone(), upload)).collect();
    let (mut sending, mut sent) = (JoinSet::new(), Vec::new());
    for (object, own) in large {
        let Some(upload) = signed.get(&object.name.to_string()).cloned() else { continue };
        if sending.len() >= STORED_AT_ONCE {
            sent.extend(sending.join_next().await);
        }
        let (leased, name) = (leased.clone(), object.name);
        sending.spawn(async move { leased.requests.put(&upload, &own).await.then_some(name) });
    }
    sent.extend(sending.join_all().await.into_iter().map(Ok));
    let sent: Vec<ObjectName> = sent.into_iter().filter_map(|name| name.ok().flatten()).collect();
    if sent.is_empty() {
        // The storage can't be reached from here, or the gateway signs nothing.
        leased.signs_puts.store(false, Ordering::Relaxed);
        return Ok(sent);
    }
    let lacking = missing_of(leased, &sent).await?;
    Ok(sent.into_iter().filter(|name| !lacking.contains(name)).collect())
}

/// Returns those of some objects that the storage lacks.
async fn missing_of(leased: &Leased, names: &[ObjectName]) -> Result<HashSet<ObjectName>, Failed> {
    let body: String = names.iter().map(|name| format!("{name}\n")).collect();
    let heard = leased.requests.send(&question(leased, "missing", body)).await?;
    match heard.is_ok() {
        true => Ok(heard.missing.iter().filter_map(|name| ObjectName::parse(name)).collect()),
        false => Err(leased.refused(heard).into()),
    }
}

/// Returns a question about objects, which is signed with the token in front.
fn question(leased: &Leased, about: &str, body: String) -> Wanted {
    let path = format!("/api/esker/v1/leases/{}/{about}", leased.token);
    let input = format!("{}{body}", leased.token);
    Wanted { path, ..Wanted::new(Method::POST, "", input, body) }
}
