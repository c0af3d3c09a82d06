//! Memory that may outlive the daemon, for a process that takes over.
//!
//! One memory file, mapped sparsely. A process that takes over the file and the connection's descriptors
//! has all it needs to go on serving:
//!
//! ```text
//! 0            header        magic, version, geometry, the negotiated INIT
//! 64 KiB       slot states   4 bytes a slot: 0 free, otherwise its channel and the length of the request
//!              slots         8 KiB each: a request as the kernel wrote it, until it is answered
//!              nodes         256 bytes each: nodes the kernel knows; the file grows as they are used
//! ```
//!
//! Free lists and indexes are not in it; they are rebuilt from the states. It contains no pointers.
//! Everything but the slots is atomics; a slot has one owner at a time.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::mem::size_of;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::{Condvar, Mutex};
use rustix::fs::{FallocateFlags, MemfdFlags};

use crate::abi;
use crate::sys::{Buffer, Buffers, Mapping, read_plain};

const MAGIC: u64 = u64::from_le_bytes(*b"eskrfuse");
/// Layout of the file; a process takes over memory of its own layout only.
pub const VERSION: u32 = 2;
const HEADER_LEN: usize = 64 << 10;
/// Size of a request's slot in bytes: the minimum `max_write` that the kernel accepts, and headers.
pub(crate) const SLOT_LEN: usize = 8192;
const _: () = assert!(SLOT_LEN >= abi::MIN_READ_BUFFER && SLOT_LEN >= 40 + 40 + MAX_WRITE as usize);
/// Bits of a slot's state for the length; those above have the number of the channel.
const LENGTH_BITS: u32 = 16;
const LENGTH_MASK: u32 = (1 << LENGTH_BITS) - 1;
/// Stands for a length in the state of a slot into which the kernel may be writing a request.
const READING: u32 = LENGTH_MASK;
const _: () = assert!(SLOT_LEN < READING as usize);
/// Maximum size of a WRITE, which trees never receive; the kernel takes no less than this.
pub(crate) const MAX_WRITE: u32 = 4096;

/// Maximum number of requests in flight: more than the kernel's `max_background` (65,535), so that only as many
/// waiting threads could exhaust them.
const SLOTS: usize = 1 << 17;
const SLOTS_MIN: usize = 1 << 12;
/// Number of slots whose memory is kept when they are freed; the memory of others is returned to the system.
const KEPT_SLOTS: u32 = 1 << 10;
/// Maximum number of nodes. A kernel inode takes about a KiB, so memory ends first.
const NODES: usize = 1 << 26;
const NODES_MIN: usize = 1 << 12;
/// Divisor of the remaining address space: the shared memory takes at most this part, and leaves the rest for
/// stacks and heaps.
const ROOM: usize = 4;
/// Number of nodes by which the file grows.
const NODES_STEP: usize = 1 << 14;

/// Number of workers with a spare slot of their own; further ones share them.
const SPARES: usize = 64;

/// Index plus one of the free slot that one worker takes next without a lock; 0 for none. One more than its
/// index, or 0; on a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Spare(AtomicU32);

impl Spare {
    fn put(&self, index: u32) -> Option<u32> {
        // Sequentially consistent with the count of waiting workers.
        self.0.swap(index + 1, Ordering::SeqCst).checked_sub(1)
    }

    fn take(&self) -> Option<u32> {
        self.0.swap(0, Ordering::SeqCst).checked_sub(1)
    }
}

/// Header of the shared memory.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    slots: AtomicU32,
    nodes: AtomicU64,
    /// Node cells used at least once.
    pub(crate) nodes_used: AtomicU64,
    /// Negotiated minor version of INIT.
    pub(crate) minor: AtomicU32,
    pub(crate) max_pages: AtomicU32,
    pub(crate) flags: AtomicU64,
}

/// Persistent state of one node. See [`crate::nodes`] for the rules of writing.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct NodeCell {
    pub(crate) lookups: AtomicU64,
    pub(crate) generation: AtomicU32,
    pub(crate) attr_sequence: AtomicU32,
    pub(crate) node: [AtomicU64; 16],
    pub(crate) attr: [AtomicU64; 7],
    /// Directory of the node's last reply, 0 if none.
    pub(crate) dir: AtomicU64,
    reserved: [AtomicU64; 6],
}

