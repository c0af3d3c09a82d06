//! Tracks the files that the kernel references, and the objects of which they consist.
//!
//! A mount holds each file that it returned to the kernel; this finds the files of an object before the cache evicts
//! it. Directories and links consist of no object and are not recorded.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use esker_format::catalog::Chunk;
use esker_store::{CacheKey, Counter};
use esker_vfs::{Kind, Node, NodeKey};
use parking_lot::{Condvar, Mutex};

use crate::payload::NodeInfo;

/// The files in use. Finding an entry takes no lock; only files with the same content share one.
#[derive(Default)]
pub(crate) struct OpenFiles {
    /// Files that are one object, by their object.
    whole: papaya::HashMap<CacheKey, Arc<Holders>>,
    /// Chunked files, which are few and not indexed by chunk.
    chunked: papaya::HashMap<NodeKey, ChunkedFile>,
    /// Number of files in `whole` that came, and that left.
    came: Counter,
    left: Counter,
    released: Released,
}

/// Files with the same object as content.
#[derive(Default)]
struct Holders(Mutex<Files>);

#[derive(Default)]
struct Files {
    /// True once the last file was removed, and this entry from the map.
    closed: bool,
    files: HashMap<NodeKey, (Node, u32)>,
}

/// A chunked file in use; its chunks stay in memory, even if its catalog is detached.
#[derive(Clone)]
struct ChunkedFile {
    node: Node,
    holds: u32,
    chunks: Option<Arc<[Chunk]>>,
}

/// Notifies evictions that wait for the release of files.
#[derive(Default)]
struct Released {
    /// Number of waiting evictions. Usually none, and a release takes no lock.
    waiting: AtomicUsize,
    turn: Mutex<()>,
    changed: Condvar,
}

impl OpenFiles {
    /// Records a use of a file. `chunks` is called once for each chunked file.
    pub(crate) fn hold(&self, node: &Node, chunks: impl Fn() -> Option<Arc<[Chunk]>>) {
        match part(node) {
            Some(Part::Whole(key)) => self.hold_whole(key, node),
            Some(Part::Chunked) => {
                let chunked = self.chunked.pin();
                let new = || ChunkedFile { node: *node, holds: 1, chunks: chunks() };
                chunked.update_or_insert_with(
                    node.key,
                    |file| ChunkedFile { holds: file.holds.saturating_add(1), ..file.clone() },
                    new,
                );
            }
            None => {}
        }
    }

    fn hold_whole(&self, key: CacheKey, node: &Node) {
        let whole = self.whole.pin();
        loop {
            let holders = whole.get_or_insert_with(key, Arc::default);
            let mut files = holders.0.lock();
            if files.closed {
                drop(files);
                // The thread that closed it is about to remove it; removing it here avoids a wait.
                let _ = whole.remove_if(&key, |_, known| Arc::ptr_eq(known, holders));
                continue;
            }
            let (_, holds) = files.files.entry(node.key).or_insert((*node, 0));
            if *holds == 0 {
                self.came.count();
            }
            *holds = holds.saturating_add(1);
            return;
        }
    }

    /// Ends one use of a file.
    pub(crate) fn release(&self, node: &Node) {
        match part(node) {
            Some(Part::Whole(key)) => self.release_whole(key, node),
            Some(Part::Chunked) => {
                self.chunked.pin().compute(node.key, |entry| match entry {
                    Some((_, file)) if file.holds > 1 => {
                        papaya::Operation::Insert(ChunkedFile { holds: file.holds - 1, ..file.clone() })
                    }
                    Some(_) => papaya::Operation::Remove,
                    None => papaya::Operation::Abort(()),
                });
            }
            None => return,
        }
        if self.released.waiting.load(Ordering::SeqCst) > 0 {
            // Taking the lock orders this with a waiter that has checked and is about to sleep.
            drop(self.released.turn.lock());
            self.released.changed.notify_all();
        }
    }

