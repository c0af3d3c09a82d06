//! Whoever wants to know what is read.

use std::ops::Range;

use esker_vfs::Node;

/// Hears of every read that reaches a view. Reads that the kernel answers from its own memory don't.
pub trait Observer: Send + Sync {
    /// A program reads these bytes of a file of this size. Called before they are looked for; must not wait.
    fn read(&self, file: &Node, size: u64, range: Range<u64>);
}