const _: () = assert!(size_of::<NodeCell>() == 256);

#[derive(Clone, Copy, Debug)]
struct Geometry {
    slots: usize,
    nodes: usize,
}

impl Geometry {
    const fn states_at(self) -> usize {
        HEADER_LEN
    }
    const fn slots_at(self) -> usize {
        // Slots begin on a boundary of their own size, whatever the page size.
        (HEADER_LEN + self.slots * size_of::<AtomicU32>()).next_multiple_of(HEADER_LEN)
    }
    const fn nodes_at(self) -> usize {
        self.slots_at() + self.slots * SLOT_LEN
    }
    const fn end(self) -> usize {
        self.nodes_at() + self.nodes * size_of::<NodeCell>()
    }
}

/// The shared memory and its free slots.
#[derive(Debug)]
pub(crate) struct SharedMemory {
    file: OwnedFd,
    mapping: Arc<Mapping>,
    buffers: Arc<Buffers>,
    geometry: Geometry,
    /// Free slots, of which the lowest is used first, so that few are ever touched.
    free: Mutex<BinaryHeap<Reverse<u32>>>,
    freed: Condvar,
    /// Number of workers that wait for `freed`.
    waiting: AtomicUsize,
    /// Free slots that each worker used last.
    spares: Box<[Spare]>,
    /// Number of node cells that the file has room for.
    nodes_backed: Mutex<usize>,
}