    fn release_whole(&self, key: CacheKey, node: &Node) {
        let whole = self.whole.pin();
        let Some(holders) = whole.get(&key) else { return };
        let mut files = holders.0.lock();
        if let Some((_, holds)) = files.files.get_mut(&node.key) {
            *holds -= 1;
            if *holds == 0 {
                files.files.remove(&node.key);
                self.left.count();
            }
        }
        if files.files.is_empty() {
            files.closed = true;
            drop(files);
            let _ = whole.remove_if(&key, |_, known| Arc::ptr_eq(known, holders));
        }
    }

    /// Returns the chunks of a chunked file in use, if they are in memory.
    pub(crate) fn chunks(&self, key: &NodeKey) -> Option<Arc<[Chunk]>> {
        self.chunked.pin().get(key)?.chunks.clone()
    }

    /// Returns the chunked files in use whose chunks are not in memory.
    pub(crate) fn without_chunks(&self) -> Vec<Node> {
        let chunked = self.chunked.pin();
        chunked.values().filter(|file| file.chunks.is_none()).map(|file| file.node).collect()
    }

    /// Keeps the chunks of a file in memory as long as it is in use.
    pub(crate) fn keep_chunks(&self, key: &NodeKey, chunks: &Arc<[Chunk]>) {
        self.chunked
            .pin()
            .update(*key, |file| ChunkedFile { chunks: Some(Arc::clone(chunks)), ..file.clone() });
    }

    /// Returns, for each object, the files in use of which it is a part.
    pub(crate) fn holders(&self, objects: &[CacheKey]) -> Vec<Vec<Node>> {
        let whole = self.whole.pin();
        let mut found: Vec<Vec<Node>> = objects
            .iter()
            .map(|key| {
                let files = whole.get(key).map(|holders| holders.0.lock());
                files.map_or_else(Vec::new, |files| files.files.values().map(|(node, _)| *node).collect())
            })
            .collect();
        if self.chunked.is_empty() {
            return found;
        }
        let places: HashMap<&CacheKey, usize> =
            objects.iter().enumerate().map(|(at, key)| (key, at)).collect();
        for file in self.chunked.pin().values() {
            let compression = NodeInfo::of(&file.node).ok().and_then(|info| info.compression);
            let (Some(chunks), Some(compression)) = (&file.chunks, compression) else { continue };
            for chunk in chunks.iter() {
                let key = CacheKey { hash: chunk.hash, compression };
                if let Some(files) = places.get(&key).and_then(|at| found.get_mut(*at)) {
                    files.push(file.node);
                }
            }
        }
        found
    }

    /// Waits until `done` returns true, checking after each release; returns false at the deadline.
    pub(crate) fn wait_released(&self, deadline: Instant, done: impl Fn(&Self) -> bool) -> bool {
        self.released.waiting.fetch_add(1, Ordering::SeqCst);
        let mut turn = self.released.turn.lock();
        let mut finished = done(self);
        while !finished && !self.released.changed.wait_until(&mut turn, deadline).timed_out() {
            finished = done(self);
        }
        drop(turn);
        self.released.waiting.fetch_sub(1, Ordering::SeqCst);
        finished || done(self)
    }

    /// Returns the number of files in use, without a look at each. It may be off by those that come or leave meanwhile.
    pub(crate) fn len(&self) -> usize {
        let left = self.left.value();
        let whole = self.came.value().saturating_sub(left);
        usize::try_from(whole).unwrap_or(usize::MAX).saturating_add(self.chunked.len())
    }
}

enum Part {
    Whole(CacheKey),
    Chunked,
}

/// Returns the kind of a file's content; `None` if it needs nothing from the cache.
fn part(node: &Node) -> Option<Part> {
    let info = NodeInfo::of(node).ok()?;
    if node.kind != Kind::File || info.size == 0 {
        return None;
    }
    if info.chunked {
        return Some(Part::Chunked);
    }
    Some(Part::Whole(CacheKey { hash: info.content?, compression: info.compression? }))
}
