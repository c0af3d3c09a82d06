//! The nodes the kernel knows: slots in the shared memory, found by number or by key.
//!
//! A *nodeid* is the number of a slot and, in the upper half, how often the slot was used before; the root
//! is 1. It is never a hash, so it never collides, and a forgotten number never names another node.
//!
//! A slot belongs to its node while `lookups`, the kernel's lookup count, is above zero.
//! The rules that make LOOKUP and FORGET on many threads correct:
//!
//! * 0 → 1 and the release of a slot happen under the key's shard lock; so do `Tree::hold` and `Tree::release`,
//!   which therefore alternate strictly for one key.
//! * n → n+1 for n > 0 takes no lock: a lookup of a known node never waits.
//! * The thread that reaches 0 takes the lock and checks again: a lookup may have revived the slot meanwhile.
//! * A slot's node is written while it is free and not in the index, and never changed while it is in use.

use std::hash::BuildHasher;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use esker_vfs::{Attr, Device, Ino, Kind, Node, NodeKey, NodeWithAttr, PAYLOAD_LEN, Payload, Time, Tree};
use foldhash::fast::RandomState;
use parking_lot::Mutex;

use crate::abi;
use crate::shared_memory::{NodeCell, SharedMemory};

/// The kernel's number of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NodeId(pub(crate) u64);

impl NodeId {
    pub(crate) const ROOT: Self = Self(abi::ROOT_ID);

    const fn new(slot: u32, generation: u32) -> Self {
        Self(slot as u64 | (generation as u64) << 32)
    }
    const fn slot(self) -> u32 {
        self.0 as u32
    }
    const fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// Result of forgetting a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Forgotten {
    /// The kernel has forgotten the node.
    Gone,
    /// The kernel still knows the node.
    Known,
    /// The kernel holds fewer lookups of the node than it forgot.
    Impossible,
}

/// Number of shards: enough that threads that create nodes rarely meet.
const SHARDS: usize = 256;
/// Number of cells that a shard takes from the shared memory at a time.
const BATCH: usize = 32;

/// Table of the nodes that the kernel knows. `hold` and `release` of the tree are called from inside, under a
/// shard lock: they must be quick and must not come back.
pub(crate) struct NodeTable {
    memory: Arc<SharedMemory>,
    tree: Arc<dyn Tree>,
    index: papaya::HashMap<NodeKey, u32, RandomState>,
    hasher: RandomState,
    /// Free slots, by shard; the lock also guards creation and release of a node.
    shards: Box<[Mutex<Vec<u32>>]>,
    live: AtomicU64,
}

impl NodeTable {
    /// Returns the memory of the table.
    pub(crate) fn memory(&self) -> &Arc<SharedMemory> {
        &self.memory
    }

    /// Creates a table over new shared memory, or over that of a previous process.
    pub(crate) fn new(memory: Arc<SharedMemory>, tree: Arc<dyn Tree>) -> std::io::Result<Self> {
        let shards = (0..SHARDS).map(|_| Mutex::new(Vec::new())).collect();
        let table = Self {
            memory,
            tree,
            index: papaya::HashMap::with_hasher(RandomState::default()),
            hasher: RandomState::default(),
            shards,
            live: AtomicU64::new(0),
        };
        let is_inherited = !table.memory.nodes().is_empty();
        if !is_inherited {
            table.plant_root()?;
        }
        table.rebuild(is_inherited);
        Ok(table)
    }

    fn plant_root(&self) -> std::io::Result<()> {
        // Slot 0 stays unused: 0 means "no node" to the kernel.
        self.memory.more_nodes(2)?;
        let root = self.tree.root();
        self.tree.hold(&root.node);
        if let Some(cell) = self.cell(NodeId::ROOT) {
            write_node(cell, &root.node);
            write_attr(cell, &root.attr);
            // The kernel is born knowing the root and never forgets it.
            cell.lookups.store(1, Ordering::Release);
        }
        Ok(())
    }

