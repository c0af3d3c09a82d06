//! Memory that the host of a virtual machine leaves in place.
//!
//! Some hosts take back what a guest reports as free ("free page reporting"), in blocks of 2 MiB and more, and give it again
//! page by page when it is touched. On ours that is 4 s a gigabyte, where zeroing takes a tenth: after the page cache was
//! dropped, much of what a cold run spends would be the host's. A block of which one page is in use is not reported.

use std::io;

use crate::sys::Scattered;

/// What is reported, and taken back, at least.
const BLOCK: usize = 2 << 20;

/// Memory held so until this is dropped.
#[derive(Debug)]
pub struct Backing {
    _blocks: Scattered,
}

impl Backing {
    /// Has the host give so much memory, at least 2 MiB, and keeps a page of every 2 MiB of it in use.
    pub fn of(bytes: u64) -> io::Result<Self> {
        let blocks = usize::try_from(bytes).unwrap_or(usize::MAX) / BLOCK;
        Scattered::of(blocks, BLOCK).map(|blocks| Self { _blocks: blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_of_each_block_stays_in_use() {
        // More than one pipe takes.
        let backing = Backing::of(600 << 20).unwrap();
        assert_eq!(backing._blocks.pages().unwrap(), 300);
    }
}
