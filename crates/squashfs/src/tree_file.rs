//! An image that is a file of a tree, as of a repository, read on demand.

use std::io;
use std::sync::Arc;
use std::time::Instant;

use esker_threads::waits::{self, WaitTimes};
use esker_vfs::{Node, Pending, Progress, Reply, Requester, Tree, Waits};
use parking_lot::Mutex;

use crate::image::Image;

/// A file of a tree that doesn't change.
pub struct TreeFile<K> {
    tree: Arc<dyn Tree>,
    node: Node,
    name: Arc<str>,
    offset: u64,
    len: u64,
    reads: Reads,
    /// Owner of the tree, dropped with the image.
    _owner: K,
}

impl<K> TreeFile<K> {
    /// Creates the image that begins at `offset` of the file `node`, which has `size` bytes; `None` if it has fewer than
    /// `offset`. The image keeps `owner` alive.
    pub fn new(
        tree: Arc<dyn Tree>,
        node: Node,
        size: u64,
        offset: u64,
        name: &str,
        owner: K,
    ) -> Option<Self> {
        let len = size.checked_sub(offset)?;
        Some(Self { tree, node, name: name.into(), offset, len, reads: Reads::default(), _owner: owner })
    }
}

impl<K: Send + Sync + 'static> Image for TreeFile<K> {
    fn name(&self) -> Arc<str> {
        self.name.clone()
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while let Some(room) = buffer.get_mut(filled..).filter(|room| !room.is_empty()) {
            let at = self.offset.saturating_add(offset).saturating_add(filled as u64);
            let read = Arc::new(Read::default());
            self.reads.begin(&read);
            let (requester, began) = (Requester::new(read.clone()), Instant::now());
            let data = Reply::wait(|reply| {
                self.tree.read(&self.node, at, room.len(), reply.for_requester(requester));
            });
            self.reads.end(&read);
            waits::add_to_tally(read.waits().within(began.elapsed()));
            let bytes = data.map_err(io::Error::other)?.to_vec()?;
            let there = room.get_mut(..bytes.len()).filter(|there| !there.is_empty());
            there.ok_or(io::ErrorKind::UnexpectedEof)?.copy_from_slice(&bytes);
            filled += bytes.len();
        }
        Ok(())
    }

    fn progress(&self) -> Option<Instant> {
        self.reads.progress()
    }
}

/// Reads of the image file that are in flight.
#[derive(Default)]
struct Reads(Mutex<UnderWay>);

#[derive(Default)]
struct UnderWay {
    reads: Vec<Arc<Read>>,
    /// Latest progress of the completed transfers.
    before: Option<Instant>,
}

/// An object, and the progress of the transfers that it waits for.
#[derive(Default)]
struct Read(Mutex<(Vec<Progress>, Vec<Waits>)>);

impl Pending for Read {
    fn user(&self) -> Option<u32> {
        None
    }

    fn follow(&self, progress: Progress) {
        self.0.lock().0.push(progress);
    }

    fn add_waits(&self, waits: Waits) {
        self.0.lock().1.push(waits);
    }
}

impl Read {
    fn progress(&self) -> Option<Instant> {
        let followed = self.0.lock();
        followed.0.iter().filter_map(|progress| progress()).max()
    }

    fn waits(&self) -> WaitTimes {
        let followed = self.0.lock();
        followed.1.iter().fold(WaitTimes::default(), |all, waits| all + waits())
    }
}

impl Reads {
    fn begin(&self, read: &Arc<Read>) {
        self.0.lock().reads.push(read.clone());
    }

    fn end(&self, read: &Arc<Read>) {
        let last = read.progress();
        let mut all = self.0.lock();
        all.before = all.before.max(last);
        all.reads.retain(|other| !Arc::ptr_eq(other, read));
    }

    fn progress(&self) -> Option<Instant> {
        let all = self.0.lock();
        all.reads.iter().filter_map(|read| read.progress()).chain(all.before).max()
    }
}
