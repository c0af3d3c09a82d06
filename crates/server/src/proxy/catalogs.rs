//! Fetches catalogs of a new revision ahead: the root, and nested ones whose predecessors are in the cache, because a
//! client asked for them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_format::catalog::Catalog;
use esker_format::compress::{Compression, decompress};
use esker_format::hash::ContentHash;
use esker_format::object::{ObjectKind, ObjectName};
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;

use super::failure::Failure;
use super::objects::{Object, Objects};
use super::place::Place;
use super::upstream::ObjectQuery;

/// Largest stored catalog that is read here.
const STORED_MAX: u64 = 32 << 20;
/// Largest catalog that is read here.
const PLAIN_MAX: u64 = 128 << 20;
/// Maximum number of catalogs fetched ahead for one revision.
const CATALOGS_MAX: usize = 1000;

/// Fetcher of catalogs.
pub(crate) struct Catalogs {
    /// One revision at a time: reading catalogs takes processor time and memory.
    turn: Semaphore,
    pub(crate) fetched: AtomicU64,
}

impl Catalogs {
    pub(crate) fn new() -> Self {
        Self { turn: Semaphore::new(1), fetched: AtomicU64::new(0) }
    }

    /// Fetches the root catalog of a new revision, and the catalogs below whose predecessors below `old` are cached.
    pub(crate) async fn follow(
        &self,
        objects: &Arc<Objects>,
        place: &Arc<Place>,
        old: Option<ContentHash>,
        root: ObjectQuery,
    ) {
        let _turn = self.turn.acquire().await;
        let newest = root.name.hash;
        let mut left = CATALOGS_MAX;
        let mut next = vec![(old, root)];
        while let Some((old, query)) = next.pop() {
            // A newer revision has its own task.
            let is_newest = place.files.head().is_none_or(|head| head.root == newest);
            if left == 0 || !is_newest {
                return;
            }
            left -= 1;
            let Ok((object, is_hit)) = objects.get(place, query).await else { continue };
            self.fetched.fetch_add(u64::from(!is_hit), Ordering::Relaxed);
            if let Some(old) = old {
                // A catalog that can't be read is fetched by the client that needs it.
                next.extend(changed(objects, old, object).await.unwrap_or_default());
            }
        }
    }
}

type Nested = HashMap<Vec<u8>, ContentHash>;

/// Returns the catalogs nested in `new` that differ from a cached one nested in `old`.
async fn changed(
    objects: &Arc<Objects>,
    old: ContentHash,
    new: Object,
) -> Option<Vec<(Option<ContentHash>, ObjectQuery)>> {
    let objects = objects.clone();
    let compare = move || {
        let name = ObjectName::new(old, ObjectKind::Catalog);
        let old = Object::of(&objects.cache, name, objects.cache.find(name).ok()??);
        let (before, now) = (nested(&old).ok()?, nested(&new).ok()?);
        let follow = |(path, hash): (Vec<u8>, ContentHash)| {
            let before = *before.get(&path)?;
            let (name, known) =
                (ObjectName::new(hash, ObjectKind::Catalog), ObjectName::new(before, ObjectKind::Catalog));
            let is_wanted = before != hash && objects.has(known);
            is_wanted.then(|| (Some(before), ObjectQuery::ahead(name, name.path())))
        };
        Some(now.into_iter().filter_map(follow).collect())
    };
    spawn_blocking(compare).await.ok()?
}

fn nested(catalog: &Object) -> Result<Nested, Failure> {
    let invalid = |error: &dyn std::fmt::Display| std::io::Error::other(error.to_string());
    let stored = catalog.read(STORED_MAX)?;
    let plain = decompress(&stored, Compression::Zlib, None, PLAIN_MAX).map_err(|error| invalid(&error))?;
    let catalog = Catalog::open(plain).map_err(|error| invalid(&error))?;
    let nested = catalog.nested().map_err(|error| invalid(&error))?;
    Ok(nested.into_iter().filter_map(|nested| Some((nested.path, nested.hash?))).collect())
}