    /// Builds the index and the free lists. Nodes of a previous process are held again, and repaired where it was
    /// killed while it changed them.
    fn rebuild(&self, is_inherited: bool) {
        let index = self.index.pin();
        for (slot, cell) in self.memory.nodes().iter().enumerate().skip(1) {
            let slot = slot as u32;
            if is_inherited {
                repair(cell);
            }
            if cell.lookups.load(Ordering::Acquire) == 0 {
                self.shards[slot as usize % SHARDS].lock().push(slot);
                continue;
            }
            index.insert(read_key(cell), slot);
            self.live.fetch_add(1, Ordering::Relaxed);
            if is_inherited && let Some(node) = read_node(cell) {
                self.tree.hold(&node);
            }
        }
    }

    fn shard(&self, key: &NodeKey) -> &Mutex<Vec<u32>> {
        &self.shards[self.hasher.hash_one(key) as usize % SHARDS]
    }

    fn cell(&self, id: NodeId) -> Option<&NodeCell> {
        self.memory.nodes().get(id.slot() as usize)
    }

    /// Counts one more lookup of a node as a name in `dir`; returns its number, or `None` if the table is full.
    /// `None` if there is no room for another node.
    pub(crate) fn intern(&self, found: &NodeWithAttr, dir: Option<NodeId>) -> Option<NodeId> {
        let key = found.node.key;
        let known = self.index.pin().get(&key).copied();
        if let Some(id) = known.and_then(|slot| self.count_up(slot, &key)) {
            self.note(id, found, dir);
            return Some(id);
        }
        let mut free = self.shard(&key).lock();
        if let Some(&slot) = self.index.pin().get(&key) {
            let cell = self.memory.nodes().get(slot as usize)?;
            // It may be at 0 with its last forgetter waiting for this lock; that one will see it revived.
            cell.lookups.fetch_add(1, Ordering::AcqRel);
            let id = NodeId::new(slot, cell.generation.load(Ordering::Acquire));
            drop(free);
            self.note(id, found, dir);
            return Some(id);
        }
        if free.is_empty() {
            free.extend(self.memory.more_nodes(BATCH).ok()?.rev());
        }
        let slot = *free.last()?;
        let cell = self.memory.nodes().get(slot as usize)?;
        self.tree.hold(&found.node);
        free.pop();
        write_node(cell, &found.node);
        write_attr(cell, &found.attr);
        cell.dir.store(dir.map_or(0, |dir| dir.0), Ordering::SeqCst);
        let generation = cell.generation.load(Ordering::Acquire);
        cell.lookups.store(1, Ordering::Release);
        self.index.pin().insert(key, slot);
        self.live.fetch_add(1, Ordering::Relaxed);
        Some(NodeId::new(slot, generation))
    }

    fn note(&self, id: NodeId, found: &NodeWithAttr, dir: Option<NodeId>) {
        self.remember(id, &found.attr);
        if let (Some(cell), Some(dir)) = (self.cell(id), dir) {
            cell.dir.store(dir.0, Ordering::SeqCst);
        }
    }

    /// Returns the directory of the node's last reply.
    pub(crate) fn dir_of(&self, id: NodeId) -> Option<NodeId> {
        let dir = self.cell(id)?.dir.load(Ordering::SeqCst);
        (dir != 0).then_some(NodeId(dir))
    }

    fn count_up(&self, slot: u32, key: &NodeKey) -> Option<NodeId> {
        let cell = self.memory.nodes().get(slot as usize)?;
        let up = |n: u64| (n > 0).then(|| n + 1);
        cell.lookups.fetch_update(Ordering::AcqRel, Ordering::Acquire, up).ok()?;
        let id = NodeId::new(slot, cell.generation.load(Ordering::Acquire));
        if read_key(cell) == *key {
            return Some(id);
        }
        // The slot changed hands between the index and here.
        self.forget(id, 1);
        None
    }

