//! Reports reads to an observer.

use std::ops::Range;

use esker_vfs::Node;

/// Receives every read of a view. Reads that the kernel answers from its page cache are not seen.
pub trait Observer: Send + Sync {
    /// Called before the range of a file of this size is read; must not block.
    fn read(&self, file: &Node, size: u64, range: Range<u64>);
}