impl SharedMemory {
    /// Makes new memory. Where address space is limited it reserves less and serves fewer nodes.
    pub(crate) fn new() -> io::Result<Self> {
        let file = rustix::fs::memfd_create(c"esker-fuse", MemfdFlags::CLOEXEC)?;
        let mut geometry = Geometry { slots: SLOTS, nodes: NODES };
        let mapping = loop {
            // Tried first: room for itself and for all the others. It goes again at once.
            let roomy = Mapping::new(&file, ROOM * geometry.end()).map(drop);
            match roomy.and_then(|()| Mapping::new(&file, geometry.end())) {
                Ok(mapping) => break mapping,
                Err(e) if e.raw_os_error() == Some(libc::ENOMEM) && geometry.nodes > NODES_MIN => {
                    geometry.nodes /= 2;
                    geometry.slots = (geometry.slots / 2).max(SLOTS_MIN);
                }
                Err(e) => return Err(e),
            }
        };
        rustix::fs::ftruncate(&file, geometry.nodes_at() as u64)?;
        let memory = Self::assemble(file, mapping, geometry, 0);
        let header = memory.header();
        header.magic.store(MAGIC, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        header.slots.store(geometry.slots as u32, Ordering::Relaxed);
        header.nodes.store(geometry.nodes as u64, Ordering::Relaxed);
        Ok(memory)
    }

    /// Attaches the memory of a previous process. Requests it was serving keep their slots.
    pub(crate) fn attach(file: OwnedFd) -> io::Result<Self> {
        let invalid = |why| io::Error::new(io::ErrorKind::InvalidData, why);
        let len = usize::try_from(rustix::fs::fstat(&file)?.st_size).map_err(io::Error::other)?;
        if len < HEADER_LEN {
            return Err(invalid("too short for an arena"));
        }
        let head = Mapping::new(&file, HEADER_LEN)?;
        let header = &head.cells::<Header>(0, 1)[0];
        if header.magic.load(Ordering::Relaxed) != MAGIC || header.version.load(Ordering::Relaxed) != VERSION
        {
            return Err(invalid("not an arena of this version"));
        }
        let slots = header.slots.load(Ordering::Relaxed) as usize;
        let nodes = header.nodes.load(Ordering::Relaxed) as usize;
        let used = header.nodes_used.load(Ordering::Relaxed) as usize;
        if slots > SLOTS || nodes > NODES || used > nodes {
            return Err(invalid("an arena of impossible size"));
        }
        let geometry = Geometry { slots, nodes };
        let backed = len.saturating_sub(geometry.nodes_at()) / size_of::<NodeCell>();
        if len < geometry.nodes_at() || backed < used {
            return Err(invalid("an arena shorter than it says"));
        }
        let mapping = Mapping::new(&file, geometry.end())?;
        Ok(Self::assemble(file, mapping, geometry, backed))
    }

    fn assemble(file: OwnedFd, mapping: Mapping, geometry: Geometry, backed: usize) -> Self {
        let mapping = Arc::new(mapping);
        let buffers = Buffers::new(Arc::clone(&mapping), geometry.slots_at(), SLOT_LEN, geometry.slots);
        let states = mapping.cells::<AtomicU32>(geometry.states_at(), geometry.slots);
        let free = (0..geometry.slots as u32)
            .filter(|&i| states.get(i as usize).is_some_and(|s| s.load(Ordering::Relaxed) == 0))
            .map(Reverse)
            .collect();
        Self {
            file,
            mapping,
            buffers,
            geometry,
            free: Mutex::new(free),
            freed: Condvar::new(),
            waiting: AtomicUsize::new(0),
            spares: (0..SPARES).map(|_| Spare::default()).collect(),
            nodes_backed: Mutex::new(backed),
        }
    }

    /// Returns the memory file, for a process that takes over.
    pub(crate) fn file(&self) -> &OwnedFd {
        &self.file
    }

    pub(crate) fn header(&self) -> &Header {
        &self.mapping.cells::<Header>(0, 1)[0]
    }

    /// Returns the node cells in use; only these may be accessed.
    pub(crate) fn nodes(&self) -> &[NodeCell] {
        let used = self.header().nodes_used.load(Ordering::Acquire) as usize;
        self.mapping.cells(self.geometry.nodes_at(), used.min(self.geometry.nodes))
    }

    /// Reserves up to `want` new node cells; an empty range if there is no room left.
    pub(crate) fn more_nodes(&self, want: usize) -> io::Result<std::ops::Range<u32>> {
        let mut backed = self.nodes_backed.lock();
        let used = self.header().nodes_used.load(Ordering::Relaxed) as usize;
        let until = used.saturating_add(want).min(self.geometry.nodes);
        if until > *backed {
            let grown = (*backed + NODES_STEP).max(until).min(self.geometry.nodes);
            let len = self.geometry.nodes_at() + grown * size_of::<NodeCell>();
            rustix::fs::ftruncate(&self.file, len as u64)?;
            *backed = grown;
        }
        self.header().nodes_used.store(until as u64, Ordering::Release);
        Ok(used as u32..until as u32)
    }

    /// Takes a slot for the next request of a worker; waits while all are taken.
    pub(crate) fn slot(self: &Arc<Self>, worker: usize) -> Slot {
        let worker = worker % SPARES;
        let index = self.spares[worker].take().unwrap_or_else(|| self.next_free());
        let buffer = self.buffers.take(index as usize).expect("free: no other thread has its index");
        let buffer = Some(buffer);
        Slot { memory: Arc::clone(self), worker, index, buffer, len: 0 }
    }

    /// Takes the slots with requests that a previous process has read and not answered, each with the number of the
    /// channel that it was read from. To be called once, before any other slot is taken.
    pub(crate) fn left_over(self: &Arc<Self>) -> Vec<(Slot, usize)> {
        let mut found = Vec::new();
        for index in 0..self.geometry.slots as u32 {
            let state = self.state(index).load(Ordering::Acquire);
            if state == 0 {
                continue;
            }
            let Some(buffer) = self.buffers.take(index as usize) else { continue };
            let worker = index as usize % SPARES;
            let mut slot =
                Slot { memory: Arc::clone(self), worker, index, buffer: Some(buffer), len: SLOT_LEN };
            // The kernel writes a request whole or not at all, and its header says how long it is.
            let header = read_plain::<abi::InHeader>(slot.request()).unwrap_or_default();
            slot.len = match (state & LENGTH_MASK, header.len as usize) {
                (READING, len)
                    if header.unique != 0 && (size_of::<abi::InHeader>()..=SLOT_LEN).contains(&len) =>
                {
                    len
                }
                // Dropping the slot frees it.
                (READING, _) => continue,
                (len, _) => (len as usize).min(SLOT_LEN),
            };
            found.push((slot, (state >> LENGTH_BITS) as usize));
        }
        found
    }

    fn next_free(&self) -> u32 {
        let mut free = self.free.lock();
        if let Some(Reverse(index)) = free.pop() {
            return index;
        }
        // A thread that frees a slot from now on sees this count, or this thread sees the slot among the spares.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let index = loop {
            let listed = free.pop().map(|Reverse(index)| index);
            if let Some(index) = listed.or_else(|| self.spares.iter().find_map(Spare::take)) {
                break index;
            }
            self.freed.wait(&mut free);
        };
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        index
    }

