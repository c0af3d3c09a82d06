//! Serves objects: from the cache, or fetched once however many clients ask.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use esker_format::object::ObjectName;
use esker_store::Stored;
use parking_lot::Mutex;
use tokio::task::spawn_blocking;

use super::disk::{DiskCache, Found, Incoming};
use super::failure::Failure;
use super::flights::Announcer;
use super::place::Place;
use super::spool::hand_out;
use super::upstream::{ObjectQuery, Upstream};
use crate::transport::chunk;

/// Verified bytes of an object.
#[derive(Clone, Debug)]
pub(crate) enum Object {
    Bytes(Bytes),
    File(Arc<File>, u64),
}

impl Object {
    /// Returns the number of bytes.
    pub(crate) fn len(&self) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes.len() as u64,
            Self::File(_, len) => *len,
        }
    }
}

impl Object {
    /// Reads all bytes of a small object.
    pub(crate) fn read(&self, limit: u64) -> std::io::Result<Bytes> {
        if self.len() > limit {
            return Err(std::io::ErrorKind::FileTooLarge.into());
        }
        match self {
            Self::Bytes(bytes) => Ok(bytes.clone()),
            Self::File(file, len) => {
                let mut bytes = vec![0; usize::try_from(*len).unwrap_or(usize::MAX)];
                file.read_exact_at(&mut bytes, 0)?;
                Ok(bytes.into())
            }
        }
    }
}

impl Object {
    /// Returns an object of the cache, which is not evicted as long as this is open.
    pub(crate) fn of(cache: &DiskCache, name: ObjectName, found: Found) -> Self {
        Self::File(cache.in_use.open(name, found.file, found.len), found.len)
    }
}

/// Counters of objects.
#[derive(Debug, Default)]
pub(crate) struct ObjectCounters {
    pub(crate) hits: AtomicU64,
    pub(crate) misses: AtomicU64,
    /// Objects fetched from upstream servers and peers, and their bytes.
    pub(crate) fetched: AtomicU64,
    pub(crate) fetched_bytes: AtomicU64,
    /// Failed requests for objects, those for missing ones excluded.
    pub(crate) failed: AtomicU64,
    /// Objects that were passed on and not stored, because they are too large.
    pub(crate) passed_on: AtomicU64,
}

/// The cache, and the client that fills it.
pub(crate) struct Objects {
    pub(crate) cache: Arc<DiskCache>,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) counters: ObjectCounters,
}

impl Objects {
    /// Returns an object and whether it was in the cache.
    pub(crate) async fn get(
        self: &Arc<Self>,
        place: &Arc<Place>,
        query: ObjectQuery,
    ) -> Result<(Object, bool), Failure> {
        if !query.fresh {
            match self.cache.find(query.name) {
                Ok(Some(found)) if found.is_trusted => {
                    self.counters.hits.fetch_add(1, Ordering::Relaxed);
                    return Ok((Object::of(&self.cache, query.name, found), true));
                }
                Ok(_) => {}
                Err(error) => tracing::warn!("can't read {} from the cache: {error}", query.name),
            }
            if place.is_missing(query.name) {
                return Err(Failure::Missing);
            }
        }
        self.counters.misses.fetch_add(1, Ordering::Relaxed);
        let (objects, flown, name) = (self.clone(), place.clone(), query.name);
        let start = |announcer| async move { objects.fly(&flown, query, announcer).await };
        place.objects.join(name, start).await.map(|object| (object, false))
    }

    /// Returns true if the object is in the cache.
    pub(crate) fn has(&self, name: ObjectName) -> bool {
        matches!(self.cache.find(name), Ok(Some(_)))
    }

    /// Verifies a doubtful object in the cache, or fetches it; stores it after the requests have their answer.
    async fn fly(&self, place: &Place, query: ObjectQuery, announcer: Announcer<ObjectName, Object>) {
        if let Some(object) = self.verified(query.name).await {
            return announcer.give(Ok(object));
        }
        match self.upstream.object(place, &query).await {
            Ok(stored) => {
                self.counters.fetched.fetch_add(1, Ordering::Relaxed);
                self.counters.fetched_bytes.fetch_add(stored.len(), Ordering::Relaxed);
                let (cache, name) = (self.cache.clone(), query.name);
                // A failure of the task drops the announcer, which is the requests' failure.
                let _ = spawn_blocking(move || keep(&cache, name, stored, &announcer)).await;
            }
            Err(error) => {
                let failure = Failure::from(error);
                if matches!(failure, Failure::Missing) {
                    place.miss(query.name);
                } else if !failure.is_too_large() {
                    self.counters.failed.fetch_add(1, Ordering::Relaxed);
                    tracing::warn!("{}: {failure}", place.title());
                }
                announcer.finish(Err(failure));
            }
        }
    }

    /// Returns the object if it is in the cache and undamaged.
    async fn verified(&self, name: ObjectName) -> Option<Object> {
        let cache = self.cache.clone();
        let verify = move || match cache.find(name)? {
            Some(found) => cache.verify(name, found),
            None => Ok(None),
        };
        match spawn_blocking(verify).await.ok()? {
            Ok(found) => found.map(|found| Object::of(&self.cache, name, found)),
            Err(error) => {
                tracing::warn!("can't verify {name} in the cache: {error}");
                None
            }
        }
    }
}

/// Hands out verified bytes and stores them. All but small ones are stored first and sent from the file, because the slowest
/// client determines how long they are needed.
fn keep(cache: &Arc<DiskCache>, name: ObjectName, stored: Stored, announcer: &Announcer<ObjectName, Object>) {
    let len = stored.len();
    if len <= chunk::CHUNK_MAX && !chunk::is_scarce() {
        let bytes = match stored.into_bytes() {
            Ok(bytes) => chunk::hold(bytes),
            Err(error) => return announcer.give(Err(error.into())),
        };
        announcer.give(Ok(Object::Bytes(bytes.clone())));
        return note(name, cache.put(name, Incoming::Bytes(bytes)));
    }
    let draft = match cache.begin(len) {
        Ok(Some(draft)) => draft,
        other => {
            note(name, other.map(|_| false));
            let handed_on = hand_out(cache, stored, |_| ());
            return announcer.give(handed_on.map(|(file, len)| Object::File(file, len)));
        }
    };
    let put = cache.finish(draft, name, Incoming::Reader(stored.into_reader(), len));
    let found = match &put {
        Ok(()) => cache.find(name),
        Err(error) => Err(error.kind().into()),
    };
    note(name, put.map(|()| true));
    announcer.give(match found {
        Ok(Some(found)) => Ok(Object::of(cache, name, found)),
        Ok(None) => Err(std::io::Error::from(std::io::ErrorKind::NotFound).into()),
        Err(error) => Err(error.into()),
    });
}

fn note(name: ObjectName, put: std::io::Result<bool>) {
    match put {
        Ok(true) => {}
        // A full disk would else fill the log, too.
        _ if !is_due() => {}
        Ok(false) => tracing::warn!("the cache has no room for {name}"),
        Err(error) => {
            tracing::warn!("can't store {name} in the cache, nor others since the last warning: {error}")
        }
    }
}

/// Returns true once a minute.
pub(super) fn is_due() -> bool {
    static LAST: Mutex<Option<Instant>> = Mutex::new(None);
    let mut last = LAST.lock();
    let is_due = last.is_none_or(|last| last.elapsed() >= Duration::from_secs(60));
    if is_due {
        *last = Some(Instant::now());
    }
    is_due
}