    /// Subtracts `count` lookups of `id`.
    pub(crate) fn forget(&self, id: NodeId, count: u64) -> Forgotten {
        let Some(cell) = self.cell(id) else { return Forgotten::Impossible };
        if cell.generation.load(Ordering::Acquire) != id.generation() {
            return Forgotten::Impossible;
        }
        let key = read_key(cell);
        let down = |n: u64| n.checked_sub(count).filter(|_| n > 0);
        match cell.lookups.fetch_update(Ordering::AcqRel, Ordering::Acquire, down) {
            Ok(before) if before == count && self.bury(id, cell, &key) => Forgotten::Gone,
            Ok(_) => Forgotten::Known,
            Err(_) => Forgotten::Impossible,
        }
    }

    fn bury(&self, id: NodeId, cell: &NodeCell, key: &NodeKey) -> bool {
        let mut free = self.shard(key).lock();
        let same = cell.generation.load(Ordering::Acquire) == id.generation();
        if !same || cell.lookups.load(Ordering::Acquire) != 0 {
            return false;
        }
        let node = read_node(cell);
        self.index.pin().remove(key);
        cell.generation.store(id.generation().wrapping_add(1), Ordering::Release);
        free.push(id.slot());
        self.live.fetch_sub(1, Ordering::Relaxed);
        if let Some(node) = node {
            self.tree.release(&node);
        }
        true
    }

    /// Returns the node of an id that the kernel holds.
    pub(crate) fn node(&self, id: NodeId) -> Option<Node> {
        let cell = self.cell(id)?;
        let node = read_node(cell)?;
        let live = cell.lookups.load(Ordering::Acquire) > 0;
        (live && cell.generation.load(Ordering::Acquire) == id.generation()).then_some(node)
    }

    /// Returns the attributes last sent to the kernel.
    pub(crate) fn attr(&self, id: NodeId) -> Option<Attr> {
        read_attr(self.cell(id)?)
    }

    /// Records the attributes that are about to be sent to the kernel.
    pub(crate) fn remember(&self, id: NodeId, attr: &Attr) {
        if let Some(cell) = self.cell(id)
            && read_attr(cell).as_ref() != Some(attr)
        {
            write_attr(cell, attr);
        }
    }

    /// Returns the id of a node, if the kernel knows it.
    pub(crate) fn id_of(&self, key: &NodeKey) -> Option<NodeId> {
        let slot = *self.index.pin().get(key)?;
        let cell = self.memory.nodes().get(slot as usize)?;
        let id = NodeId::new(slot, cell.generation.load(Ordering::Acquire));
        (read_key(cell) == *key).then_some(id)
    }

    /// Calls a function for every node that the kernel knows at some moment during the call.
    pub(crate) fn each(&self, mut visit: impl FnMut(NodeId, &Node)) {
        for (slot, cell) in self.memory.nodes().iter().enumerate().skip(1) {
            let id = NodeId::new(slot as u32, cell.generation.load(Ordering::Acquire));
            if let Some(node) = self.node(id) {
                visit(id, &node);
            }
        }
    }

    /// Releases all nodes, because the mount is gone.
    pub(crate) fn release_all(&self) {
        let mut known = Vec::new();
        self.each(|id, _| known.push(id));
        for id in known {
            let Some(cell) = self.cell(id) else { continue };
            let key = read_key(cell);
            cell.lookups.store(0, Ordering::Release);
            self.bury(id, cell, &key);
        }
    }

    /// Returns the number of nodes that the kernel knows.
    pub(crate) fn len(&self) -> u64 {
        self.live.load(Ordering::Relaxed)
    }
}

/// Completes what a killed process left half done in a cell.
fn repair(cell: &NodeCell) {
    if cell.lookups.load(Ordering::Acquire) == 0 {
        // It may have released the node, and not yet changed the number.
        cell.generation.fetch_add(1, Ordering::AcqRel);
    }
    if cell.attr_sequence.load(Ordering::Acquire) & 1 == 1 {
        // Half of these attributes may be old: no kind has this number, so there are none.
        cell.attr[3].store(u64::MAX, Ordering::Relaxed);
        cell.attr_sequence.fetch_add(1, Ordering::AcqRel);
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |b| u64::from_le_bytes(*b))
}