    fn put_back(&self, worker: usize, index: u32) {
        let mut listed = Some(index);
        if index < KEPT_SLOTS {
            let spare = &self.spares[worker];
            listed = spare.put(index);
            if listed.is_none() && self.waiting.load(Ordering::SeqCst) > 0 {
                listed = spare.take();
            }
        }
        if let Some(index) = listed {
            self.free.lock().push(Reverse(index));
            self.freed.notify_one();
        }
    }

    /// Returns the number of free slots.
    pub(crate) fn free_slots(&self) -> usize {
        let spare = self.spares.iter().filter(|spare| spare.0.load(Ordering::Relaxed) != 0).count();
        self.free.lock().len() + spare
    }

    fn discard(&self, index: u32) {
        let at = self.geometry.slots_at() + index as usize * SLOT_LEN;
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // Memory that can't be given back (larger pages) is reused later.
        let _ = rustix::fs::fallocate(&self.file, hole, at as u64, SLOT_LEN as u64);
    }

    fn state(&self, index: u32) -> &AtomicU32 {
        let at = self.geometry.states_at() + index as usize * size_of::<AtomicU32>();
        &self.mapping.cells(at, 1)[0]
    }
}

/// Slot of one request in the shared memory, from before it is read until the reply.
#[derive(Debug)]
pub(crate) struct Slot {
    memory: Arc<SharedMemory>,
    worker: usize,
    index: u32,
    /// Buffer of the slot; none only while the slot is dropped.
    buffer: Option<Buffer>,
    len: usize,
}

impl Slot {
    /// Fills the slot by `read` from the channel of this number, so that a successor knows the request at any moment
    /// from the one on at which the kernel has written it.
    pub(crate) fn fill(
        &mut self,
        channel: usize,
        read: impl FnOnce(&mut [u8]) -> io::Result<usize>,
    ) -> io::Result<()> {
        let buffer = self.buffer.as_mut().map_or(&mut [][..], Buffer::bytes_mut);
        // The number of an earlier request must not count as that of this one. The page is mapped by this, too: the
        // kernel would drop a request that it can't write because the process is being killed.
        if let Some(header) = buffer.get_mut(..size_of::<abi::InHeader>()) {
            header.fill(0);
        }
        let state = self.memory.state(self.index);
        let channel = (channel as u32) << LENGTH_BITS;
        state.store(channel | READING, Ordering::Release);
        self.len = read(buffer)?.min(SLOT_LEN);
        state.store(channel | self.len as u32, Ordering::Release);
        Ok(())
    }

    /// Records that the request must not be served again, whether or not this process gets to serve it.
    pub(crate) fn serve_once(&self) {
        self.memory.state(self.index).store(0, Ordering::SeqCst);
    }

    /// Returns the request.
    pub(crate) fn request(&self) -> &[u8] {
        self.buffer.as_ref().and_then(|b| b.bytes().get(..self.len)).unwrap_or_default()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.memory.state(self.index).store(0, Ordering::Release);
        self.buffer = None;
        if self.index >= KEPT_SLOTS {
            self.memory.discard(self.index);
        }
        self.memory.put_back(self.worker, self.index);
    }
}