fn read_key(cell: &NodeCell) -> NodeKey {
    let mut key = [0; 16];
    for (chunk, word) in key.chunks_exact_mut(8).zip(&cell.node) {
        chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
    NodeKey(key)
}

fn write_node(cell: &NodeCell, node: &Node) {
    let key = node.key.0.chunks_exact(8).map(word);
    let payload = node.payload.0.chunks_exact(8).map(word);
    let words = key.chain([node.ino.0]).chain(payload).chain([node.kind as u64]);
    for (at, word) in cell.node.iter().zip(words) {
        at.store(word, Ordering::Relaxed);
    }
}

fn read_node(cell: &NodeCell) -> Option<Node> {
    const { assert!(PAYLOAD_LEN == 12 * 8) };
    let mut payload = [0; PAYLOAD_LEN];
    for (chunk, word) in payload.chunks_exact_mut(8).zip(cell.node.iter().skip(3)) {
        chunk.copy_from_slice(&word.load(Ordering::Relaxed).to_le_bytes());
    }
    let kind = kind_of(cell.node[15].load(Ordering::Relaxed))?;
    let ino = Ino(cell.node[2].load(Ordering::Relaxed));
    Some(Node { key: read_key(cell), ino, payload: Payload(payload), kind })
}

pub(crate) fn kind_of(number: u64) -> Option<Kind> {
    [
        Kind::Directory,
        Kind::File,
        Kind::Symlink,
        Kind::Fifo,
        Kind::Socket,
        Kind::CharDevice,
        Kind::BlockDevice,
    ]
    .into_iter()
    .find(|&k| k as u64 == number)
}

fn write_attr(cell: &NodeCell, attr: &Attr) {
    let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
    let words = [
        attr.ino.0,
        attr.size,
        attr.mtime.secs.cast_unsigned(),
        pair(attr.mtime.nanos, u32::from(attr.permissions) | (attr.kind as u32) << 16),
        pair(attr.nlink, attr.uid),
        pair(attr.gid, attr.rdev.major),
        u64::from(attr.rdev.minor),
    ];
    // A sequence lock: odd during a write. Attributes of a node change with a revision at most.
    let sequence = loop {
        let now = cell.attr_sequence.load(Ordering::Acquire);
        let odd = now.wrapping_add(1);
        if now & 1 == 0
            && cell.attr_sequence.compare_exchange(now, odd, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            break odd;
        }
        std::thread::yield_now();
    };
    // A reader that sees one of the words below sees the odd number, too.
    std::sync::atomic::fence(Ordering::Release);
    for (at, word) in cell.attr.iter().zip(words) {
        at.store(word, Ordering::Relaxed);
    }
    cell.attr_sequence.store(sequence.wrapping_add(1), Ordering::Release);
}

fn read_attr(cell: &NodeCell) -> Option<Attr> {
    loop {
        let before = cell.attr_sequence.load(Ordering::Acquire);
        let words: [u64; 7] = std::array::from_fn(|i| cell.attr[i].load(Ordering::Relaxed));
        std::sync::atomic::fence(Ordering::Acquire);
        if before & 1 == 0 && cell.attr_sequence.load(Ordering::Relaxed) == before {
            let low = |word: u64| word as u32;
            let high = |word: u64| (word >> 32) as u32;
            return Some(Attr {
                ino: Ino(words[0]),
                size: words[1],
                mtime: Time { secs: words[2].cast_signed(), nanos: low(words[3]) },
                permissions: high(words[3]) as u16,
                kind: kind_of(u64::from(high(words[3]) >> 16))?,
                nlink: low(words[4]),
                uid: high(words[4]),
                gid: low(words[5]),
                rdev: Device { major: high(words[5]), minor: low(words[6]) },
            });
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests;
